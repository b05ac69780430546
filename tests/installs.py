"""Lays an install for a test. Compiling its modules takes most of the time and gives the same pack each time, so one process
compiles once for each Python; tests/install lays every install whole."""

from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

from oci_hook.config.settings import Settings
from oci_hook.install import prefix as installs

_compile = installs._pack
_packs: dict[str, tuple[str, bytes]] = {}  # Python -> name and contents of its pack


def lay(prefix: str, *, runtime: str | None = None, state_dir: str | None = None) -> Settings:
    with patch.object(installs, "_pack", _pack):
        return installs.lay(prefix, runtime=runtime, state_dir=state_dir)


def _pack(folder: Path, python: str, names: Iterable[str]) -> None:
    if python not in _packs:
        _compile(folder, python, names)
        (made,) = folder.glob("*.pack")
        _packs[python] = (made.name, made.read_bytes())
        return
    name, contents = _packs[python]
    (folder / name).write_bytes(contents)
    (folder / name).chmod(0o644)
