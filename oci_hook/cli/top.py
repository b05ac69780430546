"""`gpu-hook top`: the node, live: cards as bars, containers as rows."""

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
from oci_hook.errors import GhError
from oci_hook.node import admit
from oci_hook.node import settings as node_settings
from oci_hook.node.settings import Settings

COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue", "bright_cyan", "bright_yellow")
SORTS = ("memory", "busy", "compute", "name", "age")
SHORT = 5  # points below its guarantee: worth a look
WIDE = 100  # columns; below, policy and class are left out,
WIDER = 110  # and below this the share error
NUMBERED = ("CONTAINER", "CARD", "MEMORY", "LIMIT", "COMPUTE", "BUSY")
ERROR = ("ERROR",)
GRANTED = ("POLICY", "CLASS")
KEYS = "q quit   s sort   ↑↓ select   f freeze   r resume"
STATES = {"running": "green", "starting": "yellow", "frozen": "cyan", "killed": "red"}


class Screen:
    """What is shown and chosen. `node` is view.view()."""

    def __init__(self, node: dict[str, Any], settings: Settings | None = None) -> None:
        self.node = node
        self.settings = settings
        self.sort = 0
        self.selected = ""
        self.message = ""
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
            field = {"memory": "used_mib"}.get(by, by)
            return -sum(s[field] or 0 for s in c["cards"]), c["key"]

        return sorted(self.node["containers"], key=rank)

    def chosen(self) -> dict[str, Any] | None:
        """The selected container; the first where that one is gone."""
        order = self.containers()
        return next((c for c in order if c["key"] == self.selected), order[0] if order else None)

    def press(self, key: str) -> bool:
        """False: it is over."""
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
        """Freeze or resume the selected container; what to say of it."""
        chosen = self.chosen()
        if chosen is None or self.settings is None:
            return ""
        try:
            admit.alter(self.settings, chosen["id"], frozen(int(time.time()) if key == "f" else 0))
        except GhError as e:
            return str(e.problems[0])
        return f"{'froze' if key == 'f' else 'resumed'} {output.printable(name(chosen))}"

    def draw(self, width: int, height: int) -> RenderableType:
        parts: list[RenderableType] = [self.head()]
        for card in self.node["cards"]:
            parts += self.card(card, width)
        room = height - 4 - 4 * len(self.node["cards"])
        foot = Text(f"{KEYS}   sorted by {SORTS[self.sort]}   {self.message}", "dim")
        parts += [Text(), self.table(max(3, room), width), foot]
        return Group(*parts)

    def head(self) -> Text:
        agent = self.node["agent"]
        line = Text("gpu-hook", "bold")
        line.append(f"  driver {self.node['driver_version'] or 'none'}", "default")
        if self.node["simulated"]:
            line.append("  simulated cards", "yellow")
        words = {"ok": ("agent ok", "green"), "degraded": ("agent degraded", "red")}
        line.append("  ").append(*words.get(agent["state"], ("no agent: use of the cards is not known", "yellow")))
        for what, why in agent["problems"].items():
            line.append(f"  {what}: {output.printable(why)[:100]}", "red")
        return line

    def card(self, card: dict[str, Any], width: int) -> list[RenderableType]:
        on = [(c, s) for c in self.node["containers"] for s in c["cards"] if s["uuid"] == card["uuid"]]
        limited = [(c, s) for c, s in on if s["compute"] and not s["whole"]]
        wide = max(20, width - 42)
        head = Text(f"card {card['index']}  ", "bold").append(output.printable(card["name"])[:40], "dim")
        if card["error"]:
            head.append(f"  {output.printable(card['error'])[:60]}", "red")
        total = max(1, card["memory_mib"])
        memory = bar([(s["memory_mib"] / total, self.colour(c["key"]), label(c)) for c, s in on], wide)
        compute = bar([(s["compute"] / 100, self.colour(c["key"]), label(c)) for c, s in limited], wide)
        used = "" if card["used_mib"] is None else f", {output.size(card['used_mib'])} used"
        busy = "" if card["busy"] is None else f", busy {card['busy']}%"
        harvest = f", harvest {card['harvest']:.0f}%" if card["harvest"] else ""
        granted = f" {output.size(card['granted_mib'])} of {output.size(card['memory_mib'])}{used}"
        return [
            Text(),
            head,
            Text("  memory  ").append(memory).append(granted),
            Text("  compute ").append(compute).append(f" {card['granted_compute']}%{busy}{harvest}"),
        ]

    def table(self, rows: int, width: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
        more = (*(ERROR if width >= WIDER else ()), *(GRANTED if width >= WIDE else ()))
        for title in (*NUMBERED, *more, "STATE"):
            right = title in (*NUMBERED[1:], *ERROR)
            table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
        chosen = self.chosen()
        order = self.containers()
        first = max(0, order.index(chosen) - rows + 1) if chosen else 0
        for c in order[first : first + rows]:
            for i, share in enumerate(c["cards"] or [None]):
                table.add_row(*self.row(c, share, i == 0, width), style="reverse" if c is chosen else "")
        return table

    def row(self, c: dict[str, Any], share: dict[str, Any] | None, first: bool, width: int) -> list[Text]:
        who = Text("■ ", self.colour(c["key"])).append(output.printable(name(c)), "default") if first else Text()
        state = Text(c["state"], STATES.get(c["state"], ""))
        if c["findings"]:
            state.append(" " + ",".join(sorted({f["kind"] for f in c["findings"]})), "red")
        rest = [*((Text(c["policy"]), Text(c["class"])) if width >= WIDE else ()), state]
        rest = rest if first else [Text()] * len(rest)
        if share is None:
            return [who, *[Text("-")] * (6 if width >= WIDER else 5), *rest]
        busy = share["busy"] if share["share"] is None else share["share"]
        error = share["share_error"]
        short = Text("-" if error is None else f"{error:+.0f}", "red" if error and error > SHORT else "")
        return [
            who,
            Text("?" if share["index"] is None else str(share["index"])),
            Text("-" if share["used_mib"] is None else output.size(share["used_mib"])),
            Text("whole" if share["whole"] else output.size(share["memory_mib"])),
            Text(f"{share['compute']}%" if share["compute"] else "-"),
            Text("-" if busy is None else f"{busy:.0f}%"),
            *([short] if width >= WIDER else []),
            *rest,
        ]


def name(c: dict[str, Any]) -> str:
    return "/".join(filter(None, (c["namespace"], c["pod"], c["name"]))) or output.short(c["id"])


def label(c: dict[str, Any]) -> str:
    return output.printable(name(c).rpartition("/")[2])


def bar(parts: list[tuple[float, str, str]], width: int) -> Text:
    """Parts as (fraction of the whole, colour, name), each at least one column; what is left is drawn dim."""
    text = Text()
    for fraction, colour, word in parts:
        columns = min(max(1, round(fraction * width)), width - text.cell_len)
        text.append(word[:columns].ljust(columns), f"black on {colour}")
    return text.append("·" * (width - text.cell_len), "dim")


@contextmanager
def raw() -> Iterator[None]:
    """Keys one by one, unseen."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def keys(seconds: float) -> list[str]:
    """What was pressed meanwhile; returns with the first."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return []
    data = os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace")
    found = []
    while data:
        n = 3 if data.startswith("\x1b[") else 1
        found.append(data[:n])
        data = data[n:]
    return found or ["q"]  # the terminal is gone


@click.command()
@output.prefix_option
@click.option("--interval", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, once.")
@click.option("--once", is_flag=True, help="Print the screen once, without keys.")
def top(prefix: str, interval: float, as_json: bool, once: bool) -> None:
    """Show cards and containers as they are now; sort by key.

    With an agent the figures are the driver's; without one, memory is what the containers themselves account.
    ERROR: guarantee less what the container had while it wanted work, in points of the card over the last minute.
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
