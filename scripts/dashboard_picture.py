"""What scripts/dashboard does: a scene of real containers on simulated GPUs, watched by the agent and a Prometheus,
and each panel of the dashboard drawn from what its own queries give. Grafana has no part in it."""

import argparse
import io
import math
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
from benches import agent
from demo_story import REPO, Stage
from matplotlib import dates, ticker
from PIL import Image
from prometheus import Dashboard, Json, Lines, Prometheus

matplotlib.use("agg")
import matplotlib.pyplot as plt

COLUMN, ROW, TOP = 0.52, 0.3, 0.62  # inches: Grafana's grid, our heading
COLOURS = {"green": "#37872d", "red": "#c4162a"}  # of thresholds
LINES = ("#1f78c1", "#e0752d", "#37872d", "#c4162a", "#8f3bb8", "#b7950b", "#0a8f8f", "#777777")
SCRAPE = 5  # seconds; the agent looks as often


def asks(name: str, gpu: int, **words: object) -> dict[str, str]:
    names = zip(("sandbox-namespace", "sandbox-name", "container-name"), name.split("/"), strict=True)
    ours = {"devices": gpu, **words}
    return {f"io.kubernetes.cri.{k}": v for k, v in names} | {f"gpu-hook.io/{k}": str(v) for k, v in ours.items()}


def work(*commands: str, every: float) -> str:
    """gpu-probe does all commands in turn, and then the last one anew every so many seconds."""
    first = "".join(f"echo {c}; " for c in commands[:-1])
    return f"({first}while :; do echo {commands[-1]}; sleep {every}; done) | gpu-probe -"


def scene(stage: Stage, seconds: float, textfiles: Path) -> None:
    """On GPU 0 three with guarantees, one of them online, and one of class offline; on GPU 1 one that goes past the
    shim. Some are refused, one ends, one is frozen for a while, and the agent has a problem for a while."""

    def start(id: str, script: str, annotations: dict[str, str], refused: bool = False) -> None:
        status, said = stage.container(id, annotations, script, detach=True, programs=[cheat])
        if (status != 0) != refused:
            raise RuntimeError(f"{id}: {said}")

    cheat = stage.dir / "bypass"
    agent.build_bypass(cheat)
    trainer = asks("ml/train-0/trainer", 0, memory="3Gi", compute=30)
    server = asks("web/chat-7f/server", 0, memory="2Gi", compute=50) | {"gpu-hook.io/class": "online"}
    evaluation = asks("ml/eval-2/eval", 0, memory="2Gi", compute=20)
    sweep = asks("batch/night/sweep", 0, memory="1Gi") | {"gpu-hook.io/class": "offline"}
    away = textfiles.with_name("away")
    acts: list[tuple[float, Callable[[], object]]] = [
        (0.02, lambda: start("c1", work("alloc 2400", "run 2000 40", every=46), trainer)),
        (0.08, lambda: start("c2", work("alloc 900", "run 300 12", every=31), server)),
        (0.14, lambda: start("c3", work("alloc 500", "run 1000 60", every=60), sweep)),
        (0.30, lambda: start("c4", work("alloc 1700", "run 1000 60", every=60), evaluation)),
        (0.36, lambda: start("c5", "bypass 700 & bypass 500 own", asks("lab/odd/job", 1, memory="1Gi"))),
        (0.45, lambda: start("r1", "true", trainer, refused=True)),
        (0.50, lambda: start("r2", "true", {**trainer, "gpu-hook.io/compute": "130"}, refused=True)),
        (0.52, lambda: start("r3", "true", trainer, refused=True)),
        (0.58, lambda: stage.runtime("delete", "--force", "c4")),
        (0.65, lambda: stage.cli("freeze", "c1")),
        (0.80, lambda: stage.cli("resume", "c1")),
        (0.85, lambda: textfiles.rename(away)),
        (0.93, lambda: away.rename(textfiles)),
        (1.00, lambda: None),
    ]
    began = time.monotonic()
    for at, act in acts:
        time.sleep(max(0.0, began + at * seconds - time.monotonic()))
        act()


