"""Cells of the share benchmark: tenants of a GPU, the time that each was owed and got, and the model's predictions.

A tenant is a dict in the words of the virtual-time model (gpu_hook_simulator/model/scenarios.py); `graph`, `streams`
and `procs` are the load generator's own. Times in microseconds of the GPU.
"""

import bisect
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from gpu_hook_simulator import model_run
from gpu_hook_simulator.model import metrics
from gpu_hook_simulator.model.scenarios import Scenario

from .tenant import Json, words

BIN_NS = 100_000_000  # of GPU time, as the load generator counts
SATURATED = {"kernel": 80, "sigma": 0.5}
GRAPH = {"graph": 50, "kernel": 80, "sigma": 0.5, "host": 10}
LIGHTS = ("long", "longest", "shapes", "quiet", "many")  # groups of cells that take little of the processors
CLASSES = {2: "online", 1: "", 0: "offline"}


class Cell:
    """`group` decides which figure it counts for; `seconds` of GPU time are measured after `warm` ones. Shares leave out the
    first `settle` of these; the worst second and the worst five are looked for in all of them.

    exact: the load generators log when each command ended, so that a command longer than a bin is not counted in one bin
    alone; `tail` seconds later they are told to end. No command's length may vary (no sigma)."""

    def __init__(
        self,
        name: str,
        group: str,
        *tenants: Json,
        seconds: float = 2.2,
        warm: float = 1.2,
        native: bool = True,
        exact: bool = False,
        tail: float = 0.15,
        settle: float = 0,
    ) -> None:
        self.name, self.group, self.tenants = name, group, tenants
        self.seconds, self.warm, self.native = seconds, warm, native
        self.exact, self.tail, self.settle = exact, tail, settle

    def annotations(self, tenant: Json, gpu: int, memory: str) -> Json:
        share = tenant.get("cap") or tenant.get("weight")
        out = {"devices": gpu, "memory": memory}
        if share:
            out.update(compute=share, policy="fixed-share" if tenant.get("cap") else "burst-share")
        if tenant.get("limit"):
            out["compute-limit"] = tenant["limit"]
        if CLASSES[tenant.get("class", 1)]:
            out["class"] = CLASSES[tenant["class"]]
        return {f"gpu-hook.io/{k}": v for k, v in out.items()}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def program(tenant: Json) -> str:
    """The tenant's program as a key: tenants with the same key share one reference run, alone on the GPU."""
    return words({k: v for k, v in sorted(tenant.items()) if k not in ("on", "off", "streams")})


def in_lanes(stage: Any, lanes: int, jobs: Iterable[Callable[[int], Any]]) -> list[Any]:
    """Run each job(GPU) on a GPU of its own, `lanes` at a time."""
    gpus: SimpleQueue[int] = SimpleQueue()
    for gpu in range(lanes):
        gpus.put(gpu)

    def one(job: Callable[[int], Any]) -> Any:
        gpu = gpus.get()
        try:
            return job(gpu)
        finally:
            gpus.put(gpu)

    with ThreadPoolExecutor(lanes) as pool:
        return list(pool.map(one, jobs))


def window(results: list[Json], first: int, bins: int) -> list[float]:
    """GPU time in finished work per bin, of a tenant's processes together, as parts of a bin."""
    out = [0.0] * bins
    for result in results:
        for i in range(bins):
            at = first + i - result["first_bin"]
            if 0 <= at < len(result["bins"]):
                out[i] += result["bins"][at] / BIN_NS
    return out


def alone(stage: Any, tenant: Json, gpu: int, seconds: float) -> float:
    """The part of a GPU that this program keeps busy by itself, through the shim."""
    annotations = {"gpu-hook.io/devices": gpu, "gpu-hook.io/memory": stage.memory}
    with stage.tenant(gpu, annotations) as container:
        container.run(program(tenant))
        stage.wait(0.3 + seconds)
        (result,) = container.stop()
    per_bin = window([result], result["first_bin"] + 3, round(seconds * 10))
    return sum(per_bin) / len(per_bin)


