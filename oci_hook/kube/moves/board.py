"""A cluster with simulated moves: each node's grants after some moves, and the possible next places of a pod.

During a move, the pod's old and new share both count, since its successor may start before the pod has ended.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from oci_hook.core.allocate import Usage, usage
from oci_hook.core.grant import Grant
from oci_hook.kube.moves.movable import Mover
from oci_hook.kube.placing.choose import Question, forbidden
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit, as_grants, fit
from oci_hook.kube.placing.room import Room, fits_each, may_fit, room_of
from oci_hook.kube.pod.asked import Asked, words
from oci_hook.kube.pod.hosts import Amounts
from oci_hook.kube.pod.peaks import Row, containers

MOST_SETS = 70  # sets of several GPUs on a node to try for one pod: 4 of 8
MOST_KNOWN = 20_000  # cached nodes after moves


class Place(NamedTuple):
    """A pod's place: its node and its rows there. node "": none."""

    node: str
    rows: tuple[Row, ...]


NOWHERE = Place("", ())
Moved = tuple[tuple[str, Place], ...]  # (UID, new place) of each moved pod, sorted
Key = tuple[str, tuple[tuple[str, tuple[Row, ...]], ...]]  # (node, ((UID, rows) of its moved pods))
# A pod on one GPU: MiB, per cent, per cent of class offline, containers, 1 / number of the pod's GPUs.
Load = tuple[int, int, int, int, float]


class Stack(NamedTuple):
    """One GPU. loads: its movable pods. fixed: the number of its other containers."""

    use: Usage
    loads: tuple[Load, ...]
    fixed: int


