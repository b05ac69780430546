"""The whole cluster as data for people: nodes and their GPUs, who waits and why, sums. Pure.

The cost of a look is bounded: only nodes and pods that changed are looked at anew, of pods so many in one look, and `look` yields
after each little piece of work, so that a caller with decisions to make can make them in between.
"""

import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from operator import add
from typing import Any, NamedTuple

from oci_hook.core.inventory import Gpu
from oci_hook.core.rules import Rules
from oci_hook.core.value import Value
from oci_hook.errors import CODES, RequestError
from oci_hook.kube.peaks import Row
from oci_hook.kube.pods import PodWords, asked
from oci_hook.kube.records import Node, Pod
from oci_hook.kube.room import Need, Room, need_of
from oci_hook.kube.state import ClusterState

MOST_WAITING = 500  # pods that are listed; the sums count all
MOST_GONE = 1_000  # names that are remembered for those who ask what changed
MOST_TEXT = 300  # characters of any text that a node or a pod wrote
MOST_READ = 1_000  # of what reading_of counts, for pods whose words are read anew in one look: some 50 ms
SMALL = 4  # of the same: a pod that is read at once, whatever others have
MOST_WORDS = 500  # of the same: a pod with more is not read
FEW = 64  # nodes or pods that take some 0.1 ms together
FREE, SHARED, WHOLE = 0, 1, 2
STATES = ("ok", "problem", "no report")  # of a node
FULL = ("GH-201", "GH-203", "GH-607")


class Waiting(Value):
    """Why a pod got no place when it was last asked for. words: of one node, or of all."""

    code: str
    words: str


class Sums(NamedTuple):
    """MiB, and per cent of a GPU. granted_*: reservations included. free_used_mib: free on GPUs in use, so that no whole GPU can
    have it."""

    gpus: int = 0
    free_gpus: int = 0
    whole_gpus: int = 0
    memory_mib: int = 0
    granted_mib: int = 0
    free_mib: int = 0
    free_used_mib: int = 0
    granted_compute: int = 0
    offline_mib: int = 0
    offline_compute: int = 0
    offline_gpus: int = 0
    holders: int = 0

    def plus(self, other: "Sums") -> "Sums":
        return Sums(*map(add, self, other))


class GpuRow(NamedTuple):
    """MiB, and per cent of the GPU. state: FREE, SHARED or WHOLE."""

    memory_mib: int
    granted_mib: int
    compute: int
    offline_mib: int
    offline_compute: int
    containers: int
    state: int


class NodeRow:
    """One node as it is shown. made_of: of `key`. text: as JSON. since: the version that brought it."""

    __slots__ = ("made_of", "text", "since", "sums", "state")

    def __init__(self, made_of: Any, text: str, sums: Sums, state: str) -> None:
        self.made_of, self.text, self.sums, self.state = made_of, text, sums, state
        self.since = 0


