"""Sorted lists, updated as nodes change: nodes with room, best first by each key of pod/node_orders.py; GPUs in use, fullest
first."""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterator

from oci_hook.core.rules import Rules
from oci_hook.kube.placing.room import Need, Room, may_fit
from oci_hook.kube.pod.node_orders import NODE_ORDERS, Key

Entry = tuple[tuple[int, int, int], str]


class Cut:
    """rooms: of every node that may be chosen."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self._orders: dict[Key, list[Entry]] = {
            key: [] for order in NODE_ORDERS.values() for key in (order.shares, order.whole)
        }
        self._full: set[str] = set()  # nodes with room for a request without GPUs only
        # (free MiB, free compute, free offline compute, node) of each GPU in use with room
        self._used: list[tuple[int, int, int, str]] = []

    def put(self, name: str, room: Room) -> None:
        before = self.rooms.get(name)
        self._use(name, used(before) if before is not None else [], used(room))
        self._drop(name)
        self.rooms[name] = room
        if not room.roomy_gpus:
            self._full.add(name)
            return
        for key, entries in self._orders.items():
            insort(entries, (key(room), name))

    def drop(self, name: str) -> None:
        if name in self.rooms:
            self._use(name, used(self.rooms[name]), [])
        self._drop(name)

    def _use(self, name: str, before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]) -> None:
        for spot in after:
            if spot in before:
                before.remove(spot)  # unchanged, as most GPUs of a node are
            else:
                insort(self._used, (*spot, name))
        for spot in before:
            del self._used[bisect_left(self._used, (*spot, name))]

    def _drop(self, name: str) -> None:
        self._full.discard(name)
        room = self.rooms.pop(name, None)
        if room is not None and room.roomy_gpus:
            for key, entries in self._orders.items():
                del entries[bisect_left(entries, (key(room), name))]

    def in_use(
        self, wanted: Container[str] | None, need_of: Callable[[Rules], Need | None], mib: int
    ) -> Iterator[tuple[str, Room]]:
        """The nodes among `wanted` that may have room on a GPU in use with at least `mib` free; the node of the fullest such GPU
        comes first."""
        seen = set()
        used = self._used
        for at in range(bisect_left(used, (mib,)), len(used)):
            free_mib, free_compute, free_offline, name = used[at]
            room = self.rooms[name]
            need = need_of(room.rules)
            if need is None or free_mib < need.mib or name in seen:
                continue
            if free_compute < need.compute or free_offline < need.offline:
                continue
            if need.percent and free_mib < room.least_grantable * need.percent // 100 - room.rules.memory_step:
                continue
            seen.add(name)
            if may_fit(room, need) and (wanted is None or name in wanted):
                yield name, room

    def walk(
        self, key: Key, wanted: Container[str] | None, need_of: Callable[[Rules], Need | None]
    ) -> Iterator[tuple[str, Room]]:
        """The nodes among `wanted` (None: all) that may have room, best first. need_of: a pod's needs under a node's rules, None
        if these refuse it."""
        rooms = self.rooms
        last: Rules | None = None
        need: Need | None = None
        mib = percent = compute = offline = free_gpus = gpus = 0
        for _, name in self._orders[key]:
            room = rooms[name]
            if room.rules is not last:
                last = room.rules
                need = need_of(last)
                if need is not None:
                    mib, percent, compute, offline, free_gpus, gpus = need
            # `may_fit`, written out: a call for each of 5 000 nodes would cost more than all the rest.
            if need is None or room.most_mib < mib or room.most_compute < compute or room.most_offline < offline:
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


def used(room: Room) -> list[tuple[int, int, int]]:
    """(free MiB, free compute, free offline compute) of the GPUs in use with room for a share."""
    return [
        (spot.free_mib, spot.free_compute, spot.free_offline)
        for spot in room.spots
        if spot.containers and spot.free_mib
    ]
