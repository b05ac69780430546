"""Device memory is charged by every route, until it is freed. box.peak() is the fake GPU's own count:
what the driver really handed out, at its worst instant."""

import pytest

from tests.shim.box import MIB, Box

pytestmark = pytest.mark.root

ROUND = {  # a call that takes about 300 MiB -> (result, handle); how to free the handle
    "cuMemAlloc_v2": ("cu.alloc(300 * M)", "cu.free(h)"),
    "cuMemAlloc": ("old(300 * M)", "cu.lib.cuMemFree(cu.c_uint(h))"),
    "cuMemAllocPitch": ("old_pitch(300 * M // 4096 - 8, 4096)", "cu.lib.cuMemFree(cu.c_uint(h))"),
    "cuMemAllocManaged": ("managed(300 * M)", "cu.free(h)"),
    "cuMemAllocPitch_v2": ("pitch(300 * M // 4096 - 8, 4096)", "cu.free(h)"),
    "cuMemAllocAsync": ("cu.async_alloc(300 * M)", "cu.async_free(h)"),
    "cuMemAllocAsync_ptsz": ("cu.async_alloc(300 * M, 0, '_ptsz')", "cu.async_free(h, '_ptsz')"),
    "cuMemAllocFromPoolAsync": ("cu.pool_alloc(P, 300 * M)", "cu.async_free(h)"),
    "cuMemAllocFromPoolAsync_ptsz": ("cu.pool_alloc(P, 300 * M, '_ptsz')", "cu.free(h)"),
    "cuMemCreate": ("cu.create(300 * M)", "cu.lib.cuMemRelease(cu.c_uint64(h))"),
    "cuArrayCreate_v2": ("plain_array(5120, 3840)", "cu.lib.cuArrayDestroy(cu.c_void_p(h))"),
    "cuArray3DCreate_v2": ("cu.array(256, 240, 320)", "cu.lib.cuArrayDestroy(cu.c_void_p(h))"),
    "cuMipmappedArrayCreate": ("cu.array(4096, 3600, 0, 12)", "cu.lib.cuMipmappedArrayDestroy(cu.c_void_p(h))"),
    "cuImportExternalMemory": ("external(300 * M)", "cu.lib.cuDestroyExternalMemory(cu.c_void_p(h))"),
}

CALLS = """
import ctypes
M = cu.MIB
cu.init()
P = cu.pool()
def managed(n):
    p = cu.c_uint64()
    return cu.lib.cuMemAllocManaged(cu.byref(p), cu.c_size_t(n), 1), p.value
def pitch(width, height):
    p, wide = cu.c_uint64(), cu.c_size_t()
    return cu.lib.cuMemAllocPitch_v2(cu.byref(p), cu.byref(wide), cu.c_size_t(width), cu.c_size_t(height), 4), p.value
def old(n):  # before CUDA 3.2: 32-bit addresses
    p = cu.c_uint()
    return cu.lib.cuMemAlloc(cu.byref(p), cu.c_uint(n)), p.value
def old_pitch(width, height):
    p, wide = cu.c_uint(), cu.c_uint()
    r = cu.lib.cuMemAllocPitch(cu.byref(p), cu.byref(wide), cu.c_uint(width), cu.c_uint(height), cu.c_uint(4))
    return r, p.value
def plain_array(w, h):
    d = (cu.c_size_t * 3)(w, h, 0x20 | 4 << 32)
    a = cu.c_void_p()
    return cu.lib.cuArrayCreate_v2(cu.byref(a), d), a.value or 0
def external(n):
    d = (cu.c_uint64 * 13)(1, 5, 0, n)
    m = cu.c_void_p()
    return cu.lib.cuImportExternalMemory(cu.byref(m), d), m.value or 0
"""


