"""Growth of a decision's cost with nodes, GPUs per node, pods per node and fill: processor time of the extender's filter and of the
bind webhook's decision, in this process."""

import random
import statistics
import time
from collections.abc import Iterator

from benchmarks._cluster_objects import binding, bound, node, pod
from oci_hook.kube.answers import admission, extender
from oci_hook.kube.formats.signing import Signer
from oci_hook.kube.placing.cluster_state import ClusterState

MEMORY = 81559
SIZES = (7_000, 13_000, 23_000, 37_000, 50_000)
ROUNDS, SHORT_ROUNDS = 200, 40


class Point:
    """A cluster of so many nodes with so many GPUs each."""

    def __init__(self, nodes: int, gpus: int) -> None:
        self.signer = Signer({1: b"\x01" * 32})
        self.state = ClusterState(verify=self.signer.holds)
        self.rng = random.Random(1)
        for i in range(nodes):
            self.state.apply_node(node(f"node-{i:04}", gpus, MEMORY))
        self.names = list(self.state.nodes)
        self.room = nodes * gpus * MEMORY
        self.taken = self.number = 0

    def fill(self, pods_per_node: int, mib: int) -> None:
        """Each node gets so many pods."""
        for name in self.names:
            for _ in range(pods_per_node):
                self._bind(self._new(mib), name, mib)

    def fill_to(self, share: float) -> None:
        """Places pods by the filter until this share of the memory is taken or a pod fits nowhere."""
        while self.taken < share * self.room:
            mib = self.rng.choice(SIZES)
            made = self._new(mib)
            found = extender.filter({"Pod": made, "NodeNames": self.names}, self.state, 0.0)["NodeNames"]
            if not found:
                self.state.remove_pod(made["metadata"]["uid"], 0.0)
                return
            self._bind(made, found[0], mib)

    def measure(self, rounds: int) -> dict[str, float]:
        """Milliseconds. Pods placed for it are removed."""
        filters, binds = [], []
        for _ in range(rounds):
            mib = self.rng.choice(SIZES)
            made = self._new(mib)
            start = time.thread_time()
            found = extender.filter({"Pod": made, "NodeNames": list(self.names)}, self.state, 0.0)["NodeNames"]
            filters.append(time.thread_time() - start)
            if found:
                binds.append(self._bind(made, found[0], mib))
            self.state.pods[made["metadata"]["uid"]].was_listed = True
            self.state.remove_pod(made["metadata"]["uid"], 0.0)
            self.taken -= mib if found else 0
        cuts = [1000 * statistics.median(filters), 1000 * sorted(filters)[len(filters) * 99 // 100]]
        return {
            "filter_p50_ms": round(cuts[0], 3),
            "filter_p99_ms": round(cuts[1], 3),
            "bind_p50_ms": round(1000 * statistics.median(binds), 3) if binds else 0.0,
        }

    def _new(self, mib: int) -> dict:
        self.number += 1
        made = pod(f"p{self.number}", mib, 0)
        self.state.apply_pod(made)
        return made

    def _bind(self, made: dict, name: str, mib: int) -> float:
        review = binding(made, name)
        start = time.thread_time()
        answer = admission.bind(review, self.state, 0.0, self.signer.sign)
        took = time.thread_time() - start
        if answer["response"]["allowed"]:
            self.taken += mib
        self.state.apply_pod(bound(made, name, answer))
        return took


def rows(short: bool) -> Iterator[dict]:
    """by: the quantity that grows; at: its values."""
    rounds, scale = (SHORT_ROUNDS, 10) if short else (ROUNDS, 1)
    for nodes in (250, 1000, 2500, 5000):
        point = Point(nodes // scale, 8)
        point.fill(2, 20_000)
        yield {"by": "nodes", "at": nodes // scale, **point.measure(rounds)}
    for gpus in (1, 4, 8, 16):
        point = Point(1000 // scale, gpus)
        point.fill(gpus, 20_000)
        yield {"by": "GPUs of a node", "at": gpus, **point.measure(rounds)}
    for pods in (1, 5, 20):
        point = Point(1000 // scale, 8)
        point.fill(pods, 700)
        yield {"by": "pods of a node", "at": pods, **point.measure(rounds)}
    point = Point(1000 // scale, 8)
    for share in (25, 50, 75, 95, 98):
        point.fill_to(share / 100)
        yield {"by": "fill, %", "at": share, **point.measure(rounds)}
