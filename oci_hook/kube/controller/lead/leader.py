"""Takes, renews and releases the controllers' Lease by the rules of election.py."""

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from oci_hook.kube.controller.api.client import ApiError, Client, an_object
from oci_hook.kube.controller.lead.election import LOOK, SETTLE, WRITTEN, Election, SeenLease
from oci_hook.kube.formats.names import CONTROLLER

LOG = logging.getLogger(__name__)

WHERE = "gpu-hook.io/leader"  # annotation of the Lease: the holder's identity, address and pod, separated by blanks
CALL = 4.0  # seconds; timeout of a call


def now() -> float:
    """Seconds of a monotonic clock that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leader:
    """address: where other controllers reach us. pod: our pod, "" outside a cluster. began: called with each term that we win, before
    its first decision."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        address: str,
        pod: str,
        began: Callable[[int], None],
    ) -> None:
        self._client, self._began = client, began
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._folder}/{CONTROLLER}"
        self._election = Election(identity)
        self._where = f"{identity} {address} {pod}"
        self._lease: dict[str, Any] = {}
        self._take = 0
        self._led = False

    def leads(self) -> bool:
        """Must be called before every decision and write: after a pause of the process it tells that our time is over."""
        return self._election.leads(now())

    @property
    def holder(self) -> str:
        """The identity of the Lease's last known holder; "" for none."""
        return self._election.seen.holder if self._election.seen else ""

    def other(self) -> SeenLease | None:
        """The Lease if another controller holds it."""
        seen = self._election.seen
        return seen if seen is not None and seen.holder not in ("", self._election.identity) else None

    def silent(self) -> float:
        return self._election.silent(now())

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            write, wait = self._election.next(now())
            await asyncio.sleep(wait if write else wait * random.uniform(0.8, 1.2))
            try:
                await (self._write() if write else self._look())
            except ApiError as e:
                self._election.failed(now())
                if e.status != 409:  # another controller wrote first; the next read shows it
                    LOG.warning(f"lease: {e}")
                    await asyncio.sleep(max(LOOK, e.retry_after))
            if self._led and not self.leads():
                self._led = False
                LOG.warning("no longer the leader")

    async def _look(self) -> None:
        self._lease = await self._read()
        self._election.looked(_seen(self._lease), now())

    async def _write(self) -> None:
        began = now()
        term = self._election.writes(began)
        self._lease = await self._put(self._ours(term))
        self._election.wrote(_seen(self._lease), began, now())
        if not self._led and self.leads():
            self._led = True
            LOG.info(f"leader now, term {term}")
        if self._led and self._take != self._election.takes:
            self._take = self._election.takes
            self._began(term)

    def resign(self) -> None:
        self._election.resign()

    async def give_back(self, since: float) -> None:
        """Releases the Lease, so that the next leader need not wait. since: seconds since our last answer."""
        self.resign()
        await asyncio.sleep(max(0.0, SETTLE - since))
        try:
            lease = await self._read()
            if _seen(lease).holder == self._election.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._put(lease)
        except ApiError as e:
            LOG.warning(f"lease not given back: {e}")

    async def _read(self) -> dict[str, Any]:
        try:
            return an_object(await self._client.request("GET", self._path, timeout=CALL))
        except ApiError as e:
            if e.status != 404:
                raise
        empty = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": CONTROLLER},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": WRITTEN, "leaseTransitions": 0},
        }
        return await self._client.post(self._folder, empty)

    async def _put(self, lease: dict[str, Any]) -> dict[str, Any]:
        return an_object(await self._client.request("PUT", self._path, lease, timeout=CALL))

    def _ours(self, term: int) -> dict[str, Any]:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(self._lease.get("spec") or {})
        if spec.get("holderIdentity") != self._election.identity:
            spec["acquireTime"] = stamp
        spec |= {
            "holderIdentity": self._election.identity,
            "leaseDurationSeconds": WRITTEN,
            "leaseTransitions": term,
            "renewTime": stamp,
        }
        notes = {**(self._lease["metadata"].get("annotations") or {}), WHERE: self._where}
        return {**self._lease, "metadata": {**self._lease["metadata"], "annotations": notes}, "spec": spec}


def _seen(lease: dict[str, Any]) -> SeenLease:
    spec, meta = lease.get("spec") or {}, lease["metadata"]
    holder = spec.get("holderIdentity") or ""
    who, _, rest = ((meta.get("annotations") or {}).get(WHERE) or "").partition(" ")
    address, _, pod = (
        rest.partition(" ") if who == holder else ("", "", "")
    )  # otherwise an earlier holder wrote the annotation
    return SeenLease(
        holder,
        meta.get("resourceVersion") or "",
        int(spec.get("leaseDurationSeconds") or WRITTEN),
        int(spec.get("leaseTransitions") or 0),
        address,
        pod,
    )
