"""Compares what the driver sees with what was granted and with the containers' account pages. Pure; the agent acts.

Nothing is concluded from one sample: a finding and a surcharge need two in a row. A process that comes or goes, or
memory that is freed, between the look at the driver and the look at the account page is no cheat.

over-memory       the container has more memory of a GPU than its limit and the tolerance: its processes by NVML; or by
                  the driver's figure for its cgroup (615 and later), with what forked children hold. Reported only where
                  it is too much by what the account page has for exited processes (a forked child keeps their memory,
                  and NVML lists no process for it): of memory of no listed process that page is no proof
over-compute      its processes have more of a GPU's time than the container may have: more than its ceiling; any, while
                  it is frozen; or more than its guarantee, beside others, if it has never come to the gate. Judged by
                  the driver's figures alone, since what another tenant publishes proves nothing. These count allocations
                  and copies as well (gpu_sample.py), so they prove kernels past the gate of no process that is on the
                  account page
not-granted       a process of the container is on a GPU that the container was not granted
no-shim           a process uses a granted GPU and is not in the account page: it bypassed the shim
bad-account-page  something else is in the place of the account page, or has filled its folder, so nothing is accounted
charged-elsewhere NVML lists more memory for the container's processes than the driver charges to its cgroup: a program
                  has its memory from a client that was made in another cgroup, so the driver's limit does not hold it.
                  (Managed memory is charged to no cgroup, and looks the same)
keeps-lent-memory the container has more memory than it requests, cannot be moved off the GPU, and keeps one that is within its
                  request waiting (agent/judge/turns.py)
hogs-gate         others are held at the gate for the container, which does not use the GPU meanwhile (agent/judge/hogs.py)
forged-records    more process records in its slot file show work in flight than NVML lists processes of the container on the GPU
holds-lease       a process of the container holds a lease on a file that gpu-hook or the driver needs (agent/watch/leases.py)

A container that takes memory which its neighbours were granted is judged separately, and sooner (agent/judge/protect_rules.py).
"""

import math
from collections import Counter

from oci_hook.agent.judge.gpu_sample import HISTORY, LOOKS, SECONDS, GpuSample
from oci_hook.core.gpu_page import cap, guaranteed
from oci_hook.core.grant import Grant, Share
from oci_hook.core.units import MIB
from oci_hook.core.value import Value
from oci_hook.observe.account import PageFigures
from oci_hook.observe.inside import Owner, owners

KINDS = (
    "over-memory",
    "over-compute",
    "not-granted",
    "no-shim",
    "bad-account-page",
    "charged-elsewhere",
    "keeps-lent-memory",
    "hogs-gate",
    "forged-records",
    "holds-lease",
)
# No policy freezes or kills for these: what other tenants write, or what managed memory looks like.
REPORTED = ("hogs-gate", "charged-elsewhere", "forged-records")
UNPROVED = "no proof of kernels past the gate: NVML counts allocations, copies and memsets as well"

What = tuple[str, str, str, int, int, bool]  # a finding without its figures
Kept = PageFigures | str | None  # what an account page says; a text: what is wrong with it; None: nothing yet


class TenantProcess(Value):
    """A process of a container: pid, start time, name on the host; inner: its pid in its own pid namespace; ahead:
    proc.boottime_ahead of it."""

    pid: int
    start: int
    name: str
    inner: int
    ahead: int = 0

    @property
    def owners(self) -> frozenset[Owner]:
        return owners(self.inner, self.start, self.ahead)


class Finding(Value):
    """One accusation of one container. uuid: the GPU, "" for none. pid, start: the process, 0 for all together. proved: by
    what the driver says; else no policy freezes or kills for it. past: for over-compute, processes that are not on the account
    page had so much that this alone is proof."""

    kind: str
    key: str
    uuid: str
    pid: int
    start: int
    evidence: str
    proved: bool = True
    past: bool = False

    @property
    def what(self) -> What:
        return self.kind, self.key, self.uuid, self.pid, self.start, self.proved


class Use(Value):
    """The driver's view of one container on one GPU: bytes, per cent busy, processes."""

    used: int
    busy: int
    processes: tuple[int, ...]


class Load(Value):
    """A container on one GPU at one look. at: GpuSample.at. busy, allowed: per cent of the GPU's time that it had and might have.
    past: what processes that are not on the account page had of it."""

    at: float
    busy: int
    allowed: int
    past: int