@pytest.mark.parametrize("route", ROUND)
def test_a_route_is_limited_and_gives_back(box: Box, route: str) -> None:
    take, free = ROUND[route]
    box.python(
        CALLS
        + f"""
got = [{take} for _ in range(5)]
assert [r for r, _ in got] == [0, 0, 0, cu.OOM, cu.OOM], got
assert 850 * M <= cu.used() <= 1024 * M, cu.used()
rest = cu.info()[0]
assert cu.alloc(rest + 1)[0] == cu.OOM
r, p = cu.alloc(rest)
assert r == 0, "what is shown as free is granted"
assert cu.free(p) == 0
for r, h in got[:3]:
    assert {free} == 0
cu.lib.cuCtxSynchronize()
assert cu.used() == 0, cu.used()
assert {take}[0] == 0
"""
    )
    assert 850 * MIB < box.peak() <= 1024 * MIB


@pytest.mark.parametrize("route", [route for route in ROUND if "Array" not in route])
def test_a_full_container_is_full_whatever_the_driver_calls_an_impossible_amount(box: Box, route: str) -> None:
    """The driver is asked for one where the charge is refused."""
    box.python(
        CALLS + f"assert cu.alloc(800 * M)[0] == 0 and [{ROUND[route][0]}[0] for _ in range(2)] == [cu.OOM] * 2",
        FAKE_AMOUNTS_CAN_BE_WRONG="1",
    )
    assert box.peak() <= 1024 * MIB


def test_what_the_driver_reserves_for_a_pool_counts_both_ways(box: Box) -> None:
    box.python("""
M = cu.MIB
cu.init()
r, a = cu.async_alloc(1000)
assert r == 0 and cu.used() == 32 * M, cu.used()
r, b = cu.async_alloc(40 * M)
assert cu.used() == 64 * M
cu.async_free(b); cu.async_free(a)
assert cu.used() == 64 * M, "kept until a synchronisation"
cu.lib.cuStreamSynchronize(None)
assert cu.used() == 0
P = cu.pool()
keep = cu.c_uint64(2**63)
assert cu.lib.cuMemPoolSetAttribute(cu.c_void_p(P), 4, cu.byref(keep)) == 0
r, c = cu.pool_alloc(P, 500 * M)
cu.async_free(c)
cu.lib.cuCtxSynchronize()
assert cu.used() == 512 * M, "below its release threshold a pool keeps all"
assert cu.alloc(900 * M)[0] == 0, "but gives it back when memory is short"
assert cu.used() == 900 * M
""")
    assert box.peak() <= 1024 * MIB


def test_a_pool_near_the_limit_reuses_what_it_has(box: Box) -> None:
    box.python("""
M = cu.MIB
cu.init()
P = cu.pool()
for _ in range(20):
    r, c = cu.pool_alloc(P, 600 * M)
    assert r == 0
    cu.async_free(c)
r, c = cu.pool_alloc(P, 600 * M)
assert cu.pool_alloc(P, 600 * M)[0] == cu.OOM
assert cu.used() == 608 * M
assert cu.lib.cuMemPoolDestroy(cu.c_void_p(P)) == 0
assert cu.used() == 608 * M, "handed-out parts outlive their pool, and keep its memory"
assert cu.async_free(c) == 0
assert cu.used() == 0
""")


def test_a_driver_that_grows_pools_by_more_is_over_for_one_call_at_most(box: Box) -> None:
    """The bound that docs/internals/account-page.md states: its growth less 32 MiB."""
    box.python(
        """
M = cu.MIB
cu.init()
assert cu.alloc(990 * M)[0] == 0
assert cu.async_alloc(1)[0] == cu.OOM, "undone"
assert cu.used() == 990 * M
r, p = cu.alloc(34 * M)
assert r == 0 and cu.free(p) == 0
assert cu.async_alloc(1)[0] == cu.OOM, "not even asked"
""",
        FAKE_CHUNK_MIB="64",
    )
    assert box.peak() == (990 + 64) * MIB
    twice = "cu.init(); assert cu.alloc(900 * cu.MIB)[0] == 0; assert [cu.async_alloc(1)[0] for _ in 'ab'] == [0, 0]"
    box.python(twice, FAKE_CHUNK_MIB="64")
    assert box.peak() == (990 + 64) * MIB


