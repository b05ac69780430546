"""Who takes a neighbour's memory now, and is to be killed for it. Pure; the agent acts. Sizes are bytes, times seconds
of the monotonic clock.

A container harms its neighbours while two things are true at once: it holds more of a GPU than its limit and the
tolerance, and less is free there than the other running containers were granted and do not use yet. Then some of what
they were promised is in its hands. It is killed

- by one look, where processes that the shim keeps no books for hold too much by themselves: no honest one does;
- else by two looks, at least CONFIRM apart, in which the same processes hold too much, each counted at the smaller of
  the two: a process that frees what another one takes is counted at what it has left, though NVML may show it late;
- never by a look older than FRESH, and one container at a time: first the one with the largest excess, and the next one
  when that one's memory is free, or after LEAVING.

More may be held where the limit was lowered while the container ran (`gpu-hook set`): what it had then, until it gives
it back. Where the event log does not go back to the container's grant, that may have been: then what it has at the
first look.

Memory that belongs to no process that NVML lists (a forked child keeps what its dead parent had) is what the GPU has
in use beyond its processes and the driver's own, which is taken to be the least that was ever seen beyond processes. It
counts for the containers whose books have as much for processes that NVML does not list, and what is left for the one
container that can hold it; in doubt for none.
"""

from collections.abc import Callable, Iterable

from oci_hook.core.value import Value

FRESH = 1.0
CONFIRM = 0.3
LEAVING = 2.0


class Held(Value):
    """A process of a container, and what it holds of the GPU; size None: NVML does not say. booked: the shim keeps
    books for it."""

    pid: int
    start: int
    size: int | None
    booked: bool


class Tenant(Value):
    """A container with a share of the GPU. limit: None for a whole GPU, which has none. running: it has an init that
    lives, and nobody stopped it. booked: by its page, of the living. readable: its books could be looked at, or it has
    none. claims: what they have for processes that NVML does not list. most: the highest limit that it ever had. told:
    that is known; else it was there before us, and what happened to it is forgotten."""

    key: str
    limit: int | None
    processes: tuple[Held, ...] = ()
    booked: int = 0
    running: bool = True
    readable: bool = True
    claims: int = 0
    most: int = 0
    told: bool = True

    @property
    def listed(self) -> int:
        return sum(p.size or 0 for p in self.processes)

    @property
    def known(self) -> bool:
        return all(p.size is not None for p in self.processes)

    def unmet(self, unlisted: int = 0) -> int:
        """What it was granted and does not use yet: at least so much, for sure. unlisted: what else counts for it."""
        if self.limit is None or not self.running or not self.known or not self.readable:
            return 0
        return max(0, self.limit - max(self.listed + unlisted, self.booked))


class Look(Value):
    """One GPU as NVML saw it. at: before NVML was asked. used: None where it changed while the processes were listed.
    others: what listed processes of no container of ours hold; None: NVML does not say. unsure: some of these may be of
    a container that is just being started: then one look kills nobody."""

    uuid: str
    at: float
    total: int
    free: int
    used: int | None
    tenants: tuple[Tenant, ...]
    others: int | None = 0
    unsure: bool = False


class Harm(Value):
    """What one container does to its neighbours. excess: above what it may hold. unmet: what they were granted and do
    not use yet, of which only `free` is there."""

    key: str
    held: int
    limit: int
    excess: int
    free: int
    unmet: int
    processes: tuple[Held, ...]


class Judgement(Value):
    """kill: the one container to kill now. again: seconds until the GPU is to be looked at again, None: as ever.
    unlisted: bytes that belong to no listed process. alarm: less free than this is worth a look."""

    kill: Harm | None = None
    again: float | None = None
    unlisted: int = 0
    alarm: int = 0


class _Suspect:
    """Since when, and the least that each process was seen with since."""

    def __init__(self, at: float, sizes: dict[tuple[int, int], int], unlisted: int) -> None:
        self.at = at
        self.sizes = sizes
        self.unlisted = unlisted


