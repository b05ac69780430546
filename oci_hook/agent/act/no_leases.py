"""Keeps leases off the files that containers mount: holds those files open, and finds leases that are there already."""

import math
import os
import time
from collections.abc import Callable

from oci_hook.agent.act.response import Response
from oci_hook.agent.judge.audit_rules import Finding, TenantProcess, What
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch import file_keeper, leases
from oci_hook.agent.watch.accounts import Accounts
from oci_hook.agent.watch.process_owner import ProcessOwners
from oci_hook.core.inventory import Inventory
from oci_hook.linux import proc
from oci_hook.observe import inside

KEEP_SECONDS = 30.0  # between two looks at which files containers mount
HOLDERS_SECONDS = 1.0  # of processor time at each look for the holders: one with 65 536 descriptors takes 0.7 s
LOCKS_REST = 200  # how many times the duration of a look passes until the next one


class NoLeases:
    """`tick` every few seconds. findings: those of now."""

    def __init__(self, node: NodeState, owners: ProcessOwners, accounts: Accounts, response: Response) -> None:
        self.findings: tuple[Finding, ...] = ()
        self._node = node
        self._owners = owners
        self._accounts = accounts
        self._response = response
        self._answered: dict[What, int] = {}  # those that harm others: Watched.resumed when they were answered
        self._files = file_keeper.FileKeeper()
        self._slots = file_keeper.FileKeeper(os.O_RDWR)
        self._kept: tuple[float, Inventory | None] = (-KEEP_SECONDS, None)
        self._next = 0.0

    def close(self) -> None:
        self._files.close()
        self._slots.close()

    def grants_changed(self) -> None:
        self._slots.keep(file_keeper.slots(self._node.state_dir, self._node.grants.values()))

    def tick(self, now: float) -> None:
        when, inventory = self._kept
        if now - when >= KEEP_SECONDS or inventory is not self._node.inventory or self._files.missed:
            self._kept = now, self._node.inventory
            self._files.keep(file_keeper.wanted(self._node.inventory, self._node.prefix))
        if time.monotonic() >= self._next:
            self._look()

    def _look(self) -> None:
        began = time.thread_time()
        try:
            held, whole = leases.now()
        except OSError:
            held, whole = [], True
        spent = proc.budget(HOLDERS_SECONDS)
        found, harmful = self._judge(held, spent)
        late = spent()
        # A tenant can have hundreds of thousands of locks. The longer the look takes, the later is the next one.
        self._next = time.monotonic() + LOCKS_REST * (time.thread_time() - began)
        long = "it takes too long to find the holders of all leases" if late else ""
        long = long if whole else "/proc/locks is too long: leases further down are not seen"
        self._node.problem("locks", f"{long}; see lslocks" if long else "")
        standing = {f.what: f for f in self.findings}
        for at, finding in found.items():
            harm, resumed = at in harmful, self._node.watched[finding.key].resumed
            if at not in standing or (harm and self._answered.get(at) != resumed):
                self._response.answer(finding, harm=harm)
                if harm:
                    self._answered[at] = resumed
        for at, finding in standing.items():
            if at in found or finding.key not in self._node.grants:
                continue
            # A stopped container keeps its lease: the finding is over when it ends.
            if late or self._node.watched[finding.key].stopped:
                found[at] = finding
            else:
                self._response.clear(finding)
        self.findings = tuple(found.values())
        self._answered = {at: resumed for at, resumed in self._answered.items() if at in found}

    def _judge(self, held: list[leases.Lease], spent: Callable[[], bool]) -> tuple[dict[What, Finding], set[What]]:
        """(findings, those of them that are on files which others need); what comes once it is spent is left out."""
        found, harmful = {}, set()
        files = self._needed() if held else {}
        judged: set[tuple[int, tuple[int, int]]] = set()
        over: set[tuple[int, int]] = set()  # files whose owner has a finding: it can make the rest as long as it likes
        # Files that all need come first.
        for lease in sorted((x for x in held if x.file in files), key=lambda x: files[x.file].owner != ""):
            file = files[lease.file]
            if lease.file in over or (lease.pid, lease.file) in judged:
                continue
            if spent():
                break
            judged.add((lease.pid, lease.file))
            key, process = self._holder(lease, spent)
            if process is None:
                continue
            kind = "write" if lease.write else "read"
            what = f"process {process.pid} ({process.name}) holds a {kind} lease on {file.what}"
            finding = Finding("holds-lease", key, "", process.pid, process.start, what)
            found[finding.what] = finding
            if file.owner == key:
                over.add(lease.file)
            else:
                harmful.add(finding.what)
        return found, harmful

    def _needed(self) -> dict[tuple[int, int], leases.LeasedFile]:
        """The files on which nobody may hold a lease, by device and inode."""
        found = {at: leases.LeasedFile(path) for at, path in self._files.files.items()}
        found.update(leases.of_state(self._node.state_dir, self._node.grants))
        for at, key in self._accounts.files().items():
            found[at] = leases.LeasedFile("its account page", key)
        return found

    def _holder(self, lease: leases.Lease, spent: Callable[[], bool]) -> "tuple[str, TenantProcess | None]":
        """(the grant's key, the process) that holds the lease: the one that took it, or a child that inherited it."""
        pids = [lease.pid]
        if not leases.holds(lease.pid, lease.file, spent):
            inits = [(g.life.init[0], g.life.cgroup) for g in self._node.grants.values() if g.life.init]
            some = (pid for init in inits if not spent() for pid in inside.pids(*init) or ())
            pids = [pid for pid in some if leases.holds(pid, lease.file, spent)]
        return next(iter(self._owners.find(dict.fromkeys(pids, math.inf), all=False).values()), ("", None))
