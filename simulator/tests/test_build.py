"""The compiled files: the C library that they need, the names that they export; the build for the other architecture."""

import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.linux import elf
from simulator.driver import build
from testbed import REPO
from testbed.sim.gpus import Sim, build_simulated

SCRIPT = REPO / "scripts/build"
LINKED = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ml.so.1-615", "gpu-probe", "gpu-probe-linked")
FILES = (*LINKED, "gpu-probe-static")


@pytest.mark.parametrize("name", LINKED)
def test_symbols_are_no_newer_than_the_c_library_floor(simulated: Path, name: str) -> None:
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", (simulated / "sim" / name).read_bytes())
    assert versions and max((int(a), int(b)) for a, b in versions) <= (2, 17)


@pytest.mark.parametrize(("library", "lists"), [("cuda", "libcuda-*.txt"), ("nvml", "libnvidia-ml-*.txt")])
def test_every_known_name_is_there(sim: Sim, library: str, lists: str) -> None:
    names = sorted({name for path in build.SYMBOLS.glob(lists) for name in path.read_text().split()})
    assert len(names) > 300
    load = "" if library == "cuda" else "library = ctypes.CDLL('libnvidia-ml.so.1')\n"
    assert sim.python(f"{load}print([n for n in {names!r} if not hasattr(library, n)])") == "[]\n"


def test_building_again_builds_nothing(simulated: Path) -> None:
    before = [(simulated / "sim" / name).stat().st_mtime_ns for name in FILES]
    build_simulated()
    assert [(simulated / "sim" / name).stat().st_mtime_ns for name in FILES] == before


def test_the_static_program_asks_for_no_library(simulated: Path) -> None:
    data = (simulated / "sim/gpu-probe-static").read_bytes()
    at, size, count = int.from_bytes(data[32:40], "little"), *struct.unpack_from("<HH", data, 54)
    kinds = [int.from_bytes(data[at + i * size :][:4], "little") for i in range(count)]
    assert 1 in kinds and not {2, 3} & set(kinds)  # PT_LOAD; PT_DYNAMIC, PT_INTERP


@pytest.mark.slow
def test_other_architecture() -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
    subprocess.run([sys.executable, SCRIPT, "--part", "sim", "--arch", other], check=True)
    out = REPO / "build" / other
    for name in FILES:
        with open(out / "sim" / name, "rb") as f:
            facts = elf.read(f.fileno())
        assert facts and (facts.bits, facts.machine) == (64, elf.MACHINES[other])
    assert not list(out.rglob("*.new"))
