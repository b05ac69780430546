"""Plots of the benchmark `cluster` for docs/internals/benchmarks.md."""

from benchmarks._plots import MODEL, NATIVE, OURS, Json, _save, plt

COLORS = ("#2a6fbb", "#b8b8b8", "#7fb069", "#e6aa68", "#8d6a9f", "#dddddd")


def growth(data: Json) -> None:
    """How does the cost of a decision grow?"""
    kinds = list(dict.fromkeys(row["by"] for row in data.get("growth", ())))
    if not kinds:
        return
    figure, grid = plt.subplots(1, len(kinds), figsize=(7.2, 2.2), sharey=True, layout="constrained")
    lines = (
        ("filter_p99_ms", "filter, p99", NATIVE),
        ("filter_p50_ms", "filter, p50", OURS),
        ("bind_p50_ms", "bind, p50", MODEL),
    )
    for axes, kind in zip(grid, kinds, strict=True):
        rows = [row for row in data["growth"] if row["by"] == kind]
        for key, name, color in lines:
            axes.plot(
                [row["at"] for row in rows], [row[key] for row in rows], marker="o", ms=3, lw=1, color=color, label=name
            )
        axes.set_xlabel(kind)
        axes.set_ylim(bottom=0)
    grid[0].set_ylabel("processor time, ms")
    grid[0].legend(fontsize=6)
    _save(figure, "cluster-growth", data)


def programs(data: Json) -> None:
    """Which program does the processor's time go to, for one pod?"""
    rows = [row for row in data.get("rounds", ()) if not row["nowhere"] and "churn" not in row["round"]]
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(7.2, 0.3 * len(rows) + 1), layout="constrained")
    names = [name for name in rows[0]["cpu_ms"] if name != "load generator"]
    for at, row in enumerate(reversed(rows)):
        left = 0.0
        for name, color in zip(names, COLORS, strict=False):
            value = row["cpu_ms"].get(name, 0.0)
            axes.barh(at, value, 0.7, left=left, color=color, label=None if at else name)
            left += value
    axes.set_yticks(range(len(rows)), [f"{row['round']}, {row['nodes']} nodes" for row in reversed(rows)])
    axes.set_xlabel("processor time for one pod, ms, from the scheduler's start to the last pod's node")
    axes.legend(fontsize=6)
    _save(figure, "cluster-programs", data)
