"""A controller that leads no longer, but lives: callers must not stay on the connections that they have to it."""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable

import aiohttp

from oci_hook.core.rules import Rules
from oci_hook.kube import mutate
from oci_hook.kube.controller.access import Access, Token
from oci_hook.kube.controller.certificates import Certificates, renewed
from oci_hook.kube.controller.client import Client
from oci_hook.kube.controller.controller import _present
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.keys import Secrets
from oci_hook.kube.controller.metrics import Metrics
from oci_hook.kube.controller.options import Options
from oci_hook.kube.controller.own_secret import Own
from oci_hook.kube.controller.server import Server
from oci_hook.kube.controller.service import Service
from oci_hook.kube.state import ClusterState


def serve(act: Callable[[Server, list[bool], Callable[[], Awaitable[int]]], Awaitable[None]]) -> None:
    """act: gets the server, whether it leads, and what asks it on one connection for as long as that stays."""
    leads = [True]

    async def main() -> None:
        copy = Copy(ClusterState(), None, None, lambda: 0.0)
        client = Client(Access("http://127.0.0.1:1", None, Token("x")))
        options = Options("127.0.0.1", 0, "gpu-hook", ("localhost",))
        words = (client, options, copy, Metrics(), mutate.Options(Rules()), lambda: leads[0], lambda: True)
        service = Service(*words, lambda: 0.0, lambda: None, lambda line: None)
        service.use(Own(secrets=Secrets(((1, b"x" * 32),)), webhook_token="t"))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _present(tls, renewed(Certificates(), ("localhost",), 86_400, time.time()))
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = int(found.getsockname()[1])
        server = Server(service)
        await server.listen("127.0.0.1", port, tls)
        cutting = asyncio.create_task(server.connections.run())
        review = {
            "request": {"uid": "u", "operation": "CREATE", "object": {"metadata": {}, "spec": {"containers": []}}}
        }
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:

                async def ask() -> int:
                    async with session.post(f"https://127.0.0.1:{port}/pods/t", json=review) as answer:
                        await answer.read()
                    return answer.status

                await act(server, leads, ask)
        finally:
            cutting.cancel()
            await server.close()

    asyncio.run(main())


async def none_open(server: Server) -> bool:
    for _ in range(200):
        if not server.connections.open:
            return True
        await asyncio.sleep(0.05)
    return False


def test_who_leads_no_longer_closes_each_connection_with_its_answer() -> None:
    """The API server keeps its connection for as long as calls are answered on it, and the one to a controller that lost the
    Lease would be answered 503 for ever: the Service is asked for an address only when a connection is made."""

    async def act(server: Server, leads: list[bool], ask: Callable[[], Awaitable[int]]) -> None:
        assert await ask() == 200
        first = set(server.connections.open)
        assert await ask() == 200 and set(server.connections.open) == first, "one connection serves all calls"
        leads[0] = False
        assert await ask() == 503
        assert await none_open(server)

    serve(act)


def test_who_leads_no_longer_does_not_wait_for_the_next_call() -> None:
    """So that not even one call is lost to it. A connection that never had a token is not touched before its time."""

    async def act(server: Server, leads: list[bool], ask: Callable[[], Awaitable[int]]) -> None:
        assert await ask() == 200
        await asyncio.sleep(2.5)
        assert len(server.connections.open) == 1, "it stays while we lead"
        leads[0] = False
        assert await none_open(server)
        assert server.connections.cut == 0
        leads[0] = True
        assert await ask() == 200, "the caller comes again"

    serve(act)
