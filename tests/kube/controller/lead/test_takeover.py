"""A new leader decides only when its copy has all earlier decisions."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.controller.api.objects import PODS
from oci_hook.kube.controller.api.reflector import Reflector, Sink
from oci_hook.kube.controller.lead import takeover


class Scene:
    """An API server whose watch of pods brings nothing, and whose Secret cannot be read at first."""

    def __init__(self) -> None:
        self.pods = Reflector(self, PODS, Sink(lambda pod: None, lambda uid: None))  # type: ignore[arg-type]
        self.pods.synced.set()
        self.relists = self.refreshed = 0
        self.pods.relist = self.relist  # type: ignore[method-assign]

    def relist(self) -> None:
        self.relists += 1

    async def refresh(self) -> None:
        self.refreshed += 1
        if self.refreshed == 1:
            raise ApiError(429, "Too Many Requests", "later")

    def hurry(self) -> None:
        pass

    async def patch(self, *_: Any) -> Any:
        return {"metadata": {"resourceVersion": str(self.refreshed)}}


def test_a_failure_beside_the_wait_does_not_end_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "WATCH", 0.5)

    async def taken() -> Scene:
        scene = Scene()
        options = SimpleNamespace(namespace="gpu-hook", pod="c-1")
        one = takeover.Takeover(scene, options, scene.pods, scene)  # type: ignore[arg-type]
        one.begin(1)
        job = asyncio.create_task(one.run())
        for _ in range(1000):
            if one.done:
                break
            await asyncio.sleep(0.01)
        assert one.done
        job.cancel()
        return scene

    assert asyncio.run(taken()).relists == 1  # the watch was behind
