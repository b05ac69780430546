"""Pods per second through a real kube-apiserver, etcd and kube-scheduler, with the controller and without it. Nodes are plain
objects, so no container runs and only placing is measured. In each round the scheduler is stopped, the pods are made, the
scheduler starts, and the time from the first pod's node to the last one's counts."""

import http.client
import json
import shutil
import ssl
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import _cluster_cpu as cpu
from oci_hook.kube.formats import names
from testbed.cluster import plain_nodes
from testbed.cluster.api import Api, Refused, socket_in
from testbed.cluster.cluster import Cluster
from testbed.cluster.controllers import OPTED_IN, OWN, Controller, configure, wait_for_webhooks
from testbed.cluster.machine import wait

PODS, SIZES = 2000, [81559] * 8
SHORT_NODES, SHORT_PODS = 200, 400
NOWHERE = 300  # pods that no GPU is large enough for
CLIENT = {"qps": 5000, "burst": 5000}  # the default, 50 a second, would bound the result
EXTENDER = 8460
METRICS = 10259  # of the scheduler
COUNTED = "--authorization-always-allow-paths=/metrics"
WORK = "work"  # the namespace of the pods that the controller sees
MEMORY = (7_000, 13_000, 23_000, 37_000, 50_000)
BUDGETS = {
    1000: (0.90, 0.75),
    5000: (0.85, 0.75),
}  # of the plain scheduler's pods per second: bind admission, with filter
PLAIN, BIND, FILTER = "plain scheduler", "bind admission", "with filter"
SAME = "plain scheduler, the same pods"  # with the sums that the create webhook adds, and no webhook
ATTEMPTS = 'scheduler_schedule_attempts_total{profile="default-scheduler",result="'


def run(short: bool, sizes: tuple[int, ...]) -> "tuple[dict, list]":
    """(figures, one row per round). sizes: numbers of nodes, ascending."""
    pods = SHORT_PODS if short else PODS
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-bench-"))
    cluster = Cluster(folder / "state")
    figures: dict = {}
    rows: list = []
    try:
        flags = {
            "kube-controller-manager": [plain_nodes.NO_CONTROLLER_MANAGER_OF_NODES],
            "kube-apiserver": [
                "--max-requests-inflight=2000",
                "--max-mutating-requests-inflight=1000",
                "--delete-collection-workers=8",
            ],
            "kube-scheduler": [COUNTED],
        }
        cluster.up([], flags=flags)
        rounds = Rounds(cluster, folder, pods)
        for nodes in (SHORT_NODES,) if short else sizes:
            figures |= rounds.all(nodes, whole=nodes == sizes[0] or short)
            rows += rounds.rows
    finally:
        cluster.down()
        shutil.rmtree(folder, ignore_errors=True)
    return figures, rows


