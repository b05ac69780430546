"""The whole cluster as data for people: nodes and their GPUs, waiting pods with reasons, totals. Pure.

The cost of an update is bounded: it reads only changed nodes and pods, and a limited number of pods. `look` yields after each small
piece of work, so that the caller can make decisions in between.
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
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.records import NodeRecord, PodRecord
from oci_hook.kube.placing.room import Need, Room, need_of
from oci_hook.kube.pod.asked import PodWords, asked
from oci_hook.kube.pod.peaks import Row, containers

MOST_WAITING = 500  # pods to list; the totals count all
MOST_GONE = 1_000  # names of removed nodes to remember, for clients that ask for changes
MOST_TEXT = 300  # characters of a text from a node or a pod
MOST_READ = 1_000  # for all pods read in one update, in units of reading_of: about 50 ms
SMALL = 4  # in the same units: a pod up to this size is read even when MOST_READ is spent
MOST_WORDS = 500  # in the same units: a larger pod is never read
FEW = 64  # nodes or pods to handle between two yields: about 0.1 ms
FREE, SHARED, WHOLE = 0, 1, 2
STATES = ("ok", "problem", "no report")  # of a node
FULL = ("GH-201", "GH-203", "GH-607")


class Waiting(Value):
    """The reason why a pod got no place at the last attempt. words: about one node, or all."""

    code: str
    words: str


class Sums(NamedTuple):
    """In MiB, and per cent of a GPU. granted_*: with reservations. granted_compute: of the classes online and default;
    offline_compute: of class offline, booked separately. free_used_mib: free on GPUs in use, so not available as whole GPUs."""

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
    containers: int = 0

    def plus(self, other: "Sums") -> "Sums":
        return Sums(*map(add, self, other))


class NodeRow:
    """One node for the page. made_of: its `key`. text: its JSON. since: the version that changed it."""

    __slots__ = ("made_of", "text", "since", "sums", "state")

    def __init__(self, made_of: object, text: str, sums: Sums, state: str) -> None:
        self.made_of, self.text, self.sums, self.state = made_of, text, sums, state
        self.since = 0


class Overview:
    """version: grows with each update that found a change."""

    def __init__(self) -> None:
        self.version = 0
        self._rows: dict[str, NodeRow] = {}
        self._gone: deque[tuple[int, str]] = deque(maxlen=MOST_GONE)
        self._forgotten = 0  # for older versions, names of removed nodes may be lost
        self._parts: dict[str, tuple[int, str]] = {}  # (since, text) of all but the nodes
        self._asks: dict[str, tuple[PodWords, Need | str]] = {}  # of waiting pods, by UID: their needs

    def look(
        self,
        state: ClusterState,
        waiting: Mapping[str, Waiting],
        enabled: Collection[str],
        leader: dict[str, Any],
    ) -> Iterator[None]:
        """Updates everything, in small steps. leader: shown unchanged."""
        version = self.version + 1
        changed = False
        while not state.refresh(4):
            yield
        states = dict.fromkeys(STATES, 0)
        sums = Sums()
        most = Need(0, 0, 0, 0, 0, 0)
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
                    asks[pod.uid] = pod.words, "it has too many containers and annotations to tell what would help"
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
        """True if all changes after that version are known."""
        return self._forgotten <= since <= self.version

    def parts(self, since: int = 0) -> Iterator[str]:
        """The JSON text in pieces: all changes after that version, which `knows` must accept; 0: everything."""
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


def shown(node: NodeRecord | None) -> bool:
    """True if the page has the node: it has GPUs, its labels ask for gpu-hook, or it was deleted and pods on it were not."""
    return node is not None and bool(node.text or node.ours or (not node.present and _held(node)))


def _held(node: NodeRecord) -> bool:
    return bool(node.reserved) or any(pod.rows for pod in node.pods.values())


def key(node: NodeRecord, room: Room | None) -> object:
    """Changes whenever the node's row may change. A changed node has a new Room, or none."""
    if room is not None:
        return room
    return node.problem, node.present, node.text, node.mode, len(node.pods), len(node.reserved)


def kind_of(node: NodeRecord) -> str:
    """The node's state, one of STATES."""
    if node.problem or not node.present:
        return "problem"
    return "ok" if node.text else "no report"


def taken_on(state: ClusterState, node: NodeRecord) -> tuple[dict[str, list[Row]], int]:
    """(GPU's UUID -> rows on it, the number of pods)"""
    taken: dict[str, list[Row]] = {}
    holders = 0
    for uid, _, rows in state.holdings(node):
        holders += bool(uid)
        for row in rows:
            taken.setdefault(row.uuid, []).append(row)
    return taken, holders


