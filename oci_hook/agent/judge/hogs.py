"""Finds containers that keep others waiting at the gate and do not use the GPU meanwhile: the finding hogs-gate. Pure.

A container counts in its own slot file how long it was held for each other one, while it had nothing in flight
(core/slot_page.py, Gate.held_for). Held time is honest where the other one had the GPU: that explains it. So one span of
looks, long enough for NVML's figures (gpu_sample.py), suspects container X if

- a witness W on the same GPU was held for more than WASTED of the time without an explanation by GPU time of those that it
  names; and X is one of those that take the largest part of that. (The gate's own rules bound what a liar can cost: W
  still has nine tenths of its share. The finding says who tries.) Time in which the machine gave W or X no processor is
  explained as well: X could not give way, and W not go on;
- X's slot shows work, or a tenure that it did not show when the span began;
- X is of W's class or a lower one: a higher class may keep a lower one out.

GPU time is NVML's figure by process, and more where X publishes more: a third, since NVML's mean may be a quarter too low,
and a little besides, since it may miss a burst. Where NVML has no such figures, it is what X publishes of itself, and two
witnesses are needed.

What it proves: W says so in a file that W can write, so W may lie about X, as X may lie to W. W cannot have been held
while it had the GPU, so what it says is cut to the rest; what X had counts for X, whoever says so. But of an idle X and
an idle W, one of which lies, nobody can say from outside which one it is. The finding therefore has the number of the
witnesses and their figures, and is only ever reported: no policy freezes or kills for it.
"""

from oci_hook.agent.judge.audit_rules import NodeLook, driver_uses
from oci_hook.agent.judge.gpu_sample import LOOKS, LOW, SECONDS, GpuSample
from oci_hook.core import words
from oci_hook.core.gpu_page import on_gpu, weights
from oci_hook.core.slot_page import Gate
from oci_hook.core.terms import CLASS_NUMBERS
from oci_hook.core.value import Value

WASTED = 0.05  # of the span's time: who was held for less, without an explanation, is no witness
LEAST = 0.01  # the same of one container's part
IDLE = 10  # per cent busy, up to which a GPU needs no process that explains it
DOUBT = 0.15  # of the GPU's time that NVML may have missed, for all containers together


class Party(Value):
    """A container on one GPU. slot: Share.slot. rank: its class, higher goes first. busy: per cent of the GPU's time by
    NVML; None if NVML has no such figures for this GPU. stopped: frozen or stopped, so it is no witness. starved: seconds
    in which a thread of it waited for a processor, as far as that was looked at. Both: since the look before."""

    key: str
    slot: int
    weight: int
    rank: int
    gate: Gate | None
    busy: int | None = None
    stopped: bool = False
    starved: float = 0.0


class Hog(Value):
    """Container `key` is suspected. held: per cent of the time that witnesses were held for it, on average. had: per cent
    of the GPU's time that it had. share: its per cent by weight. witnesses: their keys. again: the span before suspected it,
    too."""

    key: str
    held: float
    had: float
    share: float
    witnesses: tuple[str, ...]
    again: bool = False


class Hogs:
    """`look` at each sample; remembers those of the span that is not over. Nobody is to be found who is not suspected again."""

    def __init__(self) -> None:
        self._looks: dict[str, list[tuple[float, dict[str, Party]]]] = {}  # by UUID
        self._found: dict[str, list[Hog]] = {}  # by UUID, by the last span

    def forget(self, uuids: "set[str]") -> None:
        """Drop the GPUs that are not among these."""
        self._looks = {uuid: looks for uuid, looks in self._looks.items() if uuid in uuids}
        self._found = {uuid: found for uuid, found in self._found.items() if uuid in uuids}

    def look(self, now: float, uuid: str, parties: list[Party]) -> list[Hog]:
        """The containers on one GPU that the last whole span makes suspect."""
        looks = self._looks.setdefault(uuid, [])
        looks.append((now, {p.key: p for p in parties}))
        if len(looks) > LOOKS and now - looks[0][0] >= SECONDS:
            before = {hog.key for hog in self._found.get(uuid, ())}
            found = suspects(now - looks[0][0], looks[0][1], _whole(looks))
            self._found[uuid] = [hog.replace(again=hog.key in before) for hog in found]
            del looks[:-1]
        return [hog for hog in self._found.get(uuid, ()) if hog.key in looks[-1][1]]


def _whole(looks: list[tuple[float, dict[str, Party]]]) -> list[Party]:
    """The parties of the last of these looks, with what they had and waited since the first one."""
    found = []
    for key, party in looks[-1][1].items():
        line = [(now - then, p[key]) for (then, _), (now, p) in zip(looks, looks[1:], strict=False) if key in p]
        seen = [(took, p.busy) for took, p in line if p.busy is not None]
        time = sum(took for took, _ in seen)
        busy = round(sum(took * percent for took, percent in seen) / time) if time else None
        found.append(party.replace(busy=busy, starved=sum(p.starved for _, p in line)))
    return found


