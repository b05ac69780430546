"""Calls to the API server: pages, sizes, waits."""

import asyncio

import pytest
from aiohttp import web

from oci_hook.core.backoff import Backoff
from oci_hook.kube.controller.api import client as client_module
from oci_hook.kube.controller.api.client import PAGE, ApiError, Client
from oci_hook.kube.controller.api.objects import BUDGETS, NAMESPACES, PODS, Kind
from oci_hook.kube.link.kubeconfig import Credential


@pytest.mark.parametrize("kind", [PODS, NAMESPACES, BUDGETS])
@pytest.mark.parametrize("size", [20, 140, 1500])
def test_lists_of_large_objects_are_read_in_smaller_pages(
    kind: Kind, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes in bytes here stand for KiB: 500 pods of 140 KiB exceed the limit of one answer, and were never read."""
    monkeypatch.setattr(client_module, "MAX_PAGE", 16 << 10)
    things = [
        {"metadata": {"uid": f"u{i}", "namespace": "team", "name": f"p{i}", "annotations": {"a/b": "x" * size}}}
        for i in range(1200)
    ]
    things += [{**one, "metadata": {**one["metadata"], "annotations": {}}} for one in things]  # small ones after them
    asked: list[int] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        begin, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        asked.append(limit)
        more = str(begin + limit) if begin + limit < len(things) else ""
        meta = {"resourceVersion": "5", "continue": more}
        return web.json_response({"metadata": meta, "items": things[begin : begin + limit]})

    async def run() -> list[list[str]]:
        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Credential(url, token="x")) as client:
            return [[one["metadata"]["name"] for one in page] async for page, _ in client.pages(kind, {})]

    pages = asyncio.run(run())
    assert sum(pages, []) == [one["metadata"]["name"] for one in things]
    assert asked[0] == PAGE
    assert len(asked) - len(pages) <= 6 + len(asked) / 4, "few requests are in vain"
    assert asked[-1] > 3 * min(asked) or size == 20, "small objects come in larger pages again"


def test_one_object_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_PAGE", 1024)
    monkeypatch.setattr(client_module, "MAX_ANSWER", 4096)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b" " * 4097, content_type="application/json")

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Credential(url, token="x")) as client:
            with pytest.raises(ApiError, match="larger than"):
                async for _ in client.pages(PODS, {}):
                    pass

    asyncio.run(run())


def test_waits_double_up_to_the_most_and_begin_anew() -> None:
    full, half = Backoff(1, 8, lambda: 1.0), Backoff(1, 8, lambda: 0.0)
    assert [full.failed() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    assert [half.failed() for _ in range(6)] == [0.5, 1, 2, 4, 4, 4]
    full.worked()
    assert full.failed() == 1
    for _ in range(5000):
        assert full.failed() <= 8
