"""A program whose other thread changes the arguments of a call while it runs is never charged less than it has.

flip.c makes the calls, flip_driver.c changes their arguments in the driver, after the shim has looked at them. A longer
run, with a thread that changes them all the time: GH_SECONDS=60 (seconds for each row).
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_hook_simulator import driver_root
from testbed.sim.gpus import build_simulated
from tests.shim.box import MIB, ROOT, Box, policy
from tests.shim.conftest import HERE, compile_c

pytestmark = pytest.mark.root
SHIM = ROOT / "oci_hook" / "shim"
LIMIT, CONTEXT = 7 << 30, driver_root.CONTEXT_MIB * MIB
SECONDS = float(os.environ.get("GH_SECONDS", "0"))

# Rows with pointers that flip.c does not call: what they are charged does not depend on these.
NO_MEMORY = ("gate/cuda_launch.c", "gate/cuda_copy.c", "memory/cuda_checkpoint.c", "memory/cuda_unasked.c")
# Rows whose pointers say nothing of memory: where results go. The pairs of a restore are copied, see tests/memory.
RESULTS = (
    "cuStreamEndCapture",
    "cuStreamEndCapture_ptsz",
    "cuCtxAttach",
    "cuGreenCtxCreate",
    "cuMulticastCreate",
    "cuCtxFromGreenCtx",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
)


def rows() -> dict[str, str]:
    """Each intercepted CUDA function -> the file that defines it."""
    found, file = {}, ""
    for line in (SHIM / "intercepts.def").read_text().splitlines():
        if heading := re.match(r"/\* (\w+/cuda_\w+\.c):", line):
            file = heading[1]
        if row := re.match(r"GH_CUDA\(.*, (\w+)\)", line):
            found[row[1]] = file
    return found


def takes_pointers() -> set[str]:
    """The functions whose declarations have a pointer; declarations that a macro makes count as well."""
    text = (SHIM / "driver" / "cuda.h").read_text()
    plain = re.findall(r"^CUresult (\w+)\(([^;]*)\);", text, re.MULTILINE)
    declared = {name: "*" in arguments for name, arguments in plain}
    return {name for name in rows() if declared.get(name, True)} - set(RESULTS)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, shim: Path) -> Path:
    """flip, and the driver that it needs, in one folder."""
    build_simulated()
    out = tmp_path_factory.mktemp("flip")
    empty = out / "empty.c"
    empty.write_text("")
    needed = compile_c(out / "needed.so", "-shared", "-Wl,-soname,/run/gpu-hook/driver/under", str(empty))
    compile_c(out / "driver.so", "-shared", "-fPIC", "-w", f"-I{SHIM}", "-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed",
              str(HERE / "flip_driver.c"), str(needed), "-ldl")  # fmt: skip
    compile_c(out / "flip", "-w", "-std=gnu11", str(HERE / "flip.c"), "-ldl", "-lpthread")
    return out


@pytest.fixture
def flip_box(tmp_path: Path, shim: Path, program: Path) -> Iterator[Box]:
    """A container with 7 GiB of a simulated GPU, below the driver that changes arguments."""
    gpus = tmp_path / "box" / "gpus"
    gpus.mkdir(parents=True)
    uuid = driver_root.make_gpu(gpus / "0", 0, 8192)
    box = Box(tmp_path / "box", shim, program / "driver.so")
    (box.place / "driver" / "under").write_bytes((shim / "sim" / "libcuda.so.1").read_bytes())
    (box.place / "flip").write_bytes((program / "flip").read_bytes())
    (box.place / "flip").chmod(0o755)
    page = bytearray(policy({0: LIMIT}))
    struct.pack_into("<48s", page, 128, uuid.encode())
    struct.pack_into("<Q", page, 128 + 80, CONTEXT)
    box.write_policy(bytes(page))
    yield box


def known(program: Path) -> set[str]:
    import subprocess

    return set(subprocess.run([str(program / "flip")], capture_output=True, text=True, check=True).stdout.split())


def test_every_row_with_pointers_is_called_or_takes_no_memory(program: Path) -> None:
    wanted = {name for name in takes_pointers() if rows()[name] not in NO_MEMORY}
    assert wanted == known(program) & wanted, wanted - known(program)
    assert known(program) <= wanted, known(program) - wanted
    assert len(wanted) > 40


@pytest.mark.parametrize("row", sorted(name for name in takes_pointers() if rows()[name] not in NO_MEMORY))
def test_arguments_that_change_during_the_call(flip_box: Box, row: str) -> None:
    gpus = {"GPU_HOOK_SIM_GPUS": "/run/gpu-hook/gpus"}
    done = flip_box.run(["/run/gpu-hook/flip", row], check=False, **gpus)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    done = flip_box.run(["/run/gpu-hook/flip", row, str(SECONDS or 0.1)], check=False, timeout=SECONDS + 60, **gpus)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
