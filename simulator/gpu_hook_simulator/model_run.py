"""Runs scenarios in the model's executable. Everything here is simulated: scheduling behaviour, not a GPU's speed.

Figures carry the digest of the calibration file: the GPU's slice and switch costs, the host's wake-up costs.
"""

import hashlib
import json
import os
import random
import subprocess
from pathlib import Path

from gpu_hook_simulator.driver_root import CALIBRATION, native_parts
from gpu_hook_simulator.model import metrics
from gpu_hook_simulator.model.scenarios import Scenario
from oci_hook.errors import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    Json = dict[str, Any]

EXECUTABLE = "share-model"
POLICIES = ("native", "strict", "ledger", "split", "learned")
# Keys that are not times. All other keys are microseconds here and nanoseconds in the executable.
PLAIN = {"count", "sync", "class", "weight", "freeze", "seed", "depth", "kappa", "rare_ppm"}
WORDS = {"spread", "fault", "lie"}
SCALE = {"sigma": 1000, "cap": 10000}  # cap: per cent of the GPU, in ppm there


class Calibration:
    """The model's constants. digest: SHA-256 of their file. source: where they come from. settings: in microseconds."""

    def __init__(self, path: Path = CALIBRATION) -> None:
        raw = path.read_bytes()
        data = json.loads(raw)
        self.digest = hashlib.sha256(raw).hexdigest()
        self.source: str = data["source"]
        self.settings: dict[str, Any] = {
            **data["gpu_us"],
            **data["host_us"],
            **data["rules_us"],
            "depth": data["queue_depth"],
        }


def executable() -> Path:
    """The path of the compiled model. Raises NodeError GH-306 if it was not built."""
    path = native_parts() / EXECUTABLE
    if not os.access(path, os.X_OK):
        raise refuse("GH-306", f"{path}: the compute model is missing; run scripts/build in the checkout")
    return path


def word(key: str, value: "Any") -> str:
    if key in WORDS:
        return str(value)
    return str(round(value * (1 if key in PLAIN else SCALE.get(key, 1000))))


def to_text(
    scenario: Scenario, policy: str, seed: int, calibration: Calibration, more: "Json | None" = None, verb: str = "run"
) -> str:
    """The scenario as the executable reads it. `more` overrides the scenario's settings, which override the file's."""
    law, charge = ("ledger", policy) if policy in ("split", "learned") else (policy, "exact")
    lines = ["clear", f"set policy {law}", f"set charge {charge}", f"set seed {seed}"]
    settings = {**calibration.settings, **scenario.settings, **(more or {})}
    lines += [f"set {k} {word(k, v)}" for k, v in settings.items() if k != "trials"]
    lines += ["tenant " + " ".join(f"{k}={word(k, v)}" for k, v in t.items()) for t in scenario.tenants]
    lines.append(f"{verb} {scenario.name}")
    return "\n".join(lines) + "\n"


def run_text(text: str, program: Path | None = None) -> "list[Json]":
    """Run the executable on this input; its answers, one per run. Raises NodeError GH-306 if it fails."""
    done = subprocess.run([str(program or executable())], input=text, capture_output=True, text=True)
    if done.returncode:
        raise refuse("GH-306", f"{EXECUTABLE} ended with status {done.returncode}: {done.stderr.strip()[:160]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_scenarios(
    scenarios: "Iterable[Scenario]",
    policies: "Sequence[str]" = (),
    seed: int = 1,
    calibration: Calibration | None = None,
) -> "list[Json]":
    """The figures of each scenario under each policy (default: the scenario's policies), in order."""
    calibration = calibration or Calibration()
    out: list[Json] = []
    for scenario in scenarios:
        for policy in policies or scenario.policies:
            if scenario.settings.get("trials"):
                out.append(takeover(scenario, policy, seed, calibration))
            else:
                (result,) = run_text(to_text(scenario, policy, seed, calibration))
                out.append(metrics.figures(scenario, policy, result))
    return out


def takeover(scenario: Scenario, policy: str, seed: int, calibration: Calibration) -> "Json":
    """Many short runs. In each, the tenant with the tenure is killed or stopped at another instant.

    takeover_ms: from then to the next submission of another tenant.
    """
    draw = random.Random(seed)
    text = []
    for trial in range(scenario.settings["trials"]):
        at = draw.uniform(150e3, 250e3)
        more = {"fault_at": at, "warm": 50e3, "length": at + 150e3}
        text.append(to_text(scenario, policy, seed + trial, calibration, more, "trial"))
    results = run_text("".join(text))
    took = [r["takeover"] / 1e6 if r["takeover"] is not None else 1e9 for r in results]
    violations: dict[str, int] = {}
    for r in results:
        for name, count in r["violations"].items():
            if count:
                violations[name] = violations.get(name, 0) + count
    return {
        "scenario": scenario.name,
        "simulated": True,
        "policy": policy,
        "trials": len(took),
        "takeover_ms": {
            "p50": metrics.percentile(took, 0.5),
            "p99": metrics.percentile(took, 0.99),
            "max": max(took),
        },
        "violations": violations,
    }
