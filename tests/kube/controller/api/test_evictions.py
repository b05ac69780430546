"""The API version of evictions."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from oci_hook.kube.controller.api.client import ApiError, Client
from oci_hook.kube.controller.api.evictions import Evictions
from oci_hook.kube.link.kubeconfig import Credential


class Server:
    """knows: the served versions of Eviction. says: name of a pod -> (status, message)."""

    def __init__(self, *knows: str, **says: tuple[int, str]) -> None:
        self.knows, self.says = knows, says
        self.bodies: list[Any] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        status, message = self.says.get(body["metadata"]["name"].replace("-", "_"), (201, "{}"))
        if body["apiVersion"] not in self.knows:
            status, message = 400, f'no kind "Eviction" is registered for version "{body["apiVersion"]}" in scheme'
        return web.json_response({"code": status, "message": message}, status=status)

    async def serve(self, act: Callable[[Evictions], Any]) -> None:
        server = await asyncio.get_running_loop().create_server(web.Server(self.answer), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(Credential(url, token="x")) as client:
            await act(Evictions(client))


@pytest.mark.parametrize("message", ('pods "policy-x" not found', 'webhook "policy/v1.example" denied the request'))
@pytest.mark.parametrize("knows", (("policy/v1",), ("policy/v1", "policy/v1beta1")))
@pytest.mark.parametrize("status", (400, 404, 500))
def test_a_name_in_a_refusal_does_not_change_the_version(message: str, knows: tuple[str, ...], status: int) -> None:
    async def act(evictions: Evictions) -> None:
        with pytest.raises(ApiError) as caught:
            await evictions.evict("team", "policy-x")
        assert caught.value.status == status and caught.value.message == message
        await evictions.evict("team", "good")

    server = Server(*knows, policy_x=(status, message))
    asyncio.run(server.serve(act))
    assert server.bodies[-1]["apiVersion"] == "policy/v1"


@pytest.mark.parametrize(("status", "message"), ((429, "a budget"), (404, 'pods "odd" not found')))
def test_an_old_server_gets_its_own_version(status: int, message: str) -> None:
    async def act(evictions: Evictions) -> None:
        with pytest.raises(ApiError) as caught:
            await evictions.evict("team", "odd")
        assert caught.value.status == status
        await evictions.evict("team", "good")
        await evictions.evict("team", "good")

    server = Server("policy/v1beta1", odd=(status, message))
    asyncio.run(server.serve(act))
    assert server.bodies[-1]["apiVersion"] == server.bodies[-2]["apiVersion"] == "policy/v1beta1"
