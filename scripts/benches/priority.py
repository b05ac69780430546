"""Online requests over offline work on simulated cards: real containers with the shipped stand-in, the bare driver and
the virtual-time model beside them.

Online: open-loop Poisson requests of 120 kernels of 30 us, latency from the intended arrival. Offline: one container
that keeps the card busy. Cells run in lanes, each on a card of its own.
"""

import bisect
import functools
import os
import time
from typing import Any

from load import cells, report
from load.cells import GRAPH, Cell, in_lanes, say
from load.stage import Stage
from load.tenant import Json

from oci_hook.sim import model_run
from oci_hook.sim.model import metrics
from oci_hook.sim.model.scenarios import OFFLINE, ONLINE, requests

SCALE = int(os.environ.get("GPU_HOOK_BENCH_SCALE", "10"))
LANES = int(os.environ.get("GPU_HOOK_BENCH_LANES", "8"))
REQUESTS = {50: int(os.environ.get("GPU_HOOK_BENCH_REQUESTS", "1000")), 20: 200, 5: 60}
SHORT_REQUESTS = 60
PRIME, MASK = 1099511628211, (1 << 64) - 1

OFFLINES: dict[str, Json] = {
    "80 us": {"kernel": 80, "sigma": 0.5},
    "0.3 ms": {"kernel": 300, "sigma": 0.5},
    "0.7 ms": {"kernel": 700, "sigma": 0.5},
    "1.4 ms": {"kernel": 1400, "sigma": 0.5},
    "5 ms": {"kernel": 5000, "sigma": 0.5},
    "11 ms": {"kernel": 11000, "sigma": 0.5},
    "graphs of 4 ms": GRAPH,
    "training": {"train": 1, "count": 160, "sync": 1, "gap": 300},
}


def online(rate: int) -> Json:
    return {k: v for k, v in requests(rate, spread="exponential").items() if k != "linger"} | {"class": ONLINE}


class Pair:
    """A rate of online requests over a kind of offline work."""

    def __init__(self, rate: int, offline: str) -> None:
        self.rate, self.offline = rate, offline
        self.name = f"{rate}/s over {offline}"
        self.cell = Cell(self.name, "priority", online(rate), {**OFFLINES[offline], "class": OFFLINE})


PAIRS = [Pair(50, k) for k in OFFLINES] + [Pair(rate, k) for rate in (20, 5) for k in ("80 us", "training")]
SHORT = ("50/s over 80 us", "5/s over 80 us")


def fold(count: int) -> int:
    """The load generator's checksum over `count` commands that each ended once and in order."""
    value = 0
    for i in range(count):
        value = (value ^ i) * PRIME & MASK
    return value


def measure_pair(stage: Any, pair: Pair, count: int, native: bool, card: int) -> Json:
    """Latencies and the offline tenant's part, over `count` requests."""
    begin = time.monotonic()
    high, low = pair.cell.tenants
    kinds = [None if native else pair.cell.annotations(t, card, stage.memory) for t in (high, low)]
    with stage.tenant(card, kinds[0]) as a, stage.tenant(card, kinds[1]) as b:
        b.run(f"trace=1 ends=1 {cells.words(low)}")
        stage.wait(0.5)
        a.run(f"units={count} seed={pair.rate + 7} {cells.words(high)}")
        (result,) = a.results(seconds=4 * (count / pair.rate + 5) * stage.scale)
        (offline,) = b.stop()
        ends, launches = b.ends(), b.traced()
    say(f"{time.monotonic() - begin:5.1f} s  {'native' if native else 'shared'}  {pair.name}")
    return {"requests": result["latency"], **_judge(result, offline, ends, launches, stage.scale)}


