"""Evicts pods that their node refused, so that their owner makes them anew and the scheduler looks for another place. A pod
without an owner would be lost: it stays, with an event that says why it does not start."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.events import About, Events
from oci_hook.kube.controller.evictions import Evictions
from oci_hook.kube.controller.refused import Refusal, Refusals, refusal

EVERY = 1.0
AGAIN = 20.0  # seconds after an eviction that the API server did not accept, as with a disruption budget
REFUSED, LEFT = "GpuShareRefused", "GpuShareRefusedPodStays"


class Evictor:
    """counted: called with the code of each eviction."""

    def __init__(
        self,
        client: Client,
        events: Events,
        leads: Callable[[], bool],
        now: Callable[[], float],
        counted: Callable[[str], None],
        log: Callable[[str], None],
    ) -> None:
        self.refusals = Refusals()
        self._events, self._leads, self._now = events, leads, now
        self._counted, self._log = counted, log
        self._evictions = Evictions(client)

    def look(self, pod: Mapping[str, Any], reported: str = "") -> None:
        """At each change of a pod."""
        found = refusal(pod, reported)
        if found is None:
            self.refusals.over(pod["metadata"]["uid"])
        else:
            self.refusals.seen(found, self._now())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            for one in self.refusals.due(self._now()):
                if self._leads():
                    await self._deal_with(one)
            self.refusals.forget(self._now())

    async def _deal_with(self, one: Refusal) -> None:
        about = About(one.namespace, one.name, one.uid)
        if not one.owner:
            self._events.add(about, LEFT, f"{one.words}; nothing would make this pod anew, so it is not evicted")
            self.refusals.told(one)
            return
        try:
            await self._evictions.evict(one.namespace, one.name, one.uid)
        except ApiError as e:
            if e.status in (404, 409):  # gone, or another pod of this name
                self.refusals.over(one.uid)
                return
            self.refusals.later(one, self._now() + max(AGAIN, e.retry_after))
            self._log(f"{one.namespace}/{one.name} is not evicted yet: {e}")
            return
        self._events.add(about, REFUSED, f"{one.words}; evicted, so that it is placed anew")
        self._counted(one.code)
        self._log(f"evicted {one.namespace}/{one.name}: {one.words}")
        self.refusals.evicted(one, self._now())

    async def evict(self, namespace: str, name: str, uid: str = "") -> None:
        """Raises ApiError."""
        await self._evictions.evict(namespace, name, uid)
