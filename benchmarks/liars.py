"""Hostile tenants' cost to honest ones on simulated GPUs: real containers with the shipped shim, and containers that write
lies into their own slot files and launch nothing (load/liar.c).

Share cells: an honest tenant that always has work beside k liars. Its due is its weight over the weights of all that
are granted the GPU, as if the liars used their parts. `kept` is what it had over its due: 1 or more is whole.
Online cells: short requests of an online tenant beside offline liars. `added` is how much later a request is done on
the GPU than beside the same containers when these do nothing, at the same arrivals; of ten requests, nine have less.
Forged cells: tenants of all shapes beside a liar that writes records of processes, whose work would be on the GPU. `of_honest` is
the least that one of them had of what it has beside an honest tenant of the liar's share that always has work; `over` is how far
one passed its ceiling; `gap` the longest time without an end of a command, less the same beside the honest tenant.
"""

import argparse
import contextlib
import functools
import os
import re
import time
from typing import Any

from benchmarks import _report as report
from gpu_hook_simulator.model import metrics
from testbed.load import cells
from testbed.load.cells import SATURATED, in_lanes, say
from testbed.load.stage import Stage
from testbed.load.tenant import Json, words

SCALE = int(os.environ.get("GPU_HOOK_BENCH_SCALE", "10"))
LANES = int(os.environ.get("GPU_HOOK_BENCH_LANES", "4"))
KINDS = ("rests", "claims", "alternate", "held", "probe", "duty", "epoch", "fuzz")
OFFLINE_KINDS = ("residue", "in-time", "stuck", "jumps")
REQUEST: Json = {"count": 4, "kernel": 30, "host": 6, "sync": 1, "spread": "uniform", "period": 5000}
KEPT, ADDED = 0.9, 0.2  # budgets: of the due; ms
OF_HONEST, OVER, GAP = 0.95, 2, 300  # of what it has beside an honest tenant; points above a ceiling; ms
WARM = 1.0


class Case:
    """honest: the weights of tenants that always have work; none: an online tenant instead. liars: their weights."""

    def __init__(self, kind: str, honest: tuple[int, ...], liars: tuple[int, ...]) -> None:
        self.kind, self.honest, self.liars = kind, honest, liars
        beside = f"{len(liars)} x {kind}" if len(liars) > 1 else kind
        self.name = f"{'/'.join(map(str, honest)) or 'online'} beside {beside}"
        if honest:
            self.name += f", {'/'.join(map(str, liars))}"


def cases() -> list[Case]:
    found = [Case(kind, (50,), (50,)) for kind in KINDS]
    found += [Case(kind, (50,), (25, 25)) for kind in KINDS[:4]]  # beside several of the others it had all it could
    found += [Case(kind, (50,), (10,) * 5) for kind in ("rests", "alternate", "held")]
    found += [Case(kind, (mine,), (100 - mine,)) for kind in ("rests", "claims") for mine in (10, 90)]
    found += [Case(kind, (40, 30), (15, 15)) for kind in ("rests", "claims", "alternate", "fuzz")]
    found += [Case(kind, (), (10,) * k) for kind in OFFLINE_KINDS for k in (1, 5)]
    return found


def kernel(us: float, weight: int, **more: object) -> Json:
    return {"kernel": us, "weight": weight, **more}