class Rounds:
    def __init__(self, cluster: Cluster, folder: Path, pods: int) -> None:
        self.cluster, self.control, self.pods, self.nodes = cluster, cluster.control, pods, 0
        self.api = self._api()
        self.rows: list[dict] = []
        self.folder = folder
        for name, labels in ((OWN, {}), ("plain", {}), (WORK, OPTED_IN)):
            self.api("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        configure(self.api, f"https://10.99.0.1:{8443}")
        self.controller = Controller(self.control, folder, 8443, "--extender-address", f"127.0.0.1:{EXTENDER}")

    def all(self, nodes: int, whole: bool) -> dict:
        """The figures with so many nodes. whole: also churn, and pods that fit nowhere."""
        first, self.nodes, self.rows = self.nodes, nodes, []
        make = self._make_node
        self._each(nodes - first, lambda api, n: make(api, first + n))
        plain = [self.round(PLAIN)]
        same = self.round(SAME)
        self.controller.start()
        try:
            wait(120, "the controller leads", self.controller.leads)
            wait_for_webhooks(self.api, WORK)
            bind, both = self.round(BIND), self.round(FILTER)
            plain.append(self.round(PLAIN))
            more = {}
            if whole:
                beside = self.round(FILTER, nowhere=min(NOWHERE, self.pods // 4))
                more["beside_pods_that_fit_nowhere_ratio"] = figure(beside / both, "x")
                more |= self.churn()
            seen = self.controller.figures()
            memory = self.controller.memory_mb()
        finally:
            self.controller.stop()
        base = sum(plain) / len(plain)
        least = BUDGETS.get(nodes, (None, None))
        found = {
            "plain_pods_per_s": figure(base, "1/s"),
            "plain_same_pods_per_s": figure(same, "1/s"),
            "bind_admission_pods_per_s": figure(bind, "1/s"),
            "with_filter_pods_per_s": figure(both, "1/s"),
            "bind_admission_ratio": figure(bind / base, "x", least[0], least=True),
            "with_filter_ratio": figure(both / base, "x", least[1], least=True),
            **more,
            **denials(self.rows),
            "create_p99_ms": figure(1000 * quantile(seen, "create", 0.99), "ms", 3),
            "bind_p99_ms": figure(1000 * quantile(seen, "bind", 0.99), "ms", 2),
            "filter_p50_ms": figure(1000 * quantile(seen, "filter", 0.50), "ms", 1),
            "filter_p99_ms": figure(1000 * quantile(seen, "filter", 0.99), "ms", 10),
            "controller_mb_at_this_size": figure(memory, "MB"),
            **self.shares(),
        }
        return {f"{name}_{nodes}": value for name, value in found.items()}

    def shares(self) -> dict:
        """Processor time: of the controller for a pod, and of all programs beside the plain scheduler's round."""
        rows = {row["round"]: row for row in self.rows if not row["nowhere"]}
        base = total(rows[PLAIN])
        return {
            "bind_controller_cpu_ms_per_pod": figure(rows[BIND]["cpu_ms"]["controller"], "ms"),
            "filter_controller_cpu_ms_per_pod": figure(rows[FILTER]["cpu_ms"]["controller"], "ms"),
            "same_pods_cpu_ratio": figure(base / total(rows[SAME]), "x"),
            "bind_admission_cpu_ratio": figure(base / total(rows[BIND]), "x"),
            "with_filter_cpu_ratio": figure(base / total(rows[FILTER]), "x"),
        }

    def round(self, kind: str, nowhere: int = 0) -> float:
        """Pods per second, of those that have room."""
        namespace = WORK if kind in (BIND, FILTER) else "plain"
        self.control.stop("kube-scheduler")
        before, denied = self._cpu(), self._denied()
        pods = f"/api/v1/namespaces/{namespace}/pods"
        if nowhere:
            self._each(nowhere, lambda api, n: api("POST", pods, plain_nodes.pod(f"a{n:05}", f"{SIZES[0] + 1}Mi")))
        self._each(self.pods, lambda api, n: api("POST", pods, self._pod(n, kind)))
        self._made(kind)
        made = self._cpu()
        self.control.scheduler_config.write_text(scheduler(kind == FILTER))
        self.control.start("kube-scheduler")
        begun, last, count, first = 0.0, time.monotonic(), 0, 0
        while count < self.pods:
            now_count = self._bound()
            if now_count and not begun:
                begun, first = time.monotonic(), now_count
            if now_count > count:
                count, last = now_count, time.monotonic()
            if time.monotonic() - last > 120:
                raise SystemExit(f"{kind}: {count} of {self.pods} pods have a node, and no more get one")
            time.sleep(0.05)
        rate = (count - first) / max(last - begun, 1e-3)
        row = {"nodes": self.nodes, "round": kind, "nowhere": nowhere, "pods_per_s": round(rate, 1)}
        row["cpu_ms"] = cpu.per_pod({**made, "kube-scheduler": 0.0}, self._cpu(), self.pods)
        row["create_cpu_ms"] = cpu.per_pod(before, made, self.pods)
        row["denied"] = self._denied() - denied
        row["failed"] = self._attempts().get("error", 0)
        self.rows.append(row)
        self._clear(namespace)
        return rate

    def churn(self) -> dict:
        """Pods come while others end, half as many alive as in a round; measures the time until a pod has its node."""
        pods, alive = f"/api/v1/namespaces/{WORK}/pods", self.pods // 2
        before, begun, base, denied = self._cpu(), time.monotonic(), self._bound(), self._denied()
        gone = threading.Event()

        def ending() -> None:
            """Each ends some time after it got a node, in the order in which they came."""
            api, ended = self._api(), 0
            while ended < self.pods - alive and not gone.is_set():
                if self._bound() - base - ended > alive:
                    api("DELETE", f"{pods}/p{ended:05}?gracePeriodSeconds=0")
                    ended += 1
                else:
                    time.sleep(0.05)
            api.close()

        thread = threading.Thread(target=ending)
        thread.start()
        try:
            self._each(self.pods, lambda api, n: api("POST", pods, pod(n, FILTER)))
            wait(120, "all pods of the churn had a node", lambda: self._bound() - base >= self.pods, every=0.05)
        finally:
            gone.set()
            thread.join()
        rate = self.pods / (time.monotonic() - begun)
        row = {"nodes": self.nodes, "round": "churn with filter", "nowhere": 0, "pods_per_s": round(rate, 1)}
        row["cpu_ms"] = cpu.per_pod(before, self._cpu(), self.pods)
        row["denied"] = self._denied() - denied
        self.rows.append(row)
        self._clear(WORK)
        return {"churn_pods_per_s": figure(rate, "1/s")}

    def _pod(self, number: int, kind: str) -> dict:
        return pod(number, kind)

    def _made(self, kind: str) -> None:
        """Waits for what else the pods need before a scheduler can place them."""

    def _clear(self, namespace: str) -> None:
        pods = f"/api/v1/namespaces/{namespace}/pods"

        def gone() -> bool:
            try:
                self.api("DELETE", f"{pods}?gracePeriodSeconds=0")
            except Refused as e:
                if e.status:
                    raise
                return False  # on a busy machine one request does not have the time for all
            return not self.api.get(f"{pods}?limit=1")["items"]

        wait(120, "the pods are gone", gone)
        time.sleep(6)  # the controller counts pods whose node never listed them for 5 s more

    def _bound(self) -> int:
        """Pods that got a node since the scheduler's start."""
        return self._attempts().get("scheduled", 0)

    def _attempts(self) -> dict[str, int]:
        """The scheduler's attempts since its start, by their result, as it counts them: listing pods would load the API server."""
        connection = http.client.HTTPSConnection("127.0.0.1", METRICS)
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE  # it made its certificate itself
        try:
            connection.sock = trust.wrap_socket(socket_in(self.control.machine.pid, ("127.0.0.1", METRICS)))
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return {}
        finally:
            connection.close()
        found = (line[len(ATTEMPTS) :].split('"} ') for line in text.splitlines() if line.startswith(ATTEMPTS))
        return {result: int(count) for result, count in found}

    def _denied(self) -> float:
        """Bindings that the controller denied since its start."""
        seen = self.controller.figures() if self.controller.process else {}
        return sum(value for name, value in seen.items() if refusal(name, "bind"))

    def _cpu(self) -> dict[str, float]:
        process = self.controller.process
        return cpu.seconds(self.control.machine.pid, process.pid if process else 0)

    def _make_node(self, api: Api, number: int) -> None:
        plain_nodes.create_node(api, plain_nodes.node(f"n{number:04}", SIZES))

    def _each(self, count: int, make) -> None:
        """Calls it for each number over four connections."""
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


def pod(number: int, kind: str) -> dict:
    if kind == PLAIN:
        return plain_nodes.pod(f"p{number:05}", limits={"cpu": "1m"})
    mib = MEMORY[number % len(MEMORY)]
    if kind == SAME:
        return plain_nodes.pod(f"p{number:05}", f"{mib}Mi", limits={names.GPUS: "1", names.MEMORY: str(mib)})
    return plain_nodes.pod(f"p{number:05}", f"{mib}Mi")


def scheduler(extender: bool) -> str:
    document: dict[str, Any] = {"clientConnection": CLIENT}
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


def refusal(name: str, call: str) -> bool:
    return name.startswith("gpu_hook_controller_refusals_total") and f'call="{call}"' in name


def denials(rows: list[dict]) -> dict:
    """Denied Bindings, by rounds with and without the filter. With it none may be; without it the scheduler sees sums only. The
    scheduler's other failed attempts are Bindings whose review came too late."""
    alone = sum(row["denied"] for row in rows if row["round"] == BIND)
    late = sum(row["failed"] - row["denied"] for row in rows if row["round"] in (BIND, FILTER))
    return {
        "refused_at_bind": figure(sum(row["denied"] for row in rows) - alone, "", 0),
        "refused_at_bind_without_filter": figure(alone, ""),
        "late_at_bind": figure(late, "", 0),
    }


def total(row: dict) -> float:
    """Milliseconds of processor time per pod, of all programs but the one that makes the load."""
    return sum(value for name, value in row["cpu_ms"].items() if name != "load generator")


def quantile(figures: dict, call: str, share: float) -> float:
    """A quantile of a Prometheus histogram, interpolated between two bounds."""
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