class Overview:
    """version: grows with each look that found something changed."""

    def __init__(self) -> None:
        self.version = 0
        self._rows: dict[str, NodeRow] = {}
        self._gone: deque[tuple[int, str]] = deque(maxlen=MOST_GONE)
        self._forgotten = 0  # versions up to this one may miss a name of a node that is gone
        self._parts: dict[str, tuple[int, str]] = {}  # (since, text) of what is not a node
        self._asks: dict[str, tuple[PodWords, Need | str]] = {}  # of waiting pods, by UID: what their words mean

    def look(
        self,
        state: ClusterState,
        waiting: Mapping[str, Waiting],
        enabled: Collection[str],
        leader: dict[str, Any],
    ) -> Iterator[None]:
        """Brings all up to date. leader: is shown as it is."""
        version = self.version + 1
        changed = False
        while not state.refresh(4):
            yield
        states = dict.fromkeys(STATES, 0)
        sums = Sums()
        most = Need(0, 0, 0, 0, 0)
        for count, name in enumerate(list(state.nodes), 1):
            node = state.nodes.get(name)
            room = state.cut.rooms.get(name)
            if node is None or not shown(node):
                continue
            row = self._rows.get(name)
            made_of = key(node, room)
            if row is None or row.made_of != made_of:
                fresh = row_of(state, node, made_of)
                if row is None or row.text != fresh.text:
                    fresh.since, changed = version, True
                else:
                    fresh.since = row.since
                row = self._rows[name] = fresh
                yield
            elif not count % FEW:
                yield
            states[row.state] += 1
            sums = sums.plus(row.sums)
            if room is not None:
                most = most_of(most, room)
        for count, name in enumerate([name for name in self._rows if not shown(state.nodes.get(name))], 1):
            del self._rows[name]
            self._leave(version, name)
            changed = True
            if not count % FEW:
                yield
        pods: list[dict[str, Any]] = []
        found = [
            pod for pod in state.without_node() if pod.words and pod.words.annotations and pod.namespace in enabled
        ]
        yield
        found.sort(key=lambda pod: (pod.created, pod.namespace, pod.name))
        read = 0
        asks: dict[str, tuple[PodWords, Need | str]] = {}
        for pod in found[:MOST_WAITING]:
            why = waiting.get(pod.uid)
            if pod.words is not None and why is not None and why.code in FULL:
                kept = self._asks.get(pod.uid)
                work = reading_of(pod.words)
                if kept is not None and kept[0] == pod.words:
                    asks[pod.uid] = kept
                elif work > MOST_WORDS:
                    asks[pod.uid] = pod.words, "its containers and annotations are too many to say what would help"
                elif work <= SMALL or read + work <= MOST_READ:
                    read += work
                    asks[pod.uid] = pod.words, asks_for(pod.words)
            pods.append(waiting_row(pod, why, asks[pod.uid][1] if pod.uid in asks else None, most))
            yield
        self._asks = asks
        figures = {**sums._asdict(), "nodes": states, "waiting": len(found), "reserved": len(state.reservations)}
        for name, value in (("leader", leader), ("figures", figures), ("waiting", pods)):
            changed |= self._put(name, json.dumps(value, separators=(",", ":")), version)
        if changed:
            self.version = version

    def knows(self, since: int) -> bool:
        """Whether it is known what changed after that version."""
        return self._forgotten <= since <= self.version

    def parts(self, since: int = 0) -> Iterator[str]:
        """The JSON text, piece by piece: all that changed after that version, of which `knows` must be true; 0: everything."""
        yield f'{{"version":{self.version},"since":{since}'
        for key, (changed, text) in self._parts.items():
            if changed > since:
                yield f',"{key}":{text}'
        gone = [name for changed, name in self._gone if changed > since and name not in self._rows] if since else []
        yield f',"gone":{json.dumps(gone)},"nodes":['
        comma = ""
        for row in list(self._rows.values()):
            if row.since > since:
                yield comma + row.text
                comma = ","
        yield "]}"

    def _put(self, key: str, text: str, version: int) -> bool:
        if self._parts.get(key, (0, ""))[1] == text:
            return False
        self._parts[key] = version, text
        return True

    def _leave(self, version: int, name: str) -> None:
        if len(self._gone) == MOST_GONE:
            self._forgotten = self._gone[0][0]
        self._gone.append((version, name))


def shown(node: Node | None) -> bool:
    """Nodes without GPUs are not, unless gpu-hook is to run there."""
    return node is not None and bool(node.text or node.ours or (not node.present and _held(node)))


def _held(node: Node) -> bool:
    return bool(node.reserved) or any(pod.rows for pod in node.pods.values())


def key(node: Node, room: Room | None) -> Any:
    """Another one where the node's row may be another. A node that changed has a new room, or none."""
    if room is not None:
        return room
    return node.problem, node.present, node.text, node.mode, len(node.pods), len(node.reserved)


def kind_of(node: Node) -> str:
    """One of STATES."""
    if node.problem or not node.present:
        return "problem"
    return "ok" if node.text else "no report"


def taken_on(state: ClusterState, node: Node) -> tuple[dict[str, list[Row]], int]:
    """What is on each GPU, by its UUID, and how many pods that is."""
    taken: dict[str, list[Row]] = {}
    holders = 0
    for uid, _, rows in state.holdings(node):
        holders += bool(uid)
        for row in rows:
            taken.setdefault(row.uuid, []).append(row)
    return taken, holders


