"""A simulated scheduler fills a cluster with pods of odd sizes. It chooses nodes by sums, as Kubernetes' does, with our extender
and without it. Measured are denied Bindings, the time until every pod with room somewhere has a node, and the GPUs that stay free.
The scheduler's queue, back-off and scores are those of Kubernetes 1.20; 1.35 has the same ones, as far as they count here. Time is
simulated, so other work on the machine changes nothing."""

import heapq
import random
from collections.abc import Iterator

from benchmarks._cluster_objects import binding, bound, node, pod
from oci_hook.kube.answers import admission, extender
from oci_hook.kube.formats.signing import Signer
from oci_hook.kube.placing.choose import Question, judge
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit
from oci_hook.kube.preemption.fragments import Fragments

MEMORY = 80_000
ODD = (7_000, 13_000, 23_000, 37_000, 50_000)  # no sum of some of them is exactly a GPU
EACH = 1 / 300  # seconds of one attempt
LOOK, STAYS = 0.5, 10.0  # of controller/act/taints.py
BACK_OFF = (1.0, 2.0, 4.0, 8.0, 10.0)
PACK, SPREAD = "binpack", "spread"


class Cluster:
    """placement: of the scheduler, by sums, and of ours. marks: misleading nodes get their taint."""

    def __init__(
        self, nodes: int, gpus: int, placement: str, with_filter: bool, marks: bool = True, seed: int = 0
    ) -> None:
        self.rng = random.Random(seed)
        self.signer = Signer({1: b"\x01" * 32})
        self.state = ClusterState(placement, verify=self.signer.holds)
        self.with_filter, self.pack, self.marks = with_filter, placement == PACK, marks
        self.total = gpus * MEMORY
        self.free = {f"n{i:04}": self.total for i in range(nodes)}  # the scheduler's figures
        for name in self.free:
            self.state.apply_node(node(name, gpus, MEMORY))
        self.fragments = Fragments(self.state)
        self.taints: dict[str, float] = {}  # node -> when it was last needed
        self.now = self.last = 0.0
        self.denied = 0
        self.waiting: list = []
        self.bound: list = []

    def fill(self, share: float) -> list[int]:
        """Sizes of pods that together have this share of the memory."""
        sizes, left = [], share * self.total * len(self.free)
        while left > 0:
            sizes.append(self.rng.choice(ODD))
            left -= sizes[-1]
        return sizes

    def run(self, sizes: list[int], seconds: float = 300.0) -> None:
        """Runs until no waiting pod has room anywhere, or for so many seconds."""
        for number, mib in enumerate(sizes):
            made = pod(f"p{number}", mib, 0)
            self.state.apply_pod(made)
            heapq.heappush(self.waiting, (0.0, number, 0, made, mib))
        looked = 0.0
        while self.waiting and self.now < seconds:
            self.now = max(self.now + EACH, self.waiting[0][0])
            if self.now >= looked + LOOK:
                looked = self.now
                self._look()
                if not any(self._has_room(made) for *_, made, _ in self.waiting):
                    break
            _, number, tries, made, mib = heapq.heappop(self.waiting)
            if self.place(made, mib):
                self.last = self.now
                self.bound.append((made, mib))
                continue
            pause = BACK_OFF[min(tries, len(BACK_OFF) - 1)]
            heapq.heappush(self.waiting, (self.now + pause, number, tries + 1, made, mib))

    def stuck(self) -> int:
        """Pods that have room on some node and never found it."""
        return sum(self._has_room(made) for *_, made, _ in self.waiting)

    def free_gpus(self) -> int:
        self.state.refresh()
        return sum(room.free_gpus for room in self.state.cut.rooms.values())

    def _has_room(self, made) -> bool:
        question = Question(self.state.pending("default", made["metadata"]["name"]))
        return any(isinstance(judge(self.state, question, name), Fit) for name in self.free)

    def place(self, made, mib: int) -> bool:
        """One attempt of the scheduler; True when the pod has a node."""
        open_to = [name for name, free in self.free.items() if free >= mib]
        if open_to and self.with_filter:
            open_to = extender.filter({"Pod": made, "NodeNames": open_to}, self.state, self.now)["NodeNames"]
        if not open_to:
            return False
        name = self._best(open_to)
        answer = admission.bind(binding(made, name), self.state, self.now, self.signer.sign)
        if not answer["response"]["allowed"]:
            self.denied += 1
            self.fragments.denied(self.state.pending("default", made["metadata"]["name"]), name)
            return False
        self.free[name] -= mib
        self.state.apply_pod(bound(made, name, answer))
        return True

    def end(self, made, mib: int) -> None:
        """The pod ends, and its node reports it."""
        uid = made["metadata"]["uid"]
        pod = self.state.pods[uid]
        self.free[pod.node] += mib
        pod.was_listed = True
        self.state.remove_pod(uid, self.now)

    def _best(self, open_to: list[str]) -> str:
        """The node with the best score: NodeResourcesMostAllocated or LeastAllocated plus TaintToleration, each with weight 1."""

        def score(name: str) -> int:
            left = 100 * self.free[name] // self.total
            return (100 - left if self.pack else left) + (0 if name in self.taints else 100)

        scores = {name: score(name) for name in open_to}
        most = max(scores.values())
        return self.rng.choice([name for name, got in scores.items() if got == most])

    def _look(self) -> None:
        """Sets and removes taints as controller/act/taints.py does."""
        if not self.marks:
            return
        for some in self.fragments.marks():
            self.taints |= dict.fromkeys(some, self.now)
        self.taints = {name: when for name, when in self.taints.items() if when + STAYS > self.now}


def rows(nodes: int = 100, gpus: int = 8, fills: tuple[int, ...] = (80, 90, 95, 98)) -> Iterator[dict]:
    for with_filter, marks in ((True, False), (False, True), (False, False)):
        for placement in (PACK, SPREAD):
            for fill in fills:
                one = Cluster(nodes, gpus, placement, with_filter, marks)
                sizes = one.fill(fill / 100)
                one.run(sizes)
                yield {
                    "extender": with_filter,
                    "taint": marks,
                    "placement": placement,
                    "fill": fill,
                    "pods": len(sizes),
                    "bound": len(one.bound),
                    "denied": one.denied,
                    "seconds": round(one.last, 1),
                    "stuck": one.stuck(),
                    "free_gpus": one.free_gpus(),
                }
