"""The memory limit of a container: which allocations succeed, which are refused, and which figures are shown."""

import subprocess

import pytest

from tests.shim.box import MIB, Box

pytestmark = pytest.mark.root


def test_allocations_stop_at_the_limit(box: Box) -> None:
    out = box.python("""
cu.init()
assert cu.info() == (1024 * cu.MIB, 1024 * cu.MIB), cu.info()
assert cu.total() == 1024 * cu.MIB
pieces = [cu.alloc(100 * cu.MIB) for _ in range(12)]
assert [r for r, _ in pieces] == [0] * 10 + [cu.OOM] * 2, pieces
assert cu.info() == (24 * cu.MIB, 1024 * cu.MIB)
assert cu.alloc(24 * cu.MIB)[0] == 0
assert cu.alloc(1)[0] == cu.OOM
assert cu.free(pieces[0][1]) == 0
assert cu.alloc(100 * cu.MIB)[0] == 0
""")
    assert out.stderr == ""
    assert box.peak() == 1024 * MIB


def test_what_cumemgetinfo_says_is_what_the_next_allocation_gets(box: Box) -> None:
    box.grant({0: 1000 * MIB + 777})
    box.python("""
cu.init()
assert cu.alloc(3 * cu.MIB + 5)[0] == 0
free, total = cu.info()
assert total == 1000 * cu.MIB + 777
assert cu.alloc(free + 1)[0] == cu.OOM
r, p = cu.alloc(free)
assert r == 0
assert cu.info()[0] == 0 and cu.alloc(1)[0] == cu.OOM
""")


def test_all_processes_share_one_limit(box: Box) -> None:
    with box.start(["python3", "-c", HOLD.format(mib=700)]) as first:
        assert first.stdout and first.stdin and first.stdout.readline() == "0\n"
        box.python("""
cu.init()
assert cu.info()[0] == 324 * cu.MIB, cu.info()
assert cu.alloc(325 * cu.MIB)[0] == cu.OOM
assert cu.alloc(324 * cu.MIB)[0] == 0
""")
        first.stdin.close()
        assert first.wait(10) == 0
    box.python("cu.init(); assert cu.alloc(1024 * cu.MIB)[0] == 0")
    assert box.peak() == 1024 * MIB


def test_memory_of_an_exited_process_is_free_as_soon_as_it_is_asked_for(box: Box) -> None:
    """How often somebody asked before does not matter."""
    box.python("""
import subprocess, sys
cu.init()
left = cu.info()
for mib in range(1, 21):
    code = f"import client as cu; cu.init(); print(cu.alloc({mib} * cu.MIB)[0], flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout.readline() == "0\\n"
        assert cu.info()[0] == left[0] - mib * cu.MIB, (cu.info(), left)
        child.kill() if mib % 2 else child.stdin.close()
    assert cu.info() == left, (mib, cu.info(), left)
""")


HOLD = """
import sys, client as cu
cu.init()
print(cu.alloc({mib} * cu.MIB)[0], flush=True)
sys.stdin.read()
"""


def test_a_failed_driver_call_gives_the_reservation_back(box: Box) -> None:
    box.grant({0: 9000 * MIB})  # more than the GPU has
    box.python("""
cu.init()
assert cu.alloc(8500 * cu.MIB)[0] == cu.OOM
assert cu.alloc(8192 * cu.MIB)[0] == 0
assert cu.lib.cuMemAlloc_v2(None, cu.c_size_t(10)) == 1
""")


def test_frees_of_unknown_pointers_go_to_the_driver(box: Box) -> None:
    box.python("""
cu.init()
assert cu.free(0) == 0 and cu.free(12345) == 1
r, p = cu.alloc(cu.MIB)
assert cu.free(p) == 0 and cu.free(p) == 1
assert cu.info()[0] == 1024 * cu.MIB
""")


