"""Takes, renews and gives back the Lease of the controllers. The rules are election.py's."""

import asyncio
import datetime
import random
import time
from collections.abc import Callable
from typing import Any

from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.election import DURATION, RETRY, Election, Seen

NAME = "gpu-hook-controller"


def now() -> float:
    """Also counts the time while the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leader:
    """began: called when we begin to lead; it starts what the leader has to do first."""

    def __init__(
        self, client: Client, namespace: str, identity: str, began: Callable[[], None], log: Callable[[str], None]
    ) -> None:
        self._client, self._began, self._log = client, began, log
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._folder}/{NAME}"
        self._election = Election(identity)
        self._led = False

    def leads(self) -> bool:
        """To be asked before every decision and every write: a process that was paused learns here that its time is over."""
        return self._election.leads(now())

    @property
    def holder(self) -> str:
        """Who held the Lease when we last looked; "" for nobody."""
        return self._election.holder

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await asyncio.wait_for(self._step(), RETRY * 3)
            except (ApiError, asyncio.TimeoutError) as e:
                self._log(f"lease: {type(e).__name__} {e}".rstrip())
            if self._led and not self.leads():
                self._led = False
                self._log("no longer the leader")
            await asyncio.sleep(RETRY * random.uniform(0.8, 1.2))

    async def _step(self) -> None:
        lease = await self._read()
        self._election.observe(_seen(lease), now())
        if not self._election.may_take(now()):
            return
        began = now()
        try:
            written = await self._client.put(self._path, self._ours(lease))
        except ApiError as e:
            if e.status == 409:  # another was quicker; the next look tells who
                self._election.lost()
                return
            raise
        self._election.took(_seen(written), began)
        if not self._led and self.leads():
            self._led = True
            self._log("leader now")
            self._began()

    async def give_back(self) -> None:
        """So that the next one need not wait. Only after the last answer has been sent."""
        if not self.leads():
            return
        try:
            lease = await self._read()
            self._election.lost()
            if _seen(lease).holder == self._election.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.put(self._path, lease)
        except ApiError as e:
            self._log(f"lease not given back: {e}")

    async def _read(self) -> Any:
        try:
            return await self._client.get(self._path)
        except ApiError as e:
            if e.status != 404:
                raise
        empty = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": DURATION, "leaseTransitions": 0},
        }
        try:
            return await self._client.post(self._folder, empty)
        except ApiError as e:
            if e.status != 409:
                raise
            return await self._client.get(self._path)

    def _ours(self, lease: Any) -> Any:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(lease.get("spec") or {})
        if spec.get("holderIdentity") != self._election.identity:
            spec |= {"acquireTime": stamp, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        spec |= {"holderIdentity": self._election.identity, "leaseDurationSeconds": DURATION, "renewTime": stamp}
        return {**lease, "spec": spec}


def _seen(lease: Any) -> Seen:
    spec = lease.get("spec") or {}
    return Seen(
        spec.get("holderIdentity") or "",
        lease["metadata"].get("resourceVersion") or "",
        int(spec.get("leaseDurationSeconds") or DURATION),
        int(spec.get("leaseTransitions") or 0),
    )
