"""The shipped shims, built once, and boxes to run programs in."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.compiled import ZIG, compiled
from testbed.packages import nvidia
from tests.shim.box import ROOT, Box

HERE = Path(__file__).parent
CC = [*ZIG, "-fno-sanitize=undefined"]


@pytest.fixture(scope="session")
def shim() -> Path:
    """The folder of the shim libraries as they are shipped."""
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build"), "--part", "shim"], check=True, stdout=subprocess.DEVNULL
    )
    return ROOT / "build" / platform.machine()


def compile_c(out: Path, *args: str) -> Path:
    """Compile what a test has written."""
    subprocess.run([*CC, "-o", str(out), *args], check=True)
    return out


def compile_kept(name: str, *args: str) -> Path:
    """Compile something of the tests' own, once for all runs."""
    return compiled(name, [*CC, *args])


@pytest.fixture(scope="session")
def fake_cuda() -> Path:
    """The tests' driver."""
    link = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1"]
    return compile_kept("fake_cuda.so", *link, str(HERE / "fake_cuda.c"), "-ldl", "-lpthread")


@pytest.fixture(scope="session")
def fake_nvml() -> Path:
    """The tests' NVML."""
    link = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libnvidia-ml.so.1"]
    return compile_kept("fake_nvml.so", *link, str(HERE / "fake_nvml.c"))


@pytest.fixture
def make_box(tmp_path: Path, shim: Path, fake_cuda: Path, fake_nvml: Path) -> Callable[[str], Box]:
    """Several boxes in one test."""
    return lambda name: Box(tmp_path / name, shim, fake_cuda, fake_nvml)


@pytest.fixture
def box(make_box: Callable[[str], Box]) -> Iterator[Box]:
    """A container with 1 GiB of GPU 0 (8 GiB)."""
    yield make_box("box")


@pytest.fixture(scope="session")
def real_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's own libcuda.so, libnvidia-ml.so and nvidia-smi from Debian's non-free component; skips without them."""
    root = nvidia()
    place = tmp_path_factory.mktemp("debian")
    for library in ("libcuda", "libnvidia-ml"):
        (found,) = (p for p in root.rglob(f"{library}.so.*.*") if not p.is_symlink())
        shutil.copy(found, place / f"{library}.so")
    (program,) = (p for p in root.rglob("nvidia-smi") if p.is_file() and p.stat().st_size > 100000)
    shutil.copy(program, place / "nvidia-smi")
    (place / "plain").mkdir()
    (place / "plain" / "libnvidia-ml.so.1").symlink_to(place / "libnvidia-ml.so")
    return place