def measure(stage: Any, cell: Cell, gpu: int, native: bool) -> Json:
    """GPU time of each tenant in each bin of the measured window."""
    with _Containers(stage, cell, gpu, native) as containers:
        for i, (container, tenant) in enumerate(zip(containers, cell.tenants, strict=True)):
            container.run(f"seed={i + 1} {'ends=1 ' if cell.exact else ''}{words(tenant)}")
        stage.wait(cell.warm + cell.seconds + cell.tail)
        stopped_at = time.monotonic_ns()
        results = [c.stop() for c in containers]
        ends = [[c.ends(i) for i in range(c.procs)] for c in containers] if cell.exact else []
    if cell.exact:
        return _exact(stage, cell, results, ends, stopped_at)
    first = max(r["first_bin"] for rs in results for r in rs) + round(cell.warm * 10)
    bins = [window(rs, first, round(cell.seconds * 10)) for rs in results]
    latency = [[(b[2] - b[0]) / stage.scale / 1e6 for r in rs for b in r["latency"]] for rs in results]
    return {"bins": bins, "first_bin": first, "latency_ms": latency}


def length(tenant: Json) -> float:
    """Microseconds of GPU time of one command."""
    return float(tenant.get("kernel", 80) * (tenant.get("graph") or 1))


def work_until(ends: list[int], each: float, begin: int, at: int, longest: float) -> float:
    """GPU time had until `at`, in the unit of `each`: all commands that had ended, and of the next one the part of the
    time from the end before it (the first one: from `begin`), but at most `longest` before its own, to its own end."""
    done = bisect.bisect_right(ends, at)
    before = ends[done - 1] if done else begin
    if done < len(ends):
        before = max(before, int(ends[done] - longest))
    if done == len(ends) or at <= before:
        return done * each
    return (done + (at - before) / (ends[done] - before)) * each


def _exact(stage: Any, cell: Cell, results: list[list[Json]], ends: list[list[list[int]]], stopped_at: int) -> Json:
    """The shares in bins like those of `measure`, from the commands' ends. Commands that ended after the stop do not count."""
    begin = max(r["from_ns"] for rs in results for r in rs)
    width = BIN_NS * stage.scale
    first = begin + int(cell.warm * 1e9) * stage.scale
    edges = [first + i * width for i in range(round(cell.seconds * 10) + 1)]
    bins = []
    for tenant, seen in zip(cell.tenants, ends, strict=True):
        each = length(tenant) * 1000 * stage.scale / width
        # Alone on the GPU a command runs without a break, just before its end; beside others the time when it ran is unknown.
        longest = each * width if len(cell.tenants) == 1 else 1e18
        known = [[at for at in process if at <= stopped_at] for process in seen]
        had = [sum(work_until(process, each, begin, at, longest) for process in known) for at in edges]
        bins.append([after - before for before, after in zip(had, had[1:], strict=False)])
    return {"bins": bins, "first_bin": 0, "latency_ms": [[] for _ in bins]}


class _Containers:
    """All containers of a cell, ready."""

    def __init__(self, stage: Any, cell: Cell, gpu: int, native: bool) -> None:
        self.managers = [
            stage.tenant(gpu, None if native else cell.annotations(t, gpu, stage.memory), procs=t.get("procs", 1))
            for t in cell.tenants
        ]
        self.entered: list[Any] = []

    def __enter__(self) -> list[Any]:
        try:
            self.entered.extend(m.__enter__() for m in self.managers)
        except BaseException:
            self.__exit__()
            raise
        return self.entered

    def __exit__(self, *_: object) -> None:
        for manager, _container in zip(self.managers, self.entered, strict=False):
            manager.__exit__(None, None, None)


def judge(cell: Cell, measured: Json, duty: list[float]) -> Json:
    """The figures of a cell from what was measured and from the tenants' alone references."""
    settled = [b[round(10 * cell.settle) :] for b in measured["bins"]]
    got = [sum(b) / len(b) for b in settled]
    weights = [float(t.get("weight", 100)) for t in cell.tenants]
    caps = [t.get("cap", 0) / 100 for t in cell.tenants]
    owed = metrics.entitlement(weights, [min(d, c) if c else d for d, c in zip(duty, caps, strict=True)])
    x = [g / d if d else 0.0 for g, d in zip(got, duty, strict=True)]
    out: Json = {"gpu_time": got, "owed": owed, "throughput": x, "efficiency": sum(x)}
    if cell.group == "burst":
        return {**out, **_phases(cell, measured, weights)}
    if len(got) > 1:
        out["error"] = metrics.share_error(got, owed)
        out["jain"] = metrics.jain([g / e for g, e in zip(got, owed, strict=True) if e])
    for name, n in (("worst_second", 10), ("worst_5_seconds", 50)):
        starts = range(len(measured["bins"][0]) - n + 1)
        if cell.exact and len(got) > 1 and starts:
            out[name] = min(
                sum(b[i : i + n]) / n / e for b, e in zip(measured["bins"], owed, strict=True) if e for i in starts
            )
    if any(caps):
        out["cap_error"] = max((100 * (g - c) for g, c in zip(got, caps, strict=True) if c), key=abs)
        for seconds in (1, 2):
            over, n = [0.0], 10 * seconds
            for b, c in zip(measured["bins"], caps, strict=True):
                over += [100 * (sum(b[i : i + n]) / n - c) for i in range(len(b) - n + 1)] if c else []
            out[f"cap_over_{seconds}s"] = max(over)
    return out


