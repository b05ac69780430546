"""A new leader's takeover: before its first decision it makes sure that it knows all earlier decisions.

Its copy is up to date but for the delay of the watch. So it writes a condition into its own pod's status and waits until its watch
reports that write. All earlier writes to pods have then arrived, since a watch keeps the order of etcd. If it cannot write its
pod's status (outside a cluster, or without the right), it lists all pods again.
"""

import asyncio
import logging
import time
from urllib.parse import quote

from oci_hook.kube.controller.api.client import MERGE, STRATEGIC_MERGE, ApiError, Client
from oci_hook.kube.controller.api.reflector import Reflector
from oci_hook.kube.controller.options import ControllerOptions
from oci_hook.kube.controller.trust.authority import Authority
from oci_hook.kube.formats.names import CONTROLLER

LOG = logging.getLogger(__name__)

CONDITION = "gpu-hook.io/took-over"
LEADER = "gpu-hook.io/leader"  # annotation of our Service
WATCH = 2.0  # seconds to wait for the watch to report our write
AGAIN = 0.2


class Takeover:
    """done: the takeover of this term is complete, so we may decide."""

    def __init__(self, client: Client, options: ControllerOptions, pods: Reflector, authority: Authority) -> None:
        self.done = False
        self._client, self._pods, self._authority = client, pods, authority
        self._folder = f"/api/v1/namespaces/{options.namespace}"
        self._pod = options.pod
        self._term = -1
        self._go = asyncio.Event()

    def begin(self, term: int) -> None:
        self.done = False
        self._term = term
        self._go.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._go.wait()
            self._go.clear()
            term, began = self._term, time.monotonic()
            while not self._go.is_set() and not self.done:
                try:
                    await self._catch_up(term)
                    self.done = not self._go.is_set()
                except ApiError as e:
                    LOG.warning(f"term {term}: {e}")
                    await asyncio.sleep(max(AGAIN, e.retry_after))
            if self.done:
                LOG.info(f"term {term}: all earlier decisions are known after {time.monotonic() - began:.3f} s")
                self._authority.hurry()
                await self._wake_scheduler(term)

    async def _catch_up(self, term: int) -> None:
        await (
            self._authority.refresh()
        )  # first: a failure must leave no wait for the watch behind, which would end the next one
        if not await self._seen_own_write(term):
            self._pods.relist()
        await self._pods.synced.wait()

    async def _seen_own_write(self, term: int) -> bool:
        if not (self._pod and self._pods.synced.is_set()):
            return False
        self._pods.note_versions(True)
        try:
            version = await self._write(term)
            await asyncio.wait_for(self._pods.brings(version), WATCH)
            return True
        except ApiError as e:
            if e.status not in (403, 404):
                raise
            LOG.warning(f"pod {self._pod}: {e}; listing all pods instead")
        except asyncio.TimeoutError:
            LOG.warning(f"the watch of pods is {WATCH:.0f} s behind; listing all pods instead")
        finally:
            self._pods.note_versions(False)
        return False

    async def _write(self, term: int) -> str:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        mine = {
            "type": CONDITION,
            "status": "True",
            "reason": "Leader",
            "message": f"term {term} at {time.time():.6f}",  # differs each time: an equal value would be no change
            "lastTransitionTime": now,
        }
        path = f"{self._folder}/pods/{quote(self._pod, safe='')}/status"
        written = await self._client.patch(path, {"status": {"conditions": [mine]}}, STRATEGIC_MERGE)
        return str(written["metadata"]["resourceVersion"])

    async def _wake_scheduler(self, term: int) -> None:
        """Wakes the scheduler by a change of our Service. Before Kubernetes 1.23, pods whose Binding failed while nobody led would
        wait up to a minute; later schedulers try again by themselves."""
        notes = {"metadata": {"annotations": {LEADER: f"{self._pod or 'elsewhere'} since term {term}"}}}
        try:
            await self._client.patch(f"{self._folder}/services/{CONTROLLER}", notes, MERGE)
        except ApiError as e:
            if e.status != 404:
                LOG.warning(f"service {CONTROLLER}: {e}")
