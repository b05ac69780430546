"""The nodes with room for some container, best first for each way of placing pods; kept in order as nodes change."""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator

from oci_hook.core.rules import Rules
from oci_hook.kube.room import Need, Room

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

    def put(self, name: str, room: Room) -> None:
        self.drop(name)
        self.rooms[name] = room
        if not room.roomy_gpus:
            self._full.add(name)
            return
        for order, entries in self._orders.items():
            insort(entries, (KEYS[order](room), name))

    def drop(self, name: str) -> None:
        self._full.discard(name)
        room = self.rooms.pop(name, None)
        if room is not None and room.roomy_gpus:
            for order, entries in self._orders.items():
                del entries[bisect_left(entries, (KEYS[order](room), name))]

    def walk(
        self,
        order: str,
        wanted: Container[str] | None,
        need_of: Callable[[Rules], Need | None],
        used_mib: bool = False,
    ) -> Iterator[tuple[str, Room]]:
        """The nodes among `wanted` (None: all) that may have room, best first. need_of: what a pod needs under a node's
        rules, None if these refuse it. used_mib: only those with room for its memory on a GPU that is in use."""
        rooms = self.rooms
        last: Rules | None = None
        need: Need | None = None
        mib = percent = compute = free_gpus = gpus = used = 0
        for _, name in self._orders[order]:
            room = rooms[name]
            if room.rules is not last:
                last = room.rules
                need = need_of(last)
                if need is not None:
                    mib, percent, compute, free_gpus, gpus = need
                    used = max(1, mib) if used_mib else 0
            # As `may_fit`; a call for each of 5 000 nodes would take longer than all else.
            if need is None or room.most_mib < mib or room.most_used_mib < used or room.most_compute < compute:
                continue
            if room.most_percent < percent or room.free_gpus < free_gpus or room.roomy_gpus < gpus:
                continue
            if wanted is None or name in wanted:
                yield name, room
        for name in sorted(self._full) if not used_mib else ():
            if wanted is None or name in wanted:
                full = need_of(rooms[name].rules)
                if full is not None and not full.gpus:
                    yield name, rooms[name]
