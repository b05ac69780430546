"""A program may close every descriptor that it did not open itself, at any moment, also where the numbers then belong to
other files, and may enter a chroot: its memory and its share stay what they are, and it does not hang."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from oci_hook.core.slot_page import parse
from testbed.sim.gpus import CLIENT
from tests.gate.conftest import Place
from tests.gate.gpus import LONG, Tenant

pytestmark = pytest.mark.root
CLOSE = {
    "closerange": "os.closerange(3, 4096)",
    "close_range": "assert ctypes.CDLL(None).syscall(436, 3, 0xffffffff, 0) == 0",
    "other files": "os.closerange(3, 4096); held = [open('/dev/zero', 'rb') for _ in range(200)]",
}
CODE = """
import os, sys
sys.path.insert(0, {client!r})
from client import *
{before}
cuda.cuInit(0)
{initialised}
context(); f = kernel(20)
{context}
at = alloc(MIB); launch(f); cuda.cuCtxSynchronize()
{used}
more = [alloc(MIB) for _ in range(100)]
for _ in range(300):
    launch(f)
cuda.cuCtxSynchronize(); cuda.cuMemcpyHtoD_v2(at, b"x" * 4096, c_size_t(4096))
for p in more:
    cuda.cuMemFree_v2(p)
assert code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(600 * MIB)) == 2
free, whole = c_size_t(), c_size_t()
cuda.cuMemGetInfo_v2(byref(free), byref(whole))
print(free.value // MIB, whole.value // MIB)
"""
CHILD = """
if not os.fork():
    {close}
    os._exit(code("cuMemFree_v2", at) != 3)
assert os.wait()[1] == 0
"""


@pytest.mark.parametrize("close", list(CLOSE))
@pytest.mark.parametrize("when", ["before", "initialised", "context", "used", "child"])
def test_a_program_that_closes_every_descriptor(place: Callable[..., Place], when: str, close: str) -> None:
    made = place(Tenant(), Tenant())
    made.kernels(1, "plain", 80).ready()
    steps = dict.fromkeys(("before", "initialised", "context", "used"), "")
    steps["used" if when == "child" else when] = CHILD.format(close=CLOSE[close]) if when == "child" else CLOSE[close]
    box = made.boxes[0]
    program = box.command([sys.executable, "-c", CODE.format(client=str(CLIENT), **steps)])
    done = subprocess.run(program, env=box.env(), capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(512 - 1), "512"]


def test_a_program_that_enters_a_chroot_after_init_is_gated(place: Callable[..., Place]) -> None:
    """Its own slot file and its neighbour's are open by then."""
    made = place(Tenant(), Tenant())
    made.kernels(1, "plain", 80).ready()
    box = made.boxes[0]
    (box.place / "empty").mkdir()
    steps = dict.fromkeys(("before", "initialised", "context", "used"), "")
    steps["initialised"] = "os.chroot('/run/gpu-hook/empty'); os.chdir('/')"
    program = box.command([sys.executable, "-c", CODE.format(client=str(CLIENT), **steps)])
    done = subprocess.run(program, env=box.env(), capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    told = parse(made.gpu.slot_file(0).read_bytes(), 1)
    assert told and told.charged > 0.004
