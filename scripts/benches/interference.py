"""Measured interference as a tie-breaker: a day of pods on a simulated cluster, each pod placed by the controller's own code, with
and without it. Services of class online follow the time of day and have bursts; trainers of class offline have long kernels.

What happens on a GPU is a model, not the gate and not the simulated driver:
- An online request takes its time alone, once for itself and once for each online neighbour that has work at that moment.
- It waits for what is left of the offline command that runs when it comes, at most that command: length-biased, log-normal with sigma
  0.5, as offline kernels scatter in `scripts/bench priority`. One runs whenever no online container does and the trainers want the GPU.
- Offline containers share what online ones leave, of which a share is harvested as measured there.
Left out: the gate's linger, tier 0.5, ceilings, memory bandwidth and caches, several GPUs, containers that start and stop, queues
within a service."""

import math
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from oci_hook.kube import admission, extender
from oci_hook.kube.interference import BURST, DUTY, level
from oci_hook.kube.signing import Signer
from oci_hook.kube.state import ClusterState
from scripts.benches._cluster_objects import binding, bound, node, pod

NODES, GPUS, MEMORY = 16, 8, 81559
SLOT, SLOTS = 300, 288  # seconds, of a day
SERVICES, JOBS = 320, 1500
SAMPLES = 8  # requests of each service in a slot
SIGMA = 0.5
HARVESTED = 0.93  # of the idle time: 0.86 to 0.98 in `scripts/bench priority`
SEEDS, SHORT_SEEDS = 6, 3
SIZES = (8192, 16384, 16384, 24576)
STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}  # 95 %, by degrees of freedom; 2 beyond


