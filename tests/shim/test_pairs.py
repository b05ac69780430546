"""The same programs on the simulated driver alone and through the shim: the answers are the same but for the limit."""

import json
import re
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_hook_simulator import driver_root
from oci_hook.shim import build
from testbed.sim.gpus import build_simulated
from tests.shim.conftest import HERE
from tests.shim.sim_box import SimBox

pytestmark = pytest.mark.root
MEMORY_WAIT_AT, WAITING_AT = 76, 1024 + 32  # in the policy page; of GPU 0 in the account page


class Pair:
    """Two containers, and two GPUs: one with a share, one with the driver alone."""

    def __init__(self, place: Path, shim: Path) -> None:
        self.boxes = {"bare": SimBox(place / "bare", shim), "share": SimBox(place / "share", shim)}
        self.paths = {"bare": str(shim / "sim"), "share": str(shim)}
        self.errors = ""

    def run(self, *argv: str) -> "tuple[list[str], list[str]]":
        """What a program of this folder says, bare and with a share."""
        said = []
        for side, box in self.boxes.items():
            path = f"LD_LIBRARY_PATH={self.paths[side]}"
            done = box.run(["env", path, sys.executable, str(HERE / argv[0]), *argv[1:]])
            said.append(done.stdout.splitlines())
            self.errors = done.stderr
        return said[0], said[1]


@pytest.fixture
def pair(tmp_path: Path, shim: Path) -> Iterator[Pair]:
    build_simulated()
    made = Pair(tmp_path, shim)
    yield made
    for box in made.boxes.values():
        box.close()


def calls() -> "set[str]":
    """The names that wrong_calls.py calls; it cannot be imported without a libcuda."""
    table = re.search(r"^CALLS.*?^}", (HERE / "wrong_calls.py").read_text(), re.MULTILINE | re.DOTALL)
    assert table
    return set(re.findall(r'^    "(cu\w+)":', table[0], re.MULTILINE))


# Of these the driver cannot be asked without the memory: a full container answers that it is full.
FULL = {"cuCtxCreate_v3", "cuImportExternalMemory"}


def test_the_drivers_own_error_wins(pair: Pair) -> None:
    """With one wrong argument, and with each two: before cuInit, without a context, with one, and in a full container."""
    bare, share = (
        {tuple(json.loads(line)[:2]): json.loads(line)[2] for line in said} for said in pair.run("wrong_calls.py")
    )
    assert set(bare) <= set(share)
    wrong = []
    for (state, name), answers in bare.items():
        ours = share[state, name]
        for what, answer in answers.items():
            full = state == "full" and ours[what] == 2 and (answer == 0 or name in FULL)
            if state != "left" and ours[what] != answer and not full:
                wrong.append(f"{name}, {state}, {what}: {answer} alone, {ours[what]} with a share")
    assert not wrong, "\n".join(wrong)
    assert len(bare) > 150 and ("full", "cuMemCreate") in bare
    left = [ours["MiB"] for (state, _), ours in share.items() if state == "left"]
    assert left == [0, 0], "what was refused stays charged"
    assert "GH-309" not in pair.errors, pair.errors


def test_every_allocating_function_is_called_wrongly() -> None:
    rows = {name for name, kind in build.classes().items() if kind in ("allocates", "context")}
    assert rows & set(build.table("GH_CUDA")) == calls()


@pytest.mark.parametrize("state", ["granted", "lost"])
def test_nvml_says_what_the_driver_says_of_a_wrong_question(pair: Pair, state: str) -> None:
    for box in pair.boxes.values():
        with open(box.gpus / "0", "r+b") as f:
            f.seek(driver_root.FAULTS["lost"])
            f.write(struct.pack("<I", int(state == "lost")))
    names = build.table("GH_NVML")
    bare, share = pair.run("wrong_questions.py", state, *names)
    theirs = [json.loads(line) for line in bare]
    answers = {(where, name): said for where, name, said in map(json.loads, share)}
    assert all(set(said.values()) <= {1, 3} for where, _, said in theirs if where in ("not there", "no more there"))
    assert {name for _, name, _ in theirs} > {"nvmlDeviceGetEncoderSessions", "nvmlDeviceGetMPSComputeRunningProcesses"}
    wrong = [(where, name, said, ours) for where, name, said in theirs if (ours := answers[where, name]) != said]
    assert not wrong, wrong


def test_what_nvml_refuses_begins_with_its_start(pair: Pair) -> None:
    pair.boxes["share"].python(
        f"""
import ctypes
lib = ctypes.CDLL("libnvidia-ml.so.1")
names = {build.table("GH_NVML_REFUSED")!r}
assert {{getattr(lib, name)(None) for name in names}} == {{1}}
assert lib.nvmlInit_v2() == 0
assert {{getattr(lib, name)(None) for name in names}} == {{4}}
"""
    )


def test_memory_that_was_bound_is_charged_as_long_as_the_driver_has_it(pair: Pair) -> None:
    bare, share = pair.run("bound_memory.py")
    assert len(bare) == len(share) > 250
    assert not [(a, b) for a, b in zip(bare, share, strict=True) if a != b]
    assert json.loads(bare[-1])[-1] == 0


FULL_POOL = """
cu.init()
p, pool, props = cu.c_uint64(), cu.c_void_p(), cu.prop()
props.max = 64 * cu.MIB
assert cu.lib.cuMemPoolCreate(cu.byref(pool), cu.byref(props)) == 0
took = [cu.pool_alloc(pool.value, 32 * cu.MIB)[0] for _ in range(3)]
assert took == [0, 0, cu.OOM], took
assert cu.pool_alloc(pool.value, 200 * cu.MIB)[0] == cu.OOM
assert cu.info()[0] > 500 * cu.MIB
"""


@pytest.mark.parametrize("lent", [0, 3600])
def test_a_pool_that_is_full_by_its_own_maximum_does_not_wait(pair: Pair, lent: int) -> None:
    """Where memory is lent, an allocation that the GPU has no room for waits for an hour: the box's own end comes first."""
    box = pair.boxes["share"]
    page = bytearray((box.place / "policy").read_bytes())
    struct.pack_into("<I", page, MEMORY_WAIT_AT, lent)
    box.write_policy(bytes(page))
    box.python(FULL_POOL)


def test_an_allocation_that_the_gpu_has_no_room_for_still_waits(pair: Pair) -> None:
    """It says so in the account page, where the agent finds it."""
    box = pair.boxes["share"]
    page = bytearray((box.place / "policy").read_bytes())
    struct.pack_into("<I", page, MEMORY_WAIT_AT, 3600)
    box.write_policy(bytes(page))
    hold = "import sys, client as cu; cu.init(); print(cu.alloc(7600 * cu.MIB)[0], flush=True); sys.stdin.read()"
    bare = ["env", f"LD_LIBRARY_PATH={pair.paths['bare']}", sys.executable, "-c", hold]
    ask = "import client as cu; cu.init(); print(cu.pool_alloc(cu.pool(), 600 * cu.MIB)[0])"
    with box.start(bare) as other:
        assert other.stdout and other.stdin and other.stdout.readline() == "0\n"
        with box.start([sys.executable, "-c", ask]) as waiting:
            page_file = box.place / "account" / "page"
            while (
                not page_file.exists()
                or not struct.unpack_from("<Q", page_file.read_bytes().ljust(4096, b"\0"), WAITING_AT)[0]
            ):
                assert waiting.poll() is None, waiting.communicate()
                time.sleep(0.01)
            other.stdin.close()
            assert waiting.communicate(timeout=60)[0] == "0\n"
