"""Compare what the driver sees with what was granted and what the containers' own books say. Pure; the agent acts.

Nothing is concluded from one sample: a finding and a surcharge need two in a row, so that a process that comes or goes,
or memory that is being freed, between the look at the driver and the look at the books is no cheat.

over-limit   the container's processes hold more of a GPU than its limit and the tolerance
over-compute its processes have more of a GPU's time than it may: than its ceiling; than nothing, frozen; than its
             guarantee, beside others, though it has never come to the gate. By the driver's figures alone: what other
             tenants publish accuses nobody
not-granted  a process of the container is on a GPU that the container does not have
no-shim  a process uses a granted GPU and the shim keeps no books for it: it was bypassed
bad-page     in the place of the account page is something else, so there are no books
holds-lease  a process of the container holds a lease on a file that gpu-hook or the driver needs (agent/leases.py)

What takes neighbours' memory at once is judged for itself, and sooner (agent/protect.py).
"""

from collections import Counter

from oci_hook.agent.sampler import GpuSample
from oci_hook.core.gpu_page import cap, guaranteed
from oci_hook.core.grant import Grant, Share
from oci_hook.core.units import MIB
from oci_hook.core.value import Value
from oci_hook.observe.account import Books
from oci_hook.observe.inside import owners

KINDS = ("over-limit", "over-compute", "not-granted", "no-shim", "bad-page", "holds-lease")
LOOKS = 3  # over which compute is averaged: one look sees less than a second


class Process(Value):
    """A process of a container: pid, start time, name on the host; inner: its pid in its own namespace, ns: that
    namespace's inode number."""

    pid: int
    start: int
    name: str
    inner: int
    ns: int

    @property
    def owners(self) -> frozenset[tuple[int, int, int]]:
        return owners(self.inner, self.start, self.ns)


class Finding(Value):
    """One fact against one container. uuid: the GPU, "" for none. pid, start: the process, 0 for all together."""

    kind: str
    key: str
    uuid: str
    pid: int
    start: int
    evidence: str

    @property
    def what(self) -> tuple[str, str, str, int, int]:
        return self.kind, self.key, self.uuid, self.pid, self.start


class Use(Value):
    """What the driver sees of one container on one GPU: bytes, per cent busy, processes."""

    used: int
    busy: int
    processes: tuple[int, ...]


class Verdict(Value):
    """findings: those that stand now. news: among them the new ones. over: what stood before and does not any more.
    surcharges: bytes by (key, number of the share). uses: by (key, UUID). strangers: (processes, bytes) by UUID of
    processes of no container that we know."""

    findings: tuple[Finding, ...]
    news: tuple[Finding, ...]
    over: tuple[Finding, ...]
    surcharges: dict[tuple[str, int], int]
    uses: dict[tuple[str, str], Use]
    strangers: dict[str, tuple[int, int]]