def row_of(state: ClusterState, node: Node, made_of: Any) -> NodeRow:
    gpus = state.inventory(node).gpus if node.text else ()
    taken, holders = taken_on(state, node)
    by_namespace: dict[str, list[int]] = {}
    for _, namespace, rows in state.holdings(node):
        mine = by_namespace.setdefault(namespace, [0, 0, 0])
        for row in rows:
            mine[0] += row.memory_mib
            mine[1] += row.compute
            mine[2] += row.whole
    sums = Sums(holders=holders)
    listed = []
    for gpu in gpus:
        figures, more = gpu_of(gpu, taken.get(gpu.uuid, []), node.rules)
        listed.append(figures)
        sums = sums.plus(more)
    kind = kind_of(node)
    models = ", ".join(sorted({gpu.name for gpu in gpus}))
    shown = {
        "name": node.name,
        "state": kind,
        "problem": _short(node.problem) if node.present else "its object is gone, and pods on it are not",
        "mode": _short(node.mode),
        "model": models[:64],
        "pods": holders,
        "gpus": listed,
        "namespaces": [[namespace, *by_namespace[namespace]] for namespace in sorted(by_namespace)],
    }
    return NodeRow(made_of, json.dumps(shown, separators=(",", ":")), sums, kind)


def gpu_of(gpu: Gpu, rows: list[Row], rules: Rules) -> tuple[GpuRow, Sums]:
    """What is on one GPU, also as sums."""
    whole = any(row.whole or row.alone for row in rows)
    offline = [row for row in rows if row.offline]
    granted = gpu.memory_mib if whole else sum(row.memory_mib for row in rows)
    compute = 100 if whole else sum(row.compute for row in rows)
    off_mib = gpu.memory_mib if whole and len(offline) == len(rows) else sum(row.memory_mib for row in offline)
    off_compute = 100 if whole and len(offline) == len(rows) else sum(row.compute for row in offline)
    free = 0 if whole else max(0, gpu.memory_mib - rules.reserve(gpu.memory_mib) - granted)
    state = WHOLE if whole else SHARED if rows else FREE
    figures = GpuRow(gpu.memory_mib, granted, compute, off_mib, off_compute, len(rows), state)
    sums = Sums(
        1,
        not rows,
        whole,
        gpu.memory_mib,
        granted,
        free,
        free if rows else 0,
        compute,
        off_mib,
        off_compute,
        bool(offline),
    )
    return figures, sums


def most_of(most: Need, room: Room) -> Need:
    """The largest figure of each kind that any node has: a pod that needs more of one fits nowhere."""
    return Need(
        max(most.mib, room.most_mib),
        max(most.percent, room.most_percent),
        max(most.compute, room.most_compute),
        max(most.free_gpus, room.free_gpus),
        max(most.gpus, room.roomy_gpus),
    )


def waiting_row(pod: Pod, why: Waiting | None, need: Need | str | None, most: Need) -> dict[str, Any]:
    """need: of asks_for; None where it is not known yet."""
    hints = [] if need is None else helps(need, most)
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "since": pod.created,
        "priority": pod.priority,
        "code": why.code if why else "",
        "words": _short(why.words) if why else "",
        "help": "" if why is None else "; ".join(hints) if why.code in FULL else CODES.get(why.code, ""),
    }


def reading_of(pod: PodWords) -> int:
    """How long it takes to read what the pod asks for, in units of some 0.05 ms: every word is looked at for each container."""
    letters = sum(len(key) + len(value) for key, value in pod.annotations.items())
    return len(pod.containers) * (1 + letters // 1024)


def asks_for(pod: PodWords) -> Need | str:
    """What a node must have for the pod; or why that is not known."""
    try:
        return need_of(asked(pod, Rules()), Rules())
    except RequestError as e:
        return _short(str(e.problems[0]))


def helps(need: Need | str, most: Need) -> list[str]:
    """What keeps the pod from every node, each with what would help. most: of most_of. A figure that fits somewhere is not
    named: then no node has all of them together."""
    if isinstance(need, str):
        return [need]
    found = []
    if need.gpus > most.gpus:
        found.append(f"it asks for {need.gpus} GPUs of one node; {most.gpus} of a node have room at most")
    if need.free_gpus > most.free_gpus:
        found.append(
            f"it asks for {need.free_gpus} whole GPUs of one node; {most.free_gpus} of a node are free at most"
        )
    if need.mib > most.mib:
        found.append(f"it asks for {need.mib} MiB of one GPU; {most.mib} MiB of a GPU are free at most")
    if need.percent > most.percent:
        found.append(f"it asks for {need.percent} % of a GPU's memory; {most.percent} % of a GPU are free at most")
    if need.compute > most.compute:
        found.append(f"it asks for {need.compute} % compute of one GPU; {most.compute} % of a GPU are free at most")
    if not found:
        found.append("each of its wishes fits somewhere, but no node has them together")
    return found


def _short(text: str) -> str:
    return text[:MOST_TEXT]
