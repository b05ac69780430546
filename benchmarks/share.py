"""Compute shares on simulated GPUs: real containers with the shipped shim, and the bare driver beside them.

Cells run in lanes, each on a GPU of its own; a tenant's alone reference is taken before and after those that need it.
"""

import argparse
import functools
import os
import random
import re
import signal
import time
from collections.abc import Iterator

from benchmarks import _report as report
from gpu_hook_simulator.model import metrics
from gpu_hook_simulator.model.scenarios import gappy, launch_bound
from testbed.load import cells
from testbed.load.cells import GRAPH, LIGHTS, SATURATED, Cell, in_lanes, say
from testbed.load.stage import Stage
from testbed.load.tenant import Json

SCALE = int(os.environ.get("GPU_HOOK_BENCH_SCALE", "10"))
LANES = int(os.environ.get("GPU_HOOK_BENCH_LANES", "6"))
LIGHT = 4  # times as many lanes for cells of long commands: twelve kept two processors busy for 13 % of the time
DRIFT = 0.02  # alone references before and after may differ by this much


def s(weight: int, kernel: float = 80, **more: object) -> Json:
    return {**SATURATED, "kernel": kernel, "weight": weight, **more}


def fixed(percent: int) -> Json:
    """fixed-share: its percent is guarantee and ceiling."""
    return s(percent, cap=percent)


def bound(weight: int, kernel: float = 8) -> Json:
    return {**launch_bound(kernel), "weight": weight}


def gaps(weight: int) -> Json:
    return {**gappy(), "weight": weight}


def ahead(weight: int, milliseconds: int, gap: int) -> Json:
    """Launches so much and pauses, without waiting for the GPU: alone, its pauses are no gaps of the GPU's."""
    return {"kernel": 40, "sigma": 0.3, "count": 25 * milliseconds, "host": 5, "gap": 1000 * gap, "weight": weight}


SYNC = {"kernel": 80, "sigma": 0.5, "sync": 1}
TRAIN = {"train": 1, "count": 160, "sync": 1, "gap": 300}
CELLS = (
    Cell("50/50", "saturated", s(50), s(50)),
    Cell("70/30", "saturated", s(70), s(30)),
    Cell("90/10", "saturated", s(90), s(10)),
    Cell("50/30/20, kernels 30, 200, 600 us", "saturated", s(50, 30), s(30, 200), s(20, 600)),
    Cell("4 x 25, kernels 30 to 600 us", "saturated", s(25, 30), s(25, 50), s(25, 200), s(25, 600)),
    Cell("80 us beside 1.4 ms, 50/50", "saturated", s(50), s(50, 1400)),
    Cell("graphs of 4 ms beside 80 us, 50/50", "saturated", {**GRAPH, "weight": 50}, s(50)),
    Cell("two streams beside one, 70/30", "saturated", s(70, streams=2), s(30)),
    Cell("three processes beside one, 50/50", "saturated", s(50, procs=3), s(50)),
    Cell("2 launch-bound, 50/50", "launch-bound", bound(50), bound(50)),
    Cell("2 launch-bound (14 of 16 us), 70/30", "mixed", bound(70, 14), bound(30, 14)),
    Cell("saturated + launch-bound, 50/50", "mixed", s(50), bound(50)),
    Cell("saturated + gappy, 50/50", "mixed", s(50), gaps(50)),
    Cell("saturated + sync per kernel, 50/50", "mixed", s(50), {**SYNC, "weight": 50}),
    Cell("training + gappy, 70/30", "mixed", {**TRAIN, "weight": 70}, gaps(30)),
    Cell("2 saturated, launch-bound, gappy, 4 x 25", "mixed", s(25), s(25), bound(25), gaps(25)),
    Cell("ahead by 5 ms of pauses of 6 ms beside saturated, 70/30", "ahead", ahead(70, 5, 6), s(30)),
    Cell("ahead by 5 ms of pauses of 60 ms beside saturated, 50/50", "ahead", ahead(50, 5, 60), s(50)),
    Cell("ahead by 20 ms of pauses of 60 ms beside saturated, 70/30", "ahead", ahead(70, 20, 60), s(30)),
    Cell("cap 10", "cap", {**SATURATED, "cap": 10}, native=False),
    Cell("cap 30", "cap", {**SATURATED, "cap": 30}, native=False),
    Cell("cap 50", "cap", {**SATURATED, "cap": 50}, native=False),
    Cell("cap 30, kernels of 5 ms", "cap", {**SATURATED, "kernel": 5000, "cap": 30}, native=False),
    Cell("cap 30, graphs of 4 ms", "cap", {**GRAPH, "cap": 30}, native=False),
    Cell("cap 30, launch-bound", "cap", {**launch_bound(), "cap": 30}, native=False),
    Cell("caps 30 + 70", "caps", {**SATURATED, "cap": 30, "weight": 30}, {**SATURATED, "cap": 70, "weight": 70}),
    Cell("fixed-share 60 + burst-share 30", "policies", fixed(60), s(30, 500)),
    Cell("fixed-share 60 + burst-share 30 + best-effort", "policies", fixed(60), s(30, 500), s(10, 200)),
    Cell("fixed-share 30 + burst-share 60 + best-effort", "policies", fixed(30), s(60, 500), s(10, 200)),
    Cell("fixed-share 60 + 2 best-effort", "policies", fixed(60), s(20, 500), s(20, 200)),
    Cell("burst 30 + 70, the 30 in phases of 1 s", "burst", s(30, on=1000000, off=1000000), s(70), seconds=6),
)