def _judge(result: Json, offline: Json, ends: list[int], launches: list[int], scale: int) -> Json:
    ms = 1e6 * scale
    latency, free, late, release = [], [], [], []
    previous = 0
    for due, launched, done in result["latency"]:
        latency.append((done - due) / ms)
        if launched - previous > 0.2 * ms:  # the card was idle of online work before
            last = bisect.bisect_right(ends, done)
            free.append(max(0.0, (ends[last - 1] - launched) / ms) if last else 0.0)
            last = bisect.bisect_right(launches, done)
            late.append(max(0.0, (launches[last - 1] - launched) / ms) if last else 0.0)
            after = bisect.bisect_right(launches, previous)
            if previous and after < len(launches) and launches[after] < launched:
                release.append((launches[after] - previous) / ms)
        previous = done
    begin, end = result["from_ns"], result["to_ns"]
    first = int(begin / (cells.BIN_NS * scale)) + 1
    bins = cells.window([offline], first, max(1, int(end / (cells.BIN_NS * scale)) - first))
    return {
        "latency_ms": latency,
        "low_free_ms": free,
        "low_submits_ms": late,
        "release_ms": release,
        "low_gpu_time": sum(bins) / len(bins),
        "checksum_ok": offline["fold"] == fold(offline["retired"]) and offline["retired"] == offline["launches"],
    }


def alone_latency(stage: Any, rate: int, count: int, card: int) -> list[float]:
    tenant = online(rate)
    annotations = Cell("", "", tenant).annotations(tenant, card, stage.memory)
    with stage.tenant(card, annotations) as container:
        container.run(f"units={count} seed={rate + 7} {cells.words(tenant)}")
        (result,) = container.results(seconds=4 * (count / rate + 5) * stage.scale)
    return [(done - due) / 1e6 / stage.scale for due, _, done in result["latency"]]


def _alone(stage: Any, tenant: Json, seconds: float, card: int) -> float:
    return cells.alone(stage, tenant, card, seconds)


def predict(pair: Pair, native: bool) -> Json:
    """The model's figures of the same pair (adaptive linger)."""
    scenario = cells.to_model(pair.cell, native)
    scenario.settings["length"] = 1e6 * (30 if pair.rate == 50 else 100)
    scenario.tenants[0]["linger"] = 0
    policy = "native" if native else "learned"
    (raw,) = model_run.run_text(model_run.to_text(scenario, policy, 1, model_run.Calibration()))
    figures = metrics.figures(scenario, policy, raw)
    return {
        "p99_ratio": figures["latency"][0]["p99_ratio"],
        "p50_ratio": figures["latency"][0]["p50_ratio"],
        "harvest": figures["harvest"],
        "low_free_p99_ms": figures["low_free_ms"]["p99"] if figures["low_free_ms"] else None,
    }


def measure(short: bool) -> Json:
    """Everything that was measured, with the model's predictions."""
    pairs = [p for p in PAIRS if not short or p.name in SHORT]
    count = {rate: SHORT_REQUESTS if short else n for rate, n in REQUESTS.items()}
    count[5] = 12 if short else count[5]
    rates = sorted({p.rate for p in pairs})
    kinds = sorted({p.offline for p in pairs})
    stage = Stage(LANES, SCALE)
    begin = time.monotonic()
    try:
        references = [functools.partial(_alone, stage, OFFLINES[k], 0.5 if short else 1) for k in kinds]
        alone_jobs = [functools.partial(alone_latency, stage, rate, count[rate]) for rate in rates]
        cells_ = [(p, native) for p in pairs for native in (False, True)]
        jobs = [functools.partial(measure_pair, stage, p, count[p.rate], native) for p, native in cells_]
        results = in_lanes(stage, LANES, [*jobs, *alone_jobs, *references])
    finally:
        stage.close()
    measured, rest = results[: len(jobs)], results[len(jobs) :]
    alone = dict(zip(rates, rest, strict=False))
    duty = dict(zip(kinds, rest[len(rates) :], strict=True))
    rows = []
    for (pair, native), m in zip(cells_, measured, strict=True):
        rows.append(row(pair, native, m, alone[pair.rate], duty[pair.offline]))
    return {
        "what": "simulated cards; real containers with the shipped stand-in",
        "calibration": report.calibration(),
        "time_scale": SCALE,
        "seconds": round(time.monotonic() - begin),
        "alone_ms": alone,
        "rows": rows,
    }


