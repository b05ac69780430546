"""Decides which container leaves a GPU for a while whose memory is lent, and which one comes back. Pure.

Containers may have more memory than they request. While there is room, nobody is moved. An allocation for which there is no
room waits, in its process (shim/memory/charge.c). That demand, and each container that was moved to the host's memory, is
served in this order: first who is within its request, then the higher class, then who waits longest. Room is made by moving
containers that have more than their requests, as wholes, those of the lowest class first:

  for a demand within the request          any of its own class or a lower one, at once
  for another demand                       any of a lower class, at once; of its own class who has been on the GPU for a turn,
                                          or waits itself, which is how two that wait for each other come apart

A turn is as long as the setting memory_turn, and ten times as long as moving the two takes, so that moving costs less than a
tenth. Nobody is moved where that would not make room enough. A container that was moved comes back as soon as there is room, but not
before it has been ten times as long since it came back last as leaving and coming back take. So, but for the first time since the
agent's start, it spends no more than a tenth of its time on its way, however many others allocate and free, and on how many GPUs it is.
That bounds moving alone: others who are within their requests, or of a higher class, can have it away for nearly all of the time, as it
has more than its request.
"""

from oci_hook.core.value import Value

MOVES = 10  # a turn is at least so many times as long as the moves that it costs
GRACE = 5.0  # seconds for which room that is there for a demand is kept for it; an allocation tries ten times a second
USUAL_RATE = 1 / (2 << 30)  # seconds for a byte (an H200 with driver 580), until moves of two sizes were measured


class Pace:
    """How long a move takes: a part that is the same for each (a process, the driver's lock), and one for each byte, so that
    a small move does not make large ones look slow."""

    def __init__(self, start: float = 0.0, per_byte: float = USUAL_RATE) -> None:
        self._start, self._per_byte = start, per_byte
        self._measured: list[tuple[int, float]] = []  # two at most: bytes, seconds

    def seconds(self, size: int) -> float:
        """Of one move of so many bytes."""
        return self._start + size * self._per_byte

    def measured(self, size: int, seconds: float) -> None:
        """It takes the place of the one that is nearest to it in size."""
        known = sorted(self._measured, key=lambda m: abs(m[0] - size), reverse=True)
        self._measured = sorted([*known[:1], (size, seconds)])
        (small, short), (large, long) = self._measured[0], self._measured[-1]
        self._per_byte = min(USUAL_RATE, seconds / max(1, size))
        if large >= 2 * small:
            self._per_byte = max(0.0, long - short) / (large - small)
        self._start = max(0.0, seconds - size * self._per_byte)


class LentTenant(Value):
    """A container on a lent GPU. level: of its class, the lowest is 0. used: bytes on the GPU; of a suspended one, what it
    comes back with. request: bytes that are always there for it. waits: bytes that it waits for; 0: nothing. since: since
    when it waits. here: since when it is on the GPU, or away from it, in the same seconds. back: when it came back last; 0:
    it never left. away: it is suspended. fixed: it is not moved now. beside: bytes on its other GPUs, which move with it."""

    key: str
    level: int
    used: int
    request: int
    waits: int = 0
    since: float = 0.0
    here: float = 0.0
    back: float = 0.0
    away: bool = False
    fixed: bool = False
    beside: int = 0

    @property
    def size(self) -> int:
        """Bytes that a move of it takes."""
        return self.used + self.beside

    @property
    def need(self) -> int:
        """Bytes that are to be free for it."""
        return self.used + self.waits if self.away else self.waits

    @property
    def entitled(self) -> bool:
        return self.used + self.waits <= self.request

    @property
    def demands_since(self) -> float:
        return self.here if self.away else self.since


class MemoryMove(Value):
    """key: who moves. lent_to: for whom it leaves the GPU; "": it comes back."""

    key: str
    lent_to: str = ""


