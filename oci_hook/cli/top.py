"""`gpu-hook top`: the node, live; a bar per GPU and a row per container."""

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oci_hook.cli import live, output
from oci_hook.cli.freeze import frozen
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings
from oci_hook.errors import GhError
from oci_hook.ledger import admit

COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue", "bright_cyan", "bright_yellow")
SORTS = ("memory", "busy", "compute", "name", "age")
MUCH = 5  # points below the guarantee from which on SHORT is shown in red
WIDER, WIDE, NARROW = 110, 100, 64  # below that width: no SHORT; no POLICY and CLASS; no LIMIT and COMPUTE
NUMBERED = ("CONTAINER", "GPU", "MEMORY", "LIMIT", "COMPUTE", "BUSY")
MISSING = ("SHORT",)
GRANTED = ("POLICY", "CLASS")
ALL = (*NUMBERED, *MISSING, *GRANTED, "STATE")
ROOMY = ("LIMIT", "COMPUTE")
CUT = ("CONTAINER", "STATE")  # columns whose cells may be cut
TABLE = 8  # lines for the containers' table with the lines around it
KEYS = "q quit   s sort   ↑↓ select   f freeze   r resume"
Part = tuple[float, str, str]  # of a bar: fraction, colour, name
STATES = {"running": "green", "starting": "yellow", "frozen": "cyan", "paused": "cyan", "killed": "red"}


