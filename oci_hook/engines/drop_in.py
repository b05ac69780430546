"""Our own TOML drop-in file, in a directory of which the engine reads every file."""

from collections.abc import Callable
from pathlib import Path

from oci_hook.engines import toml_text
from oci_hook.engines.edits import BEGIN, Notes, Registration, Target, fenced, without_fences
from oci_hook.errors import GhError, refuse


def target(path: Path, lines: Callable[[bool], list[str]], registration: Registration) -> Target:
    """The file with the lines that `lines(default)` returns; default: gpu-hook is, or becomes, the default runtime."""

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
        except (GhError, ValueError):  # another install's lines, or the same tables twice
            raise refuse(
                "GH-508", f"{path} already exists, with lines that contradict gpu-hook's; remove it first"
            ) from None
        return new

    def strip(text: str, notes: Notes) -> str | None:
        toml_text.parse(text, path)
        if toml_text.value(registration.program) not in text:
            return text  # the lines are another install's
        rest = without_fences(text)
        return rest if rest.strip() or notes.get("file") else None

    return Target(path, add, strip, toml_text.parse)
