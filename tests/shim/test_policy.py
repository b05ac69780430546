"""What the shim does without a policy page that it can trust: it refuses, says so once, and breaks nothing."""

import os
import random
import struct
import sys
from pathlib import Path

import pytest

from tests.shim.box import MIB, Box, policy

pytestmark = pytest.mark.root

GOOD = policy({0: 1024 * MIB})
BAD = {
    "missing": None,
    "empty": b"",
    "short": GOOD[:4095],
    "magic": b"x" + GOOD[1:],
    "version": policy({0: 1024 * MIB}, version=2),
    "size": GOOD[:12] + struct.pack("<I", 8192) + GOOD[16:],
    "too many GPUs": GOOD[:20] + struct.pack("<I", 17) + GOOD[24:],
    "being written for ever": policy({0: 1024 * MIB}, seq=7),
    "zeroes": bytes(4096),
    "noise": random.Random(1).randbytes(4096),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_page_refuses_memory_with_one_line(box: Box, name: str) -> None:
    page = BAD[name]
    if page is None:
        (box.place / "policy").unlink()
    else:
        box.write_policy(page)
    out = box.python("""
cu.init()
assert cu.alloc(1)[0] == cu.OOM and cu.alloc(1)[0] == cu.OOM
assert cu.create(2 * cu.MIB)[0] == cu.OOM
assert cu.async_alloc(1)[0] == cu.OOM
assert cu.array(10, 10)[0] == cu.OOM
assert cu.info()[0] == 0
assert cu.lib.cuLaunchKernel(None, 1, 2, 3, 4, 5, 6, 7, None, None, None) == 0
""")
    assert out.stderr.count("GH-307") == 1 and out.stderr.count("\n") == 1, out.stderr
    assert len(out.stderr) < 300
    assert box.peak() == 0


def test_a_page_that_comes_late_is_taken(box: Box) -> None:
    (box.place / "policy").unlink()
    code = """
import sys, client as cu
cu.init()
for line in sys.stdin:
    print(cu.alloc(cu.MIB)[0], flush=True)
"""
    with box.start([sys.executable, "-c", code]) as p:
        assert p.stdin and p.stdout
        print(file=p.stdin, flush=True)
        assert p.stdout.readline() == "2\n"
        box.write_policy(GOOD)
        print(file=p.stdin, flush=True)
        assert p.stdout.readline() == "0\n"


def test_a_gpu_that_the_page_does_not_name_gives_nothing(box: Box) -> None:
    out = box.python("cu.init(1); assert cu.alloc(1)[0] == cu.OOM; assert cu.info()[0] == 0")
    assert out.stderr.count("GH-309") == 1


@pytest.mark.parametrize("kind", ["folder", "pipe", "unreadable"])
def test_something_else_in_the_pages_place(box: Box, kind: str) -> None:
    path = box.place / "policy"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(GOOD)
        path.chmod(0)
    box.place.chmod(0o755)
    for parent in list(box.place.parents)[:4]:
        if parent != Path("/tmp"):
            parent.chmod(0o755)
    box.gpu.chmod(0o666)
    out = box.python("import os; os.setuid(1001); cu.init(); assert cu.alloc(1)[0] == cu.OOM")
    assert "GH-307" in out.stderr


def test_the_limit_never_reads_the_environment(box: Box) -> None:
    names = [
        "CUDA_DEVICE_MEMORY_LIMIT",
        "GPU_HOOK_MEMORY_MIB",
        "GPU_HOOK_POLICY",
        "T9K_GPU_MEMORY",
        "LD_PRELOAD",
        "NVIDIA_VISIBLE_DEVICES",
    ]
    box.python("cu.init(); assert cu.total() == 1 << 30", **dict.fromkeys(names, ""))
    box.python(
        "cu.init(); assert cu.total() == 1 << 30", **dict.fromkeys([n for n in names if n != "LD_PRELOAD"], "9999")
    )


def test_a_writer_beside_readers_is_never_seen_half(box: Box) -> None:
    """Limits of both GPUs change together; a reader never sees one old and one new."""
    code = """
import sys, client as cu
cu.init(0)
sys.stdin.readline()
seen = set()
for _ in range(20000):
    seen.add(cu.total(0) // cu.MIB)
print(sorted(seen))
"""
    with box.start([sys.executable, "-c", code]) as p:
        assert p.stdin and p.stdout
        print(file=p.stdin, flush=True)
        pages = [policy({0: 100 * MIB}), policy({0: (100 << 32) * 1 + 100 * MIB})]
        with open(box.place / "policy", "r+b", buffering=0) as f:
            seq = 0
            while p.poll() is None and seq < 200000:
                new = pages[seq // 2 % 2]
                os.pwrite(f.fileno(), struct.pack("<I", seq + 1), 16)
                os.pwrite(f.fileno(), new[128:256], 128)
                seq += 2
                os.pwrite(f.fileno(), struct.pack("<I", seq), 16)
        out, _ = p.communicate()
    assert set(eval(out)) <= {100, 8192, 1024}, out


@pytest.mark.parametrize("seed", range(3))
def test_no_page_crashes_or_unlimits_a_program(box: Box, seed: int) -> None:
    """Thousands of damaged pages under a running program: its calls return, and never report more than the GPU has."""
    box.python(f"""
import os, random, pynvml as nv
rng = random.Random({seed})
good = open("/run/gpu-hook/policy", "rb").read()
page = os.open("/run/gpu-hook/policy", os.O_RDWR)
nv.nvmlInit()
gpu = nv.nvmlDeviceGetHandleByIndex(0)
cu.init()
for i in range(3000):
    bad = bytearray(good)
    for _ in range(rng.choice((1, 2, 8, 64))):
        bad[rng.randrange(rng.choice((64, 256, 2304)))] = rng.choice((0, 1, 2, 16, 17, 127, 128, 255))
    bad[16] &= 0xFE  # an odd sequence number is tested above and slow
    bad[72:88] = bytes(16)  # a container waits while it is suspended, for room, or for an hour of CLOCK_MONOTONIC at most
    os.pwrite(page, bytes(bad), 0)
    r, p = cu.alloc(rng.randrange(1, 1 << rng.randrange(1, 48)))
    assert r in (0, cu.OOM), r
    if r == 0:
        assert cu.free(p) == 0
    free, total = cu.info()
    assert free <= total <= 8192 * cu.MIB
    m = nv.nvmlDeviceGetMemoryInfo(gpu)
    assert m.free + m.used == m.total
os.pwrite(page, good, 0)
assert cu.info() == (1024 * cu.MIB, 1024 * cu.MIB)
""")