def test_pressure_makes_another_process_give_idle_pool_memory_back(box: Box) -> None:
    code = """
import sys, client as cu
cu.init()
P = cu.pool()
keep = cu.c_uint64(2**63)
cu.lib.cuMemPoolSetAttribute(cu.c_void_p(P), 4, cu.byref(keep))
r, c = cu.pool_alloc(P, 800 * cu.MIB)
cu.async_free(c)
print(r, flush=True)
for line in sys.stdin:
    cu.lib.cuStreamSynchronize(None)
    print(cu.used() // cu.MIB, flush=True)
"""
    with box.start(["python3", "-c", code]) as p:
        assert p.stdin and p.stdout and p.stdout.readline() == "0\n"
        box.python("cu.init(); assert cu.alloc(500 * cu.MIB)[0] == cu.OOM")
        print(file=p.stdin, flush=True)
        assert p.stdout.readline() == "0\n"
        box.python("cu.init(); assert cu.alloc(500 * cu.MIB)[0] == 0")


def test_host_memory_and_host_pools_are_not_charged(box: Box) -> None:
    box.python("""
cu.init()
p = cu.c_void_p()
assert cu.lib.cuMemAllocHost_v2(cu.byref(p), cu.c_size_t(64 * cu.MIB)) == 0
assert cu.lib.cuMemHostRegister_v2(p, cu.c_size_t(4096), 0) == 0
assert cu.create(2048 * cu.MIB, 0, 3)[0] == 0
assert cu.used() == 0
""")


def test_created_memory_lives_while_anything_holds_it(box: Box) -> None:
    box.python("""
M, u64, size = cu.MIB, cu.c_uint64, cu.c_size_t
lib = cu.lib
cu.init()
r, h = cu.create(600 * M)
AT = 0x500000000000
assert lib.cuMemMap(u64(AT), size(600 * M), size(0), u64(h), u64(0)) == 0
assert lib.cuMemRelease(u64(h)) == 0
assert cu.used() == 600 * M, "mapped"
again = u64()
assert lib.cuMemRetainAllocationHandle(cu.byref(again), cu.c_void_p(AT + 5 * M)) == 0
assert lib.cuMemUnmap(u64(AT), size(600 * M)) == 0
assert cu.used() == 600 * M, "retained"
assert cu.create(600 * M)[0] == cu.OOM
assert lib.cuMemRelease(again) == 0
assert cu.used() == 0
assert lib.cuMemRelease(again) != 0
# many pieces side by side, unmapped by one call
handles = [cu.create(2 * M)[1] for _ in range(100)]
for i, h in enumerate(handles):
    assert lib.cuMemMap(u64(AT + 2 * M * i), size(2 * M), size(0), u64(h), u64(0)) == 0
    assert lib.cuMemRelease(u64(h)) == 0
assert cu.used() == 200 * M
assert lib.cuMemUnmap(u64(AT + 20 * M), size(180 * M)) == 0
assert cu.used() == 20 * M
assert lib.cuMemUnmap(u64(AT), size(20 * M)) == 0
assert cu.used() == 0
""")


BIND = {
    "multicast object": (
        "lib.cuMulticastBindMem(u64(77), size(0), u64(h[0]), size(0), size(100 * M), u64(0))",
        "lib.cuMulticastBindAddr(u64(77), size(0), u64(AT + 4 * M), size(2 * M), u64(0))",
    ),
    "logical endpoint": (
        "lib.cuLogicalEndpointBindMem(77, 0, u64(0), u64(h[0]), u64(0), u64(100 * M), u64(0))",
        "lib.cuLogicalEndpointBindAddr(77, 0, u64(0), u64(AT + 4 * M), u64(2 * M), u64(0))",
    ),
}