def text(value: float, unit: str, decimals: int | None = None) -> str:
    """As Grafana writes it in this unit."""
    suffix = ""
    if unit == "percentunit":
        value, suffix = 100 * value, "%"
    elif unit == "bytes":
        power = min(4, int(math.log2(value) // 10)) if value >= 1 else 0
        value, suffix = value / 1024**power, " " + ("B", "KiB", "MiB", "GiB", "TiB")[power]
    elif unit == "s":
        power = 0 if value >= 1 or not value else 1 if value >= 1e-3 else 2
        value, suffix = value * 1000**power, " " + ("s", "ms", "µs")[power]
    return (f"{value:.3g}" if decimals is None else f"{value:.{decimals}f}") + suffix


def colour(value: float, defaults: Json) -> str:
    """Of the highest threshold that it has reached."""
    steps = defaults["thresholds"]["steps"]
    return COLOURS[[s["color"] for s in steps if s["value"] is None or value >= s["value"]][-1]]


class Picture:
    """Panels by their gridPos; `times` are those that the queries were asked for."""

    def __init__(self, dashboard: Dashboard, times: range, note: str) -> None:
        self.times = times
        self.colours: dict[str, str] = {}  # one of each name, in all panels
        self.rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard.panels)
        self.size = 24 * COLUMN, self.rows * ROW + TOP
        self.figure = plt.figure(figsize=self.size, facecolor="#f4f5f5")
        self.figure.text(0.006, 1 - 0.27 / self.size[1], dashboard.json["title"], fontsize=13, weight="bold")
        self.figure.text(0.006, 1 - 0.5 / self.size[1], note, fontsize=8.5, color="#444444")

    def axes(self, panel: Json, left: float, bottom: float, right: float, top: float) -> plt.Axes:
        """With so many inches of the panel around them."""
        x, y, w, h = (panel["gridPos"][k] for k in "xywh")
        place = x * COLUMN + left, (self.rows - y - h) * ROW + bottom, w * COLUMN - left - right, h * ROW - bottom - top
        return self.figure.add_axes(tuple(a / b for a, b in zip(place, self.size * 2, strict=True)))

    def draw(self, panel: Json, lines: Lines) -> None:
        frame = self.axes(panel, 0.04, 0.04, 0.04, 0.04)
        frame.set(xticks=[], yticks=[])
        frame.spines[:].set_color("#d8d9da")
        frame.annotate(panel["title"], (0, 1), (6, -12), "axes fraction", "offset points", fontsize=8.5, weight="bold")
        defaults = panel["fieldConfig"]["defaults"]
        if not lines:
            frame.text(0.5, 0.45, defaults.get("noValue", "No data"), ha="center", color="#777777")
        elif panel["type"] == "stat":
            last = lines[0][1][-1][1]
            shown = text(last, defaults["unit"], defaults.get("decimals"))
            frame.text(0.5, 0.3, shown, ha="center", fontsize=22, weight="bold", color=colour(last, defaults))
        elif panel["type"] == "bargauge":
            self.bars(self.axes(panel, 1.75, 0.3, 0.6, 0.4), defaults, lines)
        else:
            fit = (panel["gridPos"]["w"] * COLUMN - 0.2) / (0.45 + 0.057 * max(len(name) for name, _ in lines))
            columns = max(1, int(fit))
            axes = self.axes(panel, 0.65, 0.38 + 0.15 * -(-len(lines) // columns), 0.22, 0.36)
            self.lines(axes, defaults, lines)
            how = {"fontsize": 7, "frameon": False, "columnspacing": 1.2, "handlelength": 1.2, "labelspacing": 0.3}
            handles = axes.get_legend_handles_labels()
            frame.legend(*handles, loc="lower left", ncols=columns, borderaxespad=0.3, **how)

    def bars(self, axes: plt.Axes, defaults: Json, lines: Lines) -> None:
        for i, (_, points) in enumerate(lines):
            axes.barh(i, defaults["max"], 0.6, color="#e9edf2")
            axes.barh(i, points[-1][1], 0.6, color=colour(points[-1][1], defaults))
            axes.text(defaults["max"] * 1.03, i, text(points[-1][1], defaults["unit"]), va="center", fontsize=9)
        axes.set(xlim=(0, defaults["max"]), xticks=[])
        axes.set_yticks(range(len(lines)), [name for name, _ in lines], fontsize=7.5)
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)

    def lines(self, axes: plt.Axes, defaults: Json, lines: Lines) -> None:
        for name, points in lines:
            values = dict(points)
            y = [values.get(at, math.nan) for at in self.times]
            axes.plot([at / 86400 for at in self.times], y, lw=1.2, color=self.colour(name), label=name)
        scale = defaults.get("custom", {}).get("scaleDistribution", {"type": "linear"})["type"]
        axes.set_yscale(scale)
        axes.set_xlim(self.times[0] / 86400, self.times[-1] / 86400)
        axes.set_ylim(defaults.get("min"), defaults.get("max"))
        low, high = axes.get_ylim()
        if defaults["unit"] == "bytes":
            axes.yaxis.set_major_locator(ticker.MultipleLocator(2 ** math.ceil(math.log2((high - low) / 5))))
        elif scale == "linear":
            axes.yaxis.set_major_locator(ticker.MaxNLocator(5))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: text(value, defaults["unit"]))
        axes.xaxis.set_major_locator(dates.MinuteLocator())
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
        axes.tick_params(labelsize=7, length=0)
        axes.grid(color="#e5e7eb", lw=0.6)
        axes.spines[:].set_visible(False)

    def colour(self, name: str) -> str:
        return self.colours.setdefault(name, LINES[len(self.colours) % len(LINES)])

    def save(self, file: Path) -> None:
        """A few colours are enough, and a tenth of the bytes."""
        whole = io.BytesIO()
        self.figure.savefig(whole, dpi=100)
        Image.open(whole).convert("RGB").quantize(128).save(file, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/dashboard")
    parser.add_argument("file", nargs="?", type=Path, default=REPO / "docs/guide/dashboard.png")
    parser.add_argument("--seconds", type=float, default=400, help="how long the scene is")
    args = parser.parse_args()
    dashboard = Dashboard()
    stage = Stage(simulated=True)
    try:
        stage.cli("install", "--no-engines", "--state-dir", str(stage.state))
        stage.cli("sim", "up", "--gpus", "2", "--memory", "8Gi")
        textfiles = stage.dir / "textfiles"
        textfiles.mkdir()
        with agent.agent(stage, "--textfile", f"{textfiles}/gpu_hook.prom"):
            prometheus = Prometheus(stage.dir, f"127.0.0.1:{agent.PORT}", SCRAPE)
            try:
                start = int(time.time())
                scene(stage, args.seconds, textfiles)
                times = range(start, int(time.time()), SCRAPE)
                note = f"what its queries gave in Prometheus {prometheus.version}; simulated GPUs; UTC"
                picture = Picture(dashboard, times, f"drawn by scripts/dashboard, not by Grafana, from {note}")
                for panel in dashboard.panels:
                    picture.draw(panel, dashboard.series(panel, prometheus, times[0], times[-1], SCRAPE))
                picture.save(args.file)
            finally:
                prometheus.close()
    finally:
        stage.close()


if __name__ == "__main__":
    main()