class Screen:
    """The screen: what it shows and what is selected. node: as agent.view.view() returns it."""

    def __init__(self, node: dict[str, Any], settings: Settings | None = None) -> None:
        self.node = node
        self.settings = settings
        self.sort = 0
        self.selected = ""
        self.message = ""
        self.keys = True  # keys work, and the last line names them
        self._colours: dict[str, str] = {}

    def colour(self, key: str) -> str:
        return self._colours.setdefault(key, COLOURS[len(self._colours) % len(COLOURS)])

    def containers(self) -> list[dict[str, Any]]:
        by = SORTS[self.sort]

        def rank(c: dict[str, Any]) -> tuple[Any, str]:
            if by == "name":
                return name(c), c["key"]
            if by == "age":
                return c["created"], c["key"]
            field = {"memory": "used_mib", "busy": "utilization"}.get(by, by)
            return -sum(s[field] or 0 for s in c["gpus"]), c["key"]

        return sorted(self.node["containers"], key=rank)

    def chosen(self) -> dict[str, Any] | None:
        """The selected container; the first one if that is gone."""
        order = self.containers()
        return next((c for c in order if c["key"] == self.selected), order[0] if order else None)

    def press(self, key: str) -> bool:
        """Handle a key. False: quit."""
        order = [c["key"] for c in self.containers()]
        if key in ("q", "\x03", "\x04"):
            return False
        if key == "s":
            self.sort = (self.sort + 1) % len(SORTS)
        elif key in ("f", "r"):
            self.message = self.act(key)
        elif key in ("\x1b[A", "k", "\x1b[B", "j") and order:
            at = order.index(self.selected) if self.selected in order else 0
            self.selected = order[max(0, min(len(order) - 1, at + (1 if key in ("\x1b[B", "j") else -1)))]
        return True

    def act(self, key: str) -> str:
        """Freeze or resume the selected container; the message to show."""
        chosen = self.chosen()
        if chosen is None or self.settings is None:
            return ""
        try:
            _, _, delivered = admit.alter(self.settings, chosen["id"], frozen(int(time.time()) if key == "f" else 0))
        except GhError as e:
            return str(e.problems[0])
        done = f"{'froze' if key == 'f' else 'resumed'} {output.printable(name(chosen))}"
        return done if delivered else f"{done}; not in effect yet"

    def draw(self, width: int, height: int) -> RenderableType:
        """As much as has room: four lines per GPU, or one line per GPU if there are many."""
        gpus, head = self.node["gpus"], self.head(width)
        tall = len(head) + 4 * len(gpus) + TABLE <= height
        seen = gpus if tall else gpus[: max(1, height - len(head) - TABLE)]
        parts: list[RenderableType] = list(head)
        for gpu in seen:
            parts += self.gpu(gpu, width) if tall else [self.line(gpu, width)]
        if len(seen) < len(gpus):
            parts[-1] = fit(f"and {len(gpus) - len(seen) + 1} more GPUs", "dim")
        room = height - len(parts) - 3
        keys = KEYS if width >= NARROW else "q s ↑↓ f r"
        foot = [fit(f"{keys}   sorted by {SORTS[self.sort]}   {self.message}", "dim")] if self.keys else []
        return Group(*parts, Text(), self.table(max(TABLE - 3, room), width), *foot)

    def head(self, width: int) -> list[Text]:
        agent = self.node["agent"]
        lines = [fit("gpu-hook", "bold").append(f"  driver {self.node['driver_version'] or 'none'}", "default")]
        if self.node["simulated"]:
            lines[0].append("  simulated GPUs", "yellow")
        words = {"ok": ("agent ok", "green"), "degraded": ("agent degraded", "red")}
        status = fit("  ").append(*words.get(agent["state"], ("no agent: use of the GPUs is unknown", "yellow")))
        if width >= NARROW:
            lines[0].append(status)
        else:
            lines.append(status)
        lines += [fit(f"  {what}: {output.printable(why)}", "red") for what, why in agent["problems"].items()]
        if not self.node["gpus"]:
            lines.append(fit("  no GPUs found: `gpu-hook doctor` says why", "yellow"))
        return lines

    def shares(self, gpu: dict[str, Any]) -> tuple[list[Part], list[Part]]:
        """(the parts of its memory bar, those of its compute bar)"""
        on = [(c, s) for c in self.node["containers"] for s in c["gpus"] if s["uuid"] == gpu["uuid"]]
        total = max(1, gpu["memory_mib"])
        memory = [(s["memory_mib"] / total, self.colour(c["key"]), label(c)) for c, s in on]
        limited = [(c, s) for c, s in on if s["compute"] and not s["whole"]]
        return memory, [(s["compute"] / 100, self.colour(c["key"]), label(c)) for c, s in limited]

    def gpu(self, gpu: dict[str, Any], width: int) -> list[RenderableType]:
        memory, compute = self.shares(gpu)
        head = fit(f"GPU {gpu['index']}  ", "bold").append(output.printable(gpu["name"])[:40], "dim")
        if gpu["error"]:
            head.append(f"  {output.printable(gpu['error'])}", "red")
        granted = f" {output.size(gpu['granted_mib'])} of {output.size(gpu['memory_mib'])}"
        share = f" {gpu['granted_compute']}%"
        if width >= NARROW:
            granted += "" if gpu["used_mib"] is None else f", {output.size(gpu['used_mib'])} used"
            share += "" if gpu["utilization"] is None else f", busy {gpu['utilization']}%"
            share += f", harvest {gpu['harvested']:.0f}%" if gpu["harvested"] else ""
        wide = width - 42 if width >= NARROW else max(4, width - 11 - len(granted))
        return [
            Text(),
            head,
            fit("  memory  ").append(bar(memory, wide)).append(granted),
            fit("  compute ").append(bar(compute, wide)).append(share),
        ]

    def line(self, gpu: dict[str, Any], width: int) -> Text:
        memory, _ = self.shares(gpu)
        busy = "" if gpu["utilization"] is None else f", busy {gpu['utilization']}%"
        text = output.printable(gpu["error"]) if gpu["error"] else output.size(gpu["granted_mib"]) + " granted" + busy
        head = fit(f"GPU {gpu['index']:<3}", "bold")
        return head.append(bar(memory, max(4, width - 42))).append(f" {text}", "red" if gpu["error"] else "default")

    def table(self, lines: int, width: int) -> RenderableType:
        if not self.node["containers"]:
            return fit("no container holds a share", "dim")
        table = Table(box=None, pad_edge=False, header_style="dim", expand=width >= NARROW)
        for title in self.titles(width):
            # Columns that may be cut shrink before any number does.
            table.add_column(
                title, justify="right" if title in (*NUMBERED[1:], *MISSING) else "left", no_wrap=title not in CUT
            )
        chosen = self.chosen()
        order = self.containers()
        first, at = 0, order.index(chosen) if chosen else 0
        while first < at and sum(max(1, len(c["gpus"])) for c in order[first : at + 1]) > lines:
            first += 1
        left = lines
        for c in order[first:]:
            for i, share in enumerate(c["gpus"] or [None]):
                if left > 0:
                    row = dict(zip(ALL, self.row(c, share, i == 0), strict=True))
                    table.add_row(*(row[t] for t in self.titles(width)), style="reverse" if c is chosen else "")
                    left -= 1
        return table

    def titles(self, width: int) -> list[str]:
        out = (
            *(MISSING if width < WIDER else ()),
            *(GRANTED if width < WIDE else ()),
            *(ROOMY if width < NARROW else ()),
        )
        return [t for t in ALL if t not in out]

    def row(self, c: dict[str, Any], share: dict[str, Any] | None, first: bool) -> list[Text]:
        """The cells, in the order of ALL."""
        who = fit("■ ", self.colour(c["key"])).append(output.printable(name(c)), "default") if first else Text()
        waits = waits_for(share)
        rest = [Text(c["policy"]), Text(c["class"]), self.state(c, waits)] if first or waits else [Text()] * 3
        if share is None:
            return [who, *[Text("-")] * 6, *rest]
        busy = share["utilization"] if share["compute_used"] is None else share["compute_used"]
        error = share["compute_shortfall"]
        return [
            who,
            Text("?" if share["index"] is None else str(share["index"])),
            Text("-" if share["used_mib"] is None else output.size(share["used_mib"])),
            Text("whole" if share["whole"] else output.size(share["memory_mib"])),
            Text(f"{share['compute']}%" if share["compute"] else "-"),
            Text("-" if busy is None else f"{busy:.0f}%"),
            Text("-" if error is None else f"{error:+.0f}", "red" if error and error > MUCH else ""),
            *rest,
        ]

    def state(self, c: dict[str, Any], waits: str | None) -> Text:
        """The cell of STATE. waits: the id of the container that this one waits for on the row's GPU."""
        seconds = c.get("waits_seconds")
        state = fit(c["state"] if seconds is None else f"{c['state']} {seconds}s", STATES.get(c["state"], ""))
        if waits and c["state"] == "running":
            other = next((o for o in self.node["containers"] if o["id"] == waits), None)
            state = fit(f"waits for {label(other) if other else output.short(waits)}", "yellow")
        if c["findings"]:
            state.append(" " + ",".join(sorted({f["kind"] for f in c["findings"]})), "red")
        return state


