"""Choosing in a large cluster: CPU time of the extender's filter and of the bind webhook's decision, and memory of the controller's
state. Other work on the machine does not lengthen CPU time."""

import gc
import json
import random
import statistics
import time

import psutil

from benchmarks._cluster_objects import binding, bound, node, pod
from oci_hook.kube.answers import admission, extender
from oci_hook.kube.formats.signing import Signer
from oci_hook.kube.placing.cluster_state import ClusterState

NODES, GPUS, PODS = 5000, 8, 50_000
SHORT = 500, 8, 5_000
MEMORY = 81559
SIZES = (7_000, 13_000, 23_000, 37_000, 50_000)  # MiB: odd ones leave room that fits nothing
ROUNDS, SHORT_ROUNDS = 1000, 200


def run(short: bool) -> dict:
    nodes, gpus, pods = SHORT if short else (NODES, GPUS, PODS)
    rounds = SHORT_ROUNDS if short else ROUNDS
    rng = random.Random(1)
    before = resident()
    signer = Signer({1: b"\x01" * 32})
    state = ClusterState(verify=signer.holds)
    load = 0.0
    for i in range(nodes):
        text = json.dumps(node(f"node-{i:04}", gpus, MEMORY))
        start = time.thread_time()
        state.apply_node(json.loads(text))
        load += time.thread_time() - start
    names = list(state.nodes)
    for i in range(pods):  # packed; pods that do not fit are left out
        load += place(state, signer, pod(f"pod-{i}", rng.choice(SIZES), rng.choice((0, 0, 10, 30))), names)
    gc.collect()
    gc.freeze()  # as the controller does once it has read everything
    memory = resident() - before
    figures = {"state_mib": figure(memory, "MiB", 105 if not short else None)}
    figures["cold_start_s"] = figure(load, "s", 5)
    for placement in ("binpack", "spread"):
        filters, binds = rounds_of(state, signer, rng, names, rounds, placement)
        key = placement
        figures[f"{key}_filter_p50_ms"] = figure(1e3 * statistics.median(filters), "ms", 1)
        figures[f"{key}_filter_p99_ms"] = figure(1e3 * percentile(filters, 99), "ms", 10)
        figures[f"{key}_bind_p99_ms"] = figure(1e3 * percentile(binds, 99), "ms", 2)
    nowhere = [
        timed(lambda: extender.filter(asking(pod("none", MEMORY - 1, 100), names), state, 0.0))
        for _ in range(rounds // 10)
    ]
    figures["refused_everywhere_p50_ms"] = figure(1e3 * statistics.median(nowhere), "ms", None)
    figures["pods_placed"] = figure(sum(bool(p.rows) for p in state.pods.values()), "", None)
    return figures


def place(state, signer, obj, names) -> float:
    """Puts a pod on the next node in turn, if it fits there. Returns the seconds of reading its object."""
    state.apply_pod(obj)
    at = names[int(obj["metadata"]["name"].split("-")[1]) % len(names)]
    answer = admission.bind(binding(obj, at), state, 0.0, signer.sign)
    text = json.dumps(bound(obj, at, answer))
    start = time.thread_time()
    state.apply_pod(json.loads(text))
    return time.thread_time() - start


def rounds_of(state, signer, rng, names, rounds, placement):
    filters, binds = [], []
    for i in range(rounds):
        obj = pod(f"new-{i}", rng.choice(SIZES), 10, **{"gpu-hook.io/node-placement": placement})
        state.apply_pod(obj)
        args = asking(obj, names)
        start = time.thread_time()
        found = extender.filter(args, state, 0.0)
        filters.append(time.thread_time() - start)
        if not found["NodeNames"]:
            continue
        review = binding(obj, found["NodeNames"][0])
        start = time.thread_time()
        answer = admission.bind(review, state, 0.0, signer.sign)
        binds.append(time.thread_time() - start)
        state.apply_pod(bound(obj, found["NodeNames"][0], answer))
    return filters, binds


def asking(obj, names):
    """ExtenderArgs with names as a decoder makes them: strings of their own, whose hashes are not known yet."""
    return {"Pod": obj, "NodeNames": json.loads(json.dumps(names))}


def timed(act) -> float:
    start = time.thread_time()
    act()
    return time.thread_time() - start


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)] if values else 0.0


def resident() -> float:
    """MiB of this process."""
    return float(psutil.Process().memory_info().rss / (1 << 20))


def figure(value, unit, budget):
    return {"value": value, "unit": unit, "budget": budget, "ok": budget is None or value <= budget}
