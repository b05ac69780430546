"""Protects the containers of a GPU from each other: judges each look at it, and has the one that does harm answered."""

import os
import time
from collections.abc import Iterable

from oci_hook.agent import journal
from oci_hook.agent.act import guard
from oci_hook.agent.act.response import Response
from oci_hook.agent.judge.audit_rules import Finding, NodeLook
from oci_hook.agent.judge.gpu_sample import GpuSample, listed
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch.accounts import Accounts
from oci_hook.agent.watch.ledger_watch import LedgerWatch
from oci_hook.agent.watch.process_owner import ProcessOwners
from oci_hook.agent.watch.sampler import Sampler
from oci_hook.core.grant import Grant
from oci_hook.core.layout import UNLISTED
from oci_hook.core.units import MIB
from oci_hook.discovery.save import put_file
from oci_hook.errors import GhError
from oci_hook.ledger import events, store
from oci_hook.linux.proc import process_life


class Protection:
    """`look` at each sample of a GPU. guard: see agent/act/guard.py."""

    def __init__(
        self,
        node: NodeState,
        ledger: LedgerWatch,
        sampler: Sampler,
        owners: ProcessOwners,
        accounts: Accounts,
        response: Response,
    ) -> None:
        self.guard = guard.Guard(node.options.tolerance)
        self._node = node
        self._ledger = ledger
        self._sampler = sampler
        self._owners = owners
        self._accounts = accounts
        self._response = response
        self._told: dict[str, int] | None = None  # what STATE/unlisted.json has; None: not known

    def grants_changed(self, ended: set[str]) -> None:
        self.guard.forget(ended)
        self.guard.first_seen(set(self._node.grants))
        for uuid in set(self.guard.unexplained) - self._node.granted_gpus():
            self.guard.alone(uuid)
            del self.guard.unexplained[uuid]
        if ended:  # what they hid is free by now
            for uuid in [uuid for uuid, size in self.guard.unexplained.items() if size]:
                self._sampler.look(uuid)
        self._tell_admission()

    def look_when_due(self, now: float) -> None:
        """Ask NVML for the GPUs that are to be looked at again."""
        for uuid in [uuid for uuid, due in self.guard.due.items() if now >= due]:
            del self.guard.due[uuid]
            self._sampler.look(uuid)

    def look(self, uuid: str, sample: GpuSample | None, seen: NodeLook | None = None) -> None:
        """Judge a sample of a GPU. seen: what was looked at with it; None: nothing yet."""
        sharing, gpu = self._node.sharing(uuid), self._node.gpu(uuid)
        if not sharing or gpu is None or sample is None or sample.error:
            self.guard.alone(uuid)
            return
        if seen is None:
            processes = self._owners.find(listed([sample]), all=False)
            seen = NodeLook(sharing, {uuid: sample}, processes, *self._accounts.read(sharing, self.by_process()))
        stopped = {key for key in sharing if self._node.watched[key].stopped == "killed"}
        before, now = self.guard.unlisted.get(uuid, 0), time.monotonic()
        moved = {key: self._node.watched[key].moved for key in sharing}
        found = self.guard.judge(gpu, sample, seen.replace(grants=sharing, moved=moved), stopped, now)
        if found.again is not None and any(grant.life.init is None for grant in sharing.values()):
            self._ledger.soon(now)  # a container was just started, and which processes are its own is not known yet
        if bool(found.unlisted) != bool(before):
            self._record_unlisted(uuid, found.unlisted)
        self._tell_admission()
        if found.kill is None or uuid in self._node.watched[found.kill.key].answered:
            return
        if not self._is_current(uuid, sharing):
            self.guard.spare(uuid)
            self._sampler.look(uuid)
            return
        at, watched = (found.kill.key, uuid), self._node.watched[found.kill.key]
        watched.answered.add(uuid)
        # The audit no longer counts the processes of a killed container.
        watched.peaks[uuid] = max(watched.peaks.get(uuid, 0), -(-found.kill.used // MIB))
        what = guard.evidence(found.kill, self._node.options.tolerance)
        others = tuple((p.pid, p.start) for p in found.kill.processes)
        self._response.answer(Finding("over-memory", *at, 0, 0, what), harm=True, others=others)

    def by_process(self) -> list[str]:
        """GPUs on which memory belongs to no listed process: there, what each accounted process has is wanted."""
        return [uuid for uuid, size in self.guard.unlisted.items() if size]

    def _is_current(self, uuid: str, sharing: dict[str, Grant]) -> bool:
        """True if the ledger has exactly these shares of the GPU now, and the same of them away; else its state is taken over."""

        def judged(grants: Iterable[Grant]) -> dict[str, object]:
            return {g.key: (g.life.init, g.shares, g.suspended, g.moving) for g in grants}

        try:
            living = store.peek(self._node.state_dir)
        except (OSError, GhError):
            return False
        now = [g for g in living if any(share.uuid == uuid for share in g.shares)]
        if judged(now) == judged(sharing.values()):
            return True
        self._ledger.take(living, time.monotonic())
        return False

    def _tell_admission(self) -> None:
        """Have admission take memory that nobody can be proved to have for memory that is not there."""
        found = {uuid: -(-size // MIB) for uuid, size in self.guard.unexplained.items() if size}
        if found == self._told:
            return
        path = f"{self._node.state_dir}/{UNLISTED}"
        try:
            if found:
                put_file(self._node.settings, UNLISTED, {"agent": process_life(os.getpid()), "mib": found})
            elif os.path.lexists(path):
                os.unlink(path)
            self._told = found
        except (OSError, GhError):
            pass  # the disk is full, which the agent says; tried again at the next look

    def _record_unlisted(self, uuid: str, size: int) -> None:
        mib = -(-size // MIB)
        some = (
            f"{mib} MiB belong to no process that NVML lists; what no account page explains of it is not granted anew"
        )
        none = "all memory belongs to listed processes again"
        journal.write(f"GPU {uuid}: {some if size else none}", journal.NOTICE, gpu=uuid)
        events.record(self._node.state_dir, "unlisted-memory", uuid=uuid, mib=mib)
