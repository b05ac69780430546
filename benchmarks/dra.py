"""Shares by ResourceClaims on the kubelets of two nodes (scripts/cluster with Kubernetes 1.36 or newer, simulated GPUs).

prepare_p50, prepare_p99: the node's driver, called as its kubelet calls it, for a claim that Kubernetes' scheduler has allocated: with
the reading of the claim from the API server, the grant in the ledger and the CDI file; each time after an unprepare. read_p50: the
reading alone, by a connection of this program. kubelet_prepare_mean: what the kubelet counted itself, for a pod. pod_start_*: from
the creation of one pod until it is Running, one after another, with a claim of a template and without any claim.
idle_*: of the driver, while nothing changes. placed_*: pods per second that Kubernetes' scheduler places on played nodes of 8 GPUs
(nodes and slices are objects alone): of plain pods, of the same pods with sums as extended resources, and with a claim each that is
there already."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks import _cluster_real as real
from oci_hook.kube.formats import slices
from oci_hook.kube.formats.claim_words import DRIVER, GROUP, SHARE_CLASS
from testbed import REPO
from testbed.cluster import plain_nodes, programs
from testbed.cluster.api import Api
from testbed.cluster.cluster import Cluster
from testbed.cluster.machine import wait

OLDEST = 36
CALLS, PODS, IDLE = 200, 15, 60  # IDLE: seconds
SHORT = 40, 5, 20
PLACED, SHORT_PLACED = (1000, 1000), (100, 200)  # nodes, pods
BY_CLAIM = "plain scheduler, the same pods by claims"
CLASSES = REPO / "packaging/kubernetes/dra/classes.yaml"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS_PATH = "/api/v1/namespaces/default/pods"
BUDGET = 30.0  # milliseconds, beside the API call


def run(short: bool) -> dict:
    if programs.minor() < OLDEST:
        programs.use(f"1.{OLDEST}")
    from testbed.cluster import lab
    from testbed.cluster.claims import Claims

    calls, pods, seconds = SHORT if short else (CALLS, PODS, IDLE)
    with tempfile.TemporaryDirectory(prefix="gpu-hook-bench-") as folder:
        claims = Claims(lab.Cluster(Path(folder) / "state"))
        try:
            claims.up(Path(folder) / "images")
            nodes = Nodes(claims)
            found = {**nodes.starts(pods), **nodes.prepares(calls), **nodes.idle(seconds)}
        finally:
            claims.cluster.down()
    return {**found, **placed(*(SHORT_PLACED if short else PLACED))}


def placed(nodes: int, pods: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="gpu-hook-bench-") as folder:
        cluster = Cluster(Path(folder) / "state")
        try:
            flags = {
                "kube-controller-manager": [plain_nodes.NO_CONTROLLER_MANAGER_OF_NODES, "--kube-api-qps=5000"],
                "kube-scheduler": [real.COUNTED],
            }
            cluster.up([], flags=flags)
            return Placed(cluster, Path(folder), pods).rates(nodes)
        finally:
            cluster.down()


class Placed(real.Rounds):
    """The rounds of `scripts/bench cluster`, without the controller."""

    def rates(self, nodes: int) -> dict:
        self.nodes = nodes
        for made in yaml.safe_load_all(CLASSES.read_text()):
            self.api("POST", f"/apis/{GROUP}/deviceclasses", made)
        for mib in real.MEMORY:
            asked = {"deviceClassName": SHARE_CLASS, "capacity": {"requests": {"memory": f"{mib}Mi"}}}
            spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}}
            path = f"/apis/{GROUP}/namespaces/plain/resourceclaimtemplates"
            self.api("POST", path, {"metadata": {"name": f"m{mib}"}, "spec": spec})
        self._each(nodes, self._make_node)
        plain, same, claims = self.round(real.PLAIN), self.round(real.SAME), self.round(BY_CLAIM)
        cpu = {row["round"]: row["cpu_ms"]["kube-scheduler"] for row in self.rows}
        return {
            "placed_plain": figure(plain, "1/s"),
            "placed_by_extended_resources": figure(same, "1/s"),
            "placed_by_claims": figure(claims, "1/s"),
            "placed_by_extended_resources_scheduler_cpu": figure(cpu[real.SAME], "ms"),
            "placed_by_claims_scheduler_cpu": figure(cpu[BY_CLAIM], "ms"),
        }

    def _make_node(self, api: Api, number: int) -> None:
        super()._make_node(api, number)
        name = f"n{number:04}"
        devices = slices.devices(plain_nodes.inventory(name, real.SIZES), plain_nodes.RULES, (), {})
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
        api("POST", f"/apis/{GROUP}/resourceslices", {"metadata": {"name": name}, "spec": spec})

    def _pod(self, number: int, kind: str) -> dict:
        if kind != BY_CLAIM:
            return super()._pod(number, kind)
        mib = real.MEMORY[number % len(real.MEMORY)]
        return plain_nodes.pod(
            f"p{number:05}", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": f"m{mib}"}]
        )

    def _made(self, kind: str) -> None:
        """The claims are Kubernetes' controller manager's to make, which is not measured."""
        path = f"/apis/{GROUP}/namespaces/plain/resourceclaims"
        if kind == BY_CLAIM:
            wait(300, "each pod has its claim", lambda: len(self.api.get(path)["items"]) == self.pods, every=1)


class Nodes:
    def __init__(self, claims: Any) -> None:
        self.claims, self.node = claims, claims.nodes[0]
        control = claims.cluster.control
        self.api = Api(control.machine.pid, control.keys.folder)
        claims.kubectl("cordon", claims.nodes[1].name)

    def starts(self, count: int) -> dict:
        from testbed.cluster import claims as objects

        self.claims.apply(objects.template("bench", "1Gi", "5"))
        times: dict[str, list[float]] = {"with_claim": [], "without": []}
        for number in range(count):
            for kind, found in times.items():
                pod = objects.pod(f"{kind.replace('_', '-')}-{number}", "bench", command="exec sleep 100000")
                if kind == "without":
                    del pod["spec"]["resourceClaims"], pod["spec"]["containers"][0]["resources"]
                found.append(self._start(pod))
        medians = {kind: 1000 * statistics.median(found) for kind, found in times.items()}
        prepared = self._kubelet()
        self.claims.clean()
        return {
            "pod_start_with_claim_p50": figure(medians["with_claim"], "ms"),
            "pod_start_without_p50": figure(medians["without"], "ms"),
            "kubelet_prepare_mean": figure(prepared, "ms"),
        }

    def _start(self, pod: Any) -> float:
        began = time.monotonic()
        self.api("POST", PODS_PATH, pod)
        name = pod["metadata"]["name"]

        def runs() -> bool:
            return bool(self.api("GET", f"{PODS_PATH}/{name}")["status"].get("phase") == "Running")

        while not runs():
            if time.monotonic() > began + 120:
                raise RuntimeError(f"{name} does not start")
            time.sleep(0.01)
        return time.monotonic() - began

    def _kubelet(self) -> float:
        """Milliseconds of a NodePrepareResources call, as the kubelet measured it."""
        text = self.claims.kubectl("get", "--raw", f"/api/v1/nodes/{self.node.name}/proxy/metrics")
        found = {"sum": 0.0, "count": 0.0}
        for line in text.splitlines():
            for kind in found:
                if line.startswith(f"dra_grpc_operations_duration_seconds_{kind}{{") and "NodePrepareResources" in line:
                    found[kind] += float(line.rpartition(" ")[2])
        return 1000 * found["sum"] / found["count"]

    def prepares(self, count: int) -> dict:
        """Of a claim that is allocated to the node, whose kubelet is stopped: so nobody else prepares it."""
        import grpc

        from testbed.cluster import claims as objects
        from testbed.engines.dra_calls import SERVICE, answers, asked

        self.node.stop("kubelet")
        self.claims.apply(objects.template("bench", "1Gi", "5"), objects.pod("bench"))

        def allocated() -> Any:
            listed = self.api("GET", CLAIMS)["items"]
            return [one for one in listed if (one.get("status") or {}).get("allocation")]

        wait(30, "the claim is allocated", allocated)
        meta = allocated()[0]["metadata"]
        message = asked((meta["namespace"], meta["uid"], meta["name"]))
        socket = f"/proc/{self.node.machine.pid}/root/var/lib/kubelet/plugins/gpu-hook.io/dra.sock"
        took, reads = [], []
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            prepare = channel.unary_unary(SERVICE.format("v1", "NodePrepareResources"))
            unprepare = channel.unary_unary(SERVICE.format("v1", "NodeUnprepareResources"))
            for _ in range(count):
                began = time.perf_counter()
                ((_, answer),) = answers(prepare(message, timeout=30))
                took.append(1000 * (time.perf_counter() - began))
                if 2 in answer:
                    raise RuntimeError(answer[2][0].decode())
                unprepare(message, timeout=30)
                began = time.perf_counter()
                self.api("GET", f"{CLAIMS}/{meta['name']}")
                reads.append(1000 * (time.perf_counter() - began))
        self.node.start("kubelet")
        wait(60, "the node is Ready", lambda: "NotReady" not in self.claims.kubectl("get", "nodes"))
        self.claims.clean()
        read = statistics.median(reads)
        median = statistics.median(took)
        return {
            "prepare_p50": figure(median, "ms"),
            "prepare_p99": figure(statistics.quantiles(took, n=100)[98], "ms"),
            "read_p50": figure(read, "ms"),
            "prepare_beside_read_p50": figure(median - read, "ms", BUDGET),
        }

    def idle(self, seconds: int) -> dict:
        (pid,) = self.claims.driver(self.node)
        driver = psutil.Process(pid)

        def cpu() -> float:
            return float(sum(driver.cpu_times()[:2]))

        def writes() -> list[str]:
            return sorted(one["metadata"]["resourceVersion"] for one in self.claims.objects("resourceslices"))

        used, version = cpu(), writes()
        time.sleep(seconds)
        return {
            "idle_rss": figure(driver.memory_info().rss / (1 << 20), "MiB", 40),
            "idle_cpu": figure(1000 * (cpu() - used) / seconds, "ms/s"),
            "idle_writes": figure(float(writes() != version), "", 0),
        }


def figure(value: float, unit: str, budget: float | None = None) -> dict:
    return {"value": value, "unit": unit, "budget": budget, "ok": budget is None or value <= budget}
