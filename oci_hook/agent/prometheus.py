"""The text that Prometheus reads (format 0.0.4): families in the order of first use, each once.

Label pairs are rendered once per thing and used for all its figures: a scrape of a full node costs a few milliseconds.
"""

from collections.abc import Iterable, Sequence

LABEL_MAX = 64  # characters
PREFIX = "gpu_hook_"


def label(value: object) -> str:
    """A label's value, bounded and printable, whatever a tenant calls itself."""
    text = str(value)[:LABEL_MAX]
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def labels(names: Iterable[str], values: Iterable[object]) -> str:
    """name="value",… as it stands between the braces."""
    pairs = ((n, label(v).replace("\\", r"\\").replace('"', r"\"")) for n, v in zip(names, values, strict=True))
    return ",".join(f'{n}="{v}"' for n, v in pairs)


class Exposition:
    """at: of `labels`, "" for none. Counters' names are given without _total. None is not known, and left out."""

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
        """counts: of each bin, the last one beyond all bounds. total: the sum of what was counted."""
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