@pytest.mark.parametrize("to", BIND)
def test_memory_bound_to_something_counts_once_and_stays(box: Box, to: str) -> None:
    memory, address = BIND[to]
    box.python(f"""
M, u64, size, lib = cu.MIB, cu.c_uint64, cu.c_size_t, cu.lib
cu.init()
h = [cu.create(100 * M)[1] for _ in range(3)]
assert {memory} == 0
AT = 0x500000000000
for i, one in enumerate(h[1:]):
    assert lib.cuMemMap(u64(AT + i * 100 * M), size(100 * M), size(0), u64(one), u64(0)) == 0
assert {address} == 0
assert cu.used() == 300 * M, "binding takes nothing"
assert lib.cuMemUnmap(u64(AT), size(200 * M)) == 0
assert [lib.cuMemRelease(u64(one)) for one in h] == [0, 0, 0]
assert cu.used() == 200 * M, "what was bound may live on; the third was not"
""")
    box.python("cu.init(); assert cu.used() == 0")


def test_memory_of_a_logical_endpoint_is_charged_until_it_is_unbound(box: Box) -> None:
    """One call may unbind several bindings; it must enclose each."""
    box.python("""
M, u64, lib = cu.MIB, cu.c_uint64, cu.lib
cu.init()
def bind(to, at):
    h = cu.create(100 * M)[1]
    assert lib.cuLogicalEndpointBindMem(to, 0, u64(at * M), u64(h), u64(0), u64(100 * M), u64(0)) == 0
    assert lib.cuMemRelease(u64(h)) == 0
def unbind(to, at, size, device=0):
    assert lib.cuLogicalEndpointUnbind(to, device, u64(at * M), u64(size * M)) == 0
    return cu.used() // M
for at in (0, 100, 200):
    bind(7, at)
bind(8, 100)
assert cu.used() == 400 * M
assert [unbind(9, 0, 300), unbind(7, 0, 300, 1), unbind(7, 50, 100), unbind(7, 0, 99)] == [400] * 4
assert [unbind(7, 0, 200), unbind(7, 0, 200), unbind(8, 100, 100), unbind(7, 200, 100)] == [200, 200, 100, 0]
""")


def test_arrays_count_at_their_true_size(box: Box) -> None:
    code = """
cu.init()
def real():  # what the driver took, behind the shim's back
    import struct
    return sum(struct.unpack("<256Q", b"".join(slot[:8] for slot in
        [open("/run/gpu-hook/gpu", "rb").read()[64 + 32 * i: 96 + 32 * i] for i in range(256)])))
shapes = [dict(width=1000), dict(width=1000, height=7), dict(width=100, height=100, depth=9),
          dict(width=64, height=0, depth=33, flags=1), dict(width=33, height=33, depth=6, flags=4),
          dict(width=500, height=300, levels=9), dict(width=40, height=40, depth=40, levels=6),
          dict(width=31, height=31, channels=1, format=1), dict(width=31, height=31, channels=2, format=0x10),
          dict(width=100, height=50, flags=0x40)]
for shape in shapes:
    before, shown = real(), cu.used()
    r, h = cu.array(**shape)
    assert r == 0
    took, counted = real() - before, cu.used() - shown
    print(shape, took, counted)
    assert CHECK, (shape, took, counted)
    drop = cu.lib.cuMipmappedArrayDestroy if "levels" in shape else cu.lib.cuArrayDestroy
    assert drop(cu.c_void_p(h)) == 0
    assert cu.used() == shown
"""
    box.python(code.replace("CHECK", "took == counted"))
    box.python(code.replace("CHECK", "took <= counted <= 20 * took + 65536"), FAKE_NO_DEFERRED="1")


def test_memory_goes_with_its_context(box: Box) -> None:
    box.python("""
cu.init()
assert cu.alloc(100 * cu.MIB)[0] == 0
ctx = cu.c_void_p()
assert cu.lib.cuCtxCreate_v2(cu.byref(ctx), 0, 0) == 0
mine = [cu.alloc(10 * cu.MIB)[1] for _ in range(50)] + [cu.array(1024, 1024)[1]]
assert cu.used() == (600 + 16) * cu.MIB
assert cu.lib.cuCtxDestroy_v2(ctx) == 0
assert cu.used() == 100 * cu.MIB, cu.used() / cu.MIB
assert cu.lib.cuDevicePrimaryCtxReset_v2(0) == 0
assert cu.used() == 0
assert cu.alloc(cu.MIB)[0] == 0
assert cu.lib.cuDevicePrimaryCtxRelease_v2(0) == 0
cu.use(0)
assert cu.used() == 0
""")


