"""The Python that a package carries (packaging/interpreter.py), and the part of it that an install has."""

import shutil
from collections.abc import Callable
from pathlib import Path

from oci_hook.config.settings import AUTO, Settings
from oci_hook.core import layout
from oci_hook.linux import label

PACKAGES = Path(__file__).resolve().parents[2]  # where oci_hook lies


def carried() -> Path | None:
    """Its folder; None in a checkout, and where pip installed."""
    return next(iter(sorted(PACKAGES.glob(layout.OWN_PYTHON))), None)


def files() -> dict[str, Path]:
    """What an install has of it: paths below its prefix, and their sources."""
    if (source := carried()) is None:
        return {}
    names = (source / layout.OWN_PYTHON_HOT).read_text().splitlines()
    return {f"lib/{source.name}/{name}": source / name for name in names}


def program(settings: Settings) -> str:
    """The Python that starts with containers, as the launcher has it: for `auto` the install's own, before there is an install
    the one that it will get, and where none is carried the machine's."""
    if settings.python != AUTO:
        return settings.python
    if (source := carried()) is None:
        return layout.SYSTEM_PYTHON
    own = Path(settings.prefix, "lib", source.name, layout.OWN_PYTHON_PROGRAM)
    return str(own if own.exists() else source / layout.OWN_PYTHON_PROGRAM)


def lay(root: Path, folder: Callable[[Path], object], copy: Callable[[Path, Path, int], object]) -> None:
    """Copy it into the install. Nothing of it is there in part once its loader is, which comes last."""
    found = files()
    for name, source in sorted(found.items(), key=lambda item: item[0].endswith(layout.OWN_PYTHON_LOADER)):
        target = root / name
        for parent in reversed([*target.relative_to(root).parents][:-2]):  # lib/FOLDER and below
            folder(root / parent)
            label.put(str(root / parent), label.PROGRAM)
        if not target.exists() or target.read_bytes() != source.read_bytes():
            copy(source, target, source.stat().st_mode & 0o777)


def remove_others(root: Path) -> None:
    """Once the launcher starts the one that is carried now."""
    here = carried()
    for old in (root / "lib").glob(layout.OWN_PYTHON):
        if here is None or old.name != here.name:
            shutil.rmtree(old, ignore_errors=True)
