"""One container's time on one GPU, as its gate counts, against its guarantee. Pure; times are seconds.

A container is owed its guarantee of the time in which it wants work. The shortfall is what it was owed less what it
had, in per cent of the GPU over the last minute. Nothing is owed while it is frozen, nor while a container of a higher
class wants the GPU, since lower classes make way for that. A process that bypasses the gate is not counted and slows the
others, so that they are charged more time than they had: if the driver saw much less than the gate counted, the
driver's figure is used, as a mean (gpu_sample.py). Harvest is what an offline container had.
"""

from oci_hook.agent.judge.gpu_sample import LOW, SECONDS
from oci_hook.core.slot_page import Gate
from oci_hook.core.terms import CLASS_NUMBERS
from oci_hook.core.value import Value

WINDOW = 60.0
DOUBT = 15.0  # per cent by which NVML's figure may be lower: it samples, and may miss a burst
OFFLINE = CLASS_NUMBERS["offline"]


class Meter:
    """`step` and then `count` at each look. used: per cent of the GPU since the previous look, None where nothing was
    counted. shortfall: per cent, below 0 if it had more than its guarantee; None if nothing was owed in the last minute.
    harvested: seconds in all; harvest: per cent of the GPU over the last minute. outranked: seconds in which it wanted
    work and its guarantee was not in force, since a higher class wanted work too. wanting: it wanted work since the
    previous look.
    """

    def __init__(self) -> None:
        self.used: float | None = None
        self.shortfall: float | None = None
        self.harvested = self.outranked = 0.0
        self.harvest: float | None = None
        self.wanting = False
        self._owed = self._had = self._seen = 0.0
        self._last: tuple[float, Gate | None] | None = None
        self._points: list[tuple[float, float, float, float, float]] = []  # when: owed, had, seen, harvested so far

    def step(self, now: float, gate: Gate | None) -> tuple[float, float, float]:
        """(seconds since the previous look, seconds charged, seconds in which the container wanted work), the last two
        at most as long as the first."""
        last, self._last = self._last, (now, gate)
        if last is None or now <= last[0] or gate is None or last[1] is None:
            self.used, self.wanting = None, False
            return max(0.0, now - last[0]) if last else 0.0, 0.0, 0.0
        took = now - last[0]
        charged = min(took, max(0.0, gate.charged - last[1].charged))
        wanted = min(took, max(0.0, (gate.wanted or 0.0) - (last[1].wanted or 0.0)))
        self.used = 100 * charged / took if charged else None
        self.wanting = wanted > 0 or charged > 0
        return took, charged, wanted

    def count(
        self,
        now: float,
        step: tuple[float, float, float],
        busy: int | None,
        promise: int,
        offline: bool,
        owing: bool,
        outranked: bool = False,
    ) -> None:
        """After `step` of all containers of the GPU. busy: NVML's figure, used where the gate counts nothing. promise:
        what it should have, in per cent (core/gpu_page.py, promised). owing: it is neither frozen nor kept waiting by a higher class.
        outranked: a higher class wants work."""
        took, charged, wanted = step
        if offline:
            self.harvested += charged if self.wanting else took * (busy or 0) / 100
        if owing and wanted:
            self._owed += wanted * promise / 100
            self._had += charged
            self._seen += charged if busy is None else took * busy / 100
        if outranked and promise:
            self.outranked += wanted
        self._points.append((now, self._owed, self._had, self._seen, self.harvested))
        while len(self._points) > 2 and self._points[1][0] <= now - WINDOW:
            del self._points[0]
        then, owed, had, seen, harvested = self._points[0]
        length, had, seen = now - then, self._had - had, self._seen - seen
        self.shortfall = self.harvest = None
        if length > 0 and promise and self._owed > owed:
            if length >= SECONDS and seen < had * LOW and had - seen > length * DOUBT / 100:
                had = seen
            self.shortfall = 100 * (self._owed - owed - had) / length
        if length > 0 and offline:
            self.harvest = min(100.0, 100 * (self.harvested - harvested) / length)


class Party(Value):
    """One container on the GPU. rank: its class, higher goes first."""

    meter: Meter
    gate: Gate | None
    busy: int | None
    promise: int
    rank: int
    stopped: bool


def look(now: float, gpu: list[Party]) -> None:
    """Bring the meters of all containers of one GPU up to date."""
    steps = [p.meter.step(now, p.gate) for p in gpu]
    first = max((p.rank for p in gpu if p.meter.wanting), default=0)
    for p, step in zip(gpu, steps, strict=True):
        outranked = p.rank < first
        p.meter.count(now, step, p.busy, p.promise, p.rank == OFFLINE, not (p.stopped or outranked), outranked)
