"""Online requests over offline work on simulated GPUs: real containers with the shipped shim, the bare driver and
the virtual-time model beside them.

Online: open-loop Poisson requests of 120 kernels of 30 us, latency from the intended arrival. Offline: one container
that keeps the GPU busy. Cells run in lanes, each on a GPU of its own. A whole run is long: with --keep FILE the parts
measured so far are kept there, --cells says which to measure now, and the figures are of all that are there.
"""

import bisect
import functools
import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks import _report as report
from gpu_hook_simulator import model_run
from gpu_hook_simulator.model import metrics
from gpu_hook_simulator.model.scenarios import OFFLINE, ONLINE, requests
from testbed.load import cells
from testbed.load.cells import GRAPH, Cell, in_lanes, say
from testbed.load.stage import Stage
from testbed.load.tenant import Json

SCALE = int(os.environ.get("GPU_HOOK_BENCH_SCALE", "10"))
LANES = int(os.environ.get("GPU_HOOK_BENCH_LANES", "4"))
REQUESTS = 1000
SECONDS = {50: 10, 20: 15, 5: 15}  # of GPU time in one run; more requests are several runs
KILLS = 50  # of the online container, per run
SHORT_REQUESTS = 60
SEED = 7
PRIME, MASK = 1099511628211, (1 << 64) - 1

OFFLINES: dict[str, Json] = {
    "80 us": {"kernel": 80, "sigma": 0.5},
    "0.3 ms": {"kernel": 300, "sigma": 0.5},
    "0.3 ms each": {"kernel": 300},
    "0.7 ms": {"kernel": 700, "sigma": 0.5},
    "0.7 ms each": {"kernel": 700},
    "1.4 ms": {"kernel": 1400, "sigma": 0.5},
    "5 ms": {"kernel": 5000, "sigma": 0.5},
    "11 ms": {"kernel": 11000, "sigma": 0.5},
    "20 ms each": {"kernel": 20000, "depth": 4},
    "graphs of 4 ms": GRAPH,
    "training": {"train": 1, "count": 160, "sync": 1, "gap": 300},
}


LONG_REQUEST: Json = {"count": 40, "kernel": 500, "host": 6, "sync": 1, "spread": "uniform", "class": ONLINE}
KINDS: dict[str, Json] = {  # of requests: 3.6 ms in small kernels, which come at random; and 20 ms
    "": {k: v for k, v in requests(1, spread="exponential").items() if k != "linger"} | {"class": ONLINE},
    "20 ms": LONG_REQUEST,
    "20 ms in 5 phases": {**LONG_REQUEST, "phases": 5, "pause": 3000},  # with rests of 1 to 5 ms
}


def online(rate: int, kind: str = "") -> Json:
    return {**KINDS[kind], "period": 1e6 / rate}


def work(kind: str) -> float:
    """Seconds of GPU time of a request."""
    return float(KINDS[kind]["count"] * KINDS[kind]["kernel"] * 1e-6)


class Pair:
    """A rate of online requests over a kind of offline work. linger: the setting; 0 adaptive, or a time in ms.
    most: bound on the number of requests. kind: of KINDS."""

    def __init__(self, rate: int, offline: str, linger: float = 0, most: int = 1 << 30, kind: str = "") -> None:
        self.rate, self.offline, self.linger, self.most, self.kind = rate, offline, linger, most, kind
        self.name = f"{rate}/s{f' of {kind}' if kind else ''} over {offline}" + (
            f", linger {linger:g} ms" if linger else ""
        )
        self.cell = Cell(self.name, "priority", online(rate, kind), {**OFFLINES[offline], "class": OFFLINE})


RELEASE = (Pair(50, "80 us", 2, 250), Pair(5, "80 us", 100, 50))
LONG = [Pair(5, "20 ms each", most=200, kind=kind) for kind in KINDS if kind]
PAIRS = [Pair(50, k) for k in OFFLINES if k != "20 ms each"]
PAIRS += [Pair(rate, k) for rate in (20, 5) for k in ("80 us", "training")] + LONG
SHORT = ("50/s over 80 us", "5/s over 80 us", *(p.name for p in LONG))


def fold(count: int) -> int:
    """The load generator's checksum over `count` commands that each ended once and in order."""
    value = 0
    for i in range(count):
        value = (value ^ i) * PRIME & MASK
    return value


