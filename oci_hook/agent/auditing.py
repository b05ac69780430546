"""Audits a sample of all GPUs: collects what belongs to it, has it judged (audit.py, protection.py), and acts on it."""

import time

from oci_hook.agent import hogs, meter
from oci_hook.agent.accounts import Accounts
from oci_hook.agent.audit import Auditor, Finding, Kept, Process, Seen, Verdict
from oci_hook.agent.node import Node
from oci_hook.agent.process_owner import ProcessOwners
from oci_hook.agent.protection import Protection
from oci_hook.agent.response import Response
from oci_hook.agent.sampler import GpuSample
from oci_hook.core.gpu_page import promised
from oci_hook.core.terms import CLASS_NUMBERS
from oci_hook.core.units import MIB
from oci_hook.ledger.slot_files import read_gate
from oci_hook.observe.account import UNIT, Usage


class Auditing:
    """`audit` each sample. verdict: the last one. processes: those of containers that the last sample lists, by pid."""

    def __init__(
        self, node: Node, owners: ProcessOwners, accounts: Accounts, protection: Protection, response: Response
    ) -> None:
        self.verdict = Verdict()
        self.processes: dict[int, tuple[str, Process]] = {}
        self._node = node
        self._owners = owners
        self._accounts = accounts
        self._protection = protection
        self._response = response
        self._auditor = Auditor(node.options.tolerance, node.options.compute_tolerance)
        self._hogs = hogs.Hogs()
        self._measured_at: float | None = None

    def audit(self, gpus: dict[str, GpuSample]) -> None:
        """Audit one sample. gpus: by UUID, without those that NVML could not look at."""
        node = self._node
        accounts, unread = self._accounts.read(node.grants, self._protection.by_process())
        processes = self.processes = self._owners.find({pid for gpu in gpus.values() for pid, _, _ in gpu.processes})
        seen = Seen(node.grants, gpus, processes, accounts, unread)
        for uuid in node.granted_gpus():
            self._protection.look(uuid, gpus.get(uuid), seen)
        grants = {key: g for key, g in node.grants.items() if not node.watched[key].stopped}
        for key, grant in node.grants.items():
            for share in grant.shares:
                node.watched[key].set_gate(share.uuid, read_gate(node.state_dir, share))
        gated = frozenset((key, uuid) for key, watched in node.watched.items() for uuid in watched.gates)
        mine = {pid: owner for pid, owner in processes.items() if owner[0] in grants}
        stopped = frozenset(node.grants) - frozenset(grants)
        hidden = {(key, uuid): n for uuid, by_key in self._protection.guard.hidden.items() for key, n in by_key.items()}
        judged = seen.replace(grants=grants, processes=mine, hidden=hidden)
        self.verdict = self._auditor.judge(judged, gated, stopped, tuple(self._find_hogs(judged)))
        self._write_surcharges(accounts)
        self._measure()
        self._note_use(accounts, gpus)
        for finding in self.verdict.news:
            self._response.answer(finding)
        for finding in self.verdict.over:
            if finding.key in node.grants:
                self._response.clear(finding)
        node.shown = False

    def _find_hogs(self, seen: Seen) -> list[Finding]:
        """Those that this look suspects of hogging the gate of a GPU."""
        node, now, found = self._node, time.monotonic(), []
        self._hogs.forget(set(seen.gpus))
        for uuid, gpu in seen.gpus.items():
            parties = hogs.parties(uuid, gpu, seen, {key: w.gates.get(uuid) for key, w in node.watched.items()})
            names = {p.key: (node.grants[p.key].who.id or p.key)[:12] for p in parties}
            for hog in self._hogs.look(now, uuid, parties):
                found.append(Finding("hogs-gate", hog.key, uuid, 0, 0, hogs.evidence(hog, names)))
        return found

    def _write_surcharges(self, accounts: dict[str, Kept]) -> None:
        for (key, i), amount in self.verdict.surcharges.items():
            kept = accounts[key]
            if isinstance(kept, Usage) and kept.surcharges[i] != -(-amount // UNIT) * UNIT:
                self._accounts.write_surcharge(key, i, amount)

    def _note_use(self, accounts: dict[str, Kept], gpus: dict[str, GpuSample]) -> None:
        """What each container uses now, its peak and its history."""
        for key, watched in self._node.watched.items():
            kept = watched.account = accounts.get(key)
            for i, share in enumerate(self._node.grants[key].shares):
                use = self.verdict.uses.get((key, share.uuid))
                watched.set_use(share.uuid, use)
                watched.set_charged(share.uuid, gpus[share.uuid].charged.get(key) if share.uuid in gpus else None)
                charged = watched.charged.get(share.uuid, 0)
                accounted = kept.totals[i] if isinstance(kept, Usage) and i < len(kept.totals) else 0
                used = -(-max(accounted, charged, use.used if use else 0) // MIB)
                compute = watched.meter(share.uuid).used or (use.busy if use else 0)
                watched.peaks[share.uuid] = max(used, watched.peaks.get(share.uuid, 0))
                watched.note(share.uuid, used, round(compute))

    def _measure(self) -> None:
        """What each container had of each GPU since the previous look."""
        node = self._node
        parties: dict[str, list[meter.Party]] = {}
        grants = tuple(node.grants.values())
        for key, grant in node.grants.items():
            watched, rank = node.watched[key], CLASS_NUMBERS[grant.terms.priority_class]
            for share in grant.shares:
                gate = watched.gates.get(share.uuid)
                use = self.verdict.uses.get((key, share.uuid))
                promise, stopped = promised(grant, share, grants), bool(grant.frozen or watched.stopped)
                party = meter.Party(watched.meter(share.uuid), gate, use.busy if use else None, promise, rank, stopped)
                parties.setdefault(share.uuid, []).append(party)
        now = time.monotonic()
        took, self._measured_at = now - (self._measured_at or now), now
        for key, watched in node.watched.items():
            if node.grants[key].frozen or watched.stopped == "frozen":
                watched.frozen_seconds += took
        for gpu in parties.values():
            meter.look(now, gpu)