def long_cells() -> Iterator[Cell]:
    """Kernels and graphs of 5 to 300 ms beside kernels of 0.5 ms, over ten seconds; and a pair without guarantees."""
    for ms in (5, 10, 20, 30, 100, 300):
        for word, kind in (
            ("kernels", {"kernel": 1000 * ms, "depth": 4}),
            ("graphs", {"graph": 50, "kernel": 20 * ms, "host": 10, "depth": 4}),
        ):
            for short, long in ((70, 30), (30, 70), (45, 45)):
                name = f"0.5 ms beside {word} of {ms} ms, {short}/{long}"
                group = "long" if ms <= 100 else "longest"
                yield Cell(name, group, {"kernel": 500, "weight": short}, {**kind, "weight": long}, **LONG)
    pair = {"kernel": 100}, {"kernel": 20000, "depth": 4}
    yield Cell("0.1 ms beside 20 ms, no guarantees", "long", *pair, **LONG)
    yield Cell("0.1 ms beside 20 ms, 45/45", "long", *({**t, "weight": 45} for t in pair), **LONG)


def hard_cells() -> Iterator[Cell]:
    """What programs really do: long kernels on the larger side, shapes that never repeat, many processes."""
    for depth in (1, 2, 4, 8):
        deep = {"kernel": 100000, "depth": depth, "weight": 70}
        yield Cell(f"100 ms, depth {depth}, beside 0.5 ms, 70/30", "long", deep, {"kernel": 500, "weight": 30}, **LONG)
    for ms in (30, 60, 100):
        sync = {"kernel": 1000 * ms, "sync": 1, "weight": 70}
        yield Cell(f"{ms} ms, synchronised, beside 0.5 ms, 70/30", "long", sync, {"kernel": 500, "weight": 30}, **LONG)
    graph = {"graph": 500, "kernel": 200, "host": 10, "depth": 2, "weight": 70}
    yield Cell("graphs of 100 ms beside 0.5 ms, 70/30", "long", graph, {"kernel": 500, "weight": 30}, **LONG)
    hundred = {"kernel": 100000, "depth": 4}
    yield Cell("100 ms beside 100 ms, 30/70", "long", *({**hundred, "weight": w} for w in (30, 70)), **LONG)
    for ms in (0.1, 1, 20):
        fresh = {"kernel": 1000 * ms, "shapes": 1 << 30, "depth": 64}
        for weight in (70, 30):
            name = f"{ms:g} ms of shapes that never repeat beside 0.5 ms, {weight}/{100 - weight}"
            yield Cell(name, "shapes", {**fresh, "weight": weight}, {"kernel": 500, "weight": 100 - weight}, **LONG)
        yield Cell(
            f"{ms:g} ms of shapes that never repeat, quiet neighbour", "quiet", {**fresh, "weight": 70}, QUIET, **LONG
        )
    grown = {"kernel": 50, "shapes": 400, "grow": 1, "depth": 64, "weight": 70}
    yield Cell("kernels that grow with their grid beside 0.5 ms, 70/30", "shapes", grown, s(30, 500), seconds=10)
    for what, new in (
        ("kernels of new handles", {"kernel": 1000, "fresh": 1}),
        ("kernels of new names", {"kernel": 1000, "fresh": 2}),
        ("graphs made anew", {"graph": 10, "kernel": 100, "fresh": 1}),
    ):
        for weight in (70, 30):
            name = f"1 ms, {what}, beside 0.5 ms, {weight}/{100 - weight}"
            yield Cell(name, "shapes", {**new, "depth": 64, "weight": weight}, s(100 - weight, 500, sigma=0), **LONG)
        quiet = {**new, "depth": 64, "weight": 70}
        yield Cell(f"1 ms, {what}, quiet neighbour", "quiet", quiet, QUIET, **LONG)
    # Processes that start at once each have one command under way before they are told of a neighbour; what this costs it
    # is given back in the next seconds. Each process ends a command in 3.2 s at most: with a shorter tail, what it had in
    # between is not known.
    for count, ms, ours in ((8, 100, 30), (16, 20, 10), (8, 20, 30)):
        many = {"kernel": 1000 * ms, "procs": count, "depth": 4, "weight": ours}
        name = f"{count} processes of {ms} ms beside 0.5 ms, {ours}/{100 - ours}"
        yield Cell(name, "many", many, {"kernel": 500, "weight": 100 - ours}, **MANY_LONG)