FRESH: Json = {"shapes": 1 << 30, "depth": 64}
SHAPES: dict[str, tuple[tuple[Json, ...], int]] = {  # tenants without a sigma, and the liar's share
    "0.08 ms beside 0.08 ms, 69/30": ((kernel(80, 69), kernel(80, 30)), 1),
    "5 ms beside 5 ms, 69/30": ((kernel(5000, 69), kernel(5000, 30)), 1),
    "100 ms beside 0.5 ms, 69/30": ((kernel(100000, 69, depth=4), kernel(500, 30)), 1),
    "0.5 ms beside 100 ms, 69/30": ((kernel(500, 69), kernel(100000, 30, depth=4)), 1),
    "graphs of 4 ms beside 0.5 ms, 45/45": ((kernel(80, 45, graph=50, host=10), kernel(500, 45)), 10),
    "1 ms of new shapes beside 0.5 ms, 45/45": ((kernel(1000, 45, **FRESH), kernel(500, 45)), 10),
    "two streams beside one, 2 ms, 50/25": ((kernel(2000, 50, streams=2), kernel(2000, 25)), 25),
    "three processes beside one, 2 ms, 25/25": ((kernel(2000, 25, procs=3), kernel(2000, 25)), 50),
    "ceiling 30": ((kernel(80, 30, cap=30),), 70),
    "ceiling 30, 1.5 ms": ((kernel(1500, 30, cap=30),), 70),
    "ceiling 30, 5 ms": ((kernel(5000, 30, cap=30),), 70),
    "ceiling 10, 5 ms": ((kernel(5000, 10, cap=10),), 90),
    "ceiling 30, 20 ms": ((kernel(20000, 30, cap=30),), 70),
    "ceiling 30, 1 ms of new shapes": ((kernel(1000, 30, cap=30, **FRESH),), 70),
    "ceilings 30 + 69, 5 ms": ((kernel(5000, 30, cap=30), kernel(5000, 69, cap=69)), 1),
}
VARIED = ("100 ms beside 0.5 ms, 69/30", "5 ms beside 5 ms, 69/30", "ceiling 30, 5 ms")


def span(shape: str, short: bool) -> float:
    """Seconds to measure: forty of the longest kernels at least."""
    return max(2 if short else 2.4, *(40e-6 * t["kernel"] for t in SHAPES[shape][0]))


class Forged:
    """habit: kinds of liar.c. early: the liar is there before the tenants launch anything."""

    def __init__(self, shape: str, count: int, habit: str = "busy", v: str = "most", early: bool = False) -> None:
        self.shape, self.early, self.kind = shape, early, f"forged-{count}-{habit}-{v}"
        self.tenants, self.weight = SHAPES[shape]
        self.name = f"{shape}, beside {self.kind}{', early' * early}"


def forged_cases() -> list[Forged]:
    """Of all combinations, those that differ in what the rules see: between 1 and 112 records is nothing of its own, and who is far
    ahead keeps nobody waiting, so how it wants the GPU says something where it is behind."""
    found = [Forged(shape, count) for shape in SHAPES for count in (1, 112)]
    for shape in VARIED:
        found += [Forged(shape, count) for count in (2, 8, 16)]
        found += [Forged(shape, 112, habit, "least") for habit in ("busy", "held", "gaps", "flicker")]
        found += [Forged(shape, 112, "flicker"), Forged(shape, 112, early=True)]
        found += [Forged(shape, 112, "flicker", "least", early=True)]
    return found


SHORT = (
    *(
        "5 ms beside 5 ms, 69/30, beside forged-112-busy-most",
        "100 ms beside 0.5 ms, 69/30, beside forged-112-busy-most",
    ),
    *("ceiling 30, 5 ms, beside forged-1-busy-most", "ceiling 30, 5 ms, beside forged-112-busy-least"),
    *("50 beside rests, 50", "50 beside claims, 50", "50 beside 2 x alternate, 25/25", "50 beside fuzz, 50"),
    *("40/30 beside 2 x rests, 15/15", "online beside residue", "online beside in-time"),
)


def share(gpu: int, memory: str, weight: int, class_: str = "") -> Json:
    out = {"devices": gpu, "memory": memory, "compute": weight, "policy": "burst-share"}
    return {f"gpu-hook.io/{k}": v for k, v in {**out, **({"class": class_} if class_ else {})}.items()}


@contextlib.contextmanager
def liars(stage: Stage, gpu: int, kind: str, weights: tuple[int, ...], class_: str = "") -> Any:
    with contextlib.ExitStack() as running:
        for i, weight in enumerate(weights):
            annotations = share(gpu, "256Mi", weight, class_)
            running.enter_context(stage.tenant(gpu, annotations, program=("liar", kind, str(i))))
        yield


