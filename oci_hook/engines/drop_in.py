"""A TOML drop-in file of our own, in a directory that the engine reads whole."""

from collections.abc import Callable
from pathlib import Path

from oci_hook.engines import toml_text
from oci_hook.engines.edits import BEGIN, Notes, Registration, Target, fenced, without_fences
from oci_hook.errors import GhError, refuse


def target(path: Path, lines: Callable[[bool], list[str]], registration: Registration) -> Target:
    """What `lines` gives for a runtime that is the default (shall be, or already is), or not."""

    def add(text: str | None, notes: Notes) -> str:
        default = registration.default or "default" in notes
        if default:
            notes["default"] = None
        ours = fenced(lines(default))
        if text is None or not text.strip():
            return ours
        new = text + ("" if text.endswith("\n") else "\n") + ours
        try:
            if BEGIN in text:
                raise ValueError
            toml_text.parse(new, path)
        except (GhError, ValueError):  # of another install, or with the same tables
            raise refuse(
                "GH-508", f"{path} is there already, with lines that contradict ours; remove it first"
            ) from None
        return new

    def strip(text: str, notes: Notes) -> str | None:
        toml_text.parse(text, path)
        if registration.program not in text:
            return text  # of another install
        rest = without_fences(text)
        return rest if rest.strip() or notes.get("file") else None

    return Target(path, add, strip, toml_text.parse)
