"""Run "physics": measures this GPU and driver. Ends with a calibration in the model's form."""

import json
import statistics
from pathlib import Path
from typing import Any

from testbed.load import cells

from . import shares
from .boxes import Boxes, Node
from .frame import Json, Run

GAP_MS = 300


def validate(run: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    stage = Boxes(node, folder, simulated)
    if not shares.calibrate(run, stage):
        return
    n = 500 if short else 20000
    boxed = {"gpu-hook.io/devices": 0, "gpu-hook.io/memory": stage.memory}
    bare = run.phase("calls, bare driver", 100, lambda: ask(stage, None, f"api id={{}} count={n}"))
    ours = run.phase("calls, in a container alone", 100, lambda: ask(stage, boxed, f"api id={{}} count={n}"))
    run.phase("what the shim adds", 5, lambda: added(bare, ours))
    run.phase("calls, beside another", 100, lambda: beside(stage, boxed, f"api id={{}} count={n // 4}"))
    run.phase("events around a kernel", 30, lambda: events(stage, simulated, n))
    slices = run.phase("slices", 120, lambda: gaps(stage, simulated, short))
    pair = run.phase("two contexts, one of three", 90, lambda: bias(stage, short))
    run.phase("copies beside kernels", 60, lambda: copies(stage, simulated, short))
    run.phase("a blocked stream beside kernels", 40, lambda: blocked(stage, simulated, short))
    lengths = run.phase("kernel lengths", 60, lambda: kernels(stage, short))
    run.phase("calibration", 5, lambda: calibration(run, bare, slices, pair, lengths, simulated))


def ask(stage: Boxes, annotations: Json | None, command: str) -> Json:
    with stage.tenant(0, annotations) as tenant:
        return tell(tenant, command)


def beside(stage: Boxes, annotations: Json, command: str) -> Json:
    """The same in a container of 70 per cent beside one that needs little of its 30."""
    shares = [{**annotations, "gpu-hook.io/compute": percent} for percent in (70, 30)]
    with stage.tenant(0, shares[0]) as asks, stage.tenant(0, shares[1]) as other:
        other.run("kernel=30 sync=1 gap=500")
        answer = tell(asks, command)
        other.stop()
    return answer


def tell(tenant: Any, command: str, seconds: float = 90) -> Json:
    """One command to one load generator, and its answer."""
    begin(tenant, command)
    return finish(tenant, seconds)


def begin(tenant: Any, command: str) -> None:
    tenant.serial += 1
    tenant.tell(command.format(tenant.serial))


def finish(tenant: Any, seconds: float = 90) -> Json:
    (answer,) = tenant.results(seconds)
    return {k: v for k, v in answer.items() if k != "id"}


def added(bare: Json, ours: Json) -> Json:
    """Nanoseconds more per call, median; no budget here: one process each, at different times."""
    names = ("launch", "graph_1", "event_record", "event_query_done", "launch_and_wait")
    return {name: ours[name]["p50"] - bare[name]["p50"] for name in names}


def events(stage: Boxes, simulated: bool, n: int) -> Json:
    """How much longer than a kernel the time between two events around it is, in an idle stream."""
    if simulated:
        return {"skipped": "simulated kernels begin when they are launched"}
    return ask(stage, None, f"events id={{}} count={n}")


def gaps(stage: Boxes, simulated: bool, short: bool) -> Json:
    """Uninterrupted stays on the GPU and absences from it, with 1 to 4 processes, small and full occupancy."""
    if simulated:
        return {"skipped": "simulated kernels compute nothing, so none can look at the GPU's clock"}
    out: Json = {}
    for processes in (1, 2) if short else (1, 2, 3, 4):
        for blocks in (1, 0):
            with_all: list[Any] = []
            command = f"gaps id={{}} kernel={GAP_MS * 1000} blocks={blocks}"
            with _many(stage, processes) as tenants:
                for tenant in tenants:
                    begin(tenant, command)
                with_all = [finish(t)["gaps"] for t in tenants]
            out[f"{processes} {'small' if blocks else 'full'}"] = _stays(with_all[0])
    return out


class _many:
    def __init__(self, stage: Boxes, n: int) -> None:
        self.managers = [stage.tenant(0, None) for _ in range(n)]

    def __enter__(self) -> list[Any]:
        return [m.__enter__() for m in self.managers]

    def __exit__(self, *_: object) -> None:
        for m in self.managers:
            m.__exit__(None, None, None)


def _stays(seen: list[list[int]]) -> Json:
    if len(seen) < 3:
        return {"gaps": len(seen)}
    stays = [b[0] - a[1] for a, b in zip(seen, seen[1:], strict=False)]
    away = [b - a for a, b in seen]
    return {"gaps": len(seen), "stay_us": statistics.median(stays) / 1e3, "away_us": statistics.median(away) / 1e3}


def bias(stage: Boxes, short: bool) -> Json:
    """The bare driver's division: two contexts; one beside three."""
    seconds = 0.4 if short else 3.0
    out: Json = {}
    for name, procs in (("two", 1), ("one beside three", 3)):
        cell = cells.Cell(name, "saturated", {"sigma": 0.5}, {"sigma": 0.5, "procs": procs}, seconds=seconds, warm=0.3)
        measured = cells.measure(stage, cell, 0, True)
        out[name] = [sum(b) / len(b) for b in measured["bins"]]
    out["efficiency"] = sum(out["two"])
    return out


def _rate(tenant: Any) -> float:
    (result,) = tenant.stop()
    bins = cells.window([result], result["first_bin"] + 1, max(1, len(result["bins"]) - 2))
    return sum(bins) / len(bins)


def _beside(stage: Boxes, command: str, seconds: float) -> list[float]:
    """Throughput of 80 us kernels without and with another process that does as told."""
    rates = []
    with stage.tenant(0, None) as worker, stage.tenant(0, None) as other:
        for do in (False, True):
            if do:
                begin(other, command)
            worker.run("sigma=0.5")
            stage.wait(seconds)
            rates.append(_rate(worker))
        finish(other)
    return rates


def copies(stage: Boxes, simulated: bool, short: bool) -> Json:
    if simulated:
        return {"skipped": "copies of the simulated driver are no measure of a GPU's"}
    alone, beside = _beside(stage, f"copies id={{}} kernel={400000 if short else 3000000}", 0.3 if short else 2.0)
    return {"kernels_alone": alone, "kernels_beside_copies": beside}


def blocked(stage: Boxes, simulated: bool, short: bool) -> Json:
    """Does a stream that waits for a value give its slices up? Else the kernels lose half of the GPU."""
    if simulated:
        return {"skipped": "how a GPU waits is a property of the GPU"}
    alone, beside = _beside(stage, f"blocked id={{}} kernel={400000 if short else 3000000}", 0.3 if short else 2.0)
    return {"kernels_alone": alone, "kernels_beside_blocked_stream": beside}


def kernels(stage: Boxes, short: bool) -> Json:
    """Do kernels take as long as they were asked to, and what part of the GPU does each program keep busy alone?"""
    out: Json = {}
    for us in (30, 80) if short else (8, 30, 80, 300, 1400, 5000, 11000):
        seconds = 0.3 if short else 0.6
        out[f"{us} us"] = cells.alone(stage, {"kernel": us}, 0, seconds)
    return out


def calibration(run: Run, bare: Json, slices: Json, pair: Json, lengths: Json, simulated: bool) -> Json:
    """The model's constants as measured; unmeasured ones keep their values."""
    from gpu_hook_simulator import model_run

    out: Json = json.loads(model_run.CALIBRATION.read_text())
    kept = []
    two = slices.get("2 full", {})
    if "stay_us" in two:
        out["gpu_us"]["slice"] = round(two["stay_us"])
        out["gpu_us"]["switch_loaded"] = max(1, round((two["away_us"] - two["stay_us"]) / 2))
    else:
        kept.append("gpu_us")
    if "launch_and_wait" in bare and not simulated:
        out["host_us"]["wake"] = max(1, round((bare["launch_and_wait"]["p50"] - bare["launch"]["p50"]) / 1e3))
    else:
        kept.append("host_us")
    out["source"] = f"gpu-validate, run physics{' (simulated: nothing of a GPU)' if simulated else ''}"
    run.results["calibration"] = out
    return {"kept": kept, "two_contexts": pair.get("efficiency"), "kernels": len(lengths)}
