"""Audits a sample of all GPUs: collects what belongs to it, has it judged (audit_rules.py, protection.py), and acts on it."""

import time
from collections import Counter

from oci_hook.agent.act.protection import Protection
from oci_hook.agent.act.response import Response
from oci_hook.agent.judge import hogs, meter
from oci_hook.agent.judge.audit_rules import Auditor, Finding, Kept, NodeLook, TenantProcess, Verdict, What
from oci_hook.agent.judge.gpu_sample import GpuSample, listed
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch.accounts import Accounts
from oci_hook.agent.watch.process_owner import ProcessOwners
from oci_hook.core.gpu_page import counts, on_gpu, promised
from oci_hook.core.terms import CLASS_NUMBERS
from oci_hook.core.units import MIB
from oci_hook.ledger import events
from oci_hook.ledger.deliver import page_file
from oci_hook.ledger.slot_files import read_gate, write_counts
from oci_hook.linux.schedstat import run_delays
from oci_hook.observe.account import UNIT, PageFigures

LIVES = 1.0  # seconds: a process that shows work gives signs of life all the time; one that was killed does not
LACKING = 3  # per cent of the GPU by which a container has less than its guarantee, to count as harmed


class Auditing:
    """`audit` each sample. verdict: the last one. processes: those of containers that the last sample lists, by pid."""

    def __init__(
        self, node: NodeState, owners: ProcessOwners, accounts: Accounts, protection: Protection, response: Response
    ) -> None:
        self.verdict = Verdict()
        self.processes: dict[int, tuple[str, TenantProcess]] = {}
        self._node = node
        self._owners = owners
        self._accounts = accounts
        self._protection = protection
        self._response = response
        self._auditor = Auditor(node.options.tolerance, node.options.compute_tolerance)
        self._hogs = hogs.Hogs()
        # Nanoseconds by key and thread. Read only of those that the last span suspected or heard as witnesses: one span
        # finds nobody.
        self._delays: dict[str, dict[int, int]] = {}
        self._measured_at: float | None = None
        self._harmful: set[What] = set()  # findings of containers that take others' time

    def audit(self, gpus: dict[str, GpuSample]) -> None:
        """Audit one sample. gpus: by UUID, without those that NVML could not look at."""
        node = self._node
        accounts, unread = self._accounts.read(node.grants, self._protection.by_process())
        processes = self.processes = self._owners.find(listed(gpus.values()))
        moved = {key: watched.moved for key, watched in node.watched.items()}
        seen = NodeLook(node.grants, gpus, processes, accounts, unread, moved)
        for uuid in node.granted_gpus():
            self._protection.look(uuid, gpus.get(uuid), seen)
        grants = {key: g for key, g in node.grants.items() if not node.watched[key].stopped}
        for key, grant in node.grants.items():
            for share in grant.shares:
                node.watched[key].set_gate(share.uuid, read_gate(node.state_dir, share))
        gates = ((key, uuid, gate) for key, watched in node.watched.items() for uuid, gate in watched.gates.items())
        # A process shows itself in the slot file from cuInit on, before it comes to the gate.
        gated = frozenset((key, uuid) for key, uuid, gate in gates if gate.launches or gate.waiting or gate.charged)
        since = time.monotonic() - LIVES
        working = {
            (key, uuid): sum(beat > since for beat in gate.beats)
            for key, watched in node.watched.items()
            for uuid, gate in watched.gates.items()
        }
        mine = {pid: owner for pid, owner in processes.items() if owner[0] in grants}
        stopped = frozenset(node.grants) - frozenset(grants)
        judged = seen.replace(grants=grants, processes=mine, working=working)
        self.verdict = self._auditor.judge(judged, gated, stopped, tuple(self._find_hogs(judged)))
        self._write_surcharges(accounts)
        self._write_counts(gpus)
        self._measure()
        self._note_use(accounts, gpus)
        harmful = {f.what for f in self.verdict.findings if self._takes_time(f)}
        for finding in self.verdict.findings:
            if finding in self.verdict.news or finding.what in harmful - self._harmful:
                self._response.answer(finding, harm=finding.what in harmful)
        self._harmful = harmful
        self._end_harm(gpus)  # before `clear`, which has nothing left for it to end
        for finding in self.verdict.over:
            if finding.key in node.grants:
                self._response.clear(finding)
        node.shown = False

    def _end_harm(self, gpus: dict[str, GpuSample]) -> None:
        """Leave containers that harmed others and could not be frozen, once they have no more than they may."""
        for key, watched in self._node.watched.items():
            for uuid in watched.answered & set(gpus):
                finding = Finding("over-memory", key, uuid, 0, 0, "")
                if not self._auditor.suspects(finding) and self._response.over(finding):
                    watched.answered.discard(uuid)

    def _takes_time(self, finding: Finding) -> bool:
        """True if a container takes others' guaranteed GPU time past the shim: the driver shows too much for it, of processes that
        are not on its account page, and another container has less than its guarantee. A lie of the other one kills no honest
        container, nor does the time of one that allocates and copies."""
        if finding.kind != "over-compute" or not finding.past:
            return False
        others = (w.meter(finding.uuid).shortfall for k, w in self._node.watched.items() if k != finding.key)
        return any(shortfall is not None and shortfall > LACKING for shortfall in others)

    def _find_hogs(self, seen: NodeLook) -> list[Finding]:
        """The containers that are suspected of hogging a GPU's gate."""
        node, now, found = self._node, time.monotonic(), []
        starved = hogs.starvation(self._delays, self._read_delays(seen, set(self._delays)))
        concerned: set[str] = set()
        self._hogs.forget(set(seen.gpus))
        for uuid, gpu in seen.gpus.items():
            gates = {key: w.gates.get(uuid) for key, w in node.watched.items()}
            parties = hogs.parties(uuid, gpu, seen, gates, starved)
            names = {p.key: events.title(node.grants[p.key].who) for p in parties}
            for hog in self._hogs.look(now, uuid, parties):
                if hog.again:
                    found.append(Finding("hogs-gate", hog.key, uuid, 0, 0, hogs.evidence(hog, names)))
                concerned |= {hog.key, *hog.witnesses}
        self._delays = self._read_delays(seen, concerned)
        return found

    def _read_delays(self, seen: NodeLook, keys: set[str]) -> dict[str, dict[int, int]]:
        """Time for which threads of these containers waited for a processor; counts processes that NVML lists."""
        found: dict[str, dict[int, int]] = {key: {} for key in keys}
        for pid, (key, _) in seen.processes.items():
            if key in keys:
                found[key] |= run_delays(pid)
        return found

    def _write_surcharges(self, accounts: dict[str, Kept]) -> None:
        for (key, i), amount in self.verdict.surcharges.items():
            kept = accounts[key]
            if isinstance(kept, PageFigures) and kept.surcharges[i] != -(-amount // UNIT) * UNIT:
                self._accounts.write_surcharge(key, i, amount)

    def _write_counts(self, gpus: dict[str, GpuSample]) -> None:
        """Tell the containers of each GPU how many processes of each other are there, by NVML: their gates believe no more. A
        count holds until the look after the next one. Where NVML lists no container's process, that says nothing."""
        node, grants = self._node, tuple(self._node.grants.values())
        until = time.monotonic_ns() + int((2 * node.options.interval + 1) * 1e9)
        for uuid, gpu in gpus.items():
            sharing = on_gpu(uuid, grants)
            found = Counter(self.processes[pid][0] for pid, _, _ in gpu.processes if pid in self.processes)
            if not found or len(sharing) < 2:
                continue
            data = counts({share.slot: found[grant.key] for grant, share in sharing}, until)
            for grant, _ in sharing:
                try:
                    write_counts(page_file(node.state_dir, grant.key), 1 + grant.place(uuid), data)
                except OSError:
                    pass  # it ends, or has a lease on the file, and believes what others say

    def _note_use(self, accounts: dict[str, Kept], gpus: dict[str, GpuSample]) -> None:
        """Updates each container's use, its peak and its history."""
        for key, watched in self._node.watched.items():
            kept = watched.account = accounts.get(key)
            for i, share in enumerate(self._node.grants[key].shares):
                use = self.verdict.uses.get((key, share.uuid))
                watched.set_use(share.uuid, use)
                watched.set_charged(share.uuid, gpus[share.uuid].charged.get(key) if share.uuid in gpus else None)
                charged = watched.charged.get(share.uuid, 0)
                accounted = kept.totals[i] if isinstance(kept, PageFigures) and i < len(kept.totals) else 0
                used = -(-max(accounted, charged, use.used if use else 0) // MIB)
                compute = watched.meter(share.uuid).used or (use.busy if use else 0)
                watched.peaks[share.uuid] = max(used, watched.peaks.get(share.uuid, 0))
                watched.note(share.uuid, used, round(compute))

    def _measure(self) -> None:
        """GPU time of each container on each GPU since the previous look."""
        node = self._node
        parties: dict[str, list[meter.Party]] = {}
        grants = tuple(node.grants.values())
        for key, grant in node.grants.items():
            watched, rank = node.watched[key], CLASS_NUMBERS[grant.terms.priority_class]
            for share in grant.shares:
                gate = watched.gates.get(share.uuid)
                use = self.verdict.uses.get((key, share.uuid))
                promise, stopped = promised(grant, share, grants), bool(grant.stopped or watched.stopped)
                party = meter.Party(watched.meter(share.uuid), gate, use.busy if use else None, promise, rank, stopped)
                parties.setdefault(share.uuid, []).append(party)
        now = time.monotonic()
        took, self._measured_at = now - (self._measured_at or now), now
        for key, watched in node.watched.items():
            if node.grants[key].frozen or watched.stopped == "frozen":
                watched.frozen_seconds += took
            if node.grants[key].off_gpu:
                watched.suspended_seconds += took
        for gpu in parties.values():
            meter.look(now, gpu)
