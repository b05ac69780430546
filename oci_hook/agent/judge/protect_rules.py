"""Decides which container takes its neighbours' memory now and is to be killed for it. Pure; the agent acts. Sizes are
bytes, times are seconds of the monotonic clock.

A container harms its neighbours while two things are true at once: it certainly uses more of a GPU than its limit and
the tolerance, and less is free there than the other running containers were granted and do not use yet. Then it has
taken some of what they were granted. It is killed

- by one look, if processes that the shim does not account for use too much by themselves: no honest process is one;
- else by two looks, at least CONFIRM apart, in which the same processes use too much. Each process counts with the
  smaller of its two sizes: when one process frees what another one takes, NVML may show the first one's part too late;
- never by a look older than FRESH, and one container at a time: first the one with the largest excess; the next one
  when the first one's memory is free, or after LEAVING.

A container that is suspended may have nothing: the driver and NVML said that it had nothing when it left, and what its processes
ask of the shim since then waits. So it takes what others were granted by whatever it has beyond the tolerance, unless the GPU has room
for that beside all that the others were granted, whatever they use or write. The two looks need not be in a row, and the processes may
be others each time, as of one that has its memory come and go all the time. It is killed before any other.

A container may use more if its limit was lowered while it ran (`gpu-hook set`): it may keep what it used then, until it
frees it. If the event log does not reach back to the container's grant, its limit may have been lowered before: it may
keep what it uses at the first look.

Memory of no listed process: a forked child keeps the memory of its parent that ended, and NVML lists no process for it.
It is what the GPU has in use beyond the listed processes and the driver's own memory; the driver's own is taken to be
the least that was ever seen beyond listed processes. Only the driver can prove whose it is: what it charges to a
container's cgroup (615 and later) beyond the container's listed processes counts for that container. The rest counts
against nobody, whoever seems to be the only one who can have it, since a tenant can hide from every list of /proc. Any
other container may have it, so it counts as if it were free; new grants are not given what no account page explains.
"""

from oci_hook.core.value import Value

FRESH = 1.0
CONFIRM = 0.3
LEAVING = 2.0


class Member(Value):
    """A process of a container, and the memory of the GPU that it uses; size None: NVML does not say. accounted: it is
    in the account page."""

    pid: int
    start: int
    size: int | None
    accounted: bool


class Tenant(Value):
    """A container with a share of the GPU. limit: None for a whole GPU, which has none. running: it has an init that
    lives, and it was not stopped. accounted: the total of its account page. readable: that page could be read, or there
    is none. on_page: what the page has for processes that NVML does not list. highest: the highest limit that it ever
    had. charged: by the driver's own figure to its cgroup; None: the driver has none. known: `highest` is known; else it
    is older than the agent, and the event log does not have its grant. away: it was suspended before the look. moving:
    its memory was on its way from or to its GPUs."""

    key: str
    limit: int | None
    processes: tuple[Member, ...] = ()
    accounted: int = 0
    running: bool = True
    readable: bool = True
    on_page: int = 0
    highest: int = 0
    known: bool = True
    charged: int | None = None
    away: bool = False
    moving: bool = False

    @property
    def listed(self) -> int:
        return sum(p.size or 0 for p in self.processes)

    @property
    def measured(self) -> bool:
        """NVML says the size of each process."""
        return all(p.size is not None for p in self.processes)

    @property
    def used(self) -> int:
        """Memory that it certainly uses."""
        return max(self.listed, self.charged or 0) if self.measured else self.listed

    @property
    def unmet(self) -> int:
        """Memory that it was granted and certainly does not use yet."""
        if self.limit is None or not self.running or not self.measured or not self.readable:
            return 0
        return max(0, self.limit - max(self.used, self.accounted))

    def granted(self, total: int) -> int:
        """Bytes, of a GPU with so many."""
        if not self.running or self.away:
            return 0
        return total if self.limit is None else self.limit

    @property
    def explained(self) -> int:
        """Memory of no listed process that its account page explains; at most its grant."""
        return min(self.on_page, max(0, (self.limit or 0) - self.used))


class Look(Value):
    """One GPU as NVML saw it. at: before NVML was asked. used: None if it changed while the processes were listed.
    others: what listed processes of no container with a grant use; None: NVML does not say. unsure: some of those may
    belong to a container that is just being started, so no container is killed by this look alone."""

    uuid: str
    at: float
    total: int
    free: int
    used: int | None
    tenants: tuple[Tenant, ...]
    others: int | None = 0
    unsure: bool = False