def waits_for(share: dict[str, Any] | None) -> str | None:
    """The id of the container of a higher class that keeps this share's launches back."""
    if share is None or not share["gate"] or share["gate"]["mode"] != "frozen":
        return None
    return share["waits_for"] or None


def fit(text: str, style: str = "") -> Text:
    """A text that stays on one line, cut if it is too long."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def name(c: dict[str, Any]) -> str:
    return "/".join(filter(None, (c["namespace"], c["pod"], c["name"]))) or output.short(c["id"])


def label(c: dict[str, Any]) -> str:
    return output.printable(name(c).rpartition("/")[2])


def bar(parts: list[Part], width: int) -> Text:
    """A bar of these parts, each at least one column wide; the rest is drawn as dim dots."""
    text = Text()
    for fraction, colour, word in parts:
        columns = min(max(1, round(fraction * width)), width - text.cell_len)
        text.append(word[:columns].ljust(columns), f"black on {colour}")
    return text.append("·" * (width - text.cell_len), "dim")


@contextmanager
def raw() -> Iterator[None]:
    """Read keys one by one, without echo."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def keys(seconds: float) -> list[str]:
    """The keys pressed within this time; returns as soon as there is one."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return []
    data = os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace")
    found = []
    while data:
        n = 3 if data.startswith("\x1b[") else 1
        found.append(data[:n])
        data = data[n:]
    return found or ["q"]  # end of file: the terminal is gone


@click.command()
@output.prefix_option
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Seconds between two updates."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, once.")
@click.option("--once", is_flag=True, help="Print the screen once, without keys.")
def top(prefix: str, interval: float, as_json: bool, once: bool) -> None:
    """Show GPUs and containers live.

    If the agent runs, memory and busy are the driver's figures; without it, memory is what the containers' account
    pages show. SHORT is the compute guarantee minus the compute that the container got while it had work, in points of
    the GPU over the last minute.
    """
    try:
        settings = node_settings.load(prefix)
        screen = Screen(live.node(settings, prefix), settings)
    except GhError as e:
        output.fail(e, as_json)
    if as_json:
        click.echo(json.dumps(screen.node, indent=2))
        return
    console = Console()
    if once or not (sys.stdin.isatty() and console.is_terminal):
        screen.keys = False
        console.print(screen.draw(console.width, 1000))
        return
    watch(screen, console, settings, prefix, interval)


def watch(screen: Screen, console: Console, settings: Settings, prefix: str, interval: float) -> None:
    with raw(), Live(console=console, screen=True, auto_refresh=False) as display:
        due = 0.0
        while True:
            now = time.monotonic()
            if now >= due:
                due = now + interval
                try:
                    screen.node = live.node(settings, prefix)
                except GhError as e:
                    screen.message = str(e)[:100]
            display.update(screen.draw(console.width, console.height), refresh=True)
            for key in keys(max(0.0, due - time.monotonic())):
                if not screen.press(key):
                    return
                due = 0.0 if key in ("f", "r") else due
