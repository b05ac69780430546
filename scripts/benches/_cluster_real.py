"""Pods per second through a real kube-apiserver, etcd and kube-scheduler, with the controller and without it. Nodes are plain
objects, so no container runs: what is measured is placing. Each round: the scheduler is stopped, the pods are made, the
scheduler starts, and the time from the first pod's node to the last one's counts."""

import json
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.cluster_lab import plain_nodes
from scripts.cluster_lab.api import Api
from scripts.cluster_lab.cluster import Cluster
from scripts.cluster_lab.controllers import OPTED_IN, OWN, Controller, configure
from scripts.cluster_lab.machine import wait

NODES, PODS, SIZES = 1000, 2000, [81559] * 8
SHORT_NODES, SHORT_PODS = 200, 400
CLIENT = {"qps": 5000, "burst": 5000}  # the default, 50 a second, would be all that is measured
EXTENDER = 8460
MEMORY = (7_000, 13_000, 23_000, 37_000, 50_000)


def run(short: bool) -> dict:
    nodes, pods = (SHORT_NODES, SHORT_PODS) if short else (NODES, PODS)
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-bench-"))
    cluster = Cluster(folder / "state")
    try:
        flags = {
            "kube-controller-manager": [plain_nodes.NO_CONTROLLER_MANAGER_OF_NODES],
            "kube-apiserver": ["--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"],
        }
        cluster.up([], flags=flags)
        return Rounds(cluster, folder, nodes, pods).all()
    finally:
        cluster.down()
        shutil.rmtree(folder, ignore_errors=True)


class Rounds:
    def __init__(self, cluster: Cluster, folder: Path, nodes: int, pods: int) -> None:
        self.cluster, self.control, self.pods = cluster, cluster.control, pods
        self.api = self._api()
        self.controller = Controller(self.control, folder, 8443, "--extender-address", f"127.0.0.1:{EXTENDER}")
        for name, labels in ((OWN, {}), ("plain", {}), ("work", OPTED_IN)):
            self.api("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        self._each(nodes, lambda api, n: plain_nodes.create_node(api, plain_nodes.node(f"n{n:04}", SIZES)))

    def all(self) -> dict:
        plain = [self.round("plain", False)]
        configure(self.api, f"https://10.99.0.1:{self.controller.port}")
        self.controller.start()
        try:
            wait(120, "the controller is ready", self.controller.ready)
            time.sleep(3)  # the API server reads the webhooks' tokens
            bind = self.round("work", False)
            both = self.round("work", True)
            plain.append(self.round("plain", False))
            figures = self.controller.figures()
            memory = self.controller.memory_mb()
        finally:
            self.controller.stop()
        base = sum(plain) / len(plain)
        refused = sum(value for name, value in figures.items() if name.startswith("gpu_hook_controller_refusals_total"))
        return {
            "plain_pods_per_s": figure(base, "1/s"),
            "bind_admission_pods_per_s": figure(bind, "1/s"),
            "with_filter_pods_per_s": figure(both, "1/s"),
            "bind_admission_ratio": figure(bind / base, "x", 0.90, least=True),
            "with_filter_ratio": figure(both / base, "x", 0.75, least=True),
            "refused_at_bind": figure(refused, ""),
            "create_p99_ms": figure(1000 * quantile(figures, "create", 0.99), "ms", 3),
            "bind_p99_ms": figure(1000 * quantile(figures, "bind", 0.99), "ms", 2),
            "filter_p99_ms": figure(1000 * quantile(figures, "filter", 0.99), "ms", 10),
            "controller_mb_at_this_size": figure(memory, "MB"),
        }

    def round(self, namespace: str, extender: bool) -> float:
        """Pods per second."""
        self.control.stop("kube-scheduler")
        pods = f"/api/v1/namespaces/{namespace}/pods"
        self._each(self.pods, lambda api, n: api("POST", pods, pod(n, namespace == "plain")))
        self.control.scheduler_config.write_text(scheduler(extender))
        begun, last, count = 0.0, time.monotonic(), 0
        self.control.start("kube-scheduler")
        while count < self.pods:
            now_count = self._bound(namespace)
            if now_count and not begun:
                begun, first = time.monotonic(), now_count
            if now_count > count:
                count, last = now_count, time.monotonic()
            if time.monotonic() - last > 120:
                raise SystemExit(f"{namespace}: {count} of {self.pods} pods have a node, and no more get one")
            time.sleep(0.1)
        rate = (count - first) / max(last - begun, 1e-3)
        self.api("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        wait(
            120, "the pods are gone", lambda: not self.api.get(f"/api/v1/namespaces/{namespace}/pods?limit=1")["items"]
        )
        time.sleep(6)  # the controller counts pods whose node never listed them for 5 s more
        return rate

    def _bound(self, namespace: str) -> int:
        query = "fieldSelector=spec.nodeName%3D&resourceVersion=0"  # from its cache, which costs etcd nothing
        return self.pods - len(self.api.get(f"/api/v1/namespaces/{namespace}/pods?{query}")["items"])

    def _each(self, count: int, make) -> None:
        """By four connections."""
        apis = [self._api() for _ in range(4)]

        def some(worker: int) -> None:
            for number in range(worker, count, len(apis)):
                make(apis[worker], number)

        with ThreadPoolExecutor(len(apis)) as pool:
            list(pool.map(some, range(len(apis))))
        for api in apis:
            api.close()

    def _api(self) -> Api:
        return Api(self.control.machine.pid, self.control.keys.folder)


def pod(number: int, plain: bool) -> dict:
    if plain:
        return plain_nodes.pod(f"p{number:05}", limits={"cpu": "1m"})
    return plain_nodes.pod(f"p{number:05}", f"{MEMORY[number % len(MEMORY)]}Mi")


def scheduler(extender: bool) -> str:
    document: dict = {"clientConnection": CLIENT}
    if extender:
        document["extenders"] = [
            {
                "urlPrefix": f"http://127.0.0.1:{EXTENDER}",
                "filterVerb": "filter",
                "nodeCacheCapable": True,
                "managedResources": [{"name": "gpu-hook.io/gpus", "ignoredByScheduler": False}],
            }
        ]
    return json.dumps(document)


def quantile(figures: dict, call: str, share: float) -> float:
    """Of a Prometheus histogram, between two bounds by proportion."""
    start = f'gpu_hook_controller_answer_seconds_bucket{{call="{call}",le="'
    buckets = sorted((float(name[len(start) : -2]), value) for name, value in figures.items() if name.startswith(start))
    wanted, below, before = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            return (
                bound if bound == float("inf") else below + (bound - below) * (wanted - before) / max(count - before, 1)
            )
        below, before = bound, count
    return below


def figure(value: float, unit: str, budget: float | None = None, least: bool = False) -> dict:
    ok = budget is None or (value >= budget if least else value <= budget)
    return {"value": value, "unit": unit, "budget": budget, "ok": ok}
