"""Lays an install for a test. Compiling its modules takes most of the time and gives the same pack each time, so one process
compiles once for each Python; its 140 files do not wait for the disk, and nobody asks whether its Python is new enough.
tests/install lays every install whole."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from oci_hook.config.settings import Settings
from oci_hook.install import prefix as installs
from oci_hook.install import settings_check

_compile = installs._pack
_packs: dict[str, tuple[str, bytes]] = {}  # Python -> name and contents of its pack


def lay(prefix: str, *, runtime: str | None = None, state_dir: str | None = None) -> Settings:
    with patch.object(installs, "_pack", _pack), patch.object(installs, "_copy", _copy), unasked():
        return installs.lay(prefix, runtime=runtime, state_dir=state_dir)


@contextmanager
def unasked() -> Iterator[None]:
    """Settings change without a start of the install's Python."""
    with patch.object(settings_check, "check_python"):
        yield


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