def _phases(cell: Cell, measured: Json, weights: list[float]) -> Json:
    """Error while all run, less each phase's first 0.3 s; the longest time from a start until the error since then
    stays within 5 points."""
    (phased,) = (t for t in cell.tenants if t.get("off"))
    on, period = round(phased["on"] / 1e5), round((phased["on"] + phased["off"]) / 1e5)
    bins = list(zip(*measured["bins"], strict=True))
    first = measured["first_bin"]
    settled, step, seen = [0.0] * len(weights), 0, 0
    for begin in range((-first) % period, len(bins) - on + 1, period):
        since = [0.0] * len(weights)
        seen += 1
        for i, bin_ in enumerate(bins[begin : begin + on]):
            since = [a + b for a, b in zip(since, bin_, strict=True)]
            if i >= 3:
                settled = [a + b for a, b in zip(settled, bin_, strict=True)]
            if metrics.share_error(since, weights) > 5:
                step = max(step, i + 1)
    error = metrics.share_error(settled, weights)
    return {"error": error, "step_ms": step * 100, "phases": seen, "bins": measured["bins"]}


def to_model(cell: Cell, native: bool) -> Scenario:
    """The same tenants for the virtual-time model: a graph is one long command, a container with n processes is n
    tenants to the driver and one to gpu-hook."""
    tenants: list[Json] = []
    for t in cell.tenants:
        m = {"count": 1, "kernel": 80, "host": 5, **t}
        graph, procs = m.pop("graph", 0), m.pop("procs", 1)
        m.pop("streams", None)
        for word in ("depth", "phases", "pause", "shapes", "grow", "fresh", "quiet"):
            m.pop(word, None)
        if m.pop("train", 0):
            m.update(kernel=205, sigma=0.9)
        if graph:
            m.update(kernel=m["kernel"] * graph, sigma=m.get("sigma", 0) / graph**0.5)
        if native and procs > 1:
            tenants += [dict(m) for _ in range(procs)]
        else:
            tenants.append(m)
    return Scenario(cell.name, cell.name, tuple(tenants), {})


def predict(cell: Cell, native: bool) -> Json:
    """The model's figures in the shape of `judge`'s."""
    scenario = to_model(cell, native)
    policy = "native" if native else "learned"
    (raw,) = model_run.run_text(model_run.to_text(scenario, policy, 1, model_run.Calibration()))
    figures = metrics.figures(scenario, policy, raw)
    duty = [a["executed"] / raw["measured"] for a in raw["alone"]]
    got, x = list(figures["gpu_time"]), list(figures["throughput"])
    merged_got, merged_x, merged_duty = [], [], []
    for t in cell.tenants:
        n = t.get("procs", 1) if native else 1
        merged_got.append(sum(got[:n]))
        merged_x.append(sum(x[:n]))
        merged_duty.append(duty[0])
        got, x, duty = got[n:], x[n:], duty[n:]
    out: Json = {"gpu_time": merged_got, "throughput": merged_x, "efficiency": sum(merged_x)}
    if cell.group == "burst":
        return {**out, "error": figures["share_error_points"], "step_ms": figures["step_ms"]}
    weights = [float(t.get("weight", 100)) for t in cell.tenants]
    caps = [t.get("cap", 0) / 100 for t in cell.tenants]
    if len(cell.tenants) > 1:
        owed = metrics.entitlement(weights, [min(d, c) if c else d for d, c in zip(merged_duty, caps, strict=True)])
        out["error"] = metrics.share_error(merged_got, owed)
        out["jain"] = metrics.jain([g / e for g, e in zip(merged_got, owed, strict=True) if e])
    if any(caps):
        out["cap_error"] = figures["cap_error_points"]
        out["cap_over_1s"] = figures["cap_overshoot_1s_points"]
    return out