class Protector:
    """Remembers, by GPU and container, limits that were lowered, suspicions, the driver's own memory. tolerance: what
    a container may be above its limit."""

    def __init__(self, tolerance: int) -> None:
        self.tolerance = tolerance
        self._allowed: dict[tuple[str, str], tuple[int, int]] = {}  # the limit seen, what may be held
        self._suspects: dict[tuple[str, str], _Suspect] = {}
        self._own: dict[str, int] = {}  # of each GPU, the driver's
        self._leaving: dict[str, tuple[str, float]] = {}  # of each GPU, who was killed and when

    def forget(self, keys: "set[str]") -> None:
        """Of containers that ended."""
        for store in (self._allowed, self._suspects):
            for at in [at for at in store if at[1] in keys]:
                del store[at]

    def spare(self, uuid: str) -> None:
        """Who was to be killed is not, for now."""
        self._leaving.pop(uuid, None)

    def judge(self, look: Look, now: float, holders: "Callable[[], Iterable[str]]" = lambda: ("", "")) -> Judgement:
        """holders: asked only where it matters; the keys of all containers that can hold memory of this GPU without
        being listed, "" for processes of none."""
        tenants = {t.key: t for t in look.tenants}
        unlisted = self._unlisted(look)
        extra = self._attributed(look, unlisted, holders)
        alarm = min(sum(t.unmet(extra.get(t.key, 0)) for t in look.tenants), look.free)
        for key, tenant in tenants.items():
            self._allow(look.uuid, tenant, tenant.listed + extra.get(key, 0))
        if now - look.at > FRESH:
            return Judgement(again=0.0, unlisted=unlisted, alarm=alarm)
        harms = [h for t in tenants.values() if (h := self._harm(look, t, extra))]
        for at in [at for at in self._suspects if at[0] == look.uuid and at[1] not in {h.key for h in harms}]:
            del self._suspects[at]
        if self._still_leaving(look, now):
            return Judgement(again=CONFIRM, unlisted=unlisted, alarm=alarm)
        if not harms:
            return Judgement(unlisted=unlisted, alarm=alarm)
        worst = max(harms, key=lambda h: (h.excess, h.key))
        for h in harms:
            confirmed = self._confirmed(look, tenants[h.key], h, extra.get(h.key, 0))
            if h is worst and (confirmed or (not look.unsure and self._certain(tenants[h.key], h))):
                self._leaving[look.uuid] = h.key, now
                return Judgement(h, CONFIRM, unlisted, alarm)
        return Judgement(again=CONFIRM, unlisted=unlisted, alarm=alarm)

    def _allow(self, uuid: str, tenant: Tenant, held: int) -> None:
        """Keep what the container may hold: more than limit and tolerance only where it had that before the limit was
        lowered, or may have: of whom nothing is told, what it has at the first look, and the tolerance."""
        if tenant.limit is None:
            return
        at, usual = (uuid, tenant.key), tenant.limit + self.tolerance
        before = self._allowed.get(at)
        if not tenant.told:
            held += self.tolerance
        if before is None and not tenant.told:
            may = max(usual, held)
        elif before is None:
            may = max(usual, min(held, tenant.most + self.tolerance))
        elif tenant.limit < before[0] or before[1] > before[0] + self.tolerance:
            may = max(usual, min(before[1], held))
        else:
            may = usual
        self._allowed[at] = tenant.limit, may

    def _harm(self, look: Look, tenant: Tenant, extra: dict[str, int]) -> Harm | None:
        if tenant.limit is None or not tenant.running:
            return None
        held = tenant.listed + extra.get(tenant.key, 0)
        excess = held - self._allowed[look.uuid, tenant.key][1]
        if excess <= 0:
            return None
        unmet = sum(t.unmet(extra.get(t.key, 0)) for t in look.tenants if t.key != tenant.key)
        if unmet <= look.free:
            return None
        return Harm(tenant.key, held, tenant.limit, excess, look.free, unmet, tenant.processes)

    def _certain(self, tenant: Tenant, harm: Harm) -> bool:
        own = sum(p.size or 0 for p in tenant.processes if not p.booked)
        return tenant.readable and own > harm.held - harm.excess

    def _confirmed(self, look: Look, tenant: Tenant, harm: Harm, unlisted: int) -> bool:
        at = look.uuid, tenant.key
        sizes = {(p.pid, p.start): p.size or 0 for p in tenant.processes}
        before = self._suspects.get(at)
        if before is not None:
            least = {who: min(size, before.sizes[who]) for who, size in sizes.items() if who in before.sizes}
            still = sum(least.values()) + min(unlisted, before.unlisted) > harm.held - harm.excess
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
        """Beyond the driver's own by more than the tolerance; else 0."""
        if look.used is None or look.others is None or not all(t.known for t in look.tenants):
            return 0
        beyond = max(0, look.used - look.others - sum(t.listed for t in look.tenants))
        own = self._own[look.uuid] = min(beyond, self._own.get(look.uuid, beyond))
        return beyond - own if beyond - own > self.tolerance else 0

    def _attributed(self, look: Look, unlisted: int, holders: "Callable[[], Iterable[str]]") -> dict[str, int]:
        if not unlisted:
            return {}
        claims = {t.key: t.claims for t in look.tenants if t.claims > 0}
        if sum(claims.values()) > unlisted:
            return {}
        left = unlisted - sum(claims.values())
        if left > self.tolerance:
            able = set(holders())
            if len(able) == 1 and able <= {t.key for t in look.tenants}:
                (key,) = able
                claims[key] = claims.get(key, 0) + left
        return claims
