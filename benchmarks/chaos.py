"""Faults at random moments on a real cluster with simulated GPUs, while pods come and go: the books stay right, and all pods that
can run do so within 90 s. Each fault is a line of JSON on standard error; one that failed names seed and step."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import _chaos_rounds as rounds
from testbed.cluster.faults import FAULTS

KILLS, SHORT_KILLS = 1000, 40
_details = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of everything that is random (default: 1)")
    parser.add_argument("--kills", type=int, help=f"faults (default: {KILLS}; {SHORT_KILLS} with --short)")
    parser.add_argument("--only", action="append", default=[], choices=list(FAULTS), help="only this kind; repeatable")
    parser.add_argument("--each", action="store_true", help="one kind after the other, instead of by chance")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="STEP", help="begin at this step")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="begin no fault after so long")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="append the lines of JSON to it, too")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for the logs and the dumps of what failed")


def run(short: bool, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    global _details
    count = options.kills or (SHORT_KILLS if short else KILLS)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="gpu-hook-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)

    def told(record: dict[str, Any]) -> None:
        line = json.dumps(record)
        print(line, file=sys.stderr, flush=True)
        if options.lines:
            with open(options.lines, "a") as f:
                print(line, file=f)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("chaos: told to end"))  # by way of `finally`: the cluster goes
    steps = range(options.first, options.first + count)
    records = rounds.run(folder, options.seed, steps, options.only, 60 * options.minutes, told, options.each)
    failed = [record for record in records if not record["ok"]]
    for record in failed:
        again = f"--seed {record['seed']} --from {record['step']} --kills 1"
        only = "".join(f" --only {name}" for name in options.only) + " --each" * options.each
        print(
            f"chaos: step {record['step']} failed ({record['fault']}): {again}{only}; {record['dump']}", file=sys.stderr
        )
    if not failed and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    _details = table(records)
    return figures(records)


def details() -> str:
    return _details


def figures(records: list[dict[str, Any]]) -> dict[str, dict[str, object]]:
    def figure(value: float, unit: str = "", budget: float | None = None) -> dict[str, object]:
        return {"value": value, "unit": unit, "budget": budget, "ok": budget is None or value <= budget}

    found = {
        "faults": figure(len(records)),
        "failed_steps": figure(sum(not r["ok"] for r in records), "", 0),
        "refused_by_nodes": figure(sum(len(r["refused"]) for r in records)),
        "with_kubernetes_own_pace_max_s": figure(max((r["all_s"] for r in records), default=0), "s"),
        "settle_max_s": figure(max((r["settle_s"] for r in records), default=0), "s", rounds.SETTLED),
    }
    for name, times in sorted(by_kind(records).items()):
        for key, value in (("n", len(times)), ("p50", at(times, 0.5)), ("p99", at(times, 0.99)), ("max", times[-1])):
            found[f"{name}_{key}"] = figure(value, "" if key == "n" else "s")
    return found


def by_kind(records: list[dict[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        found[record["fault"]].append(record["settle_s"])
    return {name: sorted(times) for name, times in found.items()}


def at(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(share * len(times)))]


def table(records: list[dict[str, Any]]) -> str:
    """Times by fault."""
    rows = [
        f"| {name} | {len(t)} | {at(t, 0.5):.1f} | {at(t, 0.99):.1f} | {t[-1]:.1f} |"
        for name, t in sorted(by_kind(records).items())
    ]
    return "\n".join(["| fault | times | p50, s | p99, s | most, s |", "|---|---|---|---|---|", *rows])