def test_memory_goes_with_a_context_that_is_detached(box: Box) -> None:
    box.python("""
cu.init()
ctx, same = cu.c_void_p(), cu.c_void_p()
for turn in range(30):
    assert cu.lib.cuCtxCreate_v2(cu.byref(ctx), 0, 0) == 0 and cu.alloc(100 * cu.MIB)[0] == 0, turn
    for times in range(turn % 3):
        assert cu.lib.cuCtxAttach(cu.byref(same), 1) == 1
        assert cu.lib.cuCtxAttach(cu.byref(same), 0) == 0 and same.value == ctx.value
    for times in range(turn % 3):
        assert cu.lib.cuCtxDetach(ctx) == 0
        assert cu.used() == 100 * cu.MIB, "its count is not 0"
    if turn % 5 == 4:
        assert cu.lib.cuCtxAttach(cu.byref(same), 0) == 0 and cu.lib.cuCtxDestroy_v2(ctx) == 0
    else:
        assert cu.lib.cuCtxDetach(ctx) == 0
    assert cu.used() == 0, (turn, cu.used() / cu.MIB)
""")


CONTEXTS = """
M, lib = cu.MIB, cu.lib
def primary():
    ctx = cu.c_void_p()
    assert lib.cuDevicePrimaryCtxRetain(cu.byref(ctx), 0) == 0 and lib.cuCtxSetCurrent(ctx) == 0
    return ctx.value
def other():
    ctx = cu.c_void_p()
    assert lib.cuCtxCreate_v2(cu.byref(ctx), 0, 0) == 0
    return ctx.value
def fill(mib):
    assert cu.alloc(mib * M)[0] == 0
lib.cuInit(0)
"""


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"])
@pytest.mark.parametrize("then", ["lib.cuDevicePrimaryCtxReset_v2(0)", "primary() == made"])
def test_a_context_with_the_handle_of_a_primary_one_keeps_its_charge(box: Box, end: str, then: str) -> None:
    """The primary one has gone, and the driver gives its handle to the next context."""
    box.python(
        CONTEXTS
        + f"""
was = primary()
fill(100)
assert lib.{end}(0) == 0
made = other()
assert made == was and cu.used() == 0
fill(600)
assert not {then}
lib.cuCtxSetCurrent(cu.c_void_p(made))
assert cu.used() == 600 * M, cu.used() / M
assert cu.alloc(500 * M)[0] == cu.OOM
assert lib.cuCtxDestroy_v2(cu.c_void_p(made)) == 0
primary()
assert cu.used() == 0, cu.used() / M
""",
        FAKE_PRIMARY_ENDS="1",
    )
    assert box.peak() <= 1024 * MIB


def test_a_retain_that_is_held_up_ends_no_context_made_since(box: Box) -> None:
    """Another thread resets the primary context meanwhile, and its handle goes to another context."""
    box.python(
        CONTEXTS
        + """
import ctypes
def meanwhile():
    global made, newer
    assert lib.cuDevicePrimaryCtxReset_v2(0) == 0
    made = other()
    fill(300)
    newer = primary()
    fill(300)
callback = ctypes.CFUNCTYPE(None)(meanwhile)
driver = ctypes.CDLL("/run/gpu-hook/driver/cuda")
hook = cu.c_void_p.in_dll(driver, "fake_retained")
first = primary()
fill(100)
assert lib.cuDevicePrimaryCtxReset_v2(0) == 0
hook.value = ctypes.cast(callback, cu.c_void_p).value
last = primary()
assert cu.used() == 600 * M, cu.used() / M
assert last == newer and newer != made and made == first
assert lib.cuDevicePrimaryCtxReset_v2(0) == 0
lib.cuCtxSetCurrent(cu.c_void_p(made))
assert cu.used() == 300 * M, cu.used() / M
assert lib.cuCtxDestroy_v2(cu.c_void_p(made)) == 0
primary()
assert cu.used() == 0, cu.used() / M
""",
        FAKE_PRIMARY_ENDS="1",
    )


