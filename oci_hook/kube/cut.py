"""The nodes with room for some container, best first for each way of placing pods, and the GPUs in use, the fullest first; kept
in order as nodes change."""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator

from oci_hook.core.rules import Rules
from oci_hook.kube.room import Need, Room, may_fit

SPREAD_SHARES, SPREAD_WHOLE, BINPACK = "spread shares", "spread whole GPUs", "binpack"
Entry = tuple[tuple[int, int, int], str]

# What comes first: the smallest key; of equal ones, the first by name.
KEYS: dict[str, Callable[[Room], tuple[int, int, int]]] = {
    SPREAD_SHARES: lambda room: (-room.sum_mib, room.containers, 0),
    SPREAD_WHOLE: lambda room: (-room.free_gpus, -room.sum_mib, room.containers),
    # A node in use before a free one, then the one with the fewest free GPUs, so that many stay free elsewhere.
    BINPACK: lambda room: (int(not room.containers), room.free_gpus, room.sum_mib),
}


class Cut:
    """rooms: of every node that can be chosen."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self._orders: dict[str, list[Entry]] = {name: [] for name in KEYS}
        self._full: set[str] = set()  # with room for driver files alone
        self._used: list[tuple[int, int, str]] = []  # (free MiB, free compute, node) of each GPU in use that has room

    def put(self, name: str, room: Room) -> None:
        before = self.rooms.get(name)
        self._use(name, used(before) if before is not None else [], used(room))
        self._drop(name)
        self.rooms[name] = room
        if not room.roomy_gpus:
            self._full.add(name)
            return
        for order, entries in self._orders.items():
            insort(entries, (KEYS[order](room), name))

    def drop(self, name: str) -> None:
        if name in self.rooms:
            self._use(name, used(self.rooms[name]), [])
        self._drop(name)

    def _use(self, name: str, before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
        for spot in after:
            if spot in before:
                before.remove(spot)  # most GPUs of a node stay as they are
            else:
                insort(self._used, (*spot, name))
        for spot in before:
            del self._used[bisect_left(self._used, (*spot, name))]

    def _drop(self, name: str) -> None:
        self._full.discard(name)
        room = self.rooms.pop(name, None)
        if room is not None and room.roomy_gpus:
            for order, entries in self._orders.items():
                del entries[bisect_left(entries, (KEYS[order](room), name))]

    def in_use(
        self, wanted: Container[str] | None, need_of: Callable[[Rules], Need | None], mib: int
    ) -> Iterator[tuple[str, Room]]:
        """The nodes among `wanted` that may have room on a GPU in use with so much memory free: the node first whose GPU is
        the fullest of these."""
        seen = set()
        used = self._used
        for at in range(bisect_left(used, (mib,)), len(used)):
            free_mib, free_compute, name = used[at]
            room = self.rooms[name]
            need = need_of(room.rules)
            if need is None or free_mib < need.mib or free_compute < need.compute or name in seen:
                continue
            if need.percent and free_mib < room.least_grantable * need.percent // 100 - room.rules.memory_step:
                continue
            seen.add(name)
            if may_fit(room, need) and (wanted is None or name in wanted):
                yield name, room

    def walk(
        self, order: str, wanted: Container[str] | None, need_of: Callable[[Rules], Need | None]
    ) -> Iterator[tuple[str, Room]]:
        """The nodes among `wanted` (None: all) that may have room, best first. need_of: what a pod needs under a node's
        rules, None if these refuse it."""
        rooms = self.rooms
        last: Rules | None = None
        need: Need | None = None
        mib = percent = compute = free_gpus = gpus = 0
        for _, name in self._orders[order]:
            room = rooms[name]
            if room.rules is not last:
                last = room.rules
                need = need_of(last)
                if need is not None:
                    mib, percent, compute, free_gpus, gpus = need
            # As `may_fit`; a call for each of 5 000 nodes would take longer than all else.
            if need is None or room.most_mib < mib or room.most_compute < compute:
                continue
            if room.most_percent < percent or room.free_gpus < free_gpus or room.roomy_gpus < gpus:
                continue
            if wanted is None or name in wanted:
                yield name, room
        for name in sorted(self._full):
            if wanted is None or name in wanted:
                full = need_of(rooms[name].rules)
                if full is not None and not full.gpus:
                    yield name, rooms[name]


def used(room: Room) -> list[tuple[int, int]]:
    """(free MiB, free compute) of the GPUs in use with room for a share."""
    return [(spot.free_mib, spot.free_compute) for spot in room.spots if spot.containers and spot.free_mib]