class Tenant:
    """online: a service. duty: of the time, at its peak; or what a trainer would use alone. command: ms. phase: of its day."""

    def __init__(self, rng: random.Random, name: str, online: bool) -> None:
        self.online = online
        self.start = rng.randrange(0, SLOTS * 3 // 4) if not online or rng.random() < 0.6 else 0
        self.end = self.start + (rng.randrange(48, SLOTS) if online else rng.randrange(6, 48))
        self.duty = rng.betavariate(1.5, 3) * 0.8 if online else rng.choice((0.3, 0.7, 0.95, 0.95))
        self.command = math.exp(rng.uniform(math.log(0.2), math.log(60)))
        self.request = rng.uniform(2, 20)
        self.phase = rng.uniform(0, 0.3)
        self.seed = rng.random()
        words = {"gpu-hook.io/class": "online" if online else "offline"}
        self.obj = pod(name, rng.choice(SIZES), 10 if online else 0, **words)
        self.uid = self.obj["metadata"]["uid"]
        self.measured: list[float] = []
        self.levels: tuple[int, int] | None = None

    def now(self, slot: int) -> float:
        """The part of this slot in which it wants the GPU."""
        if not self.online:
            return self.duty
        day = 0.5 - 0.5 * math.cos(2 * math.pi * (slot / SLOTS + self.phase))
        spike = random.Random(f"{self.seed} {slot}").random() < 0.05
        return min(1.0, self.duty * (0.15 + 0.85 * day) * (2 if spike else 1))


def arguments(parser) -> None:
    parser.add_argument("--seeds", type=int, default=0, help="days to simulate, 2 at least")


def run(short: bool, options) -> dict:
    seeds = max(2, options.seeds) if options.seeds else SHORT_SEEDS if short else SEEDS
    rows = [(day(seed, False), day(seed, True)) for seed in range(seeds)]
    figures = {"seeds": figure(seeds, "")}
    for key, unit in (("online_p99", "x alone"), ("online_worst_p99", "x alone"), ("harvest", "GPU h")):
        off, on = ([pair[n][key] for pair in rows] for n in (0, 1))
        change = [100 * (b / a - 1) for a, b in zip(off, on, strict=True)]
        figures[f"{key}_off"] = figure(statistics.mean(off), unit)
        figures[f"{key}_on"] = figure(statistics.mean(on), unit)
        figures[f"{key}_change"] = figure(statistics.mean(change), "%")
        figures[f"{key}_change_95"] = figure(
            STUDENT.get(seeds - 1, 2.0) * statistics.stdev(change) / math.sqrt(seeds), "+- %"
        )
    figures["placed"] = figure(statistics.mean(off["placed"] for off, _ in rows), "pods")
    figures["decided_by_it"] = figure(statistics.mean(row[1]["first"] for row in rows), "%")
    return figures


def day(seed: int, interference: bool) -> dict:
    """One day with these tenants. first: of the decisions, how many had equal places with different figures."""
    rng = random.Random(seed)
    tenants = [Tenant(rng, f"service-{n}", True) for n in range(SERVICES)]
    tenants += [Tenant(rng, f"job-{n}", False) for n in range(JOBS)]
    state, signer = ClusterState(), Signer({1: b"\x01" * 32})
    for n in range(NODES):
        obj = node(f"node-{n:02}", GPUS, MEMORY)
        state.apply_node(named(obj, n))
    at: dict[str, str] = {}
    alive: list[Tenant] = []
    latencies: dict[str, list[float]] = {}
    harvest, placed, chances = 0.0, 0, []
    for slot in range(SLOTS):
        for one in [one for one in alive if one.end <= slot]:
            alive.remove(one)
            state.forget(one.uid)
            del at[one.uid]
        for one in sorted((t for t in tenants if t.start == slot), key=lambda t: t.seed):
            show(state, alive, at)
            gpu, chance = place(state, signer, one.obj, interference)
            placed += bool(gpu)
            chances.append(chance)
            if gpu:
                at[one.uid] = gpu
                alive.append(one)
        harvest += used(slot, alive, at, latencies)
    pooled = [x for found in latencies.values() for x in found]
    each = sorted(percentile(found, 99) for found in latencies.values() if len(found) >= 200)
    return {
        "online_p99": percentile(pooled, 99),
        "online_worst_p99": statistics.mean(each[-len(each) // 10 :]),
        "harvest": harvest,
        "placed": placed,
        "first": 100 * statistics.mean(chances),
    }


def named(obj: dict, number: int) -> dict:
    """The same GPUs in each run: Python's hashes of text, which the UUIDs are made of, are not."""
    text = obj["metadata"]["annotations"]["gpu-hook.io/inventory"]
    for n, uuid in enumerate(dict.fromkeys(part for part in text.split('"') if part.startswith("GPU-"))):
        text = text.replace(uuid, f"GPU-{number:02}-{n}")
    obj["metadata"]["annotations"]["gpu-hook.io/inventory"] = text
    return obj


def show(state: ClusterState, alive: list[Tenant], at: dict[str, str]) -> None:
    """What the nodes' digests would say: of those that were measured for a slot."""
    for found in state.nodes.values():
        found.busy = {}
    for one in alive:
        if one.levels is not None:
            state.nodes[f"node-{at[one.uid].split('-')[1]}"].busy[one.uid] = one.levels


def place(state: ClusterState, signer: Signer, obj: dict, interference: bool) -> tuple[str, bool]:
    """The GPU, "" for none; and whether the figures would have chosen another one than none do."""
    state.apply_pod(obj)
    found = []
    for on in (not interference, interference):
        state.interference = on
        answer = extender.filter({"Pod": obj, "NodeNames": list(state.nodes)}, state, 0.0)
        held = state.reservations.get(obj["metadata"]["uid"])
        found.append(held.fit.rows[0].uuid if held else "")
    if not answer["NodeNames"]:
        state.forget(obj["metadata"]["uid"])
        return "", False
    name = answer["NodeNames"][0]
    state.apply_pod(bound(obj, name, admission.bind(binding(obj, name), state, 0.0, signer.sign)))
    return found[1], found[0] != found[1]


def used(slot: int, alive: list[Tenant], at: dict[str, str], latencies: dict[str, list[float]]) -> float:
    """Has the tenants of each GPU work for a slot; GPU hours that offline ones got."""
    on: dict[str, list[Tenant]] = {}
    for one in alive:
        on.setdefault(at[one.uid], []).append(one)
    hours = 0.0
    for tenants in on.values():
        online = [(one, one.now(slot)) for one in tenants if one.online]
        offline = [one for one in tenants if not one.online]
        busy = min(1.0, sum(duty for _, duty in online))
        wanted = min(1.0, sum(one.duty for one in offline))
        left = min(wanted, (1 - busy) * HARVESTED)
        hours += left * SLOT / 3600
        for one, duty in online:
            rng = random.Random(f"{one.seed} {slot} requests")
            for _ in range(SAMPLES if duty > 0.01 else 0):
                rivals = sum(rng.random() < other for who, other in online if who is not one)
                waits = 0.0
                if not rivals and offline and rng.random() < wanted:
                    command = rng.choices(offline, [o.duty for o in offline])[0].command
                    waits = rng.random() * command * math.exp(rng.gauss(SIGMA * SIGMA / 2, SIGMA))
                latencies.setdefault(one.uid, []).append((one.request * (1 + rivals) + waits) / one.request)
        for one in tenants:
            duty = one.now(slot) if one.online else left * one.duty / (sum(o.duty for o in offline) or 1)
            kept = 0.5 ** (SLOT / 60)
            one.measured = [100 * duty + kept * (one.measured[0] - 100 * duty) if one.measured else 100 * duty]
            before = one.levels or (None, None)
            burst = one.command if not one.online and len(tenants) > 1 else 0.25
            one.levels = level(one.measured[0], DUTY, before[0]), level(burst, BURST, before[1])
    return hours


def percentile(values: list[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def figure(value: float, unit: str) -> dict:
    return {"value": value, "unit": unit, "budget": None, "ok": True}