class Board:
    def __init__(self, state: ClusterState, movers: dict[str, Mover], free: dict[str, Amounts]) -> None:
        """free: by node, its free resources besides GPUs; those of a missing node are not judged."""
        state.refresh()
        self.state, self.movers = state, movers
        self._free = free
        self._questions: dict[str, Question] = {}
        self._barred: dict[tuple[str, str], bool] = {}
        self._rooms: dict[Key, Room] = {}
        self._stacks: dict[Key, tuple[Stack, ...]] = {}
        self._fits: dict[tuple[Key, str, tuple[str, ...] | None], Fit | None] = {}
        self.names: tuple[str, ...] = tuple(sorted(state.cut.rooms))

    # --- moves

    def place(self, moved: Moved, uid: str) -> Place:
        for other, place in moved:
            if other == uid:
                return place
        return Place(self.movers[uid].node, self.movers[uid].rows)

    def move(self, moved: Moved, uid: str, to: Place) -> Moved:
        rest = [one for one in moved if one[0] != uid]
        mover = self.movers[uid]
        if (to.node, set(to.rows)) != (mover.node, set(mover.rows)):
            rest.append((uid, to))
        return tuple(sorted(rest))

    def on(self, moved: Moved, names: Iterable[str]) -> list[str]:
        """The movable pods on these nodes."""
        away = {uid for uid, _ in moved}
        here = set(names)
        found = [uid for uid, place in moved if place.node in here]
        for name in here:
            found += [uid for uid in self.state.nodes[name].pods if uid in self.movers and uid not in away]
        return sorted(found)

    # --- a node after some moves

    def key(self, moved: Moved, name: str) -> Key:
        changed = [
            (uid, place.rows if place.node == name else ())
            for uid, place in moved
            if name in (place.node, self.movers[uid].node)
        ]
        return name, tuple(changed)

    def grants(self, key: Key) -> tuple[Grant, ...]:
        name, changed = key
        node, moved = self.state.nodes[name], dict(changed)
        found = list(node.local)
        for uid, pod in node.pods.items():
            if uid not in moved and pod.rows and pod.counts(uid in node.listed):
                found += as_grants(uid, pod.rows)
        for uid, rows in changed:
            found += as_grants(uid, rows)
        for uid, one in node.reserved.items():
            found += as_grants(uid, one.fit.rows)
        return tuple(found)

    def room(self, key: Key) -> Room:
        if not key[1]:
            return self.state.cut.rooms[key[0]]
        if key not in self._rooms:
            _bound(self._rooms)
            node = self.state.nodes[key[0]]
            self._rooms[key] = room_of(self.state.inventory(node), self.grants(key), node.rules)
        return self._rooms[key]

    def stacks(self, key: Key) -> tuple[Stack, ...]:
        found = self._stacks.get(key)
        if found is None:
            _bound(self._stacks)
            node, moved = self.state.nodes[key[0]], dict(key[1])
            loads: dict[str, list[Load]] = {}
            held = [(uid, pod.rows) for uid, pod in node.pods.items() if uid in self.movers and uid not in moved]
            for _, rows in (*held, *key[1]):
                uuids = dict.fromkeys(row.uuid for row in rows)
                for uuid in uuids:
                    own = [row for row in rows if row.uuid == uuid]
                    mib = sum(r.memory_mib for r in own)
                    others, offline = (sum(r.compute for r in own if r.offline == off) for off in (False, True))
                    loads.setdefault(uuid, []).append((mib, others, offline, containers(own), 1 / len(uuids)))
            found = tuple(
                Stack(use, (of := tuple(loads.get(use.gpu.uuid, ()))), use.containers - sum(load[3] for load in of))
                for use in self._uses(key)
            )
            self._stacks[key] = found
        return found

    def _uses(self, key: Key) -> tuple[Usage, ...]:
        """The result of `usage`; from the cut's figures if these are the same."""
        node = self.state.nodes[key[0]]
        inventory, room = self.state.inventory(node), self.state.cut.rooms[key[0]]
        if key[1] or any(spot.alone for spot in room.spots):
            return usage(inventory, self.grants(key), node.rules)
        return tuple(
            Usage(
                gpu,
                spot.free_mib,
                spot.free_mib,
                spot.free_compute,
                spot.free_offline,
                spot.containers,
                False,
                spot.whole,
            )
            for gpu, spot in zip(inventory.gpus, room.spots, strict=True)
        )

    def spare(self, moved: Moved, name: str, needs: Callable[[], Amounts]) -> bool:
        """True if the node has room for a pod's requests besides GPUs."""
        free = self._free.get(name)
        if not free:
            return True
        left = dict(free)
        for uid, place in moved:
            mover = self.movers[uid]
            for resource, amount in mover.needs.items():
                if resource in left:
                    left[resource] += amount * ((mover.node == name) - (place.node == name))
        return all(left[resource] >= amount for resource, amount in needs().items() if resource in left)

    # --- possible places of a pod

    def question(self, uid: str) -> Question:
        if uid not in self._questions:
            self._questions[uid] = Question(words(self.movers[uid].obj))
        return self._questions[uid]

    def fit(self, key: Key, question: Question, uuids: tuple[str, ...] | None = None) -> Fit | None:
        """The GPUs that `allocate` gives the pod on this node. uuids: restricts it to these."""
        known = key, question.pod.uid, uuids
        if known not in self._fits:
            _bound(self._fits)
            node = self.state.nodes[key[0]]
            asked = question.asked(node.rules)
            if uuids is not None:
                asked = tuple((name, kind, request.replace(narrow_to=uuids)) for name, kind, request in asked)
            found = fit(asked, self.state.inventory(node), self.grants(key), node.rules)
            self._fits[known] = found if isinstance(found, Fit) else None
        return self._fits[known]

    def barred(self, question: Question, name: str) -> bool:
        """True if something other than room keeps the pod off the node, so that no move helps."""
        known = question.pod.uid, name
        if known not in self._barred:
            _bound(self._barred)
            self._barred[known] = forbidden(self.state, question, self.state.nodes[name]) is not None
        return self._barred[known]

    def options(self, moved: Moved, uid: str, names: Iterable[str]) -> Iterator[Place]:
        """The places on these nodes to which the pod could move next."""
        mover, question, now = self.movers[uid], self.question(uid), self.place(moved, uid)
        allowed = mover.allowed
        for name in names:
            if name not in allowed or self.barred(question, name):
                continue
            key = self.key(moved, name)
            room = self.room(key)
            need = question.need(room.rules)
            if need is None or not may_fit(room, need) or not self.spare(moved, name, lambda: mover.needs):
                continue
            for uuids in self._sets(room, question.asked(room.rules), key):
                found = self.fit(key, question, uuids)
                if found is not None and (name, {r.uuid for r in found.rows}) != (now.node, {r.uuid for r in now.rows}):
                    yield Place(name, found.rows)

    def _sets(self, room: Room, asked: Asked, key: Key) -> Iterator[tuple[str, ...] | None]:
        """Sets of GPUs to try for the pod, after a first look; None: `allocate` chooses."""
        asks = [request for _, _, request in asked if request.gpus and request.narrow_to != ()]
        own_choice = any(r.every_gpu or r.narrow_to or any(wish.device for wish in r.gpus) for r in asks)
        gpus = self.state.inventory(self.state.nodes[key[0]]).gpus
        if len(asks) != 1 or own_choice:
            yield None
        elif len(asks[0].gpus) == 1:
            for gpu, spot in zip(gpus, room.spots, strict=True):
                if fits_each(Room(room.rules, (spot,)), asked, room.rules):
                    yield (gpu.uuid,)
        else:
            roomy = [gpu.uuid for gpu, spot in zip(gpus, room.spots, strict=True) if not spot.alone]
            sets = list(itertools.islice(itertools.combinations(roomy, len(asks[0].gpus)), MOST_SETS + 1))
            yield from sets[:MOST_SETS]
            if len(sets) > MOST_SETS:
                yield None


def _bound(known: dict) -> None:  # type: ignore[type-arg]
    if len(known) >= MOST_KNOWN:
        known.clear()
