"""Our runtime as an engine has it by all its files together. Each engine's module merges them as that does (`has`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oci_hook.engines.toml_text import Keys, get


@dataclass(frozen=True)
class Has:
    """program: what our name stands for, "" where the engine does not know the name. default: the runtime of containers that name
    none. program_by, default_by: the files that have the last word on these; None where no file says it."""

    program: str
    default: str
    program_by: Path | None = None
    default_by: Path | None = None


def overlaid(data: Any, other: Any) -> Any:
    """Data in which `other` has the last word: tables are merged key by key, everything else is replaced."""
    if not isinstance(data, dict) or not isinstance(other, dict):
        return other
    return {**data, **{key: overlaid(data.get(key), value) for key, value in other.items()}}


def last_word(found: Iterable[tuple[Path, Any]], keys: Keys) -> Path | None:
    """The last of these files whose data have this key."""
    return next((path for path, data in reversed([*found]) if get(data, keys) is not None), None)


def said(found: Iterable[tuple[Path, Any]], keys: Keys) -> Any:
    """The value that has the last word; None where no file has it."""
    return next((value for _, data in reversed([*found]) if (value := get(data, keys)) is not None), None)
