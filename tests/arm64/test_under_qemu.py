"""The C parts for arm64, each run under qemu-user: the launcher, and the shim on the simulated driver. What they share
with this machine's own programs (pages, slot files, locks) is shared here with those."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_hook.linux import elf
from testbed import REPO
from testbed.packages import unpacked
from testbed.sim.gpus import Sim
from tests.gate import gpus as gate
from tests.launcher.test_launcher import ASKS, SANDBOX, Place
from tests.shim.sim_box import SimBox

QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not QEMU, reason="no qemu-aarch64: Debian has it in qemu-user-static"),
    pytest.mark.skipif(platform.machine() == "aarch64", reason="this machine runs them itself"),
]
PARTS = ("gpu-hook-runtime", "oci-gpu-hook", "gpu-hook-boundary", "libcuda.so.1", "libnvidia-ml.so.1")
SIM = ("sim/libcuda.so.1", "sim/libnvidia-ml.so.1", "sim/gpu-probe", "sim/gpu-probe-linked", "sim/share-model")
SCALE = 10


@pytest.fixture(scope="session")
def arm() -> Path:
    """The parts, compiled here for arm64."""
    words = [word for part in ("shim", "launcher", "sim", "sim/model") for word in ("--part", part)]
    command = [sys.executable, str(REPO / "scripts/build"), "--arch", "aarch64", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return REPO / "build/aarch64"


@pytest.fixture(scope="session")
def qemu() -> list[str]:
    """What runs a program for arm64, with Debian's C library for it."""
    return [QEMU, "-L", str(unpacked("bookworm", "libc6", "libgcc-s1", architecture="arm64"))]


@pytest.mark.parametrize("name", [*PARTS, *SIM])
def test_each_part_is_for_arm64(arm: Path, name: str) -> None:
    with open(arm / name, "rb") as f:
        facts = elf.read(f.fileno())
    assert facts and (facts.bits, facts.machine) == (64, elf.MACHINES["aarch64"])


# The launcher


class ArmPlace(Place):
    """The launcher for arm64; runtime and Python are programs of this machine."""

    def call(self, *args: str, **kw: object) -> tuple[list[str], "subprocess.CompletedProcess[str]"]:
        program = str(kw.pop("program", self.program))
        return super().call(program, *args, program=QEMU, **kw)


@pytest.fixture
def place(tmp_path: Path, arm: Path) -> Place:
    return ArmPlace(tmp_path, arm)


@pytest.mark.parametrize(
    ("args", "spec", "goes_to"),
    [
        (["--version"], ASKS, "runtime"),
        (["state", "x"], ASKS, "runtime"),
        (["create", "x"], "{}", "runtime"),
        (["create", "x"], SANDBOX, "runtime"),
        (["create", "x"], ASKS, "python"),
        (["--root", "/r", "--log=/l", "create", "--bundle", "{b}", "x"], ASKS, "python"),
        (["run", "--detach", "-b={b}", "x"], " " * 300_000 + ASKS, "python"),
        (["create", "x"], '{"annotations": {"gpu-hook.io\\u002fmemory": "1Gi"}}', "python"),
    ],
)
def test_the_launcher_decides_as_here(place: Place, args: list[str], spec: str, goes_to: str) -> None:
    place.spec(spec)
    assert place.goes_to(*(arg.replace("{b}", str(place.bundle)) for arg in args)) == goes_to


def test_the_launcher_refuses_as_here(place: Place) -> None:
    (place.root / "runtime").chmod(0o777)
    said, r = place.call("state", "x")
    assert said == [] and r.returncode == 1 and "GH-5" in r.stderr


def test_the_hooks_program(place: Place) -> None:
    said, r = place.call("prestart", program=place.prefix / "bin/oci-gpu-hook")
    assert (
        r.returncode == 7 and said[0] == "python" and said[-2:] == [f"{place.prefix}/lib/gpu-hook/hook.py", "prestart"]
    )


# The shim: memory


@pytest.fixture
def box(tmp_path: Path, arm: Path) -> Iterator[SimBox]:
    """A container with 1 GiB."""
    box = SimBox(tmp_path, arm)
    yield box
    box.close()


@pytest.mark.parametrize("probe", ["gpu-probe", "gpu-probe-linked"])
def test_the_limit_holds(box: SimBox, arm: Path, qemu: list[str], probe: str) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = box.run([*qemu, str(arm / "sim" / probe), *words], check=False, timeout=300)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout

    assert run("info") == (0, "1 device\ndevice 0: Simulated GPU 8 GiB, 1024 MiB total, 960 MiB free\n")
    assert run("alloc", "960")[0] == 0
    assert run("alloc", "961") == (1, "alloc 961 MiB: CUDA_ERROR_OUT_OF_MEMORY\n")
    assert run("alloc", "900", "free", "alloc", "900", "launch", "100", "20")[0] == 0
    status, said = run("fill", "100")
    assert "9" in said and box.figures.counted() == 0  # everything is given back at the end
    status, said = run("alloc", "600", "fork", "alloc", "600")
    assert "alloc 600 MiB: ok" in said and "fork: child" in said


