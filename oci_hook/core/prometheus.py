"""Writes the text format of Prometheus (0.0.4): each metric family once, in the order of first use.

The label pairs of a GPU or container are rendered once and used for all its figures, so that a scrape of a full node
takes a few milliseconds.
"""

from collections.abc import Iterable, Sequence

LABEL_MAX = 64  # characters
PREFIX = "gpu_hook_"


def label(value: object) -> str:
    """A label's value, cut to LABEL_MAX characters and made printable, as it may come from a tenant."""
    text = str(value)[:LABEL_MAX]
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def labels(names: Iterable[str], values: Iterable[object]) -> str:
    """name="value",… as between the braces of a line."""
    pairs = ((n, label(v).replace("\\", r"\\").replace('"', r"\"")) for n, v in zip(names, values, strict=True))
    return ",".join(f'{n}="{v}"' for n, v in pairs)


class Exposition:
    """at: a result of `labels`, or "". A counter's name is given without _total. The value None is unknown and left
    out."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def gauge(self, name: str, help: str, at: str, value: float | None) -> None:
        if value is not None:
            self._family(name, "gauge", help).append(line(name, at, value))

    def counter(self, name: str, help: str, at: str, value: float | None) -> None:
        if value is not None:
            self._family(f"{name}_total", "counter", help).append(line(f"{name}_total", at, value))

    def histogram(
        self, name: str, help: str, at: str, bounds: Sequence[str], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram. counts: of each bin; the last bin is above all bounds. total: the sum of all observed
        values."""
        lines = self._family(name, "histogram", help)
        start = f"{PREFIX}{name}_bucket{{{at},le=" if at else f"{PREFIX}{name}_bucket{{le="
        n = 0
        for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
            n += count
            lines.append(f'{start}"{bound}"}} {n}')
        lines += (line(f"{name}_sum", at, total), line(f"{name}_count", at, n))

    def text(self) -> bytes:
        found = [line for lines in self._families.values() for line in lines]
        return ("\n".join(found) + "\n").encode("utf-8", "replace")

    def _family(self, name: str, kind: str, help: str) -> list[str]:
        lines = self._families.get(name)
        if lines is None:
            lines = [f"# HELP {PREFIX}{name} {help}", f"# TYPE {PREFIX}{name} {kind}"]
            self._families[name] = lines
        return lines


def line(name: str, at: str, value: float) -> str:
    text = str(value) if isinstance(value, int) else f"{value:.15g}"
    return f"{PREFIX}{name}{{{at}}} {text}" if at else f"{PREFIX}{name} {text}"
