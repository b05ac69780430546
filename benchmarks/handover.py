"""Time without decisions after the leading controller ends: two controllers behind a Service, a real etcd, kube-apiserver and
kube-scheduler. The leader gets kill -9 at a random moment; a pod is made at once and bound by the next leader. If the API server
refuses the pod, its maker tries again, as a ReplicaSet does. Nodes are plain objects, so no container runs.

--nodes, --pods: further nodes with 8 GPUs each, and bound pods; --term: SIGTERM in place of kill -9.
"""

import random
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testbed.cluster import plain_nodes
from testbed.cluster.api import Api
from testbed.cluster.cluster import Cluster
from testbed.cluster.machine import wait
from testbed.cluster.plane import PODS, make
from testbed.cluster.replicas import Replicas, bound_within

KILLS, SHORT_KILLS = 30, 4
BUDGET = 5.0
SIZES = [81559] * 8
FLAGS = {
    "kube-controller-manager": [plain_nodes.NO_CONTROLLER_MANAGER_OF_NODES],
    "kube-apiserver": ["--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"],
}


def arguments(parser):
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--pods", type=int, default=0)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--term", action="store_true", help="end by SIGTERM")
    parser.add_argument("--seed", type=int, default=1)


def run(short, options):
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-bench-"))
    cluster = Cluster(folder / "state")
    try:
        cluster.up([], flags=FLAGS)
        plane = make(cluster, folder)
        plane.clean()  # makes the webhook configuration
        fill(plane, options.nodes, options.pods)
        kills = options.kills or (SHORT_KILLS if short else KILLS)
        return measured(plane, kills, signal.SIGTERM if options.term else signal.SIGKILL, options.seed)
    finally:
        cluster.down()
        shutil.rmtree(folder, ignore_errors=True)


def fill(plane, nodes, pods):
    """pods: further bound pods of another namespace without GPUs, since a new leader has to know all pods."""
    plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": "others"}})
    account = "/api/v1/namespaces/others/serviceaccounts/default"
    wait(60, "it has its service account", lambda: answers(plane.api, account))
    each(plane, nodes, lambda api, n: plain_nodes.create_node(api, plain_nodes.node(f"n{n:04}", SIZES)))
    where = "/api/v1/namespaces/others/pods"
    each(plane, pods, lambda api, n: api("POST", where, plain_nodes.pod(f"o{n}", nodeName=f"n{n % nodes:04}")))


def answers(api, path):
    try:
        return bool(api.get(path))
    except Exception:
        return False


def each(plane, count, act):
    """Calls `act` for each number, over four connections."""

    def some(worker):
        api = Api(plane.control.machine.pid, plane.control.keys.folder)
        for number in range(worker, count, 4):
            act(api, number)
        api.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))


def measured(plane, kills, how, seed):
    chance = random.Random(seed)
    replicas = Replicas(plane)
    took = []
    try:
        replicas.start()
        alive = min(bound_within(plane, f"before-{n}", time.monotonic()) for n in range(5))
        for n in range(kills):
            leader = replicas.leader()
            time.sleep(chance.uniform(0, 1.5))
            with ThreadPoolExecutor(1) as pool:
                begun = time.monotonic()
                ends = pool.submit(leader.stop, how)
                if how == signal.SIGKILL:
                    ends.result()
                took.append(bound_within(plane, f"after-{n}", begun))
                ends.result()
            print(f"  {n}: {took[-1]:.2f} s", file=sys.stderr, flush=True)
            leader.start()
            wait(120, "both are ready", lambda: all(one.ready() for one in replicas.all))
            plane.api("DELETE", f"{PODS}/after-{n}?gracePeriodSeconds=0")
        memory = max(one.memory_mb() for one in replicas.all)
    finally:
        replicas.end()
        for one in plane.controllers:
            one.stop()
        plane.api.close()
    took.sort()
    at = {f"p{percent}": took[min(len(took) - 1, len(took) * percent // 100)] for percent in (50, 99)}
    return {
        "bound_while_one_leads_s": figure(alive, "s"),
        "bound_after_the_end_p50_s": figure(at["p50"], "s", BUDGET),
        "bound_after_the_end_p99_s": figure(at["p99"], "s", BUDGET),
        "controller_mb": figure(memory, "MB"),
    }


def figure(value, unit, budget=None):
    return {"value": round(value, 3), "unit": unit, "budget": budget, "ok": budget is None or value <= budget}
