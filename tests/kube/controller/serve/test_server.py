"""The server's limits, over TLS: concurrent requests, bodies, handshakes, slow readers, refused tokens."""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from oci_hook.core.rules import Rules
from oci_hook.kube.controller.api.client import Client
from oci_hook.kube.controller.controller import _present
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.lead.leader import Leader
from oci_hook.kube.controller.lead.peer import Peer
from oci_hook.kube.controller.options import ControllerOptions, address
from oci_hook.kube.controller.serve import connections
from oci_hook.kube.controller.serve import server as server_module
from oci_hook.kube.controller.serve.metrics import Metrics
from oci_hook.kube.controller.serve.page import Page
from oci_hook.kube.controller.serve.router import MAX_FILTER, Router
from oci_hook.kube.controller.serve.server import MAX_AT_A_TIME, HttpsServer
from oci_hook.kube.controller.serve.service import Service
from oci_hook.kube.controller.trust.certificates import Certificates, renewed
from oci_hook.kube.controller.trust.own_secret import Own
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod import mutate
from tests.kube.cluster_objects import node
from tests.kube.controller.parts import context, preemptor

REPO = Path(__file__).resolve().parents[4]
MOST = MAX_AT_A_TIME["metrics"]


class Held(Service):
    """A service whose metrics wait for `go`, so that requests certainly overlap."""

    go: asyncio.Event
    server: HttpsServer
    said = ""  # header Connection of the last answer
    port: int
    loopback: int  # port for callers on the same machine
    inside = 0

    async def metrics_text(self) -> bytes:
        self.inside += 1
        await self.go.wait()
        self.inside -= 1
        return await super().metrics_text()


async def nothing(of: str) -> Any:
    """There is no other controller."""
    return ""


def serve(
    act: Callable[[Held, Callable[[], Awaitable[tuple[int, str]]]], Awaitable[None]],
    token: str = "",
    host: str = "127.0.0.1",
) -> None:
    """act: called with the service and a function that requests its metrics."""

    async def main() -> None:
        copy = Copy(ClusterState(), lambda: 0.0)
        copy.node(node("a", 100))
        options = ControllerOptions("127.0.0.1", 0, "gpu-hook", ("localhost",), metrics_token=token)
        client = Client(Credential("http://127.0.0.1:1", token="x"))
        within = context(client, copy.state, copy.enabled)
        service = Held(
            within, options, copy, preemptor(within), Metrics(), mutate.WebhookOptions(Rules()), lambda: None
        )
        service.go = asyncio.Event()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _present(tls, renewed(Certificates(), ("localhost",), 86_400, time.time()))
        leader = Leader(client, "gpu-hook", "a", "", "", lambda term: None)
        router = Router(service, Peer(leader, nothing, nothing))
        server, port = HttpsServer(service, router), free_port()
        service.server, service.port = server, port
        await server.listen(host, port, tls)
        service.loopback = free_port()
        await server.listen_loopback("127.0.0.1", service.loopback)
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=False)) as session:

                async def ask() -> tuple[int, str]:
                    async with session.get(f"https://127.0.0.1:{port}/metrics") as answer:
                        service.said = answer.headers.get("Connection", "")
                        return answer.status, await answer.text()

                await asyncio.wait_for(act(service, ask), 120)
        finally:
            service.go.set()
            await server.close()

    asyncio.run(main())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.mark.parametrize("more", [0, 1, 20])
def test_so_many_metrics_at_a_time_and_then_again(more: int) -> None:
    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        first = [asyncio.ensure_future(ask()) for _ in range(MOST)]
        while service.inside < MOST:
            await asyncio.sleep(0.01)
        waits = [asyncio.ensure_future(ask()) for _ in range(more)]
        for answer in waits:
            assert (await answer)[0] == 429
        assert service.inside == MOST
        service.go.set()
        for answer in first:
            status, text = await answer
            assert status == 200 and 'node_grants{Hostname="a"} 0' in text
        assert (await ask())[0] == 200, "the places are free again"

    serve(act)