def row(pair: Pair, native: bool, m: Json, alone: list[float], duty: float) -> Json:
    def p99(values: list[float]) -> float | None:
        return metrics.percentile(values, 0.99) if values else None

    median, busy = metrics.percentile(alone, 0.5), pair.rate * 120 * 30e-6
    return {
        "cell": pair.name,
        "rate": pair.rate,
        "offline": pair.offline,
        "native": native,
        "requests": len(m["latency_ms"]),
        "p50_ratio": metrics.percentile(m["latency_ms"], 0.5) / median,
        "p99_ratio": metrics.percentile(m["latency_ms"], 0.99) / metrics.percentile(alone, 0.99),
        "lost_p99_ms": p99([max(0.0, x - y) for x, y in zip(m["latency_ms"], alone, strict=True)]),
        "low_free_p50_ms": metrics.percentile(m["low_free_ms"], 0.5) if m["low_free_ms"] else None,
        "low_free_p99_ms": p99(m["low_free_ms"]),
        "low_submits_p99_ms": p99(m["low_submits_ms"]),
        "release_p50_ms": metrics.percentile(m["release_ms"], 0.5) if m["release_ms"] else None,
        "release_p99_ms": p99(m["release_ms"]),
        "harvest": m["low_gpu_time"] / duty / (1 - busy),
        "checksum_ok": m["checksum_ok"],
        "latency_ms": [round(x, 4) for x in m["latency_ms"]],
        "predicted": predict(pair, native),
    }


def run(short: bool) -> dict[str, Json]:
    """The figures of design and issue; `report.last` keeps the rows for tables and plots."""
    data = report.last["priority"] = measure(short)
    ours = {r["cell"]: r for r in data["rows"] if not r["native"]}
    figure = report.figure

    def worst(key: str, *offline: str) -> float:
        return max((r[key] for r in ours.values() if r["offline"] in offline and r[key] is not None), default=0.0)

    at_50 = ours["50/s over 80 us"]
    return {
        "online_p99_ratio": figure(at_50["p99_ratio"], "x", 1.10),
        "offline_free_p99_ms": figure(worst("low_free_p99_ms", "80 us", "0.3 ms"), "ms", 0.5),
        "offline_submits_p99_ms": figure(worst("low_submits_p99_ms", *OFFLINES), "ms", None),
        "online_lost_p99_ms": figure(worst("lost_p99_ms", "80 us", "0.3 ms", "0.7 ms"), "ms", 1),
        "harvest_50rps": figure(at_50["harvest"], "", 0.85, least=True),
        "harvest_5rps": figure(ours["5/s over 80 us"]["harvest"], "", 0.95, least=True),
        "release_p50_ms": figure(at_50["release_p50_ms"] or 0.0, "ms", None),
        "checksums_wrong": figure(sum(not r["checksum_ok"] for r in data["rows"]), "", 0),
        "requests": figure(at_50["requests"], "", None),
    }


def table() -> list[list[str]]:
    data = report.last["priority"]
    native = {r["cell"]: r for r in data["rows"] if r["native"]}
    heading = ["online over offline", "requests", "p50", "p99", "predicted", "native p99", "lost p99, ms"]
    out = [[*heading, "card free p99, ms", "predicted", "harvest", "predicted", "native"]]
    for r in (r for r in data["rows"] if not r["native"]):
        n, p = native[r["cell"]], r["predicted"]
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
    return f"{report.label(data)}, {data['seconds']} s\n{report.aligned(table())}"


def write_docs(figures: dict[str, Json]) -> None:
    from load import plots  # matplotlib takes its time

    data = report.last["priority"]
    plots.latency(data)
    plots.harvest(data)
    slim = {**data, "rows": [{k: v for k, v in r.items() if k != "latency_ms"} for r in data["rows"]]}
    del slim["alone_ms"]
    report.write("priority", slim, figures, [table()])
