"""Plots for docs/internals/benchmarks.md (matplotlib, SVG). One question each."""

from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks import _report as report
from testbed.load.cells import LIGHTS

Json = dict[str, Any]
NATIVE, OURS, MODEL = "#b8b8b8", "#2a6fbb", "#222222"
matplotlib.rcParams.update({"svg.hashsalt": "gpu-hook", "font.size": 8, "svg.fonttype": "none"})


TABLE = ("start", *LIGHTS)  # groups of many cells, for which the table is enough


def _save(figure: Any, name: str, data: Json) -> None:
    figure.text(0.99, 0.005, report.label(data), ha="right", va="bottom", fontsize=6, color="#666666")
    folder = report.DOCS / "benchmarks"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def share_error(data: Json) -> None:
    """How far is each tenant from what it is owed?"""
    rows = [r for r in data["rows"] if not r["native"] and "error" in r and r["group"] not in TABLE]
    native = {r["cell"]: r for r in data["rows"] if r["native"]}
    figure, axes = plt.subplots(figsize=(7.2, 0.34 * len(rows) + 1), layout="constrained")
    for i, r in enumerate(reversed(rows)):
        if r["cell"] in native:
            axes.barh(i + 0.2, native[r["cell"]]["error"], 0.36, color=NATIVE, label="bare driver" if not i else None)
        axes.barh(i - 0.2, r["error"], 0.36, color=OURS, label="gpu-hook" if not i else None)
        axes.plot(r["predicted"]["error"], i - 0.2, "|", color=MODEL, ms=7, label="model" if not i else None)
    axes.set_yticks(range(len(rows)), [r["cell"] for r in reversed(rows)])
    axes.set_xlabel("share error of the worst tenant, points")
    axes.legend(loc="lower right")
    _save(figure, "share-error", data)


def share_sum(data: Json) -> None:
    """What does sharing cost, or gain, in throughput?"""
    drawn = [r for r in data["rows"] if not r["native"] and r["group"] not in ("burst", "caps", *TABLE)]
    rows = [r for r in drawn if len(r["gpu_time"]) > 1]
    native = {r["cell"]: r for r in data["rows"] if r["native"]}
    figure, axes = plt.subplots(figsize=(7.2, 0.34 * len(rows) + 1), layout="constrained")
    for i, r in enumerate(reversed(rows)):
        axes.barh(i + 0.2, native[r["cell"]]["efficiency"], 0.36, color=NATIVE, label="bare driver" if not i else None)
        axes.barh(i - 0.2, r["efficiency"], 0.36, color=OURS, label="gpu-hook" if not i else None)
        axes.plot(r["predicted"]["efficiency"], i - 0.2, "|", color=MODEL, ms=7, label="model" if not i else None)
    axes.set_yticks(range(len(rows)), [r["cell"] for r in reversed(rows)])
    axes.axvline(1, color="#999999", lw=0.6)
    axes.set_xlabel("sum of throughputs, each over its throughput alone")
    axes.legend(loc="lower right")
    _save(figure, "share-sum", data)


def burst(data: Json) -> None:
    """How soon does a share come back when its tenant does?"""
    rows = [r for r in data["rows"] if r["group"] == "burst"]
    if not rows:
        return
    figure, grid = plt.subplots(len(rows), 1, figsize=(7.2, 1.5 * len(rows) + 0.6), sharex=True, layout="constrained")
    for axes, r in zip(grid, rows, strict=True):
        for i, bins in enumerate(r["bins"]):
            axes.step(
                [k / 10 for k in range(len(bins))], [100 * b for b in bins], where="post", color=(OURS, NATIVE)[i]
            )
        axes.set_ylabel("bare driver, %" if r["native"] else "gpu-hook, %")
        axes.set_ylim(0, 108)
        axes.axhline(30, color="#999999", lw=0.6)
    grid[-1].set_xlabel("seconds of GPU time; blue: guaranteed 30 %, busy every other second; grey: guaranteed 70 %")
    _save(figure, "share-burst", data)


def _cdf(axes: Any, values: list[float], **style: Any) -> None:
    ordered = sorted(values)
    step = max(1, len(ordered) // 150)  # small files: every so many, and the tail
    keep = [*range(0, len(ordered), step), len(ordered) - 1]
    axes.plot([ordered[i] for i in keep], [(i + 1) / len(ordered) for i in keep], lw=1, **style)


def latency(data: Json) -> None:
    """How much slower are online requests beside offline work?"""
    shown = [r for r in data["rows"] if r["rate"] == 50 and not r["linger"]]
    kinds = [r["offline"] for r in shown if not r["native"]]
    columns = min(5, len(kinds))
    lines = -(-len(kinds) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(7.2, 1.7 * lines + 0.3), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, kind in zip(grid.flat, kinds, strict=False):
        for r in (r for r in shown if r["offline"] == kind):
            color, name = (NATIVE, "bare driver") if r["native"] else (OURS, "gpu-hook")
            _cdf(axes, r["latency_ms"], color=color, label=name)
        _cdf(axes, data["alone_ms"][50], color=MODEL, ls=":", label="alone")
        axes.set_title(f"beside {kind}", fontsize=8)
        axes.set_xlim(left=3)
    for axes in list(grid.flat)[len(kinds) :]:
        axes.axis("off")
    grid.flat[0].legend(fontsize=6, loc="lower right")
    figure.supxlabel("latency of a request, ms (50/s)", fontsize=8)
    _save(figure, "priority-latency", data)


def harvest(data: Json) -> None:
    """How much of the online tenant's idle time does the offline one get?"""
    figure, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    for kind, marker in (("80 us", "o"), ("training", "s")):
        for native, color in ((True, NATIVE), (False, OURS)):
            shown = [r for r in data["rows"] if r["offline"] == kind and r["native"] == native and not r["linger"]]
            rows = sorted(shown, key=lambda r: r["rate"])
            name = f"{'bare driver' if native else 'gpu-hook'}, {kind}"
            x = [r["rate"] for r in rows]
            axes.plot(x, [100 * r["harvest"] for r in rows], marker=marker, color=color, lw=1, ms=4, label=name)
            if not native:
                axes.plot(x, [100 * r["predicted"]["harvest"] for r in rows], marker="_", ls="", color=MODEL, ms=9)
    axes.set_xlabel("online requests per second (dashes: the model)")
    axes.set_ylabel("% of idle time")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=6)
    _save(figure, "priority-harvest", data)