def measure_share(stage: Stage, case: Case, seconds: float, gpu: int) -> Json:
    """Each honest tenant's part of its due."""
    with contextlib.ExitStack() as running:
        honest = [running.enter_context(stage.tenant(gpu, share(gpu, "256Mi", w))) for w in case.honest]
        for tenant in honest:
            tenant.run(words(SATURATED))
        stage.wait(0.2)
        running.enter_context(liars(stage, gpu, case.kind, case.liars))
        begin = time.monotonic_ns()
        stage.wait(WARM + seconds + 0.15)
        results = [tenant.stop() for tenant in honest]
    first = int(begin / (cells.BIN_NS * stage.scale)) + 1 + round(WARM * 10)
    got = [sum(b) / len(b) for b in (cells.window(r, first, round(seconds * 10)) for r in results)]
    all_weights = sum(case.honest) + sum(case.liars)
    kept = [g / (w / all_weights) for g, w in zip(got, case.honest, strict=True)]
    say(f"{case.name}: {report.shares(got)}")
    return {"case": case.name, "kind": case.kind, "got": got, "kept": min(kept)}


def measure_online(stage: Stage, case: Case, requests: int, gpu: int) -> Json:
    """Delay of each request, compared with a run in which the other containers do nothing."""
    quiet, loud = (_latencies(stage, gpu, kind, case.liars, requests) for kind in ("quiet", case.kind))
    added = [x - y for x, y in zip(loud, quiet, strict=True)]
    figures = {of: metrics.percentile(added, of) for of in (0.5, 0.9)}
    say(f"{case.name}: {metrics.percentile(quiet, 0.5):.2f} -> {metrics.percentile(loud, 0.5):.2f} ms")
    return {
        "case": case.name,
        "kind": case.kind,
        "quiet_ms": metrics.percentile(quiet, 0.5),
        "loud_ms": metrics.percentile(loud, 0.5),
        "added_ms": figures[0.9],
        "added_p50_ms": figures[0.5],
    }


def measure_forged(stage: Stage, shape: str, kind: str, early: bool, seconds: float, gpu: int) -> Json:
    """Each tenant's part of the GPU, and its longest time without an end of a command, in ms. kind "": beside an honest one."""
    tenants, weight = SHAPES[shape]
    cell = cells.Cell(shape, "forged", *tenants)
    scale = 1e9 * stage.scale
    with contextlib.ExitStack() as running:
        if early and kind:
            running.enter_context(liars(stage, gpu, kind, (weight,)))
        made = [
            running.enter_context(stage.tenant(gpu, cell.annotations(t, gpu, "256Mi"), procs=t.get("procs", 1)))
            for t in tenants
        ]
        for tenant, what in zip(made, tenants, strict=True):
            tenant.run(f"ends=1 {words(what)}")
        stage.wait(0.3)
        if not kind:
            running.enter_context(stage.tenant(gpu, share(gpu, "256Mi", weight))).run(words(SATURATED))
        elif not early:
            running.enter_context(liars(stage, gpu, kind, (weight,)))
        begin = time.monotonic_ns() + int(WARM * scale)
        stage.wait(WARM + seconds + 0.5)
        for tenant in made:
            tenant.stop()
        ends = [sorted(at for i in range(c.procs) for at in c.ends(i)) for c in made]
    until = begin + int(seconds * scale)
    got, gaps = [], []
    for what, had in zip(tenants, ends, strict=True):
        inside = [at for at in had if begin <= at < until]
        span = (inside[-1] - inside[0]) / scale if inside[1:] else seconds
        got.append(max(0, len(inside) - 1) * cells.length(what) * 1e-6 / span)
        edges = [begin, *inside, until]
        gaps.append(max(b - a for a, b in zip(edges, edges[1:], strict=False)) / scale * 1000)
    say(f"{shape}, {kind or 'honest'}: {report.shares(got)}, gaps {', '.join(f'{g:.0f}' for g in gaps)} ms")
    return {"got": got, "gaps": gaps}


def judge_forged(case: Forged, honest: Json, seen: Json) -> Json:
    """A tenant under a ceiling that is alone with the liar may have all of its ceiling, whatever the honest one leaves it."""
    row = {"case": case.name, "kind": case.kind, "got": seen["got"], "honest": honest["got"]}
    row["of_honest"] = min(g / h for g, h in zip(seen["got"], honest["got"], strict=True))
    row["gap"] = max(g - h for g, h in zip(seen["gaps"], honest["gaps"], strict=True))
    over = [100 * g - t["cap"] for g, t in zip(seen["got"], case.tenants, strict=True) if "cap" in t]
    return {**row, **({"over": max(over)} if over else {})}


