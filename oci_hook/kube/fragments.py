"""Nodes that mislead a scheduler without our extender: the node's sums have room for a pod, and no single GPU has.

Such a scheduler chooses a node by sums, the bind webhook denies it, and the scheduler, whose figures say the same as before,
chooses that node again: for ever, where it packs. So these nodes get a soft taint (PreferNoSchedule) for as long as a denied pod
waits that has room elsewhere. Pure; controller/marker.py writes the taints.
"""

from collections.abc import Iterator

from oci_hook.core.request import Request
from oci_hook.kube import sums
from oci_hook.kube.choose import Question
from oci_hook.kube.names import COMPUTE, MEMORY, OFFLINE_COMPUTE
from oci_hook.kube.pods import INIT, RUN, SIDECAR, Asked, PodWords
from oci_hook.kube.room import Need, Room, fits_each, may_fit
from oci_hook.kube.state import ClusterState

MOST_NODES = 200  # marked for one kind of pod, beside those that have denied it: each is a write
MOST_KINDS = 8  # of pods that are looked after at a time; the others wait for their turn
MOST_PODS = 1000


class Denied:
    """A pod that some nodes denied. at: these nodes, with the room they had then; None for one without a room."""

    __slots__ = ("pod", "at")

    def __init__(self, pod: PodWords) -> None:
        self.pod = pod
        self.at: dict[str, Room | None] = {}


class Fragments:
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._denied: dict[str, Denied] = {}
        self._first = 0  # place of the kind whose turn it is

    def __bool__(self) -> bool:
        return bool(self._denied)

    def denied(self, pod: PodWords, node: str) -> None:
        """The bind webhook denied this node to the pod, because of the node. Who calls the webhook may name anything."""
        found = self._state.nodes.get(node)
        if found is None or not found.present:
            return
        if pod.uid not in self._denied and len(self._denied) >= MOST_PODS:
            del self._denied[next(iter(self._denied))]
        one = self._denied.setdefault(pod.uid, Denied(pod))
        one.at[node] = self._state.cut.rooms.get(node)

    def marks(self) -> Iterator[set[str]]:
        """The nodes that mislead, for one kind of waiting pods after the other: each step is short."""
        state = self._state
        kinds: dict[object, list[Denied]] = {}
        for uid, one in list(self._denied.items()):
            if state.pending(one.pod.namespace, one.pod.name) is None:
                del self._denied[uid]  # it has a node, or is gone
            else:
                kinds.setdefault((tuple(sorted(one.pod.annotations.items())), one.pod.containers), []).append(one)
        if len(kinds) > MOST_KINDS:  # some may wait for something else, and for ever
            self._first = (self._first + MOST_KINDS) % len(kinds)
        groups = list(kinds.values())
        for pods in (groups[self._first :] + groups[: self._first])[:MOST_KINDS]:
            state.refresh()
            yield self._misleading(pods)

    def _misleading(self, pods: list[Denied]) -> set[str]:
        rooms = self._state.cut.rooms
        question = Question(pods[0].pod)
        found: list[tuple[int, str]] = []
        somewhere = False
        said = {name for one in pods for name, room in one.at.items() if room is None or rooms.get(name) is room}
        for name, room in rooms.items():
            need = question.need(room.rules)
            if need is None or name in said:
                continue
            if may_fit(room, need):
                somewhere = somewhere or fits_each(room, question.asked(room.rules), room.rules)
            elif by_sums(room, question.asked(room.rules), need):
                found.append((room.sum_mib, name))
        if not somewhere:
            return set()  # it has room nowhere: whatever node the scheduler tries is as good as another
        found.sort()
        return said | {name for _, name in found[:MOST_NODES]}


def by_sums(room: Room, asked: Asked, need: Need) -> bool:
    """Whether the scheduler finds room for the pod by the node's sums."""
    if room.sum_mib < need.mib:
        return False
    wanted = sums.of_pod(
        [request for _, kind, request in asked if kind == RUN], [_init(kind, r) for _, kind, r in asked if kind != RUN]
    )
    compute = sum(spot.free_compute for spot in room.spots)
    return room.sum_mib >= wanted.get(MEMORY, 0) and compute >= wanted.get(COMPUTE, 0) + wanted.get(OFFLINE_COMPUTE, 0)


def _init(kind: str, request: Request) -> tuple[Request, bool]:
    assert kind in (INIT, SIDECAR)
    return request, kind == SIDECAR
