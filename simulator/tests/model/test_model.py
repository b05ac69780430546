"""The model itself: the same figures for the same seed, no GPU time lost or made, invariants on random scenarios."""

import json
import math
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_hook_simulator import model_run
from gpu_hook_simulator.cli_model import model
from gpu_hook_simulator.model import metrics, scenarios
from gpu_hook_simulator.model.scenarios import Scenario, gappy, launch_bound, requests, saturated
from oci_hook.errors import GhError
from testbed.long import long

REPO = Path(__file__).resolve().parents[3]
MODEL = REPO / "simulator/model"
SHIM = REPO / "oci_hook/shim"
pytestmark = pytest.mark.usefixtures("share_model")


def random_scenario(draw: random.Random, number: int) -> Scenario:
    """Half a second of up to six tenants of all kinds, with weights, caps, classes, phases and faults."""
    tenants = []
    online = draw.random() < 0.3
    for _ in range(draw.randint(1, 6)):
        kernel = math.exp(draw.uniform(math.log(5), math.log(20000)))
        kind = draw.choice([saturated, launch_bound, gappy])
        tenant = kind(kernel) if kind is not gappy else gappy(draw.uniform(100, 30000))
        tenant["sigma"] = draw.choice([0, 0.3, 0.5, 1])
        tenant["weight"] = draw.randint(1, 100)
        if draw.random() < 0.3:
            tenant["cap"] = draw.randint(5, 90)
        if draw.random() < 0.2:
            tenant.update(on=draw.uniform(1e3, 1e5), off=draw.uniform(1e3, 1e5))
        if draw.random() < 0.2:
            tenant.update(rare=draw.uniform(1e3, 2e4), rare_ppm=draw.randint(1, 50000))
        if online:
            tenant["class"] = scenarios.OFFLINE
        tenants.append(tenant)
    if online:
        tenants.append(requests(draw.uniform(5, 200), linger=draw.choice([0, 500, 2000])))
    settings: dict[str, Any] = {"warm": 100e3, "length": 600e3}
    if draw.random() < 0.2 and not online:
        settings.update(fault=draw.choice(["kill", "stop"]), fault_at=draw.uniform(2e5, 5e5))
    return Scenario(f"random-{number}", "random", tuple(tenants), settings)


def check_invariants(scenario: Scenario, charge: str, result: dict[str, Any]) -> None:
    told = f"{scenario}: {result['violations']}"
    hard = {k: n for k, n in result["violations"].items() if n and k != "distrust"}
    assert hard == {}, told
    span = result["measured"]
    assert sum(t["executed"] for t in result["tenants"]) <= span, told
    for shape, tenant in zip(scenario.tenants, result["tenants"], strict=True):
        slack = tenant["longest_kernel"] + 2e6  # work in flight at both ends: at most a window and a kernel
        if charge == "exact" and "fault" not in scenario.settings and len(scenario.tenants) > 1:
            assert abs(tenant["charged"] - tenant["completed"]) <= slack + span * 0.01, told
        if shape.get("cap") and charge == "exact":
            most = 20e6 + 1e6 + tenant["longest_kernel"]  # savings, window, kernel
            assert tenant["executed"] <= shape["cap"] / 100 * (span + most) + most, told


@pytest.mark.parametrize("policy", ["ledger", "learned", "split"])
@pytest.mark.parametrize("count", [150, pytest.param(600 if long() else 200, marks=pytest.mark.slow)])
def test_invariants_on_random_scenarios(policy: str, count: int) -> None:
    """v never goes back, GPU time adds up, caps hold, low classes keep off and return, no tenant is stuck."""
    draw = random.Random(count)
    chosen = [random_scenario(draw, i) for i in range(count)]
    calibration = model_run.Calibration()
    text = "".join(model_run.to_text(s, policy, i, calibration, verb="trial") for i, s in enumerate(chosen))
    results = model_run.run_text(text)
    assert len(results) == count
    for scenario, result in zip(chosen, results, strict=True):
        check_invariants(scenario, "exact" if policy == "ledger" else policy, result)


def test_the_model_has_no_memory_errors(sanitized: Callable[..., Path]) -> None:
    program = sanitized("model", *sorted(MODEL.glob("*.c")), SHIM / "gate/decide.c")
    draw = random.Random(5)
    calibration = model_run.Calibration()
    text = "".join(
        model_run.to_text(random_scenario(draw, i), policy, i, calibration)
        for i, policy in enumerate(("native", "strict", "ledger", "learned", "split") * 6)
    )
    assert len(model_run.run_text(text, program)) == 30


