"""`gpu-hook sim model`: the compute-sharing laws in a virtual-time model of one GPU."""

from collections.abc import Callable
from typing import Any

import click

from gpu_hook_simulator import model_run
from gpu_hook_simulator.model import scenarios
from oci_hook.cli import output
from oci_hook.errors import GhError, refuse

NOTE = "simulated: a model of scheduling, not of a GPU's speed"


@click.command()
@click.argument("scenario", required=False)
@click.option("--list", "list_", is_flag=True, help="List scenarios and groups of them.")
@click.option(
    "--policy", type=click.Choice(model_run.POLICIES), help="Only this one, not all that the scenario compares."
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**31), help="Of the random draws.")
@output.json_option
def model(scenario: str | None, list_: bool, policy: str | None, seed: int, as_json: bool) -> None:
    """Run SCENARIO, or a group of them, in the model; all figures are simulated.

    native: the driver's time slicing. strict: an exclusive lease. ledger: gpu-hook's laws, each kernel's cost known;
    learned: the same, costs learned while running; split: elapsed time shared out instead.
    """
    try:
        report = listing() if list_ or scenario is None else ran(scenario, policy, seed)
    except GhError as e:
        output.fail(e, as_json)
    output.show(report, as_json)


def listing() -> output.Report:
    rows = [(s.name, group, s.title) for group, members in scenarios.GROUPS.items() for s in members]
    data = {"simulated": True, "scenarios": [dict(zip(("name", "group", "title"), r, strict=True)) for r in rows]}
    return output.Report(data, output.table(("SCENARIO", "GROUP", "WHO SHARES"), rows))


def ran(name: str, policy: str | None, seed: int) -> output.Report:
    try:
        chosen = scenarios.find(name)
    except KeyError:
        raise refuse("GH-101", f"no scenario {name[:40]!r}; see `gpu-hook sim model --list`") from None
    calibration = model_run.Calibration()
    results = model_run.run_scenarios(chosen, (policy,) if policy else (), seed, calibration)
    data = {
        "simulated": True,
        "calibration": {"sha256": calibration.digest, "source": calibration.source},
        "seed": seed,
        "results": results,
    }
    shown = [("SCENARIO", "POLICY", *COLUMNS)]
    shown += [(r["scenario"], r["policy"], *(cell(r) for cell in COLUMNS.values())) for r in results]
    used = [i for i in range(len(shown[0])) if i < 2 or any(row[i] for row in shown[1:])]
    narrow = [[row[i] for i in used] for row in shown]
    lines = [f"# {NOTE}", f"# calibration {calibration.digest[:16]} ({calibration.source}), seed {seed}"]
    return output.Report(data, [*lines, *output.table(narrow[0], narrow[1:])])


def number(result: dict[str, Any], key: str, digits: int, signed: bool = False) -> str:
    value = result.get(key)
    return "" if value is None else f"{value:{'+' if signed else ''}.{digits}f}"


def pair(result: dict[str, Any], key: str) -> str:
    value = result.get(key)
    return f"{value['p50']:.2f}/{value['p99']:.2f}" if value else ""


def latencies(result: dict[str, Any]) -> str:
    some = [x for x in result.get("latency", ()) if x]
    return " ".join(f"{x['p50_ratio']:.2f}/{x['p99_ratio']:.2f}" for x in some)


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "SUM": lambda r: number(r, "efficiency", 3),
    "EACH": lambda r: " ".join(f"{x:.2f}" for x in r.get("throughput", ())),
    "ERROR": lambda r: number(r, "share_error_points", 1),
    "JAIN": lambda r: number(r, "jain", 3),
    "CAP-ERR": lambda r: number(r, "cap_error_points", 2, signed=True),
    "CAP-OVER": lambda r: number(r, "cap_overshoot_1s_points", 2),
    "STEP-MS": lambda r: number(r, "step_ms", 0),
    "LATENCY-X": latencies,
    "HARVEST": lambda r: number(r, "harvest", 2),
    "LOW-FREE-MS": lambda r: pair(r, "low_free_ms"),
    "RELEASE-MS": lambda r: pair(r, "release_ms"),
    "TAKEOVER-MS": lambda r: pair(r, "takeover_ms"),
    "BROKEN": lambda r: " ".join(f"{k}={n}" for k, n in r["violations"].items()),
}
