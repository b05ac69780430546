"""The cluster's page and its data: access, size, and the time for which it blocks the controller's event loop."""

import asyncio
import base64
import gc
import gzip
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from oci_hook.kube.controller.controller import _present
from oci_hook.kube.controller.serve import page as pages
from oci_hook.kube.controller.serve.router import Router
from oci_hook.kube.controller.serve.server import MAX_AT_A_TIME, HttpsServer
from oci_hook.kube.controller.serve.service import Service
from oci_hook.kube.controller.trust.certificates import Certificates, renewed
from testbed.cluster_page import Scene, node, served
from tests.kube.controller.serve.test_server import free_port

DATA = "api/cluster"
PLAIN = ("Accept-Encoding",)  # unless a test says so


class Visitor:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def get(self, path: str = "", method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
        """(status, headers, body as it travelled)"""
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        async with self._session.request(method, self._url + path, headers=names, auto_decompress=False) as answer:
            return answer.status, answer.headers, await answer.read()


@asynccontextmanager
async def by_loopback(scene: Scene) -> AsyncIterator[Visitor]:
    async with (
        served(scene.page()) as url,
        aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=PLAIN) as session,
    ):
        yield Visitor(session, url)


@asynccontextmanager
async def by_address(scene: Scene, token: str) -> AsyncIterator[Visitor]:
    """A visitor from outside the pod, over TLS."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _present(tls, renewed(Certificates(), ("localhost",), 86_400, time.time()))
    service = Service.__new__(Service)
    service._own = pages.own_secret.Own()
    server, port = HttpsServer(service, Router.__new__(Router), scene.page(token)), free_port()
    await server.listen("127.0.0.1", port, tls)
    try:
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=PLAIN
        ) as session:
            yield Visitor(session, f"https://127.0.0.1:{port}/")
    finally:
        await server.close()


def run(act: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(act(), 120))


def basic(token: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()


@pytest.mark.parametrize("path", ["", DATA])
def test_by_the_address_only_who_has_the_token_gets_it(path: str) -> None:
    async def act() -> None:
        async with by_address(Scene(1), "secret") as visitor:
            for wrong in (
                {},
                {"Authorization": "Bearer"},
                {"Authorization": basic("")},
                {"Authorization": "Bearer secret2"},
            ):
                status, headers, body = await visitor.get(path, **wrong)
                assert status == 401 and headers["WWW-Authenticate"].startswith("Basic") and b"gpu-0000" not in body
            assert (await visitor.get(f"{path}?token=secret"))[0] == 401, "not in the URL"
            for right in ("Bearer secret", "bearer secret", basic("secret")):
                status, headers, _ = await visitor.get(path, Authorization=right)
                assert status == 200 and "frame-ancestors 'none'" in headers["Content-Security-Policy"]
                assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
            for method in ("POST", "PUT", "DELETE"):
                assert (await visitor.get(path, method, Authorization="Bearer secret"))[0] == 404
        async with by_address(Scene(1), "") as visitor:
            assert (await visitor.get(path, Authorization="Bearer "))[0] == 404, "without a token it is not there"

    run(act)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:1", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
def test_on_the_loopback_no_other_name_than_this_machine_s(host: str, status: int) -> None:
    async def act() -> None:
        async with by_loopback(Scene(1)) as visitor:
            for path in ("", DATA):
                found, _, body = await visitor.get(path, Host=host)
                assert found == status and (b"gpu-0000" in body) == (status == 200 and path == DATA)
            assert (await visitor.get("metrics"))[0] == 404 and (await visitor.get("", "POST"))[0] == 405

    run(act)


def test_who_asks_again_gets_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "EVERY", 0.0)

    async def act() -> None:
        scene = Scene(20)
        async with by_loopback(scene) as visitor:
            status, headers, body = await visitor.get(DATA)
            tag = headers["ETag"].strip('"')
            assert status == 200 and len(json.loads(body)["nodes"]) == 20
            assert (await visitor.get(DATA, If_None_Match=f'"{tag}"'))[::2] == (304, b"")
            assert (await visitor.get(f"{DATA}?since={tag}"))[::2] == (304, b"")
            scene.place("gpu-0003", [(0, 1, 0)])
            said = json.loads((await visitor.get(f"{DATA}?since={tag}"))[2])
            assert [n["name"] for n in said["nodes"]] == ["gpu-0003"] and said["since"] == 1
            for other in (
                "",
                "x",
                "-1",
                "0-0",
                tag[:8] + "-",
                tag[:8] + "-99",
                tag[:8] + "-" + "9" * 5000,
                tag[:8] + "-%C2%B2",
                "deadbeef-1",
                "%00",
            ):
                whole = json.loads((await visitor.get(f"{DATA}?since={other}"))[2])
                assert whole["since"] == 0 and len(whole["nodes"]) == 20, other
            _, headers, small = await visitor.get(DATA, Accept_Encoding="gzip")
            assert headers["Content-Encoding"] == "gzip" and json.loads(gzip.decompress(small)) == whole
            _, headers, small = await visitor.get("", Accept_Encoding="gzip")
            assert gzip.decompress(small) == (await visitor.get("", Accept_Encoding="identity"))[2]

    run(act)


def test_looks_are_made_now_and_then_however_many_ask() -> None:
    async def act() -> None:
        scene = Scene(5)
        async with by_loopback(scene) as visitor:
            tag = (await visitor.get(DATA))[1]["ETag"]
            scene.copy.node(node("one-more"))
            began = time.monotonic()
            answers = await asyncio.gather(
                *(visitor.get(DATA, If_None_Match=tag) for _ in range(MAX_AT_A_TIME["page"]))
            )
            if time.monotonic() - began < pages.EVERY / 2:
                assert [status for status, *_ in answers] == [304] * len(answers)
            while (await visitor.get(DATA, If_None_Match=tag))[0] != 200:
                await asyncio.sleep(0.1)

    run(act)


def test_decisions_are_made_between_the_pieces_of_a_look() -> None:
    """Compares the longest time for which the loop was blocked with the time of the whole look in the same run."""

    async def act() -> None:
        scene, nodes = Scene(), 1000
        for i in range(nodes):
            scene.copy.node(node(f"gpu-{i:04}"))
            scene.place(f"gpu-{i:04}", [(0, 10_000, 10)])
        page = scene.page()
        gc.collect()
        gc.freeze()  # as the controller does
        waits: list[float] = []
        ready = asyncio.Event()

        async def decide() -> None:
            ready.set()
            last = time.thread_time()
            while True:
                await asyncio.sleep(0)
                now = time.thread_time()
                waits.append(now - last)
                last = now

        decisions = asyncio.create_task(decide())
        await ready.wait()
        began = time.thread_time()
        await page._look()
        await page._text(0, True)
        whole = time.thread_time() - began
        decisions.cancel()
        gc.unfreeze()
        waits.sort()
        longest = waits[-1]
        print(f"{nodes} nodes: {1e3 * whole:.0f} ms in all, {1e3 * longest:.1f} ms in one piece, {len(waits)} pieces")
        assert len(waits) > nodes / 50 and waits[int(0.99 * len(waits))] < whole / 20 and longest < whole / 4

    run(act)
