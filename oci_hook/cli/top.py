"""`gpu-hook top`: the node, live; a bar per GPU and a row per container."""

import json
import sys
import time
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oci_hook.cli import node_now, output, terminal, top_help, top_processes
from oci_hook.cli.freeze import frozen
from oci_hook.cli.top_text import Part, bar, fit, label, name
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings
from oci_hook.core.terms import OFFLINE
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
TABLE = 7  # lines for the table, with its header and the blank line above it
KEYS = "? help   q quit   p processes   s sort   ↑↓ select   f freeze   r resume"
SORT_KEYS = {"m": "memory", "b": "busy", "c": "compute", "n": "name", "a": "age"}
WAIT = 0.2  # seconds for a command line where the screen is printed once
STATES = {
    **{"running": "green", "starting": "yellow", "killed": "red", "moving": "yellow"},
    **{"frozen": "cyan", "paused": "cyan", "suspended": "cyan"},
}


class Screen:
    """The screen: what it shows and what is selected. node: as agent.view.view() returns it. processes: whether it shows
    these, or containers."""

    def __init__(self, node: dict[str, Any], settings: Settings | None = None, processes: bool = False) -> None:
        self.node = node
        self.settings = settings
        self.processes = processes
        self.known = top_processes.Processes()
        self.sort = "memory"
        self.backwards = False
        self.selected: object = None  # the key of a container, or the mark of a process
        self.message = ""
        self.help = False
        self.keys = True  # keys work, and the last line names them
        self._colours: dict[str, str] = {}

    def colour(self, key: str) -> str:
        return self._colours.setdefault(key, COLOURS[len(self._colours) % len(COLOURS)])

    def sorts(self) -> tuple[str, ...]:
        return top_processes.SORTS if self.processes else SORTS

    def containers(self) -> list[dict[str, Any]]:
        by = self.sort

        def rank(c: dict[str, Any]) -> tuple[Any, str]:
            if by == "name":
                return name(c), c["key"]
            if by == "age":
                return c["created"], c["key"]
            field = {"memory": "used_mib", "busy": "utilization"}.get(by, by)
            return -sum(s[field] or 0 for s in c["gpus"]), c["key"]

        return sorted(self.node["containers"], key=rank, reverse=self.backwards)

    def rows(self) -> list[tuple[object, dict[str, Any]]]:
        """(what selects it, the container or the process) in the order of the screen."""
        if self.processes:
            return [(top_processes.mark(p), p) for p in self.known.sorted(self.sort, self.backwards)]
        return [(c["key"], c) for c in self.containers()]

    def at(self) -> dict[str, Any] | None:
        """The selected row; the first one if that is gone."""
        rows = self.rows()
        return next((row for mark, row in rows if mark == self.selected), rows[0][1] if rows else None)

    def chosen(self) -> dict[str, Any] | None:
        """The selected container, or that of the selected process."""
        row = self.at()
        return next((c for c in self.node["containers"] if row and c["key"] == row["key"]), None)

    def press(self, key: str) -> bool:
        """Handle a key. False: quit."""
        if key in ("q", "\x03", "\x04"):
            return False
        if self.help:
            self.help = False
        elif key in ("?", "h"):
            self.help = True
        elif key == "p":
            self.processes, self.selected = not self.processes, None
            self.sort = self.sort if self.sort in self.sorts() else self.sorts()[0]
        elif key == "s":
            sorts = self.sorts()
            self.sort = sorts[(sorts.index(self.sort) + 1) % len(sorts)]
        elif SORT_KEYS.get(key) in self.sorts():
            self.sort = SORT_KEYS[key]
        elif key == "i":
            self.backwards = not self.backwards
        elif key in ("f", "r"):
            self.message = self.act(key)
        elif key in ("\x1b[A", "k", "\x1b[B", "j"):
            self.move(1 if key in ("\x1b[B", "j") else -1)
        return True

    def move(self, by: int) -> None:
        marks = [mark for mark, _ in self.rows()]
        if marks:
            at = marks.index(self.selected) if self.selected in marks else 0
            self.selected = marks[max(0, min(len(marks) - 1, at + by))]

    def act(self, key: str) -> str:
        """Freeze or resume the selected container; the message to show."""
        chosen = self.chosen()
        if chosen is None or self.settings is None:
            return ""
        if key == "r" and chosen["state"] in ("suspended", "moving"):
            return f"`gpu-hook resume {output.short(chosen['id'])}` brings its memory back"
        try:
            _, _, delivered = admit.alter(self.settings, chosen["id"], frozen(int(time.time()) if key == "f" else 0))
        except GhError as e:
            return str(e.problems[0])
        done = f"{'froze' if key == 'f' else 'resumed'} {output.printable(name(chosen))}"
        return done if delivered else f"{done}; not in effect yet"

    def draw(self, width: int, height: int) -> RenderableType:
        """The screen, cut to its size: four lines per GPU, or one line per GPU if there are many."""
        if self.help:
            return top_help.screen(height)
        gpus, head, foot = self.node["gpus"], self.head(width), self.foot(width)
        least = len(head) + TABLE + len(foot)
        tall = least + 4 * len(gpus) <= height
        seen = gpus if tall else gpus[: max(1, height - least)]
        parts: list[RenderableType] = list(head)
        for gpu in seen:
            parts += self.gpu(gpu, width) if tall else [self.line(gpu, width)]
        if len(seen) < len(gpus):
            parts[-1] = fit(f"and {len(gpus) - len(seen) + 1} more GPUs", "dim")
        room = height - len(parts) - 2 - len(foot)
        return Group(*parts, Text(), self.table(max(TABLE - 2, room), width), *foot)

    def foot(self, width: int) -> list[Text]:
        """The last lines: the columns without room, and the keys."""
        every, shown = (top_processes.ALL, top_processes.titles(width)) if self.processes else (ALL, self.titles(width))
        hidden = [title for title in every if title not in shown]
        text = f"too narrow for the columns {', '.join(hidden)}" if hidden and self.rows() else ""
        lines = [fit(line, "dim") for line in output.folded(text, width) if text]
        if self.keys:
            keys = KEYS if width >= WIDE else "? help   q quit   p processes" if width >= NARROW else "? help"
            order = f"{self.sort}, backwards" if self.backwards else self.sort
            lines.append(fit(f"{keys}   sorted by {order}   {self.message}", "dim"))
        return lines

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
        """(the parts of its memory bar, those of its compute bar, which is not class offline's)"""
        there = [c for c in self.node["containers"] if not c.get("suspended_since")]
        on = [(c, s) for c in there for s in c["gpus"] if s["uuid"] == gpu["uuid"]]
        total = max(1, gpu["memory_mib"])
        memory = [(s["memory_mib"] / total, self.colour(c["key"]), label(c)) for c, s in on]
        limited = [(c, s) for c, s in on if s["compute"] and not s["whole"] and c["class"] != OFFLINE]
        return memory, [(s["compute"] / 100, self.colour(c["key"]), label(c)) for c, s in limited]

    def gpu(self, gpu: dict[str, Any], width: int) -> list[RenderableType]:
        memory, compute = self.shares(gpu)
        head = fit(f"GPU {gpu['index']}  ", "bold").append(output.printable(gpu["name"])[:40], "dim")
        if gpu["error"]:
            head.append(f"  {output.printable(gpu['error'])}", "red")
        granted = f" {output.size(gpu['granted_mib'])} of {output.size(gpu['memory_mib'])}"
        share = f" {output.compute(gpu['granted_compute'], gpu['granted_offline_compute'])}"
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
        if self.processes:
            return self.process_table(lines, width)
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

    def process_table(self, lines: int, width: int) -> RenderableType:
        rows = [row for _, row in self.rows()]
        if not rows:
            where = "account pages show" if self.node["agent"]["state"] == "none" else "NVML shows"
            return fit(f"no process uses a GPU, as far as {where}", "dim")
        chosen = self.at()
        at = next((i for i, row in enumerate(rows) if row is chosen), 0)
        first = max(0, at - lines + 1)
        return top_processes.table(rows[first : first + lines], chosen, width, self.colour)

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