class Auditor:
    """Remembers the sample before. tolerance_mib: what a container may be over, for modules that load by themselves;
    tolerance_points: of the GPU's time, for bursts."""

    def __init__(self, tolerance_mib: int, tolerance_points: int = 15) -> None:
        self.tolerance_mib = tolerance_mib
        self.tolerance_points = tolerance_points
        self._loads: dict[tuple[str, str], list[tuple[int, int]]] = {}  # by (key, UUID): per cent had, allowed
        self._suspected: dict[tuple[str, str, str, int, int], Finding] = {}
        self._standing: dict[tuple[str, str, str, int, int], Finding] = {}
        self._excess: dict[tuple[str, int], int] = {}
        self._totals: dict[str, tuple[int, ...]] = {}

    def judge(
        self,
        grants: dict[str, Grant],
        gpus: dict[str, GpuSample],
        members: dict[int, tuple[str, Process]],
        books: dict[str, "Books | str | None"],
        unread: frozenset[str] = frozenset(),
        gated: frozenset[tuple[str, str]] = frozenset(),
        stopped: frozenset[str] = frozenset(),
    ) -> Verdict:
        """gpus: by UUID, only those that NVML could look at. members: by pid, (the grant's key, the process).
        books: by key; None: not begun; a text: why there are none. unread: keys whose books we could not look into,
        which tells nothing of the container. gated: (key, UUID) of those who have ever come to the gate. stopped: keys
        of containers that were stopped for what was found, not among the grants: that stands until they end."""
        uses, strangers = _uses(gpus, members)
        seen = {f.what: f for f in self._suspicions(grants, gpus, members, books, uses, unread)}
        seen |= {f.what: f for f in self._loaded(grants, gpus, uses, gated)}
        standing = {what: f for what, f in seen.items() if what in self._suspected}
        news = tuple(f for what, f in standing.items() if what not in self._standing)
        # What could not be looked at this time clears nobody.
        unseen = {s.uuid for g in grants.values() for s in g.shares} - set(gpus)
        for what, f in self._standing.items():
            unknown = f.key in grants and (f.uuid in unseen or f.key in unread)
            if what not in standing and (unknown or f.key in stopped):
                standing[what] = f
        over = tuple(f for what, f in self._standing.items() if what not in standing)
        self._suspected, self._standing = {**seen, **standing}, standing
        surcharges = self._surcharges(grants, gpus, books, uses)
        return Verdict(tuple(standing.values()), news, over, surcharges, uses, strangers)

    def _suspicions(
        self,
        grants: dict[str, Grant],
        gpus: dict[str, GpuSample],
        members: dict[int, tuple[str, Process]],
        books: dict[str, "Books | str | None"],
        uses: dict[tuple[str, str], Use],
        unread: frozenset[str],
    ) -> list[Finding]:
        found = []
        for (key, uuid), use in uses.items():
            grant, processes = grants[key], [members[pid][1] for pid in use.processes]
            share = next((s for s in grant.shares if s.uuid == uuid), None)
            if share is None:
                granted = ",".join(s.uuid for s in grant.shares) or "none"
                found += [
                    Finding("not-granted", key, uuid, p.pid, p.start, f"{_name(p)} is on it; granted: {granted}")
                    for p in processes
                ]
                continue
            if share.whole:
                continue
            allowed = (share.memory_mib + self.tolerance_mib) * MIB
            if use.used > allowed:
                what = f"{_mib(use.used)} MiB in use, limit {share.memory_mib} MiB, tolerance {self.tolerance_mib} MiB"
                found.append(Finding("over-limit", key, uuid, 0, 0, what))
            kept = books.get(key)
            booked = kept.owners if isinstance(kept, Books) else frozenset()
            for p in processes:
                if not p.owners & booked and key not in unread:
                    why = kept if isinstance(kept, str) else "the account page does not have it"
                    found.append(Finding("no-shim", key, uuid, p.pid, p.start, f"{_name(p)}: {why}"))
        for key, kept in books.items():
            if isinstance(kept, str) and key in grants:
                found.append(Finding("bad-page", key, "", 0, 0, f"account page: {kept}"))
        return found

    def _loaded(
        self,
        grants: dict[str, Grant],
        gpus: dict[str, GpuSample],
        uses: dict[tuple[str, str], Use],
        gated: frozenset[tuple[str, str]],
    ) -> list[Finding]:
        shared = Counter(s.uuid for g in grants.values() for s in g.shares)
        found, loads = [], {}
        for key, grant in grants.items():
            for share in grant.shares:
                at = key, share.uuid
                line = loads[at] = self._loads.get(at, [])
                if share.whole or share.uuid not in gpus:
                    continue
                allowed, why = _allowed(grant, share, at in gated or not share.slot or shared[share.uuid] == 1)
                line.append((uses[at].busy if at in uses else 0, allowed))
                del line[:-LOOKS]
                had, may = (sum(n) / LOOKS for n in zip(*line, strict=True))
                if len(line) == LOOKS and had > may + self.tolerance_points:
                    what = f"{had:.0f} % of the GPU's time over {LOOKS} looks, {why}"
                    what += f", tolerance {self.tolerance_points} points"
                    found.append(Finding("over-compute", key, share.uuid, 0, 0, what))
        self._loads = loads
        return found

    def _surcharges(
        self,
        grants: dict[str, Grant],
        gpus: dict[str, GpuSample],
        books: dict[str, "Books | str | None"],
        uses: dict[tuple[str, str], Use],
    ) -> dict[tuple[str, int], int]:
        """What to write: the smaller of this sample's excess and the last one's. The books are taken at the higher of
        the two looks: they are above the driver at any instant, but the driver was asked in between."""
        surcharges, excess, totals = {}, {}, {}
        for key, kept in books.items():
            if not isinstance(kept, Books) or key not in grants:
                continue
            totals[key] = kept.totals
            before = self._totals.get(key, kept.totals)
            for i, share in enumerate(grants[key].shares):
                if share.whole or i >= len(kept.totals):
                    continue
                if share.uuid not in gpus:
                    excess[key, i] = self._excess.get((key, i), 0)
                    continue
                use = uses.get((key, share.uuid))
                booked = max(kept.totals[i], before[i] if i < len(before) else 0)
                excess[key, i] = max(0, (use.used if use else 0) - booked)
                surcharges[key, i] = min(excess[key, i], self._excess.get((key, i), 0))
        self._excess, self._totals = excess, totals
        return surcharges


def _allowed(grant: Grant, share: Share, gated: bool) -> tuple[int, str]:
    """(per cent of the GPU's time, in words). gated: it comes to the gate, which sees to its part, or is alone."""
    if grant.frozen:
        return 0, "though it is frozen"
    if most := cap(grant, share):
        return most, f"ceiling {most} %"
    if gated:
        return 100, "all of it"
    return guaranteed(grant, share), f"none of it through the gate, guarantee {guaranteed(grant, share)} %"


def _uses(
    gpus: dict[str, GpuSample], members: dict[int, tuple[str, Process]]
) -> tuple[dict[tuple[str, str], Use], dict[str, tuple[int, int]]]:
    uses: dict[tuple[str, str], Use] = {}
    strangers: dict[str, tuple[int, int]] = {}
    for uuid, gpu in gpus.items():
        for pid, used, busy in gpu.processes:
            if pid in members:
                at = (members[pid][0], uuid)
                old = uses.get(at, Use(0, 0, ()))
                uses[at] = Use(old.used + (used or 0), min(100, old.busy + busy), (*old.processes, pid))
            else:
                n, size = strangers.get(uuid, (0, 0))
                strangers[uuid] = (n + 1, size + (used or 0))
    return uses, strangers


def _name(p: Process) -> str:
    return f"process {p.pid} ({p.name})"


def _mib(size: int) -> int:
    return -(-size // MIB)