class Harm(Value):
    """One container's effect on its neighbours. used: by the container. excess: its use above its limit. unmet: memory that
    the others were granted and do not use yet. free: memory left for them, with memory that nobody can be proved to have. away: it
    is suspended; then unmet is all that the others were granted, and free what it leaves of the GPU."""

    key: str
    used: int
    limit: int
    excess: int
    free: int
    unmet: int
    processes: tuple[Member, ...]
    away: bool = False


class Judgement(Value):
    """kill: the one container to kill now. again: seconds until the GPU is to be looked at again, None: at the usual
    time. unlisted: bytes that belong to no listed process. unexplained: of these, bytes that no account page and no
    figure of the driver explains. alarm: when fewer bytes are free, the GPU is to be looked at."""

    kill: Harm | None = None
    again: float | None = None
    unlisted: int = 0
    unexplained: int = 0
    alarm: int = 0


class _Suspect:
    """A container under suspicion: since when, and the smallest size of each process since then. unlisted: the same of
    what the driver charges beyond the listed processes."""

    def __init__(self, at: float, sizes: dict[tuple[int, int], int], unlisted: int) -> None:
        self.at = at
        self.sizes = sizes
        self.unlisted = unlisted


class Protector:
    """Remembers lowered limits and suspicions by GPU and container, and the driver's own memory by GPU. tolerance: what
    a container may use above its limit."""

    def __init__(self, tolerance: int) -> None:
        self.tolerance = tolerance
        self._allowed: dict[tuple[str, str], tuple[int, int]] = {}  # by (GPU, key): (the limit, bytes that it may use)
        self._suspects: dict[tuple[str, str], _Suspect] = {}
        self._own: dict[str, int] = {}  # by GPU: the driver's own memory
        self._unlisted_before: dict[str, int] = {}  # by GPU: at the look before
        self._leaving: dict[str, tuple[str, float]] = {}  # by GPU: (the container that was killed, when)

    def forget(self, keys: "set[str]") -> None:
        """Drop what is known of these containers, which have ended."""
        for store in (self._allowed, self._suspects):
            for at in [at for at in store if at[1] in keys]:
                del store[at]

    def spare(self, uuid: str) -> None:
        """Note that the container of this GPU that was to be killed is not killed now."""
        self._leaving.pop(uuid, None)

    def judge(self, look: Look, now: float) -> Judgement:
        """Judge one look at a GPU."""
        look = look.replace(tenants=tuple(t.replace(charged=self._charged(t)) for t in look.tenants))
        tenants = {t.key: t for t in look.tenants}
        unlisted = self._unlisted(look)
        unexplained = unlisted - sum(t.used - t.listed + t.explained for t in look.tenants)
        unmet = sum(t.unmet for t in look.tenants)
        if any(t.away for t in look.tenants):  # whatever the others write
            unmet = max(unmet, sum(max(0, t.granted(look.total) - t.listed) for t in look.tenants))
        alarm = min(unmet, look.free)
        none = Judgement(unlisted=unlisted, unexplained=unexplained if unexplained > self.tolerance else 0, alarm=alarm)
        for tenant in tenants.values():
            self._allow(look.uuid, tenant)
        if now - look.at > FRESH:
            return none.replace(again=0.0)
        harms = [h for t in tenants.values() if (h := self._harm(look, t))]
        kept = {h.key for h in harms} | {t.key for t in look.tenants if t.away}
        for at in [at for at in self._suspects if at[0] == look.uuid and at[1] not in kept]:
            del self._suspects[at]
        if self._still_leaving(look, now):
            return none.replace(again=CONFIRM)
        if not harms:
            return none
        worst = max(harms, key=lambda h: (tenants[h.key].away, h.excess, h.key))
        for h in harms:
            confirmed = self._confirmed(look, tenants[h.key], h)
            if h is worst and (confirmed or (not look.unsure and self._certain(tenants[h.key], h))):
                self._leaving[look.uuid] = h.key, now
                return none.replace(kill=h, again=CONFIRM)
        return none.replace(again=CONFIRM)

    def _allow(self, uuid: str, tenant: Tenant) -> None:
        """Note what the container may use: its limit and the tolerance, or more if it had more before its limit was
        lowered. A container whose limits are not known may keep what it uses at the first look, and the tolerance."""
        at = uuid, tenant.key
        before = self._allowed.get(at)
        if tenant.limit is None or (before is not None and (tenant.away or tenant.moving)):
            return  # what leaves the GPU as a whole comes back as a whole
        usual, used = tenant.limit + self.tolerance, tenant.used
        if not tenant.known:
            used += self.tolerance
        if before is None and not tenant.known:
            may = max(usual, used)
        elif before is None:
            may = max(usual, min(used, tenant.highest + self.tolerance))
        elif tenant.limit < before[0] or before[1] > before[0] + self.tolerance:
            may = max(usual, min(before[1], used))
        else:
            may = usual
        self._allowed[at] = tenant.limit, may

    def _harm(self, look: Look, tenant: Tenant) -> Harm | None:
        if tenant.limit is None or not tenant.running:
            return None
        may = self.tolerance if tenant.away else self._allowed[look.uuid, tenant.key][1]
        excess = tenant.used - may
        if excess <= 0:
            return None
        others = [t for t in look.tenants if t.key != tenant.key]
        unmet = sum(t.unmet for t in others)
        free = look.free + self._nobodys(look)
        if tenant.away:
            unmet, free = sum(t.granted(look.total) for t in others), look.total - tenant.used
        if unmet <= free:
            return None
        return Harm(tenant.key, tenant.used, tenant.limit, excess, free, unmet, tenant.processes, tenant.away)

    def _certain(self, tenant: Tenant, harm: Harm) -> bool:
        bypassing = sum(p.size or 0 for p in tenant.processes if not p.accounted)
        return tenant.readable and bypassing > harm.used - harm.excess

    def _confirmed(self, look: Look, tenant: Tenant, harm: Harm) -> bool:
        at, unlisted = (look.uuid, tenant.key), tenant.used - tenant.listed
        sizes = {(p.pid, p.start): p.size or 0 for p in tenant.processes}
        before = self._suspects.get(at)
        if before is not None and tenant.away:
            return look.at - before.at >= CONFIRM
        if before is not None:
            least = {who: min(size, before.sizes[who]) for who, size in sizes.items() if who in before.sizes}
            still = sum(least.values()) + min(unlisted, before.unlisted) > harm.used - harm.excess
            if still:
                before.sizes, before.unlisted = least, min(unlisted, before.unlisted)
                return look.at - before.at >= CONFIRM
        self._suspects[at] = _Suspect(look.at, sizes, unlisted)
        return False

    def _still_leaving(self, look: Look, now: float) -> bool:
        key, when = self._leaving.get(look.uuid, ("", 0.0))
        if not key:
            return False
        there = any(t.key == key and t.listed for t in look.tenants)
        if look.at < when or (there and now - when < LEAVING):
            return True
        del self._leaving[look.uuid]
        return False

    def _unlisted(self, look: Look) -> int:
        """Bytes of no listed process beyond the driver's own, if they are more than the tolerance; else 0."""
        if look.others is None or not all(t.measured for t in look.tenants):
            return 0
        used = look.total - look.free if look.used is None else look.used
        beyond = max(0, used - look.others - sum(t.listed for t in look.tenants))
        if look.used is not None:
            self._own[look.uuid] = min(beyond, self._own.get(look.uuid, beyond))
        beyond -= self._own.get(look.uuid, beyond)
        before = self._unlisted_before.get(look.uuid, 0)
        self._unlisted_before[look.uuid] = beyond
        if look.used is None:  # a tenant may keep memory moving for ever, so that no look is steady
            beyond = min(beyond, before)
        return beyond if beyond > self.tolerance else 0

    def _nobodys(self, look: Look) -> int:
        """Bytes in use that nobody can be proved to have, beyond the driver's own; in doubt too many."""
        proved = (look.others or 0) + sum(max(t.used, t.accounted) for t in look.tenants)
        return max(0, look.total - look.free - proved - self._own.get(look.uuid, 0))

    def _charged(self, tenant: Tenant) -> int | None:
        """The driver's charge to the container's cgroup, if it exceeds that of its listed processes by more than the
        tolerance. Of a suspended one it proves nothing: no driver with such a figure was seen to move memory."""
        if tenant.away:
            return None
        beyond = (tenant.charged or 0) - tenant.listed
        return tenant.charged if beyond > self.tolerance else None
