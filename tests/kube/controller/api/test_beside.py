"""A single GET of a pod, while the watch or a list reports a newer or an older state of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from oci_hook.errors import ClusterError
from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.controller.api.objects import PODS
from oci_hook.kube.controller.api.reflector import Reflector
from oci_hook.kube.controller.controller import Controller
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.serve import service as service_module
from oci_hook.kube.controller.serve.service import Service
from oci_hook.kube.placing.cluster_state import ClusterState
from tests.kube.cluster_objects import SIGNER, node, pod


class Scene:
    """An API server with one pod. meanwhile: called after it has read the pod and before its answer arrives. lists: the pages of
    each list; an error among them is raised."""

    def __init__(self) -> None:
        self.copy = Copy(ClusterState(verify=SIGNER.holds), lambda: 0.0)
        self.copy.node(node("a", 100))
        self.reflector = Reflector(self, PODS, self.copy.pods, beside=self.copy.beside)  # type: ignore[arg-type]
        self.pod: Any = None
        self.lists: list[list[Any]] = []
        self.gets = 0
        self.meanwhile: Callable[[], Awaitable[None]] = self.nothing

    async def nothing(self) -> None:
        pass

    async def request(self, *_: Any, **__: Any) -> bytes:
        self.gets += 1
        text = json.dumps(self.pod).encode()
        await self.meanwhile()
        return text

    async def pages(self, *_: Any) -> AsyncIterator[tuple[list[Any], str]]:
        for page in self.lists.pop(0):
            if isinstance(page, Exception):
                raise page
            if callable(page):
                await page()
            else:
                yield page, "9"

    def says(self, kind: str, obj: Any) -> None:
        self.reflector._event(json.dumps({"type": kind, "object": obj}).encode())

    async def list(self, *pages: Any) -> None:
        self.lists.append(list(pages))
        await self.reflector._list()

    async def fetch(self) -> None:
        await Service._fetch(self.service, "default", "p")

    async def ask(self) -> None:
        await Controller._ask(self.controller, "default", "p", "u-p")

    @property
    def service(self) -> Any:
        return type("Part", (), {"_client": self, "_copy": self.copy})

    @property
    def controller(self) -> Any:
        return type("Part", (), {"_client": self, "_copy": self.copy, "_state": self.copy.state})

    @property
    def known(self) -> Mapping[str, Any]:
        return self.copy.state.pods


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.pod = on("a")
    return made


def on(name: str, phase: str = "Running") -> Any:
    made = pod("p", memory=90)
    return {**made, "spec": {**made["spec"], "nodeName": name}, "status": {"phase": phase}}


@pytest.mark.parametrize("how", ["fetch", "ask"])
def test_a_pod_that_the_watch_saw_go_meanwhile_does_not_come_back(scene: Scene, how: str) -> None:
    async def goes() -> None:
        scene.says("ADDED", scene.pod)
        scene.says("DELETED", scene.pod)
        scene.copy.state.tick(1e6)

    scene.meanwhile = goes
    asyncio.run(getattr(scene, how)())
    assert not scene.known


@pytest.mark.parametrize("how", ["fetch", "ask"])
def test_the_watch_s_newer_words_stay(scene: Scene, how: str) -> None:
    async def ends() -> None:
        scene.says("MODIFIED", on("a", "Succeeded"))

    scene.meanwhile = ends
    asyncio.run(getattr(scene, how)())
    assert scene.known["u-p"].ended


@pytest.mark.parametrize("how", ["fetch", "ask"])
def test_a_pod_that_no_watch_brought_goes_with_the_next_list(scene: Scene, how: str) -> None:
    """The watch expired between the pod's creation and its end."""

    async def act() -> None:
        await getattr(scene, how)()
        assert "u-p" in scene.known
        await scene.list([], [])
        scene.copy.state.tick(1e6)
        assert not scene.known

    asyncio.run(act())


def test_a_list_that_is_older_than_the_answer_does_not_take_the_pod_out(scene: Scene) -> None:
    async def act() -> None:
        await scene.list([], scene.fetch, [])  # the version is fixed when the first page comes
        assert "u-p" in scene.known
        await scene.list([])
        scene.copy.state.tick(1e6)
        assert not scene.known

    asyncio.run(act())


def test_an_answer_from_before_a_list_is_asked_for_again(scene: Scene) -> None:
    async def lists() -> None:
        scene.meanwhile = scene.nothing
        await scene.list([])

    scene.meanwhile = lists
    asyncio.run(scene.fetch())
    assert scene.gets == 2 and "u-p" in scene.known


def test_while_a_list_s_version_is_not_known_nothing_is_taken(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "READINGS", 2)

    async def fetch() -> None:
        with pytest.raises(ClusterError, match="GH-608"):
            await scene.fetch()
        assert scene.gets == 2

    async def act() -> None:
        await scene.list(fetch, [])
        assert not scene.known

    asyncio.run(act())


def test_what_half_a_list_brought_goes_with_the_next_one(scene: Scene) -> None:
    async def act() -> None:
        with pytest.raises(ApiError):
            await scene.list([on("a")], ApiError(0, "", "cut"))
        assert "u-p" in scene.known
        await scene.list([])
        scene.copy.state.tick(1e6)
        assert not scene.known

    asyncio.run(act())
