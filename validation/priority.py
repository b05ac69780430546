"""Run "priority": online requests over offline work, through gpu-hook and on the bare driver."""

import functools
from pathlib import Path

from benchmarks import priority as bench

from . import predict, shares
from .boxes import Boxes, Node
from .frame import Json, Run

# Most important first: if time runs out, the last are left out.
PAIRS = [bench.Pair(20, k) for k in ("80 us", "1.4 ms", "training", "graphs of 4 ms", "11 ms", "0.3 ms", "0.7 ms each")]
PAIRS += [bench.Pair(rate, k) for rate in (50, 5) for k in ("80 us", "training")]
SECONDS = 14.0
RESERVE = 20.0


def validate(run: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    stage = Boxes(node, folder, simulated)
    if not shares.calibrate(run, stage):
        return
    pairs = [p for p in (PAIRS[:1] if short else PAIRS) if run.wants(p.name)]
    span = 0.7 if short else SECONDS
    alone: dict[int, Json] = {}
    duty: dict[str, float] = {}

    def references() -> Json:
        for rate in sorted({p.rate for p in pairs}):
            alone[rate] = bench.measure_alone(stage, rate, round(rate * span), 0)
        for kind in {p.offline for p in pairs}:
            duty[kind] = bench.cells.alone(stage, bench.OFFLINES[kind], 0, 0.3 if short else 1.0)
        return {
            "duty": duty,
            "p50_ms": {r: sorted(v["latency_ms"])[len(v["latency_ms"]) // 2] for r, v in alone.items()},
        }

    if not run.phase("alone", 120, references)["ok"]:
        return
    rows: list[Json] = []
    for pair in pairs:
        for native in (True, False):
            need = (span + 3) * 2 * stage.scale
            if run.left() > need + RESERVE:
                name = f"{'native' if native else 'gpu-hook'}: {pair.name}"
                count = len(alone[pair.rate]["latency_ms"])
                work = functools.partial(_pair, stage, pair, count, native, alone[pair.rate], duty[pair.offline], rows)
                run.phase(name, need, work)
    run.phase("verdict", 10, lambda: verdict(rows, simulated))


def _pair(stage: Boxes, pair: bench.Pair, count: int, native: bool, alone: Json, duty: float, rows: list[Json]) -> Json:
    measured = bench.measure_pair(stage, pair, count, native, 0)
    row = bench.row(pair, native, [measured], [alone], duty)
    rows.append(row)
    return {k: v for k, v in row.items() if k not in ("latency_ms", "predicted")}


def verdict(rows: list[Json], simulated: bool) -> Json:
    predicted = predict.load().get("priority", {})
    missed, surprises = [], []
    for row in rows:
        name = f"{'native' if row['native'] else 'gpu-hook'}: {row['cell']}"
        if not row["checksum_ok"]:
            missed.append(f"{name}: the offline tenant's checksum is not that of an uninterrupted run")
        if not row["native"]:
            if row["offline"] in ("80 us", "training") and row["p99_ratio"] > 1.15:
                missed.append(f"{name}: online p99 {row['p99_ratio']:.2f} of alone")
            if row["offline"] in ("80 us", "0.3 ms") and (row["low_free_p99_ms"] or 0) > 1:
                missed.append(f"{name}: free of offline work after {row['low_free_p99_ms']:.2f} ms")
            if row["offline"] in ("80 us", "0.3 ms", "0.7 ms each") and (row["lost_p99_ms"] or 0) > 1:
                missed.append(f"{name}: lost {row['lost_p99_ms']:.2f} ms")
            if row["rate"] == 50 and row["harvest"] < 0.85:
                missed.append(f"{name}: harvest {row['harvest']:.2f}")
        before = predicted.get(name, {})
        for key, tolerance in (("p99_ratio", 0.15), ("harvest", 0.05)):
            if before.get(key) is not None and abs(before[key] - row[key]) > tolerance:
                surprises.append(f"{name}: {key} {row[key]:.3g}, predicted {before[key]:.3g}")
    out: Json = {"missed": missed, "not_as_predicted": surprises, "rows": len(rows)}
    if simulated:
        out["note"] = "simulated: shows that the script runs, nothing of a GPU"
    elif missed:
        raise RuntimeError(f"missed: {out}")
    return out