@pytest.mark.parametrize("on", [True, False])
def test_the_address_of_the_manifest_is_reached_by_ipv4_and_by_ipv6(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    """A cluster may have either alone; in a kernel without IPv6 that part of it is not asked for."""
    deployment = next(yaml.safe_load_all((REPO / "packaging/kubernetes/controller.yaml").read_text()))
    told = deployment["spec"]["template"]["spec"]["containers"][0]["args"][0].partition("=")[2]
    if not on:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as client:
            for host in ("127.0.0.1", "[::1]") if on else ("127.0.0.1",):
                async with client.get(f"https://{host}:{service.port}/healthz") as answer:
                    assert answer.status == 200

    serve(act, host=address(told)[0])


def test_who_may_not_read_them_takes_no_place() -> None:
    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        answers = [await ask() for _ in range(MOST + 1)]
        assert {status for status, _ in answers} == {401} and service.inside == 0

    serve(act, token="secret")


def test_who_goes_away_leaves_the_place() -> None:
    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        first = [asyncio.ensure_future(ask()) for _ in range(MOST)]
        while service.inside < MOST:
            await asyncio.sleep(0.01)
        for one in first:
            one.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        service.go.set()
        while (await ask())[0] != 200:
            await asyncio.sleep(0.05)

    serve(act)


def test_a_server_that_ends_says_so_before_it_closes_a_connection() -> None:
    """Closing a connection during its peer's next request would cost a pod: the API server does not repeat a POST."""

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        service.go.set()
        assert (await ask())[0] == 200 and service.said != "close"
        service.server.end_connections()
        for _ in range(2):  # new connections are answered meanwhile, too
            assert (await ask())[0] == 200 and service.said == "close"

    serve(act)


def test_without_a_token_nobody_gets_a_webhooks_answer() -> None:
    """Webhooks' answers are signed decisions. The loopback serves only the scheduler."""

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        for path, wanted in (("/pods", 404), ("/bindings", 404), ("/filter", 503), ("/dry-run", 503), ("/", 404)):
            reader, writer = await begin(service.loopback, path, 2, 2)
            assert await status(reader) in (wanted, 400 if wanted == 503 else wanted), path
            writer.close()

    serve(act)


async def begin(port: int, path: str, size: int, sent: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begins a request with a body of `size` bytes, and sends `sent` of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode() + b" " * sent)
    return reader, writer


async def status(reader: asyncio.StreamReader) -> int:
    return int((await asyncio.wait_for(reader.readline(), 60)).split()[1])


@pytest.mark.parametrize("path", ["/filter", "/preempt", "/dry-run"])
def test_bodies_that_are_read_at_the_same_time_are_bounded_together(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of each kind of request only limit their number."""
    monkeypatch.setattr(server_module, "MAX_BODIES", 300_000)
    monkeypatch.setattr(server_module, "BODY_SECONDS", 60.0)

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        first, held = await begin(service.loopback, "/filter", 400_000, 200_000)
        while service.server._bodies.used < 200_000:
            await asyncio.sleep(0.01)
        second, more = await begin(service.loopback, path, 200_000, 199_999)
        assert await status(second) == 429
        held.close()
        more.close()
        while True:
            third, last = await begin(service.loopback, path, 200_000, 200_000)
            found = await status(third)
            last.close()
            if found != 429:
                break
        assert found in (400, 503), "it was read whole, but is malformed, and nobody leads here"

    serve(act)


def test_a_body_has_its_bound() -> None:
    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        reader, writer = await begin(service.loopback, "/filter", MAX_FILTER + 1, 1)
        assert await status(reader) == 413
        writer.close()

    serve(act)


STRANGE = b"\xff\xff"


@pytest.mark.parametrize(
    ("line", "header", "expected"),
    [
        (b"GET /api/cluster", b"Bearer " + STRANGE, {400, 401}),
        (b"GET /", b"Basic " + STRANGE, {400, 401}),
        (b"GET /api/cluster", b"Basic /////w==", {400, 401}),
        (b"GET /metrics", b"Bearer " + STRANGE, {401}),
        (b"POST /v1/node-key", b"Bearer " + STRANGE, {401}),
        (b"POST /pods/%ed%a0%80", b"", {404}),
        (b"POST /pods/%ff%fe", b"", {404}),
        (b"POST /pods/" + STRANGE, b"", {400}),
        (b"GET http://[::1", b"", {400}),
        (b"POST /extender/%ed%a0%80/filter", b"", {404}),
    ],
)
def test_strange_bytes_are_a_wrong_request(
    line: bytes, header: bytes, expected: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        service.use(Own(webhook_token="a" * 32, extender_token="b" * 32))
        service.server._page = Page(service._copy, "token", dict)
        peer = await asyncio.get_running_loop().create_server(service.server._raw, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.sockets[0].getsockname()[1])
        writer.write(line + b" HTTP/1.1\r\nHost: x\r\nAuthorization: " + header + b"\r\nContent-Length: 0\r\n\r\n")
        assert await status(reader) in expected
        writer.close()
        peer.close()
        assert not caplog.records

    serve(act, token="secret")


async def silent(port: int, count: int, address: str) -> list[socket.socket]:
    """Opens connections that never begin their handshake."""
    made = []
    for _ in range(count):
        one = socket.socket()
        one.bind((address, 0))
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        made.append(one)
        await asyncio.sleep(0)
    return made


def test_handshakes_that_never_begin_are_bounded_and_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_GREETINGS", 40)
    monkeypatch.setattr(connections, "MOST_GREETINGS_OF_ONE", 16)
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 100.0)

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        service.go.set()
        greetings = service.server._greetings
        port = service.port
        made = []
        tasks: list[int] = []
        for last in range(2, 7):
            made += await silent(port, 30, f"127.0.0.{last}")
            while greetings.cut + len(greetings) < len(made):
                tasks.append(len(asyncio.all_tasks()))
                await asyncio.sleep(0.01)
            assert len(greetings) <= 40
            assert (await ask())[0] == 200
        assert greetings.cut >= 150 - 40 and max(tasks, default=0) < 40 + 30
        for one in made:
            one.close()

    serve(act)


def test_connections_that_say_nothing_are_accepted_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepting a whole backlog at once would block the event loop."""
    waits = 0

    async def sleep(seconds: float, inner: Any = asyncio.sleep) -> None:
        nonlocal waits
        waits += seconds == server_module.PACE
        await inner(seconds)

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        monkeypatch.setattr(server_module.asyncio, "sleep", sleep)
        made = await silent(service.port, 60, "127.0.0.2")
        while len(service.server._greetings) < 60:
            await asyncio.sleep(0.01)
        assert waits >= 60 - server_module.ENOUGH
        for one in made:
            one.close()

    serve(act)


def test_a_known_caller_shakes_hands_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a burst the API server opens hundreds of connections, and ends each handshake late: handshakes side by side starve both."""
    monkeypatch.setattr(server_module, "ENOUGH", 1)
    monkeypatch.setattr(server_module, "PATIENCE", 100.0)
    monkeypatch.setattr(connections.Connections, "knows", lambda self, address: address == "127.0.0.1", raising=False)

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        greetings = service.server._greetings
        made = await silent(service.port, 5, "127.0.0.1")
        for left in range(5, 0, -1):
            for _ in range(20):
                await asyncio.sleep(server_module.PACE)
                assert len(greetings) <= 1, f"{len(greetings)} handshakes at a time, {left} connections left"
            made.pop(0).close()
        made = await silent(service.port, 5, "127.0.0.2")
        while len(greetings) < 5:  # nobody waits for a stranger
            await asyncio.sleep(0.01)
        for one in made:
            one.close()

    serve(act)


def test_who_gives_up_in_the_middle_of_a_body_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.loopback)
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        while not service.server.asked:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        while service.server.asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not [record for record in caplog.records if record.exc_info]

    serve(act)


async def unread(port: int) -> ssl.SSLSocket:
    """Requests the metrics and reads nothing."""

    def ask() -> ssl.SSLSocket:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        one = tls.wrap_socket(socket.create_connection(("127.0.0.1", port)))
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        return one

    return await asyncio.to_thread(ask)


def test_an_answer_that_is_not_read_keeps_its_place_and_gives_way_to_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = 0

    async def large(self: Held) -> bytes:
        nonlocal texts
        texts += 1
        return b"# " + b"x" * (24 << 20)

    monkeypatch.setattr(Held, "metrics_text", large)

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        server = service.server
        made = [await unread(service.port) for _ in range(MOST)]
        while texts < MOST:
            await asyncio.sleep(0.01)
        assert server._bounds["metrics"].used == MOST
        server._sending = {n: (one, bound, time.monotonic() + 100) for n, (one, bound, _) in server._sending.items()}
        assert (await ask())[0] == 429 and texts == MOST, "no reader is slow yet"
        server._sending = {n: (one, bound, time.monotonic() - 5) for n, (one, bound, _) in server._sending.items()}
        status, text = await ask()
        assert status == 200 and len(text) == 2 + (24 << 20)
        while len(server._sending) == MOST:
            await asyncio.sleep(0.01)
        assert server._bounds["metrics"].used == len(server._sending) == MOST - 1
        for one in made:
            one.close()
        while server._bounds["metrics"].used:
            await asyncio.sleep(0.01)

    serve(act)


def test_who_does_not_read_is_cut_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def large(self: Held) -> bytes:
        return b"x" * (24 << 20)

    monkeypatch.setattr(Held, "metrics_text", large)
    monkeypatch.setattr(server_module, "SEND_SECONDS", 1.0)

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        made = await unread(service.port)
        while not service.server._sending:
            await asyncio.sleep(0.01)
        while (
            service.server._bounds["metrics"].used or service.server.connections.open
        ):  # its end is noted a moment later
            await asyncio.sleep(0.01)
        assert not service.server._sending
        made.close()

    serve(act)


def test_a_flood_of_wrong_tokens_is_reviewed_rarely_and_slows_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    reviewed: list[str] = []

    async def node_key(self: Held, token: str) -> Any:
        reviewed.append(token)
        return {"node": "a"} if token == "real" else None

    monkeypatch.setattr(Held, "node_key", node_key)

    async def act(service: Held, ask: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        monkeypatch.setattr(Held, "check", lambda self, leads=True: None)

        async def post(token: str, address: str) -> int:
            connector = aiohttp.TCPConnector(ssl=False, local_addr=(address, 0))
            async with aiohttp.ClientSession(connector=connector) as session:
                headers = {"Authorization": f"Bearer {token}"}
                async with session.post(f"https://127.0.0.1:{service.port}/v1/node-key", headers=headers) as answer:
                    return answer.status

        start = time.monotonic()
        assert [await post("same", "127.0.0.2") for _ in range(20)] == [403] * 20
        assert len(reviewed) <= 1 + (time.monotonic() - start) / 10, "a refused token is remembered"
        began = time.monotonic()
        codes = [await post(f"other-{n}", "127.0.0.2") for n in range(60)]
        most = 8 + 2 * (time.monotonic() - began)
        assert set(codes) == {403, 429} and codes.count(403) <= most
        assert [await post("real", "127.0.0.3") for _ in range(30)] == [200] * 30, "accepted tokens do not count"

    serve(act)