def measure_pair(stage: Any, pair: Pair, count: int, native: bool, gpu: int, seed: int = SEED) -> Json:
    """Latencies and the offline tenant's part, over `count` requests."""
    begin = time.monotonic()
    high, low = pair.cell.tenants
    kinds = [None if native else pair.cell.annotations(t, gpu, stage.memory) for t in (high, low)]
    with stage.tenant(gpu, kinds[0]) as a, stage.tenant(gpu, kinds[1]) as b:
        b.run(f"trace=1 ends=1 {cells.words(low)}")
        stage.wait(0.5)
        result, ended = _requests(stage, a, pair.rate, count, seed, pair.kind)
        (offline,) = b.stop()
        ends, launches = b.ends(), b.traced()
    say(f"{time.monotonic() - begin:5.1f} s  {'native' if native else 'shared'}  {pair.name}")
    return _judge(result, ended, offline, ends, launches, stage.scale)


def _requests(stage: Any, tenant: Any, rate: int, count: int, seed: int, kind: str = "") -> tuple[Json, list[int]]:
    """The online tenant's report, and the time when each request's last kernel ended on the GPU."""
    tenant.run(f"units={count} seed={rate + seed} ends=2 {cells.words(online(rate, kind))}")
    (result,) = tenant.results(seconds=4 * (count / rate + 5) * stage.scale)
    ends = tenant.ends()
    return result, [ends[bisect.bisect_right(ends, done) - 1] for _, _, done in result["latency"]]


def _judge(result: Json, ended: list[int], offline: Json, ends: list[int], launches: list[int], scale: int) -> Json:
    ms = 1e6 * scale
    free, late, release = [], [], []
    previous = 0
    for (_due, launched, _done), end in zip(result["latency"], ended, strict=True):
        if launched - previous > 0.2 * ms:  # the GPU was idle of online work before
            last = bisect.bisect_right(ends, end)
            free.append(max(0.0, (ends[last - 1] - launched) / ms) if last else 0.0)
            last = bisect.bisect_right(launches, end)
            late.append(max(0.0, (launches[last - 1] - launched) / ms) if last else 0.0)
            after = bisect.bisect_right(launches, previous)
            if previous and after < len(launches) and launches[after] < launched:
                release.append((launches[after] - previous) / ms)
        previous = end
    begin, end = result["from_ns"], result["to_ns"]
    first = int(begin / (cells.BIN_NS * scale)) + 1
    bins = cells.window([offline], first, max(1, int(end / (cells.BIN_NS * scale)) - first))
    return {
        **_latencies(result, ended, scale),
        "low_free_ms": free,
        "low_submits_ms": late,
        "release_ms": release,
        "low_gpu_time": sum(bins) / len(bins),
        "checksum_ok": offline["fold"] == fold(offline["retired"]) and offline["retired"] == offline["launches"],
    }


def _latencies(result: Json, ended: list[int], scale: int) -> Json:
    """Per request, from when it was due until the program knew it was done, and until the GPU had done it."""
    ms = 1e6 * scale
    pairs = list(zip(result["latency"], ended, strict=True))
    return {
        "latency_ms": [(done - due) / ms for (due, _, done), _ in pairs],
        "gpu_ms": [(end - due) / ms for (due, _, _), end in pairs],
    }


def measure_alone(stage: Any, rate: int, count: int, gpu: int, seed: int = SEED, kind: str = "") -> Json:
    """Latencies of these requests on a GPU of their own."""
    tenant = online(rate, kind)
    annotations = Cell("", "", tenant).annotations(tenant, gpu, stage.memory)
    with stage.tenant(gpu, annotations) as container:
        return _latencies(*_requests(stage, container, rate, count, seed, kind), stage.scale)


def _alone(stage: Any, tenant: Json, seconds: float, gpu: int) -> float:
    return cells.alone(stage, tenant, gpu, seconds)


def predict(pair: Pair, native: bool) -> Json:
    """The model's figures of the same pair."""
    scenario = cells.to_model(pair.cell, native)
    scenario.settings["length"] = 1e6 * (30 if pair.rate == 50 else 100)
    scenario.tenants[0]["linger"] = 1000 * pair.linger
    policy = "native" if native else "learned"
    (raw,) = model_run.run_text(model_run.to_text(scenario, policy, 1, model_run.Calibration()))
    figures = metrics.figures(scenario, policy, raw)
    return {
        "p99_ratio": figures["latency"][0]["p99_ratio"],
        "p50_ratio": figures["latency"][0]["p50_ratio"],
        "harvest": figures["harvest"],
        "low_free_p99_ms": figures["low_free_ms"]["p99"] if figures["low_free_ms"] else None,
    }