def test_graph_memory_is_charged_when_launched(box: Box) -> None:
    box.python("""
M = cu.MIB
cu.init()
g = cu.graph(600 * M)
assert cu.used() == 0
assert cu.launch(g) == 0 and cu.launch(g, "_ptsz") == 0
assert cu.used() == 608 * M, cu.used() / M
assert cu.alloc(900 * M)[0] == 0, "the graph pool was trimmed"
assert cu.launch(g) == cu.OOM
assert cu.lib.cuGraphExecDestroy(cu.c_void_p(g)) == 0
""")
    assert box.peak() <= 1024 * MIB


def test_a_graph_that_frees_at_its_next_launch_runs_again(box: Box) -> None:
    box.python("""
M = cu.MIB
cu.init()
g = cu.graph(600 * M, flags=1)
assert [cu.launch(g) for _ in range(4)] == [0] * 4
assert cu.used() == 608 * M
other = cu.graph(600 * M, flags=1)
assert cu.launch(other) == cu.OOM
assert cu.lib.cuGraphExecDestroy(cu.c_void_p(g)) == 0
assert [cu.launch(other) for _ in range(2)] == [0] * 2
assert cu.used() == 608 * M
""")
    assert box.peak() <= 1024 * MIB


def test_what_a_capture_allocates_is_no_growth_of_the_pool(box: Box) -> None:
    box.python("""
cu.init()
assert cu.async_alloc(2000 * cu.MIB, stream=0x99)[0] == 0
assert cu.used() == 0
""")


def test_what_is_freed_in_a_capture_stays_charged(box: Box) -> None:
    """The fake driver makes a node of it, which frees nothing."""
    box.python("""
M = cu.MIB
cu.init()
p = cu.alloc(600 * M)[1]
assert cu.async_free(p, stream=0x99) == 0
assert cu.used() == 600 * M and cu.alloc(600 * M)[0] == cu.OOM
assert cu.async_free(p) == 0 and cu.used() == 0
""")
    assert box.peak() == 600 * MIB


def test_external_memory_goes_with_its_context(box: Box) -> None:
    """CUDA names CUexternalMemory among what cuCtxDestroy cleans up."""
    box.python("""
import os
assert cu.lib.cuInit(0) == 0
for _ in range(4):
    context, fd = cu.c_void_p(), os.memfd_create("other API")
    assert cu.lib.cuCtxCreate_v2(cu.byref(context), 0, 0) == 0
    assert cu.external(fd, 600 * cu.MIB)[0] == 0
    assert cu.lib.cuCtxDestroy_v2(context) == 0
cu.init()
assert cu.used() == 0
""")


LATE = """
M, stream = cu.MIB, cu.c_void_p(0x77)  # frees when it is synchronised
cu.init()
def late():
    p = cu.alloc(600 * M)[1]
    assert cu.async_free(p, stream=0x77) == 0 and cu.used() == 600 * M
"""


def test_what_a_stream_will_free_stays_charged_until_then(box: Box) -> None:
    box.python(
        LATE
        + """
late()
assert cu.alloc(600 * M)[0] == cu.OOM
assert cu.lib.cuStreamSynchronize(stream) == 0 and cu.used() == 0
late()
cu.ctypes.CDLL("/run/gpu-hook/driver/cuda").cuCtxSynchronize()  # unseen
assert cu.alloc(600 * M)[0] == 0
"""
    )
    assert box.peak() == 600 * MIB


def test_shared_memory_that_a_stream_frees_is_charged_until_then(box: Box) -> None:
    box.python(
        LATE
        + """
for _ in range(3):
    p, fd = cu.alloc(600 * M)[1], cu.c_int()
    assert cu.lib.cuMemGetHandleForAddressRange(cu.byref(fd), cu.c_uint64(p), cu.c_size_t(600 * M), 1, cu.c_uint64(0)) == 0
    __import__("os").close(fd.value)
    assert cu.async_free(p, stream=0x77) == 0 and cu.used() == 600 * M
    assert cu.lib.cuStreamSynchronize(stream) == 0 and cu.used() == 0
"""
    )


