"""Takes, renews and gives back the Lease of the controllers. The rules are election.py's."""

import asyncio
import datetime
import random
import time
from collections.abc import Callable
from typing import Any

from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.election import LOOK, SETTLE, WRITTEN, Election, Seen
from oci_hook.kube.controller.shallow import decode

NAME = "gpu-hook-controller"
WHERE = "gpu-hook.io/leader"  # annotation of the Lease: the holder's identity, address and pod, with blanks between
CALL = 4.0  # seconds for one call


def now() -> float:
    """Also counts the time while the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leader:
    """address: where others reach us; pod: our name, "" outside a cluster. began: called with each term of ours, before its
    first decision."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        address: str,
        pod: str,
        began: Callable[[int], None],
        log: Callable[[str], None],
    ) -> None:
        self._client, self._began, self._log = client, began, log
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._folder}/{NAME}"
        self._election = Election(identity)
        self._where = f"{identity} {address} {pod}"
        self._lease: Any = None
        self._take = 0
        self._led = False

    def leads(self) -> bool:
        """To be asked before every decision and every write: a process that was paused learns here that its time is over."""
        return self._election.leads(now())

    @property
    def holder(self) -> str:
        """Who held the Lease when we last looked; "" for nobody."""
        return self._election.seen.holder if self._election.seen else ""

    def other(self) -> Seen | None:
        """The lease, where another holds it."""
        seen = self._election.seen
        return seen if seen is not None and seen.holder not in ("", self._election.identity) else None

    def silent(self) -> float:
        return self._election.silent(now())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            write, wait = self._election.next(now())
            await asyncio.sleep(wait if write else wait * random.uniform(0.8, 1.2))
            try:
                await (self._write() if write else self._look())
            except ApiError as e:
                self._election.failed(now())
                if e.status != 409:  # another was quicker; the next look tells who
                    self._log(f"lease: {e}")
                    await asyncio.sleep(max(LOOK, e.retry_after))
            if self._led and not self.leads():
                self._led = False
                self._log("no longer the leader")

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
            self._log(f"leader now, term {term}")
        if self._led and self._take != self._election.takes:
            self._take = self._election.takes
            self._began(term)

    def resign(self) -> None:
        self._election.resign()

    async def give_back(self, since: float) -> None:
        """So that the next one need not wait. since: seconds since our last answer left."""
        self.resign()
        await asyncio.sleep(max(0.0, SETTLE - since))
        try:
            lease = await self._read()
            if _seen(lease).holder == self._election.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._put(lease)
        except ApiError as e:
            self._log(f"lease not given back: {e}")

    async def _read(self) -> Any:
        try:
            return decode(await self._client.request("GET", self._path, timeout=CALL))
        except ApiError as e:
            if e.status != 404:
                raise
        empty = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": WRITTEN, "leaseTransitions": 0},
        }
        return await self._client.post(self._folder, empty)

    async def _put(self, lease: Any) -> Any:
        return decode(await self._client.request("PUT", self._path, lease, timeout=CALL))

    def _ours(self, term: int) -> Any:
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


def _seen(lease: Any) -> Seen:
    spec, meta = lease.get("spec") or {}, lease["metadata"]
    holder = spec.get("holderIdentity") or ""
    who, _, rest = ((meta.get("annotations") or {}).get(WHERE) or "").partition(" ")
    address, _, pod = rest.partition(" ") if who == holder else ("", "", "")  # else the note is of a holder before
    return Seen(
        holder,
        meta.get("resourceVersion") or "",
        int(spec.get("leaseDurationSeconds") or WRITTEN),
        int(spec.get("leaseTransitions") or 0),
        address,
        pod,
    )