def alone_key(rate: int, kind: str) -> str:
    return f"alone: {rate}/s" + (f" of {kind}" if kind else "")


class Part:
    """A run that is to be made: of a pair, of the online tenant alone (no pair), or of the offline one alone."""

    def __init__(
        self, rate: int, count: int, seed: int, pair: Pair | None = None, native: bool = False, kind: str = ""
    ) -> None:
        self.pair, self.rate, self.count, self.seed, self.native = pair, rate, count, seed, native
        self.kind = kind

    def key(self) -> str:
        what = (
            f"{'native' if self.native else 'shared'}: {self.pair.name}"
            if self.pair
            else alone_key(self.rate, self.kind)
        )
        return f"{what}: {self.count} from {self.seed}"

    def linger(self) -> float:
        return self.pair.linger if self.pair else 0

    def job(self, stage: Any) -> Any:
        if self.pair:
            return functools.partial(measure_pair, stage, self.pair, self.count, self.native, seed=self.seed)
        return functools.partial(measure_alone, stage, self.rate, self.count, seed=self.seed, kind=self.kind)


def parts(pair: Pair, native: bool, count: int) -> list[Part]:
    """Runs of at most SECONDS of GPU time, each with arrivals of its own. One will do but for the promised cells."""
    most = min(pair.most, SECONDS[pair.rate] * pair.rate)
    whole = min(count, most) if native or pair.rate != 50 else min(count, pair.most)
    return [
        Part(pair.rate, min(most, whole - done), SEED + i, pair, native, pair.kind)
        for i, done in enumerate(range(0, whole, most))
    ]


def measure_kills(stage: Any, gpu: int, seed: int = SEED) -> list[float]:
    """Milliseconds of GPU time from SIGKILL of an online program until the next launch of the offline work that it kept out."""
    draw = random.Random(seed)
    kinds = [Cell("", "", {"class": c}).annotations({"class": c}, gpu, stage.memory) for c in (ONLINE, OFFLINE)]
    took: list[float] = []
    with stage.tenant(gpu, kinds[0], start="run id=0 kernel=80 trace=1") as web, stage.tenant(gpu, kinds[1]) as batch:
        batch.run("trace=1 kernel=80")
        while len(took) < KILLS:
            stage.wait(draw.uniform(0.12, 0.16))
            pid, (count, last) = web.pid(), batch.launches()
            if not pid or time.monotonic_ns() - last < 2e7 * stage.scale:
                continue  # it has not come back yet
            at = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)
            after = None
            while after is None and time.monotonic_ns() < at + int(0.5e9) * stage.scale:
                time.sleep(0.002)
                after = batch.first_launch_after(at, count)
            took.append((after - at) / stage.scale / 1e6 if after else 1e9)
    say(f"{len(took)} kills")
    return took


def measure(pairs: list[Pair], natives: list[Pair], kills: int, count: int, keep: Path | None) -> Json:
    """All parts, measured or kept from before: by their keys."""
    found: Json = json.loads(keep.read_text()) if keep and keep.exists() else {}
    todo = [p for pair in pairs for p in parts(pair, False, count)]
    todo += [p for pair in natives for p in parts(pair, True, count)]
    alone = {p.key(): p for p in (Part(p.rate, p.count, p.seed, kind=p.kind) for p in todo)}
    missing = [p for p in [*todo, *alone.values()] if p.key() not in found]
    kinds = sorted({p.offline for p in pairs + natives if duty_key(p.offline) not in found})
    killed = [i for i in range(kills) if f"{KILLED}{i}" not in found]
    if not missing and not kinds and not killed:
        return found
    stage = Stage(LANES, SCALE)
    try:
        for linger in sorted({p.linger() for p in missing} | {0}):
            jobs = {p.key(): p.job(stage) for p in missing if p.linger() == linger}
            if not linger:
                jobs |= {f"{KILLED}{i}": functools.partial(measure_kills, stage, seed=SEED + i) for i in killed}
                jobs |= {duty_key(k): functools.partial(_alone, stage, OFFLINES[k], 1) for k in kinds}
            set_linger(stage, linger)
            found.update(zip(jobs, in_lanes(stage, LANES, jobs.values()), strict=True))
            if keep:
                keep.write_text(json.dumps(found))
    finally:
        stage.close()
    return found


