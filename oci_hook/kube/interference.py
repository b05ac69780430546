"""How much the containers on a GPU would disturb a new one: from two small numbers that each node measures of each container.

duty: how much of the time it used the GPU. burst: for how long it kept the GPU once others wanted it. Both are levels from 0 to 4. They
only decide between places that are equal by the placement order, so that whatever a tenant does to its own numbers, nobody gets less room.
"""

from collections.abc import Iterable, Mapping
from typing import Any

LEVELS = 4
DUTY = (5.0, 25.0, 50.0, 75.0)  # per cent of the time: the bounds of the levels
BURST = (0.5, 2.0, 8.0, 32.0)  # milliseconds
BAND = 0.2  # a level changes only when its bound is passed by this part of it, so that a steady value stays in one
UNKNOWN = (2, 2)  # of a container that was not measured yet

Busy = tuple[int, int]  # levels of duty and burst
PodsBusy = dict[str, dict[str, Busy]]  # pod's UID -> container -> levels


def level(value: float, bounds: tuple[float, ...], before: int | None = None) -> int:
    """before: the level so far; None for none."""
    if before is None:
        return sum(value >= bound for bound in bounds)
    while before < len(bounds) and value >= bounds[before] * (1 + BAND):
        before += 1
    while before > 0 and value < bounds[before - 1] * (1 - BAND):
        before -= 1
    return before


def cost(online: bool, neighbours: Iterable[Busy]) -> tuple[int, int]:
    """What a new pod has to expect on a GPU beside these: the less, the better. An online pod waits for the commands of busy
    neighbours, so their bursts count first; others live on the time that is left."""
    found = tuple(neighbours)
    duty = sum(one[0] for one in found)
    burst = sum(one[0] * one[1] for one in found)
    return (burst, duty) if online else (duty, burst)


def of_pods(busy: Mapping[str, Mapping[str, Busy]]) -> dict[str, Busy]:
    """Of each pod, its busiest container's levels."""
    return {
        uid: (max(b[0] for b in found.values()), max(b[1] for b in found.values()))
        for uid, found in busy.items()
        if found
    }


def read(data: Any) -> PodsBusy:
    """The entries that are understood; others may be of a newer version, or a node's nonsense."""
    found: PodsBusy = {}
    for uid, containers in data.items() if isinstance(data, dict) else ():
        for name, levels in containers.items() if isinstance(containers, dict) else ():
            if isinstance(levels, list) and len(levels) >= 2 and all(_is_level(one) for one in levels[:2]):
                found.setdefault(str(uid), {})[str(name)] = levels[0], levels[1]
    return found


def _is_level(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LEVELS