@pytest.mark.parametrize("first", ["arm64", "native"])
def test_processes_of_both_machines_have_one_limit(
    box: SimBox, arm: Path, native: Path, qemu: list[str], first: str
) -> None:
    """They map the same account page, and take the same locks: neither sees room that the other one has taken."""
    programs = {
        "arm64": ([*qemu, str(arm / "sim/gpu-probe")], str(arm)),
        "native": ([str(native / "sim/gpu-probe")], str(native)),
    }
    (one, libraries), (other, others) = programs[first], programs["native" if first == "arm64" else "arm64"]
    # The other machine's libraries for its own program; the driver's file is chosen when the library is loaded.
    driver = {str(arm): arm / "sim/libcuda.so.1", str(native): native / "sim/libcuda.so.1"}
    real = box.place / "driver/cuda"
    real.write_bytes(driver[libraries].read_bytes())
    holder = box.start([*one, "alloc", "500", "pause"], LD_LIBRARY_PATH=libraries)
    assert holder.stdin and holder.stdout
    try:
        assert holder.stdout.readline() == "alloc 500 MiB: ok\n"
        real.unlink()
        real.write_bytes(driver[others].read_bytes())
        done = box.run([*other, "alloc", "397"], check=False, timeout=300, LD_LIBRARY_PATH=others)
        assert done.stdout == "alloc 397 MiB: CUDA_ERROR_OUT_OF_MEMORY\n", done  # 1024 - 564 - its context: 396
        done = box.run([*other, "alloc", "396"], check=False, timeout=300, LD_LIBRARY_PATH=others)
        assert done.stdout == "alloc 396 MiB: ok\n", done
        holder.kill()  # no chance to give anything back
        holder.wait()
        done = box.run([*other, "alloc", "900"], check=False, timeout=300, LD_LIBRARY_PATH=others)
        assert done.stdout == "alloc 900 MiB: ok\n", done
    finally:
        holder.kill()
        holder.communicate()


# The shim: compute


@pytest.fixture
def shared(tmp_path: Path, arm: Path, native: Path) -> Iterator[Callable[..., Any]]:
    """Makes a GPU, ten times slower, with these tenants, and a box for each: (its libraries, its tenant)."""
    closing: list[Any] = []

    def make(*tenants: tuple[Path, gate.Tenant]) -> list[gate.Box]:
        sim = Sim(tmp_path, native, 8192)
        gpu = gate.Gpu(tmp_path / "share", sim, [tenant for _, tenant in tenants], SCALE)
        closing.append(sim)
        boxes = []
        for i, (libraries, _) in enumerate(tenants):
            gpu.sim = SimpleNamespace(gpus=sim.gpus, libraries=libraries / "sim")
            boxes.append(gate.Box([gpu], i, libraries))
        return boxes

    yield make
    for one in closing:
        one.close()


def parts(*running: "subprocess.Popen[str]") -> list[float]:
    """What gpu-probe's run says of each, in per cent of the GPU, which is slower than its clock."""
    said = [process.communicate(timeout=300)[0] for process in running]
    return [SCALE * float(text.rpartition(" s, ")[2].split()[0]) for text in said]


def start(box: gate.Box, *argv: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(box.command(list(argv)), env=box.env(), stdout=subprocess.PIPE, text=True)


def test_a_ceiling_holds(shared: Callable[..., Any], arm: Path, qemu: list[str]) -> None:
    boxes = shared((arm, gate.Tenant(cap=0.3)), (arm, gate.Tenant()))
    (capped,) = parts(start(boxes[0], *qemu, str(arm / "sim/gpu-probe"), "run", "1000", "6"))
    (free,) = parts(start(boxes[1], *qemu, str(arm / "sim/gpu-probe"), "run", "1000", "6"))
    assert 5 < capped < 36 < free


def test_programs_of_both_machines_take_turns(
    shared: Callable[..., Any], arm: Path, native: Path, qemu: list[str]
) -> None:
    """Each reads the other one's slot file. Alone, either has nearly all of the GPU; together as their weights say."""
    boxes = shared((arm, gate.Tenant(weight=25)), (native, gate.Tenant(weight=75)))
    a = start(boxes[0], *qemu, str(arm / "sim/gpu-probe"), "run", "1000", "10")
    b = start(boxes[1], str(native / "sim/gpu-probe"), "run", "1000", "10")
    theirs, ours = parts(a, b)
    assert 10 < theirs < ours and theirs < 45 and ours > 50
