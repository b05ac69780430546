"""Runs scenarios in the model's executable and reads share error, efficiency, fairness and latencies from it.

Everything here is simulated: scheduling behaviour, not a card's speed. Figures carry the calibration file's hash.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path

from oci_hook.errors import refuse
from oci_hook.sim.model.scenarios import Scenario, all_scenarios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    Json = dict[str, Any]

CALIBRATION = Path(__file__).with_name("calibration.json")
POLICIES = ("native", "strict", "ledger", "split", "learned")
# Keys of the model that are times; scenarios and calibration give them in microseconds, the executable wants nanoseconds.
_PLAIN = {"count", "sync", "class", "weight", "freeze", "seed", "depth", "kappa", "rare_ppm"}
_WORDS = {"spread", "fault"}


class Calibration:
    """The model's constants; `digest` is the SHA-256 of the file they came from, as hex."""

    def __init__(self, path: Path = CALIBRATION) -> None:
        raw = path.read_bytes()
        data = json.loads(raw)
        self.digest = hashlib.sha256(raw).hexdigest()
        self.source: str = data["source"]
        self.settings: dict[str, Any] = {
            **data["card_us"],
            **data["host_us"],
            **data["rules_us"],
            "depth": data["queue_depth"],
        }


def executable() -> Path:
    """Path of share-model: $GPU_HOOK_SHARE_MODEL, the checkout's build/, or beside the installed simulated driver."""
    machine = os.uname().machine
    here = Path(__file__).resolve()
    places = [here.parents[2] / "build" / machine / "sim" / "share-model", here.parents[2] / "sim" / "share-model"]
    named = os.environ.get("GPU_HOOK_SHARE_MODEL")
    if named:
        places.insert(0, Path(named))
    for place in places:
        if os.access(place, os.X_OK):
            return place
    raise refuse("GH-306", f"the model's executable is missing, looked at {places[0]}; run scripts/build")


def _word(key: str, value: "Any") -> str:
    if key in _WORDS:
        return str(value)
    if key in _PLAIN:
        return str(int(value))
    if key == "sigma":
        return str(round(value * 1000))
    if key == "cap":  # per cent to ppm
        return str(round(value * 10000))
    return str(round(value * 1000))


def to_text(scenario: Scenario, policy: str, seed: int, calibration: Calibration) -> str:
    """The scenario in the executable's input language."""
    law, charge = ("ledger", policy) if policy in ("split", "learned") else (policy, "exact")
    lines = ["clear", f"set policy {law}", f"set charge {charge}", f"set seed {seed}"]
    lines += [f"set {k} {_word(k, v)}" for k, v in {**calibration.settings, **scenario.settings}.items()]
    lines += ["tenant " + " ".join(f"{k}={_word(k, v)}" for k, v in t.items()) for t in scenario.tenants]
    lines.append(f"run {scenario.name}")
    return "\n".join(lines) + "\n"


def run_text(text: str) -> "list[Json]":
    done = subprocess.run([str(executable())], input=text, capture_output=True, text=True)
    if done.returncode:
        raise refuse("GH-306", f"share-model failed with status {done.returncode}: {done.stderr.strip()[:160]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def entitlement(weights: "Sequence[float]", demands: "Sequence[float]") -> list[float]:
    """What each is owed of one card: by weight, but nobody more than it can use alone (water-filling)."""
    owed = [0.0] * len(weights)
    open_, left = set(range(len(weights))), 1.0
    while open_ and left > 1e-12:
        total = sum(weights[i] for i in open_)
        sated = {i for i in open_ if demands[i] <= left * weights[i] / total}
        if not sated:
            for i in open_:
                owed[i] = left * weights[i] / total
            break
        for i in sated:
            owed[i] = demands[i]
        left -= sum(demands[i] for i in sated)
        open_ -= sated
    return owed


def jain(values: "Sequence[float]") -> float:
    """Jain's index: 1 when all are equal, 1/n when one has everything."""
    square = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * square) if square else 0.0


def _norm(values: "Sequence[float]") -> list[float]:
    total = sum(values)
    return [v / total if total else 0.0 for v in values]


