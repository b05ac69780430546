"""Lays an install for a test. Compiling its modules takes most of the time and gives the same pack each time, so one process
compiles once for each Python; its 140 files do not wait for the disk.
tests/install lays every install whole."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

from oci_hook.config.settings import Settings
from oci_hook.install import answer
from oci_hook.install import prefix as installs

_compile = installs._pack
_ask = answer.ask
_packs: dict[str, tuple[str, bytes]] = {}  # Python -> name and contents of its pack


def lay(prefix: str, *, runtime: str | None = None, state_dir: str | None = None) -> Settings:
    with patch.object(installs, "_pack", _pack), patch.object(installs, "_copy", _copy):
        return installs.lay(prefix, runtime=runtime, state_dir=state_dir)


def ask_once() -> None:
    """From now on, each Python is asked once whether it is new enough, until its file changes."""
    known: dict[object, answer.Answer] = {}

    def ask(*command: str) -> answer.Answer:
        program = command[0]
        asked = (*command, os.stat(program).st_mtime_ns, os.stat(program).st_ino) if os.path.exists(program) else ()
        said = known.get(asked) or _ask(*command)
        if said.out == "True\n":
            known[asked] = said
        return said

    answer.ask = ask


def _copy(source: Path, target: Path, mode: int) -> None:
    temporary = f"{target}.new"
    shutil.copyfile(source, temporary)
    os.chmod(temporary, mode)
    os.rename(temporary, target)


def _pack(folder: Path, python: str, names: Iterable[str]) -> None:
    if python not in _packs:
        _compile(folder, python, names)
        (made,) = folder.glob("*.pack")
        _packs[python] = (made.name, made.read_bytes())
        return
    name, contents = _packs[python]
    (folder / name).write_bytes(contents)
    (folder / name).chmod(0o644)
