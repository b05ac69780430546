"""Installs for tests. Compiling its modules takes most of the time and gives the same pack each time, so one process
compiles once for each Python; its 140 files do not wait for the disk.
tests/install lays every install whole."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import DeviceFile, DriverFile, Gpu, Inventory
from oci_hook.discovery.save import save_inventory
from oci_hook.install import answer, settings_edit
from oci_hook.install import prefix as installs
from oci_hook.ledger import store
from oci_hook.linux.proc import boot_id

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


DRIVER = "550.163.01"

UUIDS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-11111111-1111-4111-8111-111111111111")

MEMORY_MIB = 24576


class Install:
    """An install of its own: prefix, state directory, a driver root of fake files, two simulated GPUs."""

    def __init__(self, root: Path, **settings: str) -> None:
        self.prefix = root / "prefix"
        self.state = root / "state"
        self.driver = root / "driver"
        self.settings: Settings = lay(str(self.prefix), runtime=settings.get("runtime"), state_dir=str(self.state))
        self.program = str(self.prefix / "bin/gpu-hook-runtime")
        self.inventory = make_inventory(self.driver, self.state)
        self.set(driver_root=str(self.driver))
        save_inventory(self.settings, self.inventory)

    def set(self, **changes: object) -> None:
        """Change settings.yaml: text, a number, a flag or a list for each key."""
        self.settings = settings_edit.change(str(self.prefix), **{key: as_text(v) for key, v in changes.items()})

    def grants(self) -> tuple[Grant, ...]:
        return store.snapshot(str(self.state))


def as_text(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_inventory(driver: Path, state: Path) -> Inventory:
    """Two simulated GPUs and a driver root with files that say what they are, each with contents of its own."""
    libs = driver / "usr/lib64"
    libs.mkdir(parents=True)
    (driver / "usr/bin").mkdir()
    files = []
    for soname, capability in (("libnvidia-ptxjitcompiler.so.1", "compute"), ("libnvidia-cfg.so.1", "utility")):
        path = libs / f"{soname.removesuffix('.1')}.{DRIVER}"
        path.write_text(f"driver file {soname}\n")
        files.append(DriverFile(str(path), "library", capability, (path.name, soname)))
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libs / f"{name}.{DRIVER}").write_text(f"the real {name}\n")
    smi = driver / "usr/bin/nvidia-smi"
    smi.write_text("#!/bin/sh\necho smi\n")
    smi.chmod(0o755)
    files.append(DriverFile(str(smi), "binary", "utility"))
    (state / "sim/gpus").mkdir(parents=True)
    gpus = []
    for i, uuid in enumerate(UUIDS):
        (state / f"sim/gpus/{i}").write_bytes(bytes(4096))
        file = str(state / f"sim/gpus/{i}")
        gpus.append(Gpu(uuid, i, i, MEMORY_MIB, "Simulated GPU", simulated=True, file=file))
    return Inventory(
        boot_id=boot_id(),
        driver_version=DRIVER,
        driver_root=str(driver),
        simulated=True,
        gpus=tuple(gpus),
        control=(DeviceFile("/dev/nvidiactl", 195, 255),),
        files=tuple(files),
        libcuda=str(libs / f"libcuda.so.{DRIVER}"),
        libnvml=str(libs / f"libnvidia-ml.so.{DRIVER}"),
    )
