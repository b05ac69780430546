"""Our own TOML drop-in file, in a directory of which the engine reads every file."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from oci_hook.engines import toml_text
from oci_hook.engines.edits import BEGIN, NAME, Notes, Registration, Target, Texts, fenced, text_at, without_fences
from oci_hook.errors import GhError, refuse


def last(usual: Path, rival: Path | None) -> Path:
    """Our drop-in, so named that an engine reads it after `rival`, a file that would have the last word otherwise."""
    path = usual
    while rival is not None and rival.parent.resolve() == usual.parent.resolve() and rival.name >= path.name:
        path = path.with_name(f"z{path.name}" if path != usual else f"zz-{NAME}{usual.suffix}")
    return path


def with_own(files: tuple[Path, ...], registration: Registration) -> tuple[Path, ...]:
    """These files, then that of --config if it is none of them, as that of rootless podman."""
    own = (registration.main(""),) if registration.config else ()
    return files + tuple(path for path in own if path.resolve() not in [file.resolve() for file in files])


def contents(files: Iterable[Path], registration: Registration, instead: Texts, bare: bool) -> list[tuple[Path, Any]]:
    """(file, its data) of those that there are. bare: without our lines. Raises SettingsError GH-506, GH-507."""
    texts = [(path, text_at(registration.real(path), instead)) for path in files]
    return [
        (path, toml_text.parse(without_fences(text) if bare else text, path))
        for path, text in texts
        if text is not None
    ]


def listed(folder: Path, pattern: str, instead: Texts) -> list[Path]:
    """The drop-in files of a folder, sorted. instead: see Texts."""
    real = folder.resolve()
    planned = {folder / path.relative_to(real): text for path, text in instead.items() if path.is_relative_to(real)}
    there = {path for path in folder.rglob("*") if path not in planned and not path.is_dir()}
    return sorted(path for path in {*there, *(p for p, t in planned.items() if t is not None)} if path.match(pattern))


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
