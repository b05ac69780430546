"""Tables of the shim have no size at which memory is no longer followed: pools, contexts, graphs within graphs."""

import pytest

from tests.shim.box import MIB, Box

pytestmark = pytest.mark.root


def test_the_ten_thousandth_pool_is_followed_like_the_first(box: Box) -> None:
    """What a pool keeps is charged. The table grows at the 65th, the 193rd, ... pool; it once ended at the 1024th."""
    box.python("""
M, u64 = cu.MIB, cu.c_uint64
cu.init()
keep = u64(2**64 - 1)
pools = [cu.pool() for _ in range(10000)]
for i in (0, 62, 63, 64, 65, 191, 192, 193, 1022, 1023, 1024, 1025, 4095, 4096, 9998, 9999):
    before = cu.used()
    assert cu.lib.cuMemPoolSetAttribute(cu.c_void_p(pools[i]), 4, cu.byref(keep)) == 0
    r, p = cu.pool_alloc(pools[i], 20 * M)
    assert r == 0 and cu.async_free(p) == 0
    cu.lib.cuCtxSynchronize()
    assert cu.used() == before + 32 * M, (i, cu.used() / M)
assert cu.used() == 512 * M
assert cu.alloc(600 * M)[0] == 0, "idle memory of pools is released when memory is short"
assert cu.used() == 600 * M
for pool in pools:
    assert cu.lib.cuMemPoolDestroy(cu.c_void_p(pool)) == 0
assert cu.used() == 600 * M
""")
    assert box.peak() <= 1024 * MIB


def test_the_place_of_a_destroyed_pool_is_used_again(box: Box) -> None:
    box.python("""
M = cu.MIB
cu.init()
for _ in range(3000):
    pools = [cu.pool(), cu.pool()]
    r, p = cu.pool_alloc(pools[1], 100)
    assert r == 0
    assert [cu.lib.cuMemPoolDestroy(cu.c_void_p(pool)) for pool in pools] == [0, 0]
    assert cu.used() == 32 * M, "a piece keeps the memory of its pool"
    assert cu.async_free(p) == 0
    assert cu.used() == 0
""")


def test_memory_goes_with_the_two_thousandth_context(box: Box) -> None:
    """Drivers use the handle of a destroyed context again; that must not confuse two contexts."""
    box.python("""
cu.init()
keep = cu.alloc(cu.MIB)[1]
handles = set()
for turn in range(2000):
    ctx = cu.c_void_p()
    assert cu.lib.cuCtxCreate_v2(cu.byref(ctx), 0, 0) == 0
    assert cu.alloc(700 * cu.MIB)[0] == 0, turn
    assert cu.lib.cuCtxDestroy_v2(ctx) == 0
    assert cu.used() == cu.MIB, (turn, cu.used())
    handles.add(ctx.value)
assert len(handles) < 2000, "the driver uses handles again"
assert cu.free(keep) == 0 and cu.used() == 0
""")


def test_six_hundred_contexts_are_alive_at_once(box: Box) -> None:
    box.python("""
import random
cu.init()
live = []
for n in range(600):
    ctx, old = cu.c_void_p(), cu.c_void_p()
    assert cu.lib.cuCtxCreate_v2(cu.byref(ctx), 0, 0) == 0
    assert cu.alloc(cu.MIB)[0] == 0
    assert cu.lib.cuCtxPopCurrent_v2(cu.byref(old)) == 0
    live.append(ctx)
assert cu.used() == 600 * cu.MIB
random.Random(7).shuffle(live)
for n, ctx in enumerate(live):
    assert cu.lib.cuCtxPushCurrent_v2(ctx) == 0
    assert cu.alloc(4096)[0] == 0
    assert cu.lib.cuCtxDestroy_v2(ctx) == 0
    assert cu.used() == (599 - n) * cu.MIB, n
""")


def test_threads_make_and_destroy_contexts_and_pools(box: Box) -> None:
    box.python("""
import random, threading
cu.init()
def work(seed):
    rng = random.Random(seed)
    for _ in range(150):
        ctx, old = cu.c_void_p(), cu.c_void_p()
        assert cu.lib.cuCtxCreate_v2(cu.byref(ctx), 0, 0) == 0
        for _ in range(rng.randrange(4)):
            cu.alloc(rng.randrange(1, 5 * cu.MIB))
        if rng.random() < 0.3:
            pool = cu.pool()
            r, p = cu.pool_alloc(pool, 1000)
            if r == 0:
                assert cu.async_free(p) == 0
            assert cu.lib.cuMemPoolDestroy(cu.c_void_p(pool)) == 0
        assert cu.lib.cuCtxDestroy_v2(ctx) == 0
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
cu.lib.cuCtxSynchronize()
assert cu.used() == 0, cu.used()
""")
    assert box.peak() <= 1024 * MIB


def test_a_context_that_could_not_be_destroyed_keeps_its_memory(box: Box) -> None:
    box.python("""
cu.init()
ctx = cu.c_void_p()
assert cu.lib.cuCtxCreate_v2(cu.byref(ctx), 0, 0) == 0
assert cu.alloc(100 * cu.MIB)[0] == 0
cu.ctypes.CDLL(None).setenv(b"FAKE_REFUSE", b"1", 1)
assert cu.lib.cuCtxDestroy_v2(ctx) == 999
assert cu.used() == 100 * cu.MIB
cu.ctypes.CDLL(None).unsetenv(b"FAKE_REFUSE")
assert cu.alloc(10 * cu.MIB)[0] == 0
assert cu.lib.cuCtxDestroy_v2(ctx) == 0
cu.use(0)
assert cu.used() == 0, cu.used() / cu.MIB
""")
