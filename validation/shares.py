"""Run "shares": each tenant's part of the GPU, through gpu-hook and on the bare driver, against the model's prediction."""

import contextlib
import functools
from pathlib import Path

from benchmarks import share
from testbed.load import cells
from testbed.load.cells import Cell

from . import predict
from .boxes import Boxes, Node
from .frame import Json, Run

PASS = {"saturated": 2.0, "mixed": 4.0, "launch-bound": 4.0, "cap": 2.0, "caps": 2.0}  # points
# The last one misses the benchmark's budget on the simulated GPU, too.
PASS |= {"long": 4.0, "shapes": 4.0, "many": 4.0, "ahead": 25.0}
# What a GPU may do other than the simulated one: long kernels on the larger side, costs that none can know before, and
# several processes of one tenant. How the last ones do without gpu-hook shows whether the driver slices by context. Kernels of
# new names are not here: a driver compiles each of them for 20 ms.
HARD = (
    "100 ms, depth 4, beside 0.5 ms, 70/30",
    "8 processes of 20 ms beside 0.5 ms, 30/70",
    "0.1 ms of shapes that never repeat beside 0.5 ms, 70/30",
    "0.1 ms of shapes that never repeat beside 0.5 ms, 30/70",
    "1 ms, graphs made anew, beside 0.5 ms, 70/30",
)
# Most important first: if time runs out, the last are left out.
PLAIN = [c for c in share.CELLS if not c.exact and c.group != "burst"]
FIRST = ("70/30", "90/10", "cap 30", *HARD, "three processes beside one, 50/50", "80 us beside 1.4 ms, 50/50")
FIRST += ("ahead by 5 ms of pauses of 6 ms beside saturated, 70/30",)
CELLS = [c for name in FIRST for c in share.CELLS if c.name == name] + [c for c in PLAIN if c.name not in FIRST]
CELLS += [Cell("11 ms beside 80 us, 50/50", "saturated", share.s(50, 11000), share.s(50))]
Alone = dict[
    str, tuple[Json, list[float]]
]  # a program: the tenant that runs it, and what of the GPU it keeps busy alone
RESERVE = 15.0  # seconds for what comes after the cells
SHORT = ("70/30", "100 ms, depth 4, beside 0.5 ms, 70/30", "1 ms, graphs made anew, beside 0.5 ms, 70/30", "cap 30")


def validate(run: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    stage = Boxes(node, folder, simulated)
    chosen = [c for c in CELLS if not short or c.name in SHORT]
    seconds, warm = (0.5, 0.3) if short else (3.0, 1.2)
    if not calibrate(run, stage):
        return
    alone: Alone = {}
    rows: list[Json] = []
    for native in (False, True):
        for cell in chosen:
            cell.seconds, cell.warm, cell.settle = seconds, warm, 0
            programs = sum(t.get("procs", 1) for t in cell.tenants)  # each makes a context, and ends what it has queued
            need = (seconds + warm + cell.tail + 3) * stage.scale + RESERVE + 4 * programs
            if (cell.native or not native) and run.left() > need:
                name = f"{'native' if native else 'gpu-hook'}: {cell.name}"
                run.phase(name, need, functools.partial(_cell, stage, cell, native, alone, rows, short))
    run.phase("alone after", 60, lambda: references(stage, alone, short))
    run.phase("verdict", 10, lambda: verdict(rows, alone, simulated))


def calibrate(run: Run, stage: Boxes) -> bool:
    """Length of the kernel's steps on this GPU; all other figures depend on it."""

    def work() -> Json:
        with stage.tenant(0, None) as tenant:
            tenant.serial += 1
            tenant.tell(f"calibrate id={tenant.serial}")
            (answer,) = tenant.results()
        if not stage.simulated:
            stage.options += f" --rate {answer['rate']}"
        return {"steps_per_ns": answer["rate"]}

    return bool(run.phase("calibrate", 40, work)["ok"])


def references(stage: Boxes, alone: Alone, short: bool) -> Json:
    """What of the GPU each program keeps busy alone, once more."""
    for tenant, busy in alone.values():
        busy.append(cells.alone(stage, tenant, 0, 0.3 if short else 1.0))
    return {"busy": {name: busy for name, (_, busy) in alone.items()}}


def duty(stage: Boxes, cell: Cell, alone: Alone, short: bool) -> list[float]:
    """What of the GPU each tenant's program keeps busy alone; measured once. Those of exact cells are always busy."""
    found = []
    for tenant in cell.tenants:
        name = cells.program(tenant)
        if not cell.exact and name not in alone:
            alone[name] = tenant, [cells.alone(stage, tenant, 0, 0.3 if short else 1.0)]
        found.append(1.0 if cell.exact else alone[name][1][0])
    return found


def _cell(stage: Boxes, cell: Cell, native: bool, alone: Alone, rows: list[Json], short: bool) -> Json:
    busy = duty(stage, cell, alone, short)
    try:
        measured = cells.measure(stage, cell, 0, native)
    except (TimeoutError, RuntimeError) as e:
        raise RuntimeError(f"{e}; {stage.gates()}") from e
    row = {"cell": cell.name, "group": cell.group, "native": native, **cells.judge(cell, measured, busy)}
    rows.append(row)
    return row


def verdict(rows: list[Json], alone: Alone, simulated: bool) -> Json:
    """Against the limits set beforehand, and against the model's predictions as committed beforehand."""
    predicted = predict.load().get("shares", {})
    missed, surprises = [], []
    for row in rows:
        name = f"{'native' if row['native'] else 'gpu-hook'}: {row['cell']}"
        error = row.get("error", row.get("cap_error"))
        if not row["native"] and error is not None and abs(error) > PASS[row["group"]]:
            missed.append(f"{name}: {error:.1f} points")
        before = predicted.get(name, {})
        for key, tolerance in (("error", 3.0), ("efficiency", 0.03)):
            if key in before and key in row and abs(before[key] - row[key]) > tolerance:
                surprises.append(f"{name}: {key} {row[key]:.3g}, predicted {before[key]:.3g}")
    drift = max((abs(v[-1] / v[0] - 1) for _, v in alone.values() if len(v) > 1), default=0.0)
    out: Json = {"missed": missed, "not_as_predicted": surprises, "reference_drift": drift, "rows": len(rows)}
    with contextlib.suppress(StopIteration):
        out["pair_sum"] = next(r["efficiency"] for r in rows if r["cell"] == "50/50" and not r["native"])
    if simulated:
        out["note"] = "simulated: shows that the script runs, nothing of a GPU"
    elif missed or drift > 0.02:
        raise RuntimeError(f"missed: {out}")
    return out