def test_same_seed_same_figures() -> None:
    chosen = scenarios.find("4-mixed")
    first, again, other = (model_run.run_scenarios(chosen, ("learned",), seed) for seed in (3, 3, 4))
    assert first == again != other


def test_a_scenario_does_not_depend_on_the_one_before() -> None:
    calibration = model_run.Calibration()
    texts = [model_run.to_text(scenarios.find(n)[0], "ledger", 1, calibration) for n in ("2-gappy", "2-saturated")]
    together = model_run.run_text("".join(texts))
    assert together == [model_run.run_text(t)[0] for t in texts]


def test_decide_is_the_shipped_one() -> None:
    """The model compiles the file that the shim compiles, not a copy."""
    assert [p.name for p in MODEL.glob("*decide*")] == []
    assert '#include "gate/decide.h"' in (MODEL / "sim.h").read_text()


@pytest.mark.parametrize(
    ("weights", "demands", "owed"),
    [
        ([50, 50], [1, 1], [0.5, 0.5]),
        ([70, 30], [1, 1], [0.7, 0.3]),
        ([50, 50], [1, 0.4], [0.6, 0.4]),
        ([50, 30, 20], [0.1, 1, 1], [0.1, 0.54, 0.36]),
        ([1, 1], [0.2, 0.3], [0.2, 0.3]),
    ],
)
def test_entitlement(weights: list[float], demands: list[float], owed: list[float]) -> None:
    assert metrics.entitlement(weights, demands) == pytest.approx(owed)


def test_share_error_and_jain() -> None:
    assert metrics.share_error([0.46, 0.46], [0.7, 0.3]) == pytest.approx(20)
    assert metrics.jain([1, 1, 1]) == pytest.approx(1)
    assert metrics.jain([1, 0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "line",
    [
        "run nobody",
        "tenant kernel=x",
        "tenant weight=0\nrun a",
        "tenant colour=1",
        "set window -1",
        "set slices 1",
        "hello",
        "tenant",
    ],
)
def test_bad_input_is_refused(line: str) -> None:
    if line == "tenant":
        line = "tenant\n" * 17 + "run a"
    with pytest.raises(GhError, match="GH-306"):
        model_run.run_text(line + "\n")


def test_every_scenario_runs() -> None:
    """Each runs for a tenth of a second: the executable knows its names, keys and settings."""
    calibration = model_run.Calibration()
    short = {"warm": 1e5, "length": 3e5}
    chosen = [s for group in scenarios.GROUPS.values() for s in group]
    assert len({s.name for s in chosen}) == len(chosen)
    text = "".join(model_run.to_text(s, p, 1, calibration, short) for s in chosen for p in s.policies)
    for scenario, result in zip([s for s in chosen for _ in s.policies], model_run.run_text(text), strict=True):
        assert metrics.figures(scenario, "any", result)["simulated"] is True


def test_command_prints_figures_with_the_calibrations_digest() -> None:
    digest = model_run.Calibration().digest
    done = CliRunner().invoke(model, ["online-80us-w200-no-drain"])
    assert done.exit_code == 0
    assert "simulated" in done.output and digest[:16] in done.output and "HARVEST" in done.output
    done = CliRunner().invoke(model, ["online-80us-w200-no-drain", "--json", "--seed", "2"])
    data = json.loads(done.output)
    assert data["simulated"] is True and data["calibration"]["sha256"] == digest and data["seed"] == 2
    assert data["results"][0]["low_free_ms"]["p99"] > 0


def test_command_lists_scenarios() -> None:
    done = CliRunner().invoke(model, ["--list"])
    assert "2-saturated-70-30" in done.output and "faults" in done.output
    data = json.loads(CliRunner().invoke(model, ["--list", "--json"]).output)
    assert {s["group"] for s in data["scenarios"]} == set(scenarios.GROUPS)


def test_command_refuses_what_it_does_not_know() -> None:
    done = CliRunner().invoke(model, ["nothing"])
    assert done.exit_code == 1 and "GH-101" in done.output


def test_build_is_reproducible_from_its_command(share_model: Path) -> None:
    done = subprocess.run([share_model], input="", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
