"""slow_proxy.py HOST PORT TO-HOST TO-PORT SECONDS: passes connections on; what the caller sends arrives so many seconds later."""

import asyncio
import sys


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float) -> None:
    """Several chunks may be under way at once, and stay in order."""
    loop = asyncio.get_running_loop()
    try:
        while data := await source.read(65536):
            loop.call_later(seconds, target.write, data)
    except OSError:
        pass
    loop.call_later(seconds + 0.01, target.close)


async def main() -> None:
    host, port, to_host, to_port, seconds = sys.argv[1:]

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(to_host, int(to_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, there[1], float(seconds)), pump(there[0], writer, 0.0))

    async with await asyncio.start_server(connect, host, int(port)) as server:
        await server.serve_forever()


asyncio.run(main())