class NodeLook(Value):
    """One look. working: by (key, UUID), how many process records of the container's slot file show work in flight and a sign of
    life. grants: by key. gpus: NVML's samples by UUID, without GPUs that it could not sample. processes: by pid, (the
    grant's key, the process), for containers with a grant. accounts: the account pages' figures, by key. unread: keys of
    pages that could not be read, which says nothing of the container. moved: by key, until when the container's memory was on
    its way from or to its GPUs, as far as known, in seconds of the monotonic clock."""

    grants: dict[str, Grant]
    gpus: dict[str, GpuSample]
    processes: dict[int, tuple[str, TenantProcess]]
    accounts: dict[str, Kept]
    unread: frozenset[str] = frozenset()
    moved: dict[str, float] = {}
    working: dict[tuple[str, str], int] = {}

    def kept(self, key: str, i: int) -> int:
        """Bytes of exited processes that the account page has for the container's i-th GPU."""
        usage = self.accounts.get(key)
        return usage.kept[i] if isinstance(usage, PageFigures) and i < len(usage.kept) else 0

    def unlisted(self, key: str, i: int, uuid: str) -> int:
        """Bytes that the container has of its i-th GPU, as its account page says, beyond what NVML lists for its processes."""
        gpu = self.gpus.get(uuid)
        beyond = max(0, gpu.used - sum(used or 0 for _, used, _ in gpu.processes)) if gpu else 0
        return min(self.kept(key, i), beyond)

    def charged(self, key: str, uuid: str) -> int | None:
        """Bytes that the driver charges to the container's cgroup; None: it does not say."""
        gpu = self.gpus.get(uuid)
        return gpu.charged.get(key) if gpu else None


class Verdict(Value):
    """findings: those of now. news: the new ones among them. over: those of before that have ended.
    surcharges: bytes by (key, number of the share). uses: by (key, UUID). unknown: (processes, bytes) by UUID, of
    processes of no container with a grant."""

    findings: tuple[Finding, ...] = ()
    news: tuple[Finding, ...] = ()
    over: tuple[Finding, ...] = ()
    surcharges: dict[tuple[str, int], int] = {}
    uses: dict[tuple[str, str], Use] = {}
    unknown: dict[str, tuple[int, int]] = {}


