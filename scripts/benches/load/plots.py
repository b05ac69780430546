"""Plots for docs/benchmarks.md (matplotlib, SVG). One question each."""

from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from . import report

Json = dict[str, Any]
NATIVE, OURS, MODEL = "#b8b8b8", "#2a6fbb", "#222222"
matplotlib.rcParams.update({"svg.hashsalt": "gpu-hook", "font.size": 8, "svg.fonttype": "none"})


def _save(figure: Any, name: str, data: Json) -> None:
    figure.text(0.99, 0.005, report.label(data), ha="right", va="bottom", fontsize=6, color="#666666")
    folder = report.DOCS / "benchmarks"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def share_error(data: Json) -> None:
    """How far is each tenant from what it is owed?"""
    rows = [r for r in data["rows"] if not r["native"] and "error" in r]
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
    rows = [
        r for r in data["rows"] if not r["native"] and len(r["gpu_time"]) > 1 and r["group"] not in ("burst", "caps")
    ]
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
    grid[-1].set_xlabel("seconds of card time; blue: guaranteed 30 %, busy every other second; grey: guaranteed 70 %")
    _save(figure, "share-burst", data)