class Doubt:
    """Remembers demands that did not take the room that was there: for a turn they count for nothing."""

    def __init__(self) -> None:
        # For how long there was room for who waits, when that was seen last (0: not at the last look), what it has once it took it,
        # and when it waited last: a pause that is shorter than a turn is no other demand.
        self._room: dict[str, tuple[float, float, int, float]] = {}
        self._until: dict[str, float] = {}

    def believed(self, tenants: tuple[LentTenant, ...], free: int, now: float, turn: float) -> tuple[LentTenant, ...]:
        """The tenants without the demands that are not believed. free: bytes of the GPU that nobody uses. turn: seconds."""
        room = {}
        for t in tenants:  # another size than before is no other demand
            seconds, last, then, waited = self._room.get(t.key, (0.0, 0.0, t.used + t.need, now))
            waited = now if t.waits else waited
            if t.away or t.used >= then or now - waited >= turn:
                continue
            fits = bool(t.waits) and t.need <= free
            seconds += now - last if fits and last else 0.0
            if seconds >= GRACE:
                self._until[t.key] = now + turn
            elif fits or t.key in self._room:
                room[t.key] = seconds, now if fits else 0.0, then, waited
        self._room = room
        self._until = {key: until for key, until in self._until.items() if now < until}
        return tuple(t.replace(waits=0) if t.key in self._until and not t.away else t for t in tenants)


def decide(tenants: tuple[LentTenant, ...], free: int, now: float, turn: float, pace: Pace) -> MemoryMove | None:
    """The next move; None: nobody moves. free: bytes of the GPU that nobody uses. turn: seconds."""
    demands = [tenant for tenant in tenants if tenant.waits or tenant.away]
    demands.sort(key=lambda t: (not t.entitled, -t.level, t.demands_since, t.key))
    served = set()
    for demand in demands:
        stays = demand.back and not demand.entitled and now - demand.back < MOVES * 2 * pace.seconds(demand.size)
        if demand.away and (demand.fixed or stays):
            continue  # nobody leaves before it can come back
        if demand.need <= free:
            if demand.away:
                return MemoryMove(demand.key)
            free -= demand.need  # it takes it at its next try
            served.add(demand.key)
            continue
        idle = {tenant.key for tenant in tenants if tenant.waits} - served
        chosen = _victims(demand, tenants, demand.need - free, now, turn, pace, idle)
        if chosen:
            return MemoryMove(chosen[0].key, demand.key)
    return None


def stuck(tenants: tuple[LentTenant, ...], free: int) -> tuple[str, str] | None:
    """(who waits within its request, who has more than its own and is not moved), where nothing but that one could make room."""
    for demand in tenants:
        if (demand.waits or demand.away) and demand.entitled and demand.need > free:
            over = [t for t in tenants if _gives(t, demand)]
            if any(t.fixed for t in over) and sum(t.used for t in over if not t.fixed) < demand.need - free:
                worst = min((t for t in over if t.fixed), key=lambda t: (t.level, t.request - t.used))
                return demand.key, worst.key
    return None


def _gives(tenant: LentTenant, demand: LentTenant) -> bool:
    """True if it has memory that was only lent to it, and this demand may have it."""
    lent = not tenant.away and tenant.used > tenant.request
    return lent and tenant.key != demand.key and tenant.level <= demand.level


def _victims(
    demand: LentTenant,
    tenants: tuple[LentTenant, ...],
    need: int,
    now: float,
    turn: float,
    pace: Pace,
    idle: set[str],
) -> list[LentTenant]:
    """Who makes room for this demand, in the order in which they leave; [] where there is not enough. idle: who cannot work, as
    it waits for room itself."""

    def may(t: LentTenant) -> bool:
        if t.fixed or not _gives(t, demand):
            return False
        if demand.entitled or t.level < demand.level:
            return True
        least = MOVES * (pace.seconds(t.size) + pace.seconds(demand.size))
        return t.key in idle or now - t.here >= max(turn, least)

    # Of one class, first who cannot work anyhow, then who has been there longest.
    found, size = [], 0
    for tenant in sorted(filter(may, tenants), key=lambda t: (t.level, t.key not in idle, t.here, t.key)):
        if size < need:
            found.append(tenant)
            size += tenant.used
    if size < need:
        return []
    for tenant in list(found):  # one that came late may have made an earlier one unnecessary
        if size - tenant.used >= need:
            found.remove(tenant)
            size -= tenant.used
    return found