QUIET: Json = {"on": 1, "off": 10**9, "weight": 30, "quiet": 1}


def start_cells() -> Iterator[Cell]:
    """Ceilings alone on the GPU, from the container's first launch on."""
    for cap in (1, 5, 10, 30, 70, 99):
        yield Cell(f"cap {cap} from the start", "start", {"kernel": 80, "cap": cap}, **START)
    for name, kind in (
        ("launch-bound", {"kernel": 8, "host": 12}),
        ("kernels of 1.5 ms", {"kernel": 1500}),
        ("kernels of 5 ms", {"kernel": 5000}),
        ("kernels of 20 ms", {"kernel": 20000}),
        ("graphs of 4 ms", {"graph": 50, "kernel": 80, "host": 10}),
    ):
        yield Cell(f"cap 30 from the start, {name}", "start", {**kind, "cap": 30}, **START)


START: Json = {"seconds": 4, "warm": 0, "exact": True, "native": False}
LONG: Json = {"seconds": 10, "warm": 1.2, "exact": True, "tail": 1.2}
MANY_LONG: Json = {"seconds": 15, "warm": 0, "exact": True, "tail": 4, "settle": 5}
CELLS += (*start_cells(), *long_cells(), *hard_cells())
MANY = 1 << 30
SHORT = (
    *("70/30", "saturated + launch-bound, 50/50", "cap 30", "cap 10 from the start"),
    *("0.5 ms beside kernels of 20 ms, 70/30", "0.5 ms beside kernels of 100 ms, 30/70"),
    "0.1 ms beside 20 ms, no guarantees",
)


def takeover(stage: Stage, fault: str, seconds: float, trials: int, seed: int, gpu: int) -> list[float]:
    """Milliseconds of GPU time from SIGKILL or SIGSTOP of the running tenant to the next launch of the other."""
    draw = random.Random(seed)
    start = "run id=0 kernel=80 sigma=0.5 trace=1"
    share = {"gpu-hook.io/devices": gpu, "gpu-hook.io/memory": "1Gi", "gpu-hook.io/compute": 50}
    took = []
    until = time.monotonic() + seconds
    with stage.tenant(gpu, share, start=start) as a, stage.tenant(gpu, share, start=start) as b:
        stage.wait(0.5)
        while time.monotonic() < until and len(took) < trials:
            stage.wait(draw.uniform(0.12, 0.2) if fault == "kill" else draw.uniform(0.05, 0.1))
            survivor, victim = sorted((a, b), key=lambda t: t.launches()[1])  # the tenant that launched last runs
            count = survivor.launches()[0]
            pid = victim.pid()
            if not pid:
                continue
            at = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            next_launch = None
            while next_launch is None and time.monotonic_ns() < at + int(0.2e9) * stage.scale:
                time.sleep(0.002)
                next_launch = survivor.first_launch_after(at, count)
            if fault == "stop":
                os.kill(pid, signal.SIGCONT)
            took.append((next_launch - at) / stage.scale / 1e6 if next_launch else 1e9)
    return took


def references(stage: Stage, tenants: list[Json], seconds: float) -> dict[str, float]:
    programs = {cells.program(t): t for t in tenants}
    jobs = [functools.partial(_alone, stage, t, seconds) for t in programs.values()]
    return dict(zip(programs, in_lanes(stage, LANES, jobs), strict=True))


def _alone(stage: Stage, tenant: Json, seconds: float, gpu: int) -> float:
    return cells.alone(stage, tenant, gpu, seconds)


