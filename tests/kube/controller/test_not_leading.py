"""A controller that leads no longer, but lives: callers must not stay on the connections that they have to it."""

import asyncio
import socket
import ssl
import time

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


def test_who_leads_no_longer_closes_each_connection_with_its_answer() -> None:
    """The API server keeps its connection for as long as calls are answered on it, and the one to a controller that lost the
    Lease would be answered 503 for ever: the Service is asked for an address only when a connection is made."""
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
        review = {
            "request": {"uid": "u", "operation": "CREATE", "object": {"metadata": {}, "spec": {"containers": []}}}
        }

        async def ask(session: aiohttp.ClientSession) -> tuple[int, set[object]]:
            """(status, connections that there are afterwards)"""
            async with session.post(f"https://127.0.0.1:{port}/pods/t", json=review) as answer:
                await answer.read()
            for _ in range(100):
                if answer.status == 200 or not server.connections.open:
                    break
                await asyncio.sleep(0.05)
            return answer.status, set(server.connections.open)

        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
                status, first = await ask(session)
                assert status == 200 and len(first) == 1
                assert await ask(session) == (200, first), "while it leads, one connection serves all calls"
                leads[0] = False
                assert await ask(session) == (503, set())
        finally:
            await server.close()

    asyncio.run(main())
