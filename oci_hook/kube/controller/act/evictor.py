"""Evicts pods that their node refused, so that their owner recreates them and the scheduler chooses again. A pod without an owner
would be lost, and one that every node refuses would come back for ever: they stay, and an event says why they do not start."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from oci_hook.kube.controller.act.refused import RefusedPod, RefusedPods, not_made, refusal
from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.controller.api.evictions import Evictions
from oci_hook.kube.controller.api.pod_events import About, Events
from oci_hook.kube.controller.context import Context

LOG = logging.getLogger(__name__)

EVERY = 1.0
AGAIN = 20.0  # seconds until the next attempt after the API server refused an eviction, for example by a budget
REFUSED, LEFT = "GpuShareRefused", "GpuShareRefusedPodStays"


class Evictor:
    """counted: called with the error code of each evicted pod."""

    def __init__(self, context: Context, events: Events, counted: Callable[[str], None]) -> None:
        self.refusals = RefusedPods()
        self._silent: dict[str, Mapping[str, Any]] = {}  # pods whose runtime failed and said no code
        self._leads, self._now = context.leads, context.now
        self._events, self._counted = events, counted
        self._evictions = Evictions(context.client)

    def look(self, pod: Mapping[str, Any], reported: str = "") -> None:
        """Called at each change of a pod. reported: the refusal's code in the node's digest."""
        found, uid = refusal(pod, reported), pod["metadata"]["uid"]
        self._silent.pop(uid, None)
        if found is not None:
            self.refusals.seen(found, self._now())
            return
        self.refusals.over(uid)
        if not_made(pod):
            self._silent[uid] = pod

    def told(self, refused: Mapping[str, str]) -> None:
        """Called at each change of a node, whose digest may be later than the pod's status. refused: pod's uid -> code."""
        for uid, code in refused.items():
            if uid in self._silent:
                self.look(self._silent[uid], code)

    def gone(self, uid: str) -> None:
        """The pod's object was deleted."""
        self._silent.pop(uid, None)
        self.refusals.gone(uid)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            for one in self.refusals.due(self._now()):
                if self._leads():
                    await self._deal_with(one)
            self.refusals.forget(self._now())

    async def _deal_with(self, one: RefusedPod) -> None:
        about = About(one.namespace, one.name, one.uid)
        if one.stays:
            self._events.add(about, LEFT, f"{one.words}; not evicted, since {one.stays}")
            self.refusals.told(one)
            return
        try:
            await self._evictions.evict(one.namespace, one.name, one.uid)
        except ApiError as e:
            if e.status in (404, 409):  # the pod is gone, or replaced by another one of this name
                self.refusals.over(one.uid)
                return
            self.refusals.later(one, self._now() + max(AGAIN, e.retry_after))
            LOG.warning(f"{one.namespace}/{one.name} is not evicted yet: {e}")
            return
        self._events.add(about, REFUSED, f"{one.words}; evicted, so that its replacement is scheduled again")
        self._counted(one.code)
        LOG.info(f"evicted {one.namespace}/{one.name}: {one.words}")
        self.refusals.evicted(one, self._now())

    async def evict(self, namespace: str, name: str, uid: str = "") -> None:
        """Raises ApiError."""
        await self._evictions.evict(namespace, name, uid)