def _latencies(stage: Stage, gpu: int, kind: str, weights: tuple[int, ...], requests: int) -> list[float]:
    """Each request's ms, from its due time until its last kernel ended on the GPU."""
    online = share(gpu, "256Mi", 30, "online")
    with stage.tenant(gpu, online) as web, liars(stage, gpu, kind, weights, "offline"):
        web.run(f"units={requests} seed=7 ends=2 {words(REQUEST)}")
        (result,) = web.results(seconds=10 * requests * REQUEST["period"] * 1e-6 * stage.scale + 30)
        ends = web.ends()
    return [(end - due) / stage.scale / 1e6 for (due, _, _), end in zip(result["latency"], ends, strict=True)]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cells", default="", help="only those whose name has this regular expression")


def run(short: bool, options: argparse.Namespace) -> dict[str, Json]:
    chosen = [
        c for c in cases() if (options.cells or not short or c.name in SHORT) and re.search(options.cells, c.name)
    ]
    stage = Stage(LANES, SCALE)
    begin = time.monotonic()
    try:
        jobs: list[Any] = []
        for case in chosen:
            if case.honest:
                jobs.append(functools.partial(measure_share, stage, case, 1.5 if short else 2.4))
            else:
                jobs.append(functools.partial(measure_online, stage, case, 150 if short else 400))
        forged = [
            c
            for c in forged_cases()
            if (options.cells or not short or c.name in SHORT) and re.search(options.cells, c.name)
        ]
        shapes = list(dict.fromkeys(c.shape for c in forged))
        runs = [(shape, "", False) for shape in shapes] + [(c.shape, c.kind, c.early) for c in forged]
        jobs += [functools.partial(measure_forged, stage, *what, span(what[0], short)) for what in runs]
        rows = in_lanes(stage, LANES, jobs)
        seen, rows = rows[len(rows) - len(runs) :], rows[: len(rows) - len(runs)]
        honest = dict(zip(shapes, seen, strict=False))
        rows += [judge_forged(c, honest[c.shape], s) for c, s in zip(forged, seen[len(shapes) :], strict=True)]
    finally:
        stage.close()
    data = report.last["liars"] = {
        "calibration": report.calibration(),
        "time_scale": SCALE,
        "seconds": round(time.monotonic() - begin),
        "rows": rows,
    }
    return figures(data)


def figures(data: Json) -> dict[str, Json]:
    """The worst case of each kind."""
    out: dict[str, Json] = {}
    for kind in dict.fromkeys(r["kind"] for r in data["rows"]):
        rows = [r for r in data["rows"] if r["kind"] == kind]
        name = kind.replace("-", "_")
        if kept := [r["kept"] for r in rows if "kept" in r]:
            out[f"kept_{name}"] = report.figure(min(kept), "of due", KEPT, least=True)
        if added := [r["added_ms"] for r in rows if "added_ms" in r]:
            out[f"added_{name}_ms"] = report.figure(max(added), "ms", ADDED)
    forged = [r for r in data["rows"] if "of_honest" in r]
    if forged:
        out["forged_of_honest"] = report.figure(min(r["of_honest"] for r in forged), "", OF_HONEST, least=True)
        out["forged_gap_ms"] = report.figure(max(r["gap"] for r in forged), "ms", GAP)
    if over := [r["over"] for r in forged if "over" in r]:
        out["forged_over_ceiling_points"] = report.figure(max(over), "points", OVER)
    return out


def table() -> list[list[str]]:
    heads = ["case", "honest ones got, %", "of due", "a request took, ms", "added to nine in ten, ms"]
    out = [[*heads, "beside an honest one, %", "gap, ms"]]
    for r in report.last["liars"]["rows"]:
        took = f"{r['quiet_ms']:.2f} to {r['loud_ms']:.2f}" if "loud_ms" in r else ""
        got = report.shares(r["got"]) if "got" in r else ""
        figures = [report.number(r, "kept", ".2f"), took, report.number(r, "added_ms", ".2f")]
        honest = report.shares(r["honest"]) if "honest" in r else ""
        out.append([r["case"], got, *figures, honest, report.number(r, "gap", ".0f")])
    return out


def details() -> str:
    data = report.last["liars"]
    return f"{report.label(data)}, {data['seconds']} s\n{report.aligned(table())}"


def kept(before: Json) -> Json:
    return report.last["liars"]