class Auditor:
    """Remembers the previous sample. tolerance_mib: what a container may have above its limit, for modules that load by
    themselves; tolerance_points: per cent of a GPU's time that it may have above its part, for bursts."""

    def __init__(self, tolerance_mib: int, tolerance_points: int = 15) -> None:
        self.tolerance_mib = tolerance_mib
        self.tolerance_points = tolerance_points
        self._loads: dict[tuple[str, str], list[Load]] = {}  # by (key, UUID)
        self._looked: dict[str, float] = {}  # by UUID: GpuSample.at of the look before
        self._suspected: dict[What, Finding] = {}
        self._standing: dict[What, Finding] = {}
        self._excess: dict[tuple[str, int], int] = {}
        self._totals: dict[str, tuple[int, ...]] = {}

    def judge(
        self,
        seen: NodeLook,
        gated: frozenset[tuple[str, str]] = frozenset(),
        stopped: frozenset[str] = frozenset(),
        more: tuple[Finding, ...] = (),
    ) -> Verdict:
        """Judge one sample.

        gated: (key, UUID) of containers that have ever come to the gate. stopped: keys of containers that were
        stopped for a finding and are not among seen.grants: their findings are over when they end. more: what this look
        suspects besides."""
        uses, unknown = driver_uses(seen)
        found = self._memory_findings(seen, uses)
        found += _forged(seen, uses)
        past = frozenset((f.uuid, f.pid) for f in found if f.kind == "no-shim" and f.what in self._suspected)
        found += self._compute_findings(seen, uses, gated, past)
        suspected = {f.what: f for f in (*found, *more)}
        standing = {what: f for what, f in suspected.items() if what in self._suspected}
        news = tuple(f for what, f in standing.items() if what not in self._standing)
        # A finding stays open for GPUs and account pages that could not be read this time.
        unseen = {s.uuid for g in seen.grants.values() for s in g.shares} - set(seen.gpus)
        for what, f in self._standing.items():
            unclear = f.key in seen.grants and (f.uuid in unseen or f.key in seen.unread)
            if what not in standing and (unclear or f.key in stopped):
                standing[what] = f
        over = tuple(f for what, f in self._standing.items() if what not in standing)
        self._suspected, self._standing = {**suspected, **standing}, standing
        return Verdict(tuple(standing.values()), news, over, self._surcharges(seen, uses), uses, unknown)

    def suspects(self, finding: Finding) -> bool:
        """True if the last look had this, be it for the first time."""
        return finding.what in self._suspected

    def _memory_findings(self, seen: NodeLook, uses: dict[tuple[str, str], Use]) -> list[Finding]:
        found = []
        for key, uuid in dict.fromkeys((*uses, *((k, s.uuid) for k, g in seen.grants.items() for s in g.shares))):
            use = uses.get((key, uuid), Use(0, 0, ()))
            grant, processes = seen.grants[key], [seen.processes[pid][1] for pid in use.processes]
            i, share = next(((i, s) for i, s in enumerate(grant.shares) if s.uuid == uuid), (0, None))
            if share is None:
                granted = ",".join(s.uuid for s in grant.shares) or "none"
                found += [
                    Finding("not-granted", key, uuid, p.pid, p.start, f"{_name(p)} is on it; granted: {granted}")
                    for p in processes
                ]
                continue
            if share.whole and not grant.suspended:
                continue
            limit = 0 if grant.suspended else share.memory_mib
            allowed = (limit + self.tolerance_mib) * MIB
            charged = seen.charged(key, uuid)
            proved = max(use.used, charged or 0) > allowed
            used = max(use.used + (0 if proved else seen.unlisted(key, i, uuid)), charged or 0)
            unlisted = used - use.used
            if used > allowed:
                what = f"{_mib(used)} MiB in use"
                what += f" ({_mib(unlisted)} MiB by no listed process)" if unlisted else ""
                what += "" if charged is None else f", {_mib(charged)} MiB by the driver's figure for its cgroup"
                what += f", limit {limit} MiB, tolerance {self.tolerance_mib} MiB"
                found.append(Finding("over-memory", key, uuid, 0, 0, what, proved))
            if charged is not None and use.used > charged + self.tolerance_mib * MIB:
                what = f"NVML lists {_mib(use.used)} MiB for its processes, the driver charges {_mib(charged)} MiB to its cgroup"
                found.append(Finding("charged-elsewhere", key, uuid, 0, 0, what))
            kept = seen.accounts.get(key)
            accounted = kept.owners if isinstance(kept, PageFigures) else frozenset()
            for p in processes:
                if not p.owners & accounted and key not in seen.unread:
                    why = kept if isinstance(kept, str) else "the account page does not have it"
                    found.append(Finding("no-shim", key, uuid, p.pid, p.start, f"{_name(p)}: {why}"))
        for key, kept in seen.accounts.items():
            if isinstance(kept, str) and key in seen.grants:
                found.append(Finding("bad-account-page", key, "", 0, 0, f"account page: {kept}"))
        return found

    def _compute_findings(
        self,
        seen: NodeLook,
        uses: dict[tuple[str, str], Use],
        gated: frozenset[tuple[str, str]],
        past: frozenset[tuple[str, int]],
    ) -> list[Finding]:
        """past: (UUID, pid) of processes that two looks in a row did not find on their account page."""
        sharing = Counter(s.uuid for g in seen.grants.values() for s in g.shares)
        found, loads = [], {}
        for key, grant in seen.grants.items():
            for share in grant.shares:
                at = key, share.uuid
                line = loads[at] = self._loads.get(at, [])
                gpu = seen.gpus.get(share.uuid)
                if share.whole or gpu is None:
                    continue
                covered = self._looked.get(share.uuid, gpu.at) - HISTORY  # since then, by this look's figures
                if grant.moving or seen.moved.get(key, -math.inf) > covered:
                    line.clear()  # the driver itself uses the GPU then
                    continue
                allowed, why = _allowed(grant, share, at in gated or not share.slot or sharing[share.uuid] == 1)
                use = uses.get(at, Use(0, 0, ()))
                beyond = sum(
                    busy for pid, _, busy in gpu.processes if pid in use.processes and (share.uuid, pid) in past
                )
                line.append(Load(gpu.at, use.busy, allowed, min(100, beyond)))
                while len(line) > LOOKS and gpu.at - line[1].at >= SECONDS:
                    del line[0]
                if len(line) >= LOOKS and gpu.at - line[0].at >= SECONDS:
                    found += self._over_compute(key, share.uuid, line, why)
        self._loads = loads
        self._looked.update({uuid: gpu.at for uuid, gpu in seen.gpus.items()})
        return found

    def _over_compute(self, key: str, uuid: str, line: list[Load], why: str) -> list[Finding]:
        """line: the looks that are averaged. why: what the container may have, in words."""
        had, may, past = (sum(n) / len(line) for n in zip(*((x.busy, x.allowed, x.past) for x in line), strict=True))
        if had <= may + self.tolerance_points:
            return []
        what = f"{had:.0f} % of the GPU's time over {line[-1].at - line[0].at:.0f} s, {why}"
        what += f", tolerance {self.tolerance_points} points; "
        proof = past > self.tolerance_points
        what += f"{past:.0f} % by processes that are not on its account page" if proof else UNPROVED
        return [Finding("over-compute", key, uuid, 0, 0, what, past=proof)]

    def _surcharges(self, seen: NodeLook, uses: dict[tuple[str, str], Use]) -> dict[tuple[str, int], int]:
        """Bytes to charge: the smaller of this sample's excess and the previous one's.

        NVML's processes are compared with what the account page has for processes that run, not for exited ones. The page
        is taken at the higher of the two looks. At any instant it is above what the driver has, but
        the driver was asked between the two looks.
        """
        surcharges, excess, totals = {}, {}, {}
        for key, kept in seen.accounts.items():
            if not isinstance(kept, PageFigures) or key not in seen.grants:
                continue
            running = tuple(n - seen.kept(key, i) for i, n in enumerate(kept.totals))
            totals[key] = running
            before = self._totals.get(key, running)
            for i, share in enumerate(seen.grants[key].shares):
                if share.whole or i >= len(kept.totals):
                    continue
                if share.uuid not in seen.gpus:
                    excess[key, i] = self._excess.get((key, i), 0)
                    continue
                use = uses.get((key, share.uuid))
                accounted = max(running[i], before[i] if i < len(before) else 0)
                excess[key, i] = max(0, (use.used if use else 0) - accounted)
                # The driver's charge to the cgroup, including memory held by forked children.
                unexplained = (seen.charged(key, share.uuid) or 0) - accounted - seen.kept(key, i)
                if unexplained > self.tolerance_mib * MIB:
                    excess[key, i] = max(excess[key, i], unexplained)
                surcharges[key, i] = min(excess[key, i], self._excess.get((key, i), 0))
        self._excess, self._totals = excess, totals
        return surcharges


