"""The table of processes in `top`."""

from collections.abc import Callable
from typing import Any

from rich.table import Table
from rich.text import Text

from oci_hook.cli import output
from oci_hook.cli.top_text import fit, name
from oci_hook.observe.processes import Commands, user

ALL = ("PID", "USER", "CONTAINER", "GPU", "MEMORY", "OF LIMIT", "BUSY", "COMMAND")
NUMBERS = ("PID", "GPU", "MEMORY", "OF LIMIT", "BUSY")
SORTS = ("memory", "busy", "pid", "user", "name")
WIDE, NARROW = 100, 64  # below that width: no OF LIMIT; no USER and CONTAINER
GONE = "exited (a child keeps its memory), or not found"


class Processes:
    """The known processes. refresh: with live.processes()."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._commands = Commands()

    def refresh(self, found: list[dict[str, Any]], node: dict[str, Any], wait: float = 0.0) -> None:
        """wait: seconds that each command line may take."""
        containers = {c["key"]: c for c in node["containers"]}
        indices = {gpu["uuid"]: gpu["index"] for gpu in node["gpus"]}
        self.rows = []
        for p in found:
            pid, container = p["pid"], containers.get(p["key"])
            share = next((s for s in container["gpus"] if s["uuid"] == p["uuid"]), None) if container else None
            limit = share["memory_mib"] if share and not share["whole"] else 0
            known = {"user": "", "command": GONE}
            if pid is not None:
                known = {"user": user(pid), "command": self._commands.get(pid, wait)}
            more = {"name": name(container) if container else "", "index": indices.get(p["uuid"])}
            part = round(100 * p["used_mib"] / limit) if limit and p["used_mib"] is not None else None
            self.rows.append({**p, **more, **known, "percent_of_limit": part})

    def sorted(self, by: str, backwards: bool = False) -> list[dict[str, Any]]:
        fields: dict[str, Callable[[dict[str, Any]], Any]] = {
            "memory": lambda p: -(p["used_mib"] or 0),
            "busy": lambda p: -(p["utilization"] or 0),
            "pid": lambda p: p["pid"] or 0,
            "user": lambda p: p["user"],
            "name": lambda p: p["name"],
        }
        return sorted(self.rows, key=lambda p: (fields[by](p), *mark(p)), reverse=backwards)


def mark(p: dict[str, Any]) -> tuple[int, str, str]:
    """The row's identity."""
    return p["pid"] or 0, p["uuid"], p["key"]


def titles(width: int) -> list[str]:
    out = (*(("OF LIMIT",) if width < WIDE else ()), *(("USER", "CONTAINER") if width < NARROW else ()))
    return [title for title in ALL if title not in out]


def table(rows: list[dict[str, Any]], chosen: dict[str, Any] | None, width: int, colour: Callable[[str], str]) -> Table:
    """rows: those that have room. colour: of a container, by its key."""
    shown = titles(width)
    grid = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for title in shown:
        grid.add_column(
            title,
            justify="right" if title in NUMBERS else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width={"USER": 12, "CONTAINER": 30}.get(title),
            min_width={"CONTAINER": 10, "COMMAND": 10}.get(title),
            ratio=1 if title == "COMMAND" else None,
        )
    for p in rows:
        cells = dict(zip(ALL, row(p, colour), strict=True))
        grid.add_row(*(cells[title] for title in shown), style="reverse" if p is chosen else "")
    return grid


def row(p: dict[str, Any], colour: Callable[[str], str]) -> list[Text]:
    """The cells, in the order of ALL."""

    def number(value: object, unit: str = "") -> Text:
        return Text("-" if value is None else f"{value}{unit}")

    container = fit("■ ", colour(p["key"])).append(output.printable(p["name"]), "default") if p["key"] else fit("-")
    return [
        number(p["pid"]),
        fit(output.printable(p["user"])),
        container,
        number(p["index"]),
        Text("-" if p["used_mib"] is None else output.size(p["used_mib"])),
        number(p["percent_of_limit"], "%"),
        number(p["utilization"], "%"),
        fit(output.printable(p["command"]), "dim" if p["pid"] is None else ""),
    ]