@click.command()
@output.prefix_option
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Seconds between two updates."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, once.")
@click.option("--once", is_flag=True, help="Print the screen once, without keys.")
@click.option("--processes", "-p", is_flag=True, help="Begin with processes instead of containers.")
def top(prefix: str, interval: float, as_json: bool, once: bool, processes: bool) -> None:
    """Show GPUs and containers or processes live; `?` lists the keys.

    If the agent runs, memory and busy are the driver's figures; without it, memory is what the containers' account
    pages show. SHORT is the compute guarantee minus the compute that the container got while it had work, in points of
    the GPU over the last minute. Processes are the driver's, too, or those on the account pages. Columns that have no
    room are named below the table.
    """
    try:
        settings = node_settings.load(prefix)
        screen = Screen(node_now.node(settings), settings, processes)
        if processes:
            screen.known.refresh(node_now.processes(settings, screen.node), screen.node, WAIT)
    except GhError as e:
        output.fail(e, as_json)
    if as_json:
        more = {"processes": screen.known.rows} if processes else {}
        click.echo(json.dumps({**screen.node, **more}, indent=2))
        return
    console = Console()
    if once or not (sys.stdin and sys.stdin.isatty() and console.is_terminal):
        screen.keys = False
        console.print(screen.draw(console.width, 1000))
        return
    watch(screen, console, settings, prefix, interval)


def watch(screen: Screen, console: Console, settings: Settings, prefix: str, interval: float) -> None:
    with terminal.raw(), Live(console=console, screen=True, auto_refresh=False) as display:
        due = 0.0
        while True:
            now = time.monotonic()
            if now >= due:
                due = now + interval
                try:
                    screen.node = node_now.node(settings)
                    if screen.processes:
                        screen.known.refresh(node_now.processes(settings, screen.node), screen.node)
                except GhError as e:
                    screen.message = str(e)[:100]
            display.update(screen.draw(console.width, console.height), refresh=True)
            for key in terminal.keys(max(0.0, due - time.monotonic())):
                if not screen.press(key):
                    return
                due = 0.0 if key in ("f", "r", "p") else due
