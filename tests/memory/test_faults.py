"""Driver calls that fail in the middle of what a program does: nothing is charged less than the GPU counts, and when the
program has freed all that it got, nothing is charged."""

import pytest

from tests.memory.conftest import LIMIT, MIB, Node

pytestmark = pytest.mark.root

PROGRAM = """
import random
cu.init(); s = stream(); small = MIB
def graph_made(flags):
    g, n, e, params = c_void_p(), c_void_p(), c_void_p(), (c_uint64 * 15)(); params[1] = 1; params[13] = 3 * MIB
    if lib.cuGraphCreate(byref(g), 0): return None
    r = lib.cuGraphAddMemAllocNode(byref(n), g, None, c_size_t(0), params)
    r = r or lib.cuGraphInstantiateWithFlags(byref(e), g, c_uint64(flags))
    drop(lambda: lib.cuGraphDestroy(g))
    return (e, params[14]) if r == 0 else None
undo = []
def drop(call): undo.append(call)
def plain():
    r, p = cu.alloc(3 * MIB); r == 0 and drop(lambda: cu.free(p))
def pitch():
    p, q = c_uint64(), c_size_t()
    lib.cuMemAllocPitch_v2(byref(p), byref(q), c_size_t(1000), c_size_t(2000), 4) == 0 and drop(lambda: cu.free(p.value))
def managed():
    p = c_uint64(); lib.cuMemAllocManaged(byref(p), c_size_t(MIB), 1) == 0 and drop(lambda: cu.free(p.value))
def piece():
    r, h = cu.create(4 * MIB)
    if r: return
    h = c_uint64(h); drop(lambda: lib.cuMemRelease(h)); at = c_uint64()
    if lib.cuMemAddressReserve(byref(at), c_size_t(4 * MIB), c_size_t(0), c_uint64(0), c_uint64(0)): return
    map_(at, 4 * MIB, h) == 0 and drop(lambda: lib.cuMemUnmap(at, c_size_t(4 * MIB)))
def exported():
    r, h = cu.create(2 * MIB); fd = c_int(-1); again = c_uint64()
    if r: return
    h = c_uint64(h); drop(lambda: lib.cuMemRelease(h))
    if lib.cuMemExportToShareableHandle(byref(fd), h, 1, c_uint64(0)): return
    if lib.cuMemImportFromShareableHandle(byref(again), c_void_p(fd.value), 1) == 0: drop(lambda: lib.cuMemRelease(again))
    os.close(fd.value)
def array():
    r, a = cu.array(100, 100); r == 0 and drop(lambda: lib.cuArrayDestroy(c_void_p(a)))
def mipmap():
    r, a = cu.array(64, 64, levels=3); r == 0 and drop(lambda: lib.cuMipmappedArrayDestroy(c_void_p(a)))
def pooled():
    r, p = cu.async_alloc(5 * MIB, s.value); r == 0 and drop(lambda: cu.async_free(p))
def own_pool():
    h, props = c_void_p(), cu.prop(0)
    if lib.cuMemPoolCreate(byref(h), byref(props)): return
    drop(lambda: lib.cuMemPoolDestroy(h)); r, p = cu.pool_alloc(h.value, MIB); r == 0 and drop(lambda: cu.async_free(p))
def graph():
    made = graph_made(1)
    if not made: return
    drop(lambda: lib.cuGraphExecDestroy(made[0]))
    if lib.cuGraphLaunch(made[0], s) == 0: drop(lambda: cu.async_free(made[1]))
def context():
    c = c_void_p()
    if lib.cuCtxCreate_v2(byref(c), 0, 0): return
    drop(lambda: lib.cuCtxDestroy_v2(c)); lib.cuCtxPopCurrent_v2(byref(c_void_p()))
def limit():
    lib.cuCtxSetLimit(2, c_size_t(12 * MIB)); drop(lambda: lib.cuCtxSetLimit(2, c_size_t(8 * MIB)))
def external():
    fd = os.memfd_create("external"); r, m = cu.external(fd, MIB)
    if r: os.close(fd)
    else: drop(lambda: lib.cuDestroyExternalMemory(c_void_p(m)))
CALLS = [plain, pitch, managed, piece, exported, array, mipmap, pooled, own_pool, graph, context, limit, external]
rng = random.Random(int(sys.stdin.readline()))
say("ready")
while (word := sys.stdin.readline().strip()):
    if word == "go":
        for _ in range(40): rng.choice(CALLS)(); primary()
        say("done")
    else:
        for call in reversed(undo): call()
        undo.clear(); primary(); say(lib.cuCtxSynchronize(), lib.cuDeviceGraphMemTrim(0), lib.cuCtxSynchronize())
""".replace("undo = []", "undo, ctx = [], c_void_p(); lib.cuCtxGetCurrent(byref(ctx))\nimport os\n"
            "def primary(): lib.cuCtxSetCurrent(ctx)")  # fmt: skip


@pytest.mark.parametrize("code", [2, 1, 201, 700, 999])
def test_every_kind_of_call_fails_now_and_then(node: Node, code: int) -> None:
    box = node.container()
    program = box.start(PROGRAM)
    assert program.ask(str(code)) == "ready"
    for every in (2, 3, 5, 7, 11, 31):
        node.fail(every, code)
        assert program.ask("go") == "done"
        held, charged = node.held(), box.charged()
        assert held <= charged, (every, held, charged)
        node.fail(0)
        assert program.ask("free") == "0 0 0"
        assert node.held() <= box.charged() <= LIMIT
    assert box.charged() - node.held() <= 64 * MIB