KILLED = "killed: "


def duty_key(offline: str) -> str:
    return f"alone: {offline}"


def set_linger(stage: Any, linger: float) -> None:
    """Sets `linger` for containers that start from now on."""
    stage.cli("settings", "set", f"linger={linger:g}ms" if linger else "linger=adaptive")


def rows(found: Json) -> list[Json]:
    """One per cell and way of sharing, of all its parts."""
    out = []
    for pair in (*PAIRS, *RELEASE):
        for native in (False, True):
            word = f"{'native' if native else 'shared'}: {pair.name}: "
            tails = [k[len(word) :] for k in found if k.startswith(word)]
            if tails:
                alone = [found[f"{alone_key(pair.rate, pair.kind)}: {tail}"] for tail in tails]
                out.append(row(pair, native, [found[word + t] for t in tails], alone, found[duty_key(pair.offline)]))
    return out


def row(pair: Pair, native: bool, measured: list[Json], alone: list[Json], duty: float) -> Json:
    """The figures of runs with the same requests as those of `alone`."""

    def all_of(runs: list[Json], key: str) -> list[float]:
        return [x for m in runs for x in m[key]]

    def tail(name: str, values: list[float], also: float = 0.5) -> Json:
        found = {name: metrics.percentile(values, 0.99) if values else None}
        return {**found, name.replace("p99", "p50"): metrics.percentile(values, also) if values else None}

    latency, before = all_of(measured, "latency_ms"), all_of(alone, "latency_ms")
    lost = [max(0.0, x - y) for x, y in zip(all_of(measured, "gpu_ms"), all_of(alone, "gpu_ms"), strict=True)]
    resume = [max(0.0, x - pair.linger) for x in all_of(measured, "release_ms")] if pair.linger else []
    return {
        "cell": pair.name,
        "rate": pair.rate,
        "offline": pair.offline,
        "linger": pair.linger,
        "native": native,
        "requests": len(latency),
        "p50_ratio": metrics.percentile(latency, 0.5) / metrics.percentile(before, 0.5),
        "p99_ratio": metrics.percentile(latency, 0.99) / metrics.percentile(before, 0.99),
        **tail("lost_p99_ms", lost),
        **tail("low_free_p99_ms", all_of(measured, "low_free_ms")),
        **tail("low_submits_p99_ms", all_of(measured, "low_submits_ms")),
        "low_submits_max_ms": max(all_of(measured, "low_submits_ms"), default=None),
        **tail("release_p99_ms", all_of(measured, "release_ms")),
        **tail("resume_p99_ms", resume),
        "harvest": sum(m["low_gpu_time"] for m in measured) / len(measured) / duty / (1 - pair.rate * work(pair.kind)),
        "checksum_ok": all(m["checksum_ok"] for m in measured),
        "latency_ms": [round(x, 4) for x in latency],
        "predicted": predict(pair, native),
    }


def arguments(parser: Any) -> None:
    parser.add_argument("--requests", type=int, help=f"per cell of 50/s through gpu-hook (default {REQUESTS})")
    parser.add_argument("--cells", help="those whose name has this regular expression; `killed: ` as well")
    parser.add_argument("--native", choices=("yes", "no", "only"), default="yes", help="the bare driver's")
    parser.add_argument("--keep", type=Path, help="a file for what was measured; what is in it is not measured again")


def run(short: bool, options: Any = None) -> dict[str, Json]:
    """The figures of design and issue; `report.last` keeps the rows for tables and plots."""
    wanted = getattr(options, "cells", None) or ""
    native = getattr(options, "native", "yes")
    count = getattr(options, "requests", None) or (SHORT_REQUESTS if short else REQUESTS)
    chosen = [p for p in (*PAIRS, *RELEASE) if re.search(wanted, p.name) and (not short or p.name in SHORT)]
    for pair in PAIRS if short else ():
        pair.most = 15 if pair.rate == 5 else pair.most
    natives = [p for p in chosen if not p.linger] if native != "no" else []
    kills = 0 if short or native == "only" or not re.search(wanted, KILLED) else 2
    found = measure(chosen if native != "only" else [], natives, kills, count, getattr(options, "keep", None))
    alone: dict[int, list[float]] = {}
    for key, part in found.items():
        if (m := re.match(r"alone: (\d+)/s: ", key)) is not None:
            alone.setdefault(int(m[1]), []).extend(part["latency_ms"])
    data = report.last["priority"] = {
        "what": "simulated GPUs; real containers with the shipped shim",
        "calibration": report.calibration(),
        "time_scale": SCALE,
        "alone_ms": alone,
        "rows": rows(found),
        "thaw_ms": [x for key, part in found.items() if key.startswith(KILLED) for x in part],
    }
    return _figures(data)


