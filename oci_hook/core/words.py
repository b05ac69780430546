"""Figures, names and ids as text for people."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CUT = 12  # characters that are enough to tell one UUID or id from another


def cut(text: str) -> str:
    """The beginning of an id, enough to tell it from others."""
    return text if len(text) <= CUT else text[:CUT] + "…"


def size(mib: int) -> str:
    """A size in MiB: 4Gi, 512Mi. Never rounded: 1025 MiB is 1025Mi."""
    return f"{mib // 1024}Gi" if mib and mib % 1024 == 0 else f"{mib}Mi"


def first(names: "Sequence[str]", most: int = 1) -> str:
    """At most so many names: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def limit(mib: int, booked_mib: int) -> str:
    """A memory limit: 16Gi; where less is booked, 16Gi (4Gi booked)."""
    return size(mib) + (f" ({size(booked_mib)} booked)" if booked_mib < mib else "")
