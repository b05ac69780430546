"""The help of `top`: its keys, columns and colours."""

from rich.console import Group, RenderableType
from rich.text import Text

from oci_hook.cli.top_text import fit

KEYS = (
    ("p", "containers or processes"),
    ("s", "next order"),
    ("m b c n a", "by memory, busy, compute, name, age"),
    ("i", "the other way round"),
    ("↑ ↓ or k j", "select"),
    ("f r", "freeze or resume the selected container"),
    ("q", "quit"),
)
COLUMNS = (
    ("MEMORY", "in use: by the driver, or as accounted"),
    ("LIMIT", "the most memory it may have"),
    ("COMPUTE", "share that it is guaranteed"),
    ("BUSY", "part of the GPU's time that it has"),
    ("SHORT", "guarantee less what it got, of the last minute"),
    ("OF LIMIT", "memory as part of its container's limit"),
    ("STATE", "what it does or waits for; findings in red"),
)
BARS = "Bars show what is granted; dots are free."


def screen(height: int) -> RenderableType:
    """As many lines as have room."""
    lines = [fit("keys", "bold"), *map(_line, KEYS), fit("columns", "bold"), *map(_line, COLUMNS), fit(BARS, "dim")]
    lines.append(fit("any key: back", "dim"))
    if len(lines) > height:
        lines = [*lines[: max(0, height - 1)], lines[-1]]
    return Group(*lines)


def _line(entry: tuple[str, str]) -> Text:
    return fit(f"  {entry[0]:<13}", "bold").append(entry[1], "not bold")