def _cell(stage: Stage, cell: Cell, native: bool, gpu: int) -> Json:
    begin = time.monotonic()
    measured = cells.measure(stage, cell, gpu, native)
    got = " / ".join(f"{100 * sum(b) / len(b):.1f}" for b in measured["bins"])
    say(f"{time.monotonic() - begin:5.1f} s  {'native' if native else 'shared'}  {cell.name}: {got}")
    return measured


def measure(short: bool, wanted: str = "") -> Json:
    """Everything that was measured, with the model's predictions. wanted: a regular expression of cells' names; with it
    there are no takeovers."""
    chosen = [c for c in CELLS if (not short or wanted or c.name in SHORT) and re.search(wanted, c.name)]
    if short:
        for c in chosen:
            c.settle = 0
            c.seconds, c.warm = (c.seconds if c.group == "start" else 3, c.warm) if c.exact else (1, 0.5)
    stage = Stage(LIGHT * LANES, SCALE)
    begin = time.monotonic()
    try:
        tenants = [t for c in chosen if not c.exact for t in c.tenants]  # those of exact cells are always busy
        before = references(stage, tenants, 0.8 if short else 2.4)
        kinds = [(c, native) for c in chosen for native in (False, True) if c.native or not native]
        kinds.sort(key=lambda kind: kind[0].group in LIGHTS)
        jobs = [functools.partial(_cell, stage, c, native) for c, native in kinds]
        light = sum(c.group in LIGHTS for c, _ in kinds)
        lanes = 0 if wanted else 1 if short else LANES // 2
        faults = [(f, i) for f in ("kill", "stop") for i in range(lanes)]
        took_jobs = [functools.partial(takeover, stage, f, 8 if short else 80, MANY, i) for f, i in faults]
        took_all = in_lanes(stage, LANES, took_jobs)
        results = in_lanes(stage, LANES, jobs[: len(jobs) - light])
        after = references(stage, tenants, 0.8 if short else 2.4)
        results += in_lanes(stage, LIGHT * LANES, jobs[len(jobs) - light :])
    finally:
        stage.close()
    drift = max((abs(after[p] / before[p] - 1) for p in before), default=0.0)
    rows = []
    for (cell, native), measured in zip(kinds, results, strict=True):
        duty = [
            0.0 if t.get("quiet") else 1.0 if cell.exact else (before[p] + after[p]) / 2
            for t, p in zip(cell.tenants, map(cells.program, cell.tenants), strict=True)
        ]
        row = {"cell": cell.name, "group": cell.group, "native": native, **cells.judge(cell, measured, duty)}
        row["predicted"] = {} if cell.group == "many" else cells.predict(cell, native)  # more tenants than it has
        rows.append(row)
    took: dict[str, list[float]] = {"kill": [], "stop": []}
    for (fault, _), times in zip(faults, took_all, strict=True):
        took[fault] += times
    return {
        "what": "simulated GPUs; real containers with the shipped shim",
        "calibration": report.calibration(),
        "time_scale": SCALE,
        "seconds": round(time.monotonic() - begin),
        "reference_drift": drift,
        "alone": {p: [before[p], after[p]] for p in before},
        "rows": rows,
        "takeover_ms": took,
    }