def test_a_free_that_takes_long_keeps_no_end_of_a_capture_waiting(box: Box) -> None:
    box.python(
        LATE
        + """
import threading
p, got = cu.alloc(600 * M)[1], []
thread = threading.Thread(target=lambda: (cu.use(0), got.append(cu.async_free(p, stream=0x66))))
thread.start()
assert cu.lib.cuStreamEndCapture(cu.c_void_p(0x55), None) == 0
thread.join()
assert got == [0] and cu.used() == 0, got
"""
    )


def test_what_a_stream_will_free_goes_with_its_context(box: Box) -> None:
    box.python(
        LATE
        + """
late()
assert cu.lib.cuDevicePrimaryCtxReset_v2(0) == 0
cu.init()
assert cu.used() == 0
"""
    )


def test_a_context_is_charged_by_the_policy_pages_figure(box: Box) -> None:
    import struct

    from tests.shim.box import policy

    page = bytearray(policy({0: 1024 * MIB}))
    struct.pack_into("<Q", page, 128 + 80, 300 * MIB)
    box.write_policy(bytes(page))
    box.python("""
cu.init()
assert cu.used() == 300 * cu.MIB, cu.used()
cu.use(0)
ctx = [cu.c_void_p() for _ in range(3)]
assert [cu.lib.cuCtxCreate_v2(cu.byref(c), 0, 0) for c in ctx] == [0, 0, cu.OOM]
assert cu.used() == 900 * cu.MIB
assert cu.lib.cuCtxDestroy_v2(ctx[1]) == 0
assert cu.used() == 600 * cu.MIB
""")


def test_the_agents_surcharge_counts(box: Box) -> None:
    box.python("cu.init(); assert cu.alloc(1)[0] == 0")
    with open(box.place / "account" / "page", "r+b") as f:
        f.seek(1024 + 8)
        f.write((100 * MIB >> 9).to_bytes(8, "little"))
    box.python("""
cu.init()
assert cu.info() == (924 * cu.MIB, 1024 * cu.MIB), cu.info()
assert cu.alloc(924 * cu.MIB + 1)[0] == cu.OOM
assert cu.alloc(924 * cu.MIB)[0] == 0
""")


def test_limits_that_make_a_context_take_memory_are_charged(box: Box) -> None:
    box.python("""
M = cu.MIB
cu.init()
limit = lambda which, n: cu.lib.cuCtxSetLimit(which, cu.c_size_t(n))
assert limit(2, 600 * M) == 0, "device heap"
assert cu.used() == 592 * M, cu.used() / M
assert limit(2, 1100 * M) == cu.OOM
assert cu.used() == 592 * M
assert limit(2, 300 * M) == 0 and cu.used() == 292 * M
assert limit(2, 8 * M) == 0 and cu.used() == 0
assert limit(0, 2048) == 0 and cu.used() == 1024 * 100 * 2048, "a stack per thread"
assert limit(0, 1024) == 0 and cu.used() == 0
assert [limit(0, n) for n in (2**63, 2**64 - 1)] == [cu.OOM, cu.OOM] and cu.used() == 0
assert limit(3, 2) == 0 and cu.used() == 0, "two levels at which kernels wait for kernels are the default"
assert limit(3, 3) == 0 and cu.used() == 150 * M
assert limit(3, 7) == 0 and cu.used() == 750 * M
assert limit(3, 9) == cu.OOM and limit(3, 2**64 - 1) == cu.OOM and cu.used() == 750 * M
assert limit(3, 0) == 0 and cu.used() == 0
assert limit(4, 2048) == 0 and cu.used() == 0
assert limit(4, 2049) == 0 and cu.used() == 8192
assert limit(4, 2**63) == cu.OOM and limit(4, 32768) == 0 and cu.used() == (32768 - 2048) * 8192
assert [limit(which, 64) for which in (5, 6, 7, -1, 99)] == [0] * 5 and cu.used() == (32768 - 2048) * 8192
assert cu.lib.cuDevicePrimaryCtxReset_v2(0) == 0
assert cu.used() == 0
""")
