"""Nodes that mislead a scheduler without our extender: their sums have room for a pod, but no single GPU has.

Such a scheduler chooses a node by sums. The bind webhook denies it, the sums do not change, and a packing scheduler chooses the
same node for ever. So these nodes get a soft taint (PreferNoSchedule) while a denied pod waits that has room elsewhere. Pure;
controller/act/taints.py writes the taints.
"""

from collections.abc import Iterator

from oci_hook.kube.formats import sums
from oci_hook.kube.formats.names import COMPUTE, MEMORY, OFFLINE_COMPUTE
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.room import Need, Room, fits_each, may_fit
from oci_hook.kube.pod.asked import RUN, SIDECAR, Asked, PodWords

MOST_NODES = 200  # to taint for one kind of pod, besides those that denied it: each costs a write
MOST_KINDS = 8  # of pods, served at a time; the others wait for their turn
MOST_PODS = 1000


class Denied:
    """A pod that the bind webhook denied. at: the nodes, with their room at that time; None if unknown."""

    __slots__ = ("pod", "at")

    def __init__(self, pod: PodWords) -> None:
        self.pod = pod
        self.at: dict[str, Room | None] = {}


class Fragments:
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._denied: dict[str, Denied] = {}
        self._first = 0  # index of the next kind

    def __bool__(self) -> bool:
        return bool(self._denied)

    def denied(self, pod: PodWords, node: str) -> None:
        """Notes that the bind webhook denied this node to the pod. The node may not exist, since callers can name any."""
        found = self._state.nodes.get(node)
        if found is None or not found.present:
            return
        if pod.uid not in self._denied and len(self._denied) >= MOST_PODS:
            del self._denied[next(iter(self._denied))]
        one = self._denied.setdefault(pod.uid, Denied(pod))
        one.at[node] = self._state.cut.rooms.get(node)

    def marks(self) -> Iterator[set[str]]:
        """The misleading nodes, for one kind of waiting pods at a time, so that each step is short."""
        state = self._state
        kinds: dict[object, list[Denied]] = {}
        for uid, one in list(self._denied.items()):
            if state.pending(one.pod.namespace, one.pod.name) is None:
                del self._denied[uid]  # it has a node, or is gone
            else:
                kinds.setdefault((tuple(sorted(one.pod.annotations.items())), one.pod.containers), []).append(one)
        if len(kinds) > MOST_KINDS:  # some kinds may wait for ever, for another reason
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
            return set()  # no node has room, so the scheduler's choice does not matter
        found.sort()
        return said | {name for _, name in found[:MOST_NODES]}


def by_sums(room: Room, asked: Asked, need: Need) -> bool:
    """True if the node's sums have room for the pod."""
    if room.sum_mib < need.mib:
        return False
    each = [(kind, sums.of_request(request)) for _, kind, request in asked]
    wanted = sums.of_pod(
        [own for kind, own in each if kind == RUN], [(own, kind == SIDECAR) for kind, own in each if kind != RUN]
    )
    free = {
        MEMORY: room.sum_mib,
        COMPUTE: sum(spot.free_compute for spot in room.spots),
        OFFLINE_COMPUTE: sum(spot.free_offline for spot in room.spots),
    }
    return all(amount >= wanted.get(name, 0) for name, amount in free.items())
