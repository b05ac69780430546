"""Share error, fairness, efficiency and latencies, computed from the model's counters.

Throughput of a tenant: the GPU time of its finished kernels, divided by the same when it runs alone. Share error: its
part of the GPU time of all tenants, less the part it is owed, in points (per cent of the GPU). A tenant is owed a part
by its weight, but no more than it can use alone; what remains goes to the others by weight.
"""

from gpu_hook_simulator.model.scenarios import DEFAULT, Scenario

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Json = dict[str, Any]

WINDOW_US = 100000  # of the executable's window counters
MEAN_OVER = 10  # windows: caps are judged over 1 s


def entitlement(weights: "Sequence[float]", demands: "Sequence[float]") -> list[float]:
    """The part of one GPU that each tenant is owed, 0..1 (water-filling)."""
    owed = [0.0] * len(weights)
    hungry, left = set(range(len(weights))), 1.0
    while hungry and left > 1e-12:
        total = sum(weights[i] for i in hungry)
        sated = {i for i in hungry if demands[i] <= left * weights[i] / total}
        for i in sated or hungry:
            owed[i] = demands[i] if sated else left * weights[i] / total
        if not sated:
            break
        left -= sum(demands[i] for i in sated)
        hungry -= sated
    return owed


def parts(values: "Sequence[float]") -> list[float]:
    total = sum(values)
    return [v / total if total else 0.0 for v in values]


def share_error(got: "Sequence[float]", owed: "Sequence[float]") -> float:
    """The share error of the worst tenant, in points."""
    return max(100 * abs(g - e) for g, e in zip(parts(got), parts(owed), strict=True))


def jain(values: "Sequence[float]") -> float:
    """Jain's index: 1 when all are equal, 1/n when one has everything."""
    squares = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def percentile(values: "Sequence[float]", of: float) -> float:
    """The value below which `of` (0..1) of them lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * of))]


def figures(scenario: Scenario, policy: str, result: "Json") -> "Json":
    """The metrics of one run and of each tenant alone."""
    span = result["measured"]
    shared, alone = result["tenants"], result["alone"]
    weights = [float(t.get("weight", 100)) for t in scenario.tenants]
    caps = [t.get("cap", 0) / 100 for t in scenario.tenants]
    x = [t["completed"] / a["completed"] if a["completed"] else 0.0 for t, a in zip(shared, alone, strict=True)]
    demand = [a["executed"] / span for a in alone]
    got = [t["executed"] / span for t in shared]
    out: Json = {
        "scenario": scenario.name,
        "simulated": True,
        "policy": policy,
        "throughput": x,
        "efficiency": sum(x),
        "gpu_time": got,
        "latency": [_latency(t["latency"], a["latency"]) for t, a in zip(shared, alone, strict=True)],
        "longest_hold_ms": [t["longest_hold"] / 1e6 for t in shared],
        "violations": {k: n for k, n in result["violations"].items() if n},
        "ignored": result["ignored"],
    }
    classes = [t.get("class", DEFAULT) for t in scenario.tenants]
    if len(set(classes)) > 1:
        return {**out, **_priority(result, classes, demand, x)}
    if len(shared) > 1:
        if any(t.get("off") for t in scenario.tenants):
            out.update(_phases(scenario, shared, weights))
        else:
            owed = entitlement(weights, [min(d, c) if c else d for d, c in zip(demand, caps, strict=True)])
            out["share_error_points"] = share_error(got, owed)
            out["jain"] = jain([g / e for g, e in zip(got, owed, strict=True) if e])
    if any(caps):
        out.update(_caps(shared, caps))
    return out


def _latency(shared: "Json", alone: "Json") -> "Json | None":
    if not shared["count"] or not alone["count"]:
        return None
    return {
        "p50_ms": shared["p50"] / 1e6,
        "p99_ms": shared["p99"] / 1e6,
        "p50_ratio": shared["p50"] / alone["p50"],
        "p99_ratio": shared["p99"] / alone["p99"],
    }


def _priority(result: "Json", classes: "Sequence[int]", demand: "Sequence[float]", x: "Sequence[float]") -> "Json":
    """harvest: what the lower classes got of the time that the highest class left idle."""
    top = max(classes)
    idle = 1 - sum(d for d, c in zip(demand, classes, strict=True) if c == top)
    low = sum(v for v, c in zip(x, classes, strict=True) if c < top)
    return {
        "harvest": low / idle if idle > 0.1 else None,
        "low_free_ms": _milliseconds(result["low_free"]),
        "release_ms": _milliseconds(result["release"]),
    }


def _milliseconds(samples: "Json") -> "Json | None":
    return {k: samples[k] / 1e6 for k in ("p50", "p99", "max")} if samples["count"] else None


def _caps(shared: "Sequence[Json]", caps: "Sequence[float]") -> "Json":
    """cap_error: whole run, signed, the worst tenant's; cap_overshoot: the worst second's."""
    errors, over = [], [0.0]
    for tenant, cap in zip(shared, caps, strict=True):
        if cap:
            use = [w / (WINDOW_US * 1000) for w in tenant["window"]]
            errors.append(100 * (sum(use) / len(use) - cap))
            means = [sum(use[i : i + MEAN_OVER]) / MEAN_OVER for i in range(len(use) - MEAN_OVER + 1)]
            over += [100 * (m - cap) for m in means]
    return {"cap_error_points": max(errors, key=abs), "cap_overshoot_1s_points": max(over)}


def _phases(scenario: Scenario, shared: "Sequence[Json]", weights: "Sequence[float]") -> "Json":
    """For tenants that come and go: the error while all run, less the first window of each phase, and the longest time
    from a start until the error since then is, and stays, within 5 points (in steps of one window).
    """
    ((on, off),) = {(t["on"], t["off"]) for t in scenario.tenants if t.get("off")}
    windows = list(zip(*(t["window"] for t in shared), strict=True))
    first = round(scenario.settings.get("warm", 1e6) / WINDOW_US)
    per_phase, per_period = round(on / WINDOW_US), round((on + off) / WINDOW_US)
    settled = [0.0] * len(shared)
    step = 0
    for start in range((-first) % per_period, len(windows) - per_phase + 1, per_period):
        since = [0.0] * len(shared)
        for i, window in enumerate(windows[start : start + per_phase]):
            since = [a + b for a, b in zip(since, window, strict=True)]
            if i:
                settled = [a + b for a, b in zip(settled, window, strict=True)]
            if share_error(since, weights) > 5:
                step = max(step, i + 1)
    return {"share_error_points": share_error(settled, weights), "step_ms": step * WINDOW_US / 1000}