def takeovers(trials: int, seconds: float) -> Json:
    """Only that, so many trials or as many as there is time for, in lanes that each hold two tenants."""
    stage = Stage(LANES, SCALE)
    begin = time.monotonic()
    seed = random.SystemRandom().randrange(1 << 30)
    try:
        each = -(-trials // LANES)
        faults = [("kill", "stop")[i % 2] for i in range(LANES)]
        jobs = [functools.partial(takeover, stage, f, seconds, each, seed + i) for i, f in enumerate(faults)]
        results = in_lanes(stage, LANES, jobs)
    finally:
        stage.close()
    took = {
        fault: [t for f, times in zip(faults, results, strict=True) if f == fault for t in times] for fault in faults
    }
    return {
        "calibration": report.calibration(),
        "time_scale": SCALE,
        "seconds": round(time.monotonic() - begin),
        "rows": [],
        "takeover_ms": took,
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", default="", help="only those whose name has this regular expression")
    parser.add_argument("--takeover", type=int, metavar="N", help="only takeovers: N trials, or fewer in --seconds")
    parser.add_argument("--seconds", type=float, default=150, help="of real time, for --takeover")


def run(short: bool, options: argparse.Namespace) -> dict[str, Json]:
    """The figures of design and issue; `report.last` keeps the rows for tables and plots."""
    if options.takeover:
        data = report.last["share"] = takeovers(options.takeover, options.seconds)
        return took_figures(data)
    data = report.last["share"] = measure(short, options.cells)
    return figures(data)


def took_figures(data: Json) -> dict[str, Json]:
    took = data["takeover_ms"]["kill"] + data["takeover_ms"]["stop"]
    if not took:
        return {}
    return {
        "takeover_p99_ms": report.figure(metrics.percentile(took, 0.99), "ms", 5),
        "takeover_trials": report.figure(len(took), "", None),
    }


ERRORS = {  # budgets in points, and the groups of cells that they are for
    "saturated": (1, ("saturated", "caps")),
    "mixed": (3, ("mixed", "launch-bound")),
    "long": (2, ("long",)),
    "longest": (5, ("longest",)),
    "policies": (2, ("policies",)),
    "shapes": (2, ("shapes",)),
    "many": (2, ("many",)),
    "ahead": (3, ("ahead",)),
}


EXACT = ("long", "longest", "shapes", "many", "ahead")  # for these, Jain's figure says too little


def figures(data: Json) -> dict[str, Json]:
    """The figures of the cells that were measured."""
    ours = [r for r in data["rows"] if not r["native"]]
    native = {r["cell"]: r for r in data["rows"] if r["native"]}
    figure = report.figure
    out: dict[str, Json] = {}

    def worst(name: str, key: str, budget: float | None, *groups: str) -> None:
        found = [abs(r[key]) for r in ours if r["group"] in groups and key in r]
        if found:
            out[name] = figure(max(found), "points", budget)

    for name, (budget, groups) in ERRORS.items():
        worst(f"{name}_error_points", "error", budget, *groups)
    allowed = {group: budget for budget, groups in ERRORS.values() for group in groups}
    over = [
        r["error"] - max(native[r["cell"]]["error"], allowed[r["group"]])
        for r in ours
        if r["cell"] in native and r["group"] in allowed
    ]
    if over:
        out["over_native_error_points"] = figure(max(0.0, *over), "points", 0)
    worst("cap_error_points", "cap_error", 1, "cap", "caps")
    worst("cap_over_1s_points", "cap_over_1s", None, "cap", "caps")
    worst("cap_over_2s_points", "cap_over_2s", 0.3, "start")
    if jains := [r["jain"] for r in ours if "jain" in r and r["group"] not in EXACT]:
        out["jain_min"] = figure(min(jains), "", 0.99, least=True)
    if quiet := [r["efficiency"] for r in ours if r["group"] == "quiet"]:
        out["beside_a_quiet_one"] = figure(min(quiet), "", 0.97, least=True)
    if worst_seconds := [r["worst_second"] for r in ours if "worst_second" in r]:
        out["worst_second_of_what_is_owed"] = figure(min(worst_seconds), "", None)
    if fives := [r["worst_5_seconds"] for r in ours if r["group"] == "many" and "worst_5_seconds" in r]:
        out["many_worst_5_seconds_of_what_is_owed"] = figure(min(fives), "", 0.9, least=True)
    if pairs := [r["efficiency"] for r in ours if r["cell"] in ("50/50", "70/30")]:
        out["efficiency_saturated"] = figure(min(pairs), "", 0.97, least=True)
    out |= took_figures(data)
    out["reference_drift"] = figure(100 * data["reference_drift"], "%", 100 * DRIFT)
    for r in ours:
        if r["group"] == "launch-bound":
            ratio = r["efficiency"] / native[r["cell"]]["efficiency"]
            out["launch_bound_of_native"] = figure(ratio, "x", 0.95, least=True)
        if r["group"] == "burst":
            out["burst_settle_ms"] = figure(r["step_ms"], "ms", None)
            out["burst_error_points"] = figure(r["error"], "points", None)
    return out


def details() -> str:
    data = report.last["share"]
    took = "; ".join(
        f"takeover after SIG{fault.upper()}: {len(times)} trials, p50 {metrics.percentile(times, 0.5):.2f} ms, "
        f"p99 {metrics.percentile(times, 0.99):.2f} ms, longest {max(times):.2f} ms"
        for fault, times in data["takeover_ms"].items()
        if times
    )
    table = f"{report.aligned(report.share_table(data))}\n" if data["rows"] else ""
    if references := data.get("alone"):
        moved = max(references, key=lambda p: abs(references[p][1] / references[p][0] - 1))
        took += f"\ndrifted most, alone: {moved}: {references[moved][0]:.4f}, {references[moved][1]:.4f}"
    return f"{report.label(data)}, {data['seconds']} s\n{table}{took}"


def kept(before: Json) -> Json | None:
    """None if takeovers alone were measured."""
    data = report.last["share"]
    return data if data["rows"] else None
