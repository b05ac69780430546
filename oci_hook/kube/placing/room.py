"""The free room of a node in a few numbers, and whether a request may fit: the first look before `allocate`.

`may_fit` never rejects a node on which `core/allocate.py` finds room. It may accept a node that `allocate` then refuses.
"""

import functools
from typing import NamedTuple

from oci_hook.core.allocate import Usage, memory_of, places, round_up, usage
from oci_hook.core.boundary import obstacle
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import DRIVER, OFFLINE, GpuRequest
from oci_hook.kube.pod.asked import Asked


class Spot(NamedTuple):
    """One GPU. free_mib, free_compute, free_offline: as in core/allocate.py's Usage; 0 if no share can be added. alone: no container
    can be added. whole: containers without limits are on it. driver_limits: the driver can hold a share's memory limit."""

    memory_mib: int
    free_mib: int
    free_compute: int
    free_offline: int
    containers: int
    alone: bool
    whole: bool
    context_mib: int
    driver_limits: bool


class Room:
    """A node's GPUs, and their largest figures. most_percent: of a GPU's grantable memory. most_grantable, least_grantable: of the
    largest and the smallest GPU, if free. least_context: the smallest context of a program. free_gpus: without containers.
    roomy_gpus: with room for another container."""

    __slots__ = (
        *("rules", "spots", "most_mib", "most_percent", "most_grantable", "least_grantable", "least_context"),
        *("most_compute", "most_offline", "free_gpus", "roomy_gpus", "sum_mib", "containers"),
    )

    def __init__(self, rules: Rules, spots: tuple[Spot, ...]) -> None:
        self.rules = rules
        self.spots = spots
        self.most_mib = max((s.free_mib for s in spots), default=0)
        grantable = [s.memory_mib - rules.reserve(s.memory_mib) for s in spots]
        self.most_grantable, self.least_grantable = max(grantable, default=0), min(grantable, default=0)
        self.least_context = min((s.context_mib for s in spots), default=0)
        self.most_compute = max((s.free_compute for s in spots), default=0)
        self.most_offline = max((s.free_offline for s in spots), default=0)
        self.most_percent = max((_percent(s, rules) for s in spots), default=0)
        self.free_gpus = sum(not s.containers for s in spots)
        self.roomy_gpus = sum(not s.alone for s in spots)
        self.sum_mib = sum(s.free_mib for s in spots)
        self.containers = sum(s.containers for s in spots)


class Need(NamedTuple):
    """The least that a node must have for a pod: the largest needs of single containers. compute, offline: by class."""

    mib: int
    percent: int
    compute: int
    offline: int
    free_gpus: int
    gpus: int


def room_of(inventory: Inventory, grants: tuple[Grant, ...], rules: Rules) -> Room:
    return Room(rules, tuple(_spot(use, rules) for use in usage(inventory, grants, rules)))


def _spot(use: Usage, rules: Rules) -> Spot:
    full = use.alone or use.containers >= places(use.gpu, rules)
    return Spot(
        use.gpu.memory_mib,
        0 if full else use.free_mib,
        0 if full else use.free_compute,
        0 if full else use.free_offline,
        use.containers,
        full,
        use.whole,
        use.gpu.context_mib,
        not obstacle(use.gpu, False, DRIVER),
    )


def need_of(asked: Asked, rules: Rules) -> Need:
    """The least that every node with these rules must have."""
    mib = percent = compute = offline = free_gpus = gpus = 0
    for _, _, request in asked:
        if not request.gpus or request.narrow_to == ():
            continue
        whole = 0
        for wish in request.gpus:
            if request.exclusive or wish.whole:
                whole += 1
            elif wish.memory is not None and wish.memory[0] == "mib":
                mib = max(mib, round_up(max(wish.memory[1], rules.memory_min), rules.memory_step))
            else:
                percent = max(percent, wish.memory[1] if wish.memory else wish.compute or 0)
            booked = 0 if request.exclusive else wish.compute or 0
            if request.terms.priority_class == OFFLINE:
                offline = max(offline, booked)
            else:
                compute = max(compute, booked)
        named = request.every_gpu or any(wish.device is not None for wish in request.gpus)
        if request.exclusive or rules.whole_gpus == "exclusive":
            free_gpus = max(free_gpus, min(whole, 1) if named else whole)
        gpus = max(gpus, 1 if named else len(request.gpus))
    return Need(mib, percent, compute, offline, free_gpus, gpus)


def may_fit(room: Room, need: Need) -> bool:
    """Compares the need with the node's largest figures."""
    return (
        room.most_mib >= need.mib
        and room.most_percent >= need.percent
        and room.most_compute >= need.compute
        and room.most_offline >= need.offline
        and room.free_gpus >= need.free_gpus
        and room.roomy_gpus >= need.gpus
    )


def fits_each(room: Room, asked: Asked, rules: Rules) -> bool:
    """By each GPU's figures: whether enough GPUs have room for each container, taken by itself."""
    for _, _, request in asked:
        if not request.gpus or request.narrow_to == ():
            continue
        open_to = [[_fits(spot, wish, request, rules) for spot in room.spots] for wish in request.gpus]
        if request.every_gpu:
            if request.narrow_to is None and not all(open_to[0]):
                return False
        elif not all(map(any, open_to)):
            return False
        elif any(wish.device is not None for wish in request.gpus):
            continue  # one name may mean several MIG devices
        elif sum(map(any, zip(*open_to, strict=True))) < len(open_to):  # every entry gets a GPU of its own
            return False
    return True


def _fits(spot: Spot, wish: GpuRequest, request: Request, rules: Rules) -> bool:
    """The check of core/allocate.py's `_obstacle`, on fewer figures."""
    if spot.alone:
        return False
    if request.exclusive or (wish.whole and rules.whole_gpus == "exclusive"):
        return not spot.containers
    if wish.whole:
        return spot.whole or not spot.containers
    if request.terms.boundary == DRIVER and not spot.driver_limits:
        return False
    need = memory_of(_of_size(spot.memory_mib), wish.memory or ("percent", wish.compute or 0), rules)
    compute = min(100, round_up(wish.compute or 0, rules.compute_step))
    free = spot.free_offline if request.terms.priority_class == OFFLINE else spot.free_compute
    return not spot.whole and spot.context_mib <= need <= spot.free_mib and compute <= free


@functools.lru_cache(64)
def _of_size(memory_mib: int) -> Gpu:
    return Gpu("", 0, 0, memory_mib)


def _percent(spot: Spot, rules: Rules) -> int:
    """The largest percentage of the GPU's grantable memory that may still fit. Percentages are rounded down to steps, but to
    memory_min at least."""
    grantable = spot.memory_mib - rules.reserve(spot.memory_mib)
    if not spot.free_mib:
        return 0
    return 100 if grantable <= 0 else min(100, (spot.free_mib + rules.memory_step) * 100 // grantable)
