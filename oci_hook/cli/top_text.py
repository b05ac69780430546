"""The pieces of `top`'s screen: texts that stay on one line, names, bars."""

from typing import Any

from rich.text import Text

from oci_hook.cli import output

Part = tuple[float, str, str]  # of a bar: fraction, colour, name


def fit(text: str, style: str = "") -> Text:
    """A text that stays on one line, cut if it is too long."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def name(c: dict[str, Any]) -> str:
    return "/".join(filter(None, (c["namespace"], c["pod"], c["name"]))) or output.short(c["id"])


def label(c: dict[str, Any]) -> str:
    return output.printable(name(c).rpartition("/")[2])


def bar(parts: list[Part], width: int) -> Text:
    """A bar of these parts, each at least one column wide; the rest is drawn as dim dots. The last column of each part
    stays blank, so that two names never look like one; a name that has no room for three characters is left out."""
    text = Text()
    for fraction, colour, word in parts:
        columns = min(max(1, round(fraction * width)), width - text.cell_len)
        text.append(inside(word, columns), f"black on {colour}")
    return text.append("·" * (width - text.cell_len), "dim")


def inside(word: str, columns: int) -> str:
    """The name in so many columns, the last one blank; cut with an ellipsis."""
    room = columns - 1
    if len(word) > room:
        word = f"{word[: room - 1]}…" if room > 3 else ""
    return word.ljust(columns)