def _figures(data: Json) -> dict[str, Json]:
    """The figures of the cells that were measured."""
    ours = {r["cell"]: r for r in data["rows"] if not r["native"]}
    out: dict[str, Json] = {}

    def worst(name: str, key: str, unit: str, budget: float | None, *names: str, least: bool = False) -> None:
        values = [ours[n][key] for n in names if n in ours and ours[n][key] is not None]
        if values:
            out[name] = report.figure((min if least else max)(values), unit, budget, least=least)

    def at_50(*offline: str) -> list[str]:
        return [f"50/s over {k}" for k in offline]

    worst("online_p99_ratio", "p99_ratio", "x", 1.10, *at_50("80 us"))
    worst("offline_submits_max_ms", "low_submits_max_ms", "ms", 0.1, *(p.name for p in PAIRS if p not in LONG))
    worst("offline_free_p99_ms", "low_free_p99_ms", "ms", 0.5, *at_50("80 us", "0.3 ms each"))
    worst("offline_free_scattered_p99_ms", "low_free_p99_ms", "ms", 0.5, *at_50("0.3 ms"))
    worst("online_lost_p99_ms", "lost_p99_ms", "ms", 1, *at_50("80 us", "0.3 ms", "0.3 ms each", "0.7 ms each"))
    worst("online_lost_scattered_p99_ms", "lost_p99_ms", "ms", 1, *at_50("0.7 ms"))
    worst("harvest_50rps", "harvest", "", 0.85, *at_50("80 us"), least=True)
    worst("harvest_5rps", "harvest", "", 0.95, "5/s over 80 us", least=True)
    # A request loses at most one offline kernel, however many phases it has.
    for pair in LONG:
        name = "online_lost_20ms_phases_p99_ms" if "phases" in pair.kind else "online_lost_20ms_p99_ms"
        worst(name, "lost_p99_ms", "ms", 20, pair.name)
    worst("resume_p99_ms", "resume_p99_ms", "ms", 1, *(p.name for p in RELEASE))
    if data["thaw_ms"]:
        out["thaw_after_kill_p99_ms"] = report.figure(metrics.percentile(data["thaw_ms"], 0.99), "ms", 5)
        out["kills"] = report.figure(len(data["thaw_ms"]), "", None)
    out["checksums_wrong"] = report.figure(sum(not r["checksum_ok"] for r in data["rows"]), "", 0)
    worst(
        "requests", "requests", "", None, *at_50("80 us", "0.3 ms", "0.3 ms each", "0.7 ms", "0.7 ms each"), least=True
    )
    return out


def table() -> list[list[str]]:
    data = report.last["priority"]
    native = {r["cell"]: r for r in data["rows"] if r["native"]}
    heading = ["online over offline", "sent", "p50", "p99", "predicted", "native p99", "lost p99, ms"]
    out = [[*heading, "free p99, ms", "predicted", "harvest", "predicted", "native"]]
    for r in (r for r in data["rows"] if not r["native"]):
        n, p = native.get(r["cell"]), r["predicted"]
        out.append(
            [
                r["cell"],
                str(r["requests"]),
                *(report.number(r, k, ".2f") for k in ("p50_ratio", "p99_ratio")),
                report.number(p, "p99_ratio", ".2f"),
                report.number(n, "p99_ratio", ".2f"),
                report.number(r, "lost_p99_ms", ".2f"),
                report.number(r, "low_free_p99_ms", ".2f"),
                report.number(p, "low_free_p99_ms", ".2f"),
                *(report.number(x, "harvest", ".2f") for x in (r, p, n)),
            ]
        )
    return out


def details() -> str:
    data = report.last["priority"]
    return f"{report.label(data)}\n{report.aligned(table())}"


def kept(before: Json) -> Json:
    data = report.last["priority"]
    slim = [{k: v for k, v in r.items() if k != "latency_ms"} for r in data["rows"]]
    return {**{k: v for k, v in data.items() if k != "alone_ms"}, "rows": slim}