def row_of(state: ClusterState, node: NodeRecord, made_of: object) -> NodeRow:
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
        one = of_gpu(gpu, taken.get(gpu.uuid, []), node.rules)
        listed.append(cell_of(one))
        sums = sums.plus(one)
    kind = kind_of(node)
    models = ", ".join(sorted({gpu.name for gpu in gpus}))
    shown = {
        "name": node.name,
        "state": kind,
        "problem": _short(node.problem) if node.present else "its Node object was deleted, but pods on it were not",
        "mode": _short(node.mode),
        "model": models[:64],
        "pods": holders,
        "gpus": listed,
        "namespaces": [[namespace, *by_namespace[namespace]] for namespace in sorted(by_namespace)],
    }
    return NodeRow(made_of, json.dumps(shown, separators=(",", ":")), sums, kind)


def of_gpu(gpu: Gpu, rows: list[Row], rules: Rules) -> Sums:
    """The figures of one GPU."""
    whole = any(row.whole or row.alone for row in rows)
    offline = [row for row in rows if row.offline]
    granted = gpu.memory_mib if whole else sum(row.memory_mib for row in rows)
    all_offline = len(offline) == len(rows)
    off_mib = gpu.memory_mib if whole and all_offline else sum(row.memory_mib for row in offline)
    off_compute = 100 if whole and all_offline else sum(row.compute for row in offline)
    compute = 100 if whole and not all_offline else sum(row.compute for row in rows if not row.offline)
    free = 0 if whole else max(0, gpu.memory_mib - rules.reserve(gpu.memory_mib) - gpu.missing_mib - granted)
    return Sums(
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
        containers=containers(rows),
    )


def cell_of(gpu: Sums) -> tuple[int, ...]:
    """One GPU for the page: MiB, granted MiB and per cent, the same of class offline, containers, FREE, SHARED or WHOLE."""
    state = WHOLE if gpu.whole_gpus else FREE if gpu.free_gpus else SHARED
    return (
        gpu.memory_mib,
        gpu.granted_mib,
        gpu.granted_compute,
        gpu.offline_mib,
        gpu.offline_compute,
        gpu.containers,
        state,
    )


def most_of(most: Need, room: Room) -> Need:
    """The largest figure of each kind on any node. A pod that needs more fits nowhere."""
    return Need(
        max(most.mib, room.most_mib),
        max(most.percent, room.most_percent),
        max(most.compute, room.most_compute),
        max(most.offline, room.most_offline),
        max(most.free_gpus, room.free_gpus),
        max(most.gpus, room.roomy_gpus),
    )


def waiting_row(pod: PodRecord, why: Waiting | None, need: Need | str | None, most: Need) -> dict[str, Any]:
    """need: from asks_for; None if not known yet."""
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
    """The time to read the pod's request, in units of about 0.05 ms: each annotation is read for each container."""
    letters = sum(len(key) + len(value) for key, value in pod.annotations.items())
    return len(pod.containers) * (1 + letters // 1024)


def asks_for(pod: PodWords) -> Need | str:
    """The pod's needs, or the reason why they are unknown."""
    try:
        return need_of(asked(pod, Rules()), Rules())
    except RequestError as e:
        return _short(str(e.problems[0]))


def helps(need: Need | str, most: Need) -> list[str]:
    """The needs that no node can meet, each with the largest figure of any node. most: from most_of. If each fits some node, no node
    has all together."""
    if isinstance(need, str):
        return [need]
    found = []
    if need.gpus > most.gpus:
        found.append(f"it asks for {need.gpus} GPUs of one node; no node has more than {most.gpus} with room")
    if need.free_gpus > most.free_gpus:
        found.append(
            f"it asks for {need.free_gpus} whole GPUs of one node; no node has more than {most.free_gpus} free"
        )
    if need.mib > most.mib:
        found.append(f"it asks for {need.mib} MiB of one GPU; no GPU has more than {most.mib} MiB free")
    if need.percent > most.percent:
        found.append(f"it asks for {need.percent} % of a GPU's memory; no GPU has more than {most.percent} % free")
    if need.compute > most.compute:
        found.append(f"it asks for {need.compute} % compute of one GPU; no GPU has more than {most.compute} % free")
    if need.offline > most.offline:
        found.append(
            f"it asks for {need.offline} % offline compute of one GPU; no GPU has more than {most.offline} % free"
        )
    if not found:
        found.append("some node has room for each of its needs, but no node for all together")
    return found


def _short(text: str) -> str:
    return text[:MOST_TEXT]