def _allowed(grant: Grant, share: Share, gated: bool) -> tuple[int, str]:
    """(per cent of the GPU's time that the container may have, the same in words). gated: the container comes to the
    gate, which limits it, or is alone on the GPU."""
    if grant.stopped:
        return 0, f"though it is {'suspended' if grant.off_gpu else 'frozen'}"
    if most := cap(grant, share):
        return most, f"ceiling {most} %"
    if gated:
        return 100, "all of it"
    return guaranteed(grant, share), f"none of it through the gate, guarantee {guaranteed(grant, share)} %"


def _forged(seen: NodeLook, uses: dict[tuple[str, str], Use]) -> list[Finding]:
    """A process that shows work has a context, so NVML lists it. Where it lists nobody on a GPU, that says nothing."""
    found = []
    for (key, uuid), working in seen.working.items():
        gpu, listed = seen.gpus.get(uuid), len(uses.get((key, uuid), Use(0, 0, ())).processes)
        if key in seen.grants and gpu and gpu.processes and working > listed:
            what = (
                f"{working} process records in its slot file show work in flight, NVML lists {listed} of its processes"
            )
            found.append(Finding("forged-records", key, uuid, 0, 0, what))
    return found


def driver_uses(seen: NodeLook) -> tuple[dict[tuple[str, str], Use], dict[str, tuple[int, int]]]:
    """(what the driver sees by (key, UUID), (processes, bytes) of no container with a grant by UUID)."""
    found: dict[tuple[str, str], Use] = {}
    unknown: dict[str, tuple[int, int]] = {}
    for uuid, gpu in seen.gpus.items():
        for pid, used, busy in gpu.processes:
            if pid in seen.processes:
                at = (seen.processes[pid][0], uuid)
                old = found.get(at, Use(0, 0, ()))
                found[at] = Use(old.used + (used or 0), min(100, old.busy + busy), (*old.processes, pid))
            else:
                n, size = unknown.get(uuid, (0, 0))
                unknown[uuid] = (n + 1, size + (used or 0))
    return found, unknown


def _name(p: TenantProcess) -> str:
    return f"process {p.pid} ({p.name})"


def _mib(size: int) -> int:
    return -(-size // MIB)