def suspects(took: float, before: dict[str, Party], parties: list[Party]) -> list[Hog]:
    """The containers on one GPU that these seconds make suspect. before: the parties by key when they began."""
    there = [p for p in parties if p.key in before and before[p.key].slot == p.slot]
    had = {p.slot: _had(p, before[p.key], took, DOUBT / max(1, len(there))) for p in there}
    told: dict[int, dict[str, float]] = {}  # by the slot of who is accused: seconds by witness
    for w in there:
        if not w.stopped:
            for slot, seconds in _accused(w, before[w.key], there, had, took).items():
                told.setdefault(slot, {})[w.key] = seconds
    named = [_hog(x, told.get(x.slot, {}), had, there, took) for x in there if _active(x, before[x.key])]
    return [hog for hog in named if hog is not None]


def _charged(p: Party, before: Party, took: float) -> float:
    """Seconds of GPU time in the span, as the container says."""
    if p.gate is None or before.gate is None:
        return 0.0
    return min(took, max(0.0, p.gate.charged - before.gate.charged))


def _had(p: Party, before: Party, took: float, doubt: float) -> float:
    """Seconds of GPU time in the span."""
    said = _charged(p, before, took)
    if p.busy is None:
        return said
    seen = took * p.busy / 100
    return max(seen, min(said, seen / LOW + took * doubt))


def _active(p: Party, before: Party) -> bool:
    """It shows others that it wants the GPU."""
    if p.gate is None or before.gate is None:
        return False
    return p.gate.shows_work or p.gate.epoch != before.gate.epoch


def _accused(w: Party, before: Party, there: list[Party], had: dict[int, float], took: float) -> dict[int, float]:
    """Seconds by slot for which the witness was held without an explanation, by those who took the largest parts."""
    if w.gate is None or before.gate is None:
        return {}
    then = dict(before.gate.held_for)
    rank = {p.slot: p.rank for p in there}
    said = {slot: max(0.0, at - then.get(slot, 0.0)) for slot, at in w.gate.held_for if slot in rank and slot != w.slot}
    if any(rank[slot] > w.rank and seconds > took * LEAST for slot, seconds in said.items()):
        return {}  # a higher class had the GPU: what it leaves is nobody's share
    # It had nothing in flight while it was held, so it was not held while it had the GPU. NVML may show a little much;
    # less than WASTED, so that nobody can be accused in time that the two had the GPU.
    own = max(had[w.slot] - 0.9 * WASTED * took, _charged(w, before, took))
    total = sum(said.values())
    held = min(total, took - own - w.starved)
    if held <= 0:
        return {}
    fair = {p.slot: had[p.slot] + p.starved for p in there}
    rest = {slot: max(0.0, seconds * held / total - fair[slot]) for slot, seconds in said.items() if seconds}
    if sum(rest.values()) < WASTED * took:
        return {}
    most = max(rest.values())
    return {slot: said[slot] * held / total for slot, seconds in rest.items() if seconds >= max(most / 4, LEAST * took)}


def _share(p: Party, there: list[Party]) -> float:
    """Its share among all of its class that are granted there, though not all of them may want work."""
    return p.weight / max(1, sum(other.weight for other in there if other.rank == p.rank))


def _hog(x: Party, told: dict[str, float], had: dict[int, float], there: list[Party], took: float) -> Hog | None:
    if len(told) < (1 if x.busy is not None else 2):
        return None
    held = 100 * sum(told.values()) / len(told) / took
    return Hog(x.key, held, 100 * had[x.slot] / took, 100 * _share(x, there), tuple(sorted(told)))


def parties(
    uuid: str, gpu: GpuSample, seen: NodeLook, gates: dict[str, Gate | None], starved: dict[str, float]
) -> list[Party]:
    """The containers on one GPU. gates: what their slot files say, by key. starved: Party.starved by key."""
    grants = tuple(seen.grants.values())
    weight, used = weights(uuid, grants), driver_uses(seen)[0]
    by_process = 0 <= gpu.busy <= IDLE or any(busy for _, _, busy in gpu.processes)
    found = []
    for grant, share in on_gpu(uuid, grants):
        use = used.get((grant.key, uuid))
        busy = (use.busy if use else 0) if by_process else None
        rank = CLASS_NUMBERS[grant.terms.priority_class]
        found.append(
            Party(
                grant.key,
                share.slot,
                weight[share.slot],
                rank,
                gates.get(grant.key),
                busy,
                stopped=grant.stopped,
                starved=starved.get(grant.key, 0.0),
            )
        )
    return found


def starvation(before: dict[str, dict[int, int]], now: dict[str, dict[int, int]]) -> dict[str, float]:
    """Seconds by key in which the thread that waited longest for a processor did so, of threads that both looks know. Both:
    nanoseconds waited by key and thread."""
    return {
        key: max((ns - before[key][t] for t, ns in delays.items() if t in before[key]), default=0) / 1e9
        for key, delays in now.items()
        if key in before
    }


def evidence(hog: Hog, names: dict[str, str]) -> str:
    who = words.first([names.get(key, key) for key in hog.witnesses], 3)
    return (
        f"{who}: held at the gate for it in {hog.held:.0f} % of the time; its share is {hog.share:.0f} %, and it had"
        f" {hog.had:.0f} % of the GPU's time"
    )