def share_errors(got: "Sequence[float]", weights: "Sequence[float]", demands: "Sequence[float]") -> list[float]:
    """Signed, in points, per tenant: share of the GPU time given out, less the share it was owed."""
    owed = _norm(entitlement(weights, demands))
    return [100 * (g - e) for g, e in zip(_norm(got), owed, strict=True)]


def figures(scenario: Scenario, policy: str, result: "Json") -> "Json":
    """The metrics of one run. Rates are GPU time of finished kernels per time; times in milliseconds."""
    span = result["measured"]
    weights = [float(t.get("weight", 100)) for t in scenario.tenants]
    alone = [t["completed"] / span for t in result["alone"]]
    rate = [t["executed"] / span for t in result["tenants"]]
    x = [t["completed"] / a["completed"] if a["completed"] else 0.0 for t, a in zip(result["tenants"], result["alone"], strict=True)]
    caps = [t.get("cap", 0) / 100 for t in scenario.tenants]
    demand = [min(a, c) if c else a for a, c in zip(alone, caps, strict=True)]
    errors = share_errors(rate, weights, demand)
    owed = entitlement(weights, demand)
    out: Json = {
        "scenario": scenario.name,
        "simulated": True,
        "policy": policy,
        "throughput": x,
        "efficiency": sum(x),
        "gpu_time": rate,
        "share_error_points": max(abs(e) for e in errors) if len(errors) > 1 else 0.0,
        # Fairness against what each is owed, so that a tenant with gaps does not look starved.
        "jain": jain([g / o for g, o in zip(rate, owed, strict=True) if o]),
        "longest_hold_ms": [t["longest_hold"] / 1e6 for t in result["tenants"]],
        "violations": result["violations"],
        "duty": [t["duty"] / 1e6 for t in result["tenants"]],
    }
    if any(caps):
        window = 10  # 1 s of the 100 ms windows
        over, signed = [], []
        for t, cap in zip(result["tenants"], caps, strict=True):
            w = t["window"]
            if cap:
                means = [sum(w[i : i + window]) / (window * 1e8) for i in range(0, len(w) - window + 1)]
                signed.append(100 * (sum(w) / (len(w) * 1e8) - cap))
                over.append(100 * max(max(m - cap for m in means), 0.0))
        out["cap_error_points"] = max(signed, key=abs)
        out["cap_overshoot_1s_points"] = max(over)
    latencies = []
    for t, a in zip(result["tenants"], result["alone"], strict=True):
        if a["latency"]["count"] and t["latency"]["count"]:
            latencies.append(
                {
                    "p50_ms": t["latency"]["p50"] / 1e6,
                    "p99_ms": t["latency"]["p99"] / 1e6,
                    "p50_ratio": t["latency"]["p50"] / a["latency"]["p50"],
                    "p99_ratio": t["latency"]["p99"] / a["latency"]["p99"],
                }
            )
        else:
            latencies.append(None)
    out["latency"] = latencies
    classes = [t.get("class", 1) for t in scenario.tenants]
    if len(set(classes)) > 1:
        top = max(classes)
        idle = 1 - sum(a for a, c in zip(alone, classes, strict=True) if c == top)
        low = [i for i, c in enumerate(classes) if c < top]
        out["harvest"] = sum(x[i] for i in low) / idle if idle > 0 else 0.0
        out["low_free_ms"] = {k: result["low_free"][k] / 1e6 for k in ("p50", "p99", "max")}
        out["release_ms"] = {k: result["release"][k] / 1e6 for k in ("p50", "p99", "max")}
    if result["takeover"] is not None:
        out["takeover_ms"] = result["takeover"] / 1e6
    return out


def run_scenarios(
    names: "Iterable[str | Scenario]", policies: "Sequence[str] | None" = None, seed: int = 1, calibration: Calibration | None = None
) -> "list[Json]":
    """Figures of each scenario under each policy, in order."""
    calibration = calibration or Calibration()
    known = all_scenarios()
    jobs: list[tuple[Scenario, str]] = []
    for name in names:
        scenario = name if isinstance(name, Scenario) else known[name]
        jobs += [(scenario, p) for p in policies or scenario.policies]
    results = run_text("".join(to_text(s, p, seed, calibration) for s, p in jobs))
    return [figures(s, p, r) for (s, p), r in zip(jobs, results, strict=True)]