def test_a_made_up_handle_touches_no_other_note(box: Box) -> None:
    """An unknown handle was once noted over the note of a device pointer, and a free then dropped a pool's charge."""
    box.python("""
M, u64, size = cu.MIB, cu.c_uint64, cu.c_size_t
cu.init()
r, handle = cu.create(2 * M)
pool = cu.pool()
r, piece = cu.pool_alloc(pool, 608 * M)
assert r == 0 and cu.lib.cuMemPoolDestroy(cu.c_void_p(pool)) == 0
assert cu.lib.cuMemRelease(u64(handle)) == 0
for turn in range(64):
    r, p = cu.alloc(M)
    assert r == 0 and cu.used() == 609 * M
    for kind in (20, 20 + turn % 44):
        made_up = u64(p ^ kind << 58)
        assert cu.lib.cuMemMap(u64(0x500000000000), size(2 * M), size(0), made_up, u64(0)) == 1
        assert cu.free(made_up.value) == 1
    assert cu.free(p) == 0 and cu.used() == 608 * M, (turn, cu.used() / M)
assert cu.alloc(417 * M)[0] == cu.OOM and cu.async_free(piece) == 0 and cu.used() == 0
""")
    assert box.peak() == 610 * MIB


def test_a_live_change_is_seen_at_the_next_call(box: Box) -> None:
    code = """
import sys, client as cu
cu.init()
held = [cu.alloc(512 * cu.MIB)]
print(held[0][0], flush=True)
sys.stdin.readline()
print(cu.info(), cu.total(), cu.alloc(1)[0], flush=True)
sys.stdin.readline()
print(cu.info(), cu.total(), cu.alloc(1536 * cu.MIB)[0], flush=True)
"""
    with box.start(["python3", "-c", code]) as p:
        live_change(box, p)


def live_change(box: Box, p: "subprocess.Popen[str]") -> None:
    assert p.stdin and p.stdout
    assert p.stdout.readline() == "0\n"
    box.grant({0: 256 * MIB})  # below what is in use: refuses, kills nothing
    print(file=p.stdin, flush=True)
    assert p.stdout.readline() == f"(0, {256 * MIB}) {256 * MIB} 2\n"
    box.grant({0: 2048 * MIB})
    print(file=p.stdin, flush=True)
    assert p.stdout.readline() == f"({1536 * MIB}, {2048 * MIB}) {2048 * MIB} 0\n"


def test_each_gpu_has_its_limit_whatever_the_order(box: Box) -> None:
    box.grant({2: 200 * MIB, 0: 100 * MIB})
    for order, limits in (("", [100, 0, 200, 0]), ("2,0", [200, 100]), ("1,2", [0, 200])):
        box.python(
            f"""
for device, mib in enumerate({limits}):
    cu.init(device)
    assert cu.alloc(mib * cu.MIB + 1)[0] == cu.OOM, device
    if mib:
        assert cu.total(device) == mib * cu.MIB
        assert cu.info() == (mib * cu.MIB, mib * cu.MIB)
        assert cu.alloc(mib * cu.MIB)[0] == 0, device
""",
            **({"CUDA_VISIBLE_DEVICES": order} if order else {}),
        )
    assert [box.peak(i) // MIB for i in range(4)] == [100, 0, 200, 0]


def test_a_whole_gpu_is_not_limited(box: Box) -> None:
    box.grant({0: 100 * MIB}, whole=(0,))
    box.python("""
cu.init()
assert cu.info()[1] == cu.total() == 8192 * cu.MIB
assert cu.alloc(8000 * cu.MIB)[0] == 0
""")


def test_threads_of_a_process_cannot_pass_the_limit_together(box: Box) -> None:
    box.python("""
import threading
cu.init()
won = []
def work():
    cu.use(0)
    for _ in range(300):
        r, p = cu.alloc(8 * cu.MIB)
        if r == 0:
            won.append(p)
            if len(won) % 3 == 0:
                cu.free(won.pop())
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert cu.info()[0] == 1024 * cu.MIB - 8 * cu.MIB * len(won), (cu.info(), len(won))
[cu.free(p) for p in won]
assert cu.info()[0] == 1024 * cu.MIB
""")
    assert box.peak() <= 1024 * MIB
