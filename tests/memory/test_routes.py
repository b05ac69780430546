"""Routes to device memory that nobody had tried against the limit. The GPU's own figure is never above what is charged, and
never above the limit; when all is freed, nothing is charged."""

from collections.abc import Callable

import pytest

from tests.memory.conftest import LIMIT, MIB, Container, Node

pytestmark = pytest.mark.root
CONTEXT = 300 * MIB


def held_to(node: Node, box: Container, at_least: int = 1) -> None:
    """What the GPU counts is there, is charged, and is within the limit."""
    assert at_least <= node.held() <= box.charged() <= LIMIT


def attack(box: Container, code: str, *expected: str, **env: str) -> None:
    """Run a program up to its last line; what it says is as expected."""
    program = box.start(code + "\nsay('end'); wait()", **env)
    said = []
    while (line := program.line()) != "end":
        said.append(line)
    assert said == list(expected)


GREEN = """
assert lib.cuInit(0) == 0
resource, desc, green, ctx = (ctypes.c_char * 144)(), c_void_p(), c_void_p(), c_void_p()
assert lib.cuDeviceGetDevResource(0, resource, 1) == 0
assert lib.cuDevResourceGenerateDesc(byref(desc), resource, 1) == 0
def green_context():
    g = c_void_p(); return lib.cuGreenCtxCreate(byref(g), desc, 0, 1), g
"""


def test_a_green_context_is_charged_its_primary_one(make_node: Callable[..., Node]) -> None:
    node = make_node(context_bytes=CONTEXT)
    box = node.container()
    attack(box, GREEN + "r, green = green_context(); say(r)", "0")
    held_to(node, box, CONTEXT)
    box.programs[0].kill()
    attack(
        box,
        GREEN
        + f"""
r, green = green_context()
assert lib.cuCtxFromGreenCtx(byref(ctx), green) == 0 and lib.cuCtxSetCurrent(ctx) == 0
say(r, cu.alloc({LIMIT - CONTEXT} + 1)[0], cu.alloc({LIMIT - CONTEXT})[0], cu.alloc(1)[0])
""",
        "0 2 0 2",
    )
    held_to(node, box, LIMIT)
    box.programs[1].kill()
    attack(
        box,
        GREEN + "for _ in range(20):\n    r, green = green_context(); say(r, lib.cuGreenCtxDestroy(green))",
        *["0 0"] * 20,
    )
    assert box.charged() == node.held() == 0


def test_what_was_allocated_in_a_green_context_goes_with_the_primary_one(make_node: Callable[..., Node]) -> None:
    node = make_node(context_bytes=CONTEXT)
    box = node.container()
    attack(
        box,
        GREEN
        + """
for turn in range(5):
    r, green = green_context()
    assert lib.cuCtxFromGreenCtx(byref(ctx), green) == 0 and lib.cuCtxSetCurrent(ctx) == 0
    say(r, cu.alloc(600 * MIB)[0], lib.cuCtxSetCurrent(None), lib.cuGreenCtxDestroy(green))
""",
        *["0 0 0 0"] * 5,
    )
    assert box.charged() == node.held() == 0


def test_contexts_by_the_hundred(make_node: Callable[..., Node]) -> None:
    node = make_node(context_bytes=10 * MIB)
    box = node.container()
    attack(
        box,
        """
assert lib.cuInit(0) == 0
made = []
while True:
    c = c_void_p(); r = lib.cuCtxCreate_v2(byref(c), 0, 0)
    if r: break
    made.append(c); assert lib.cuCtxPopCurrent_v2(byref(c_void_p())) == 0
say(r, len(made))
for c in made: assert lib.cuCtxDestroy_v2(c) == 0
for turn in range(300):
    c = c_void_p(); assert lib.cuCtxCreate_v2(byref(c), 0, 0) == 0 and cu.alloc(900 * MIB)[0] == 0
    assert lib.cuCtxDestroy_v2(c) == 0
""",
        f"2 {LIMIT // (10 * MIB)}",
    )
    assert box.charged() == node.held() == 0


@pytest.mark.parametrize(("limit", "value"), [(0, 128 << 10), (1, 2048 * MIB), (2, 2048 * MIB), (3, 24)])
def test_limits_of_a_context(node: Node, limit: int, value: int) -> None:
    """Stack, printf, heap, and levels of device-side synchronisation."""
    box = node.container()
    attack(box, f"cu.init(); say(lib.cuCtxSetLimit({limit}, c_size_t({value})))", "2")
    assert node.held() == 0


def test_limits_of_a_context_within_the_limit(node: Node) -> None:
    box = node.container()
    attack(box, "cu.init(); say(lib.cuCtxSetLimit(2, c_size_t(500 * MIB)), lib.cuCtxSetLimit(3, c_size_t(4)))", "0 0")
    held_to(node, box, 770 * MIB)


NESTED = """
cu.init(); s = stream()
def new(): g = c_void_p(); assert lib.cuGraphCreate(byref(g), 0) == 0; return g
def allocates(g, size, free=False):
    n, params = c_void_p(), (c_uint64 * 15)(); params[1] = 1; params[13] = size
    assert lib.cuGraphAddMemAllocNode(byref(n), g, None, c_size_t(0), params) == 0
    if free:
        f = c_void_p()
        assert lib.cuGraphAddMemFreeNode(byref(f), g, (c_void_p * 1)(n), c_size_t(1), c_uint64(params[14])) == 0
    return params[14]
def within(child):
    g, n = new(), c_void_p(); assert lib.cuGraphAddChildGraphNode(byref(n), g, None, c_size_t(0), child) == 0; return g
def instantiate(g):
    e = c_void_p(); return lib.cuGraphInstantiateWithFlags(byref(e), g, c_uint64(0)), e
def run(e): return lib.cuGraphLaunch(e, s)
"""


@pytest.mark.parametrize("depth", [1, 16, 17, 40])
def test_a_graph_within_graphs_allocates(node: Node, depth: int) -> None:
    box = node.container()
    attack(
        box,
        NESTED
        + f"""
g = new(); allocates(g, 2048 * MIB)
for _ in range({depth}): g = within(g)
r, e = instantiate(g)
say(r == 0 and run(e) == 0)
""",
        "False",
    )
    assert node.held() <= box.charged() <= LIMIT


def test_one_graph_instantiated_twice_and_launched_together(node: Node) -> None:
    """Two executable graphs of one graph have their memory at the same addresses: the driver refuses the second launch."""
    box = node.container()
    attack(
        box,
        NESTED
        + """
g = new(); at = allocates(g, 600 * MIB); (r, a), (q, b) = instantiate(g), instantiate(g)
say(r, q, run(a), run(b) != 0, lib.cuGraphUpload(b, s))
assert lib.cuGraphExecDestroy(a) == 0 and lib.cuGraphExecDestroy(b) == 0 and lib.cuGraphDestroy(g) == 0
""",
        "0 0 0 True 2",
    )
    held_to(node, box, 600 * MIB)  # its memory outlives both
    box.programs[0].kill()
    attack(
        box,
        NESTED
        + """
for turn in range(30):
    g = new(); at = allocates(g, 600 * MIB); r, e = instantiate(g)
    assert lib.cuGraphUpload(e, s) == 0 and run(e) == 0
    assert lib.cuGraphExecDestroy(e) == 0 and lib.cuGraphDestroy(g) == 0 and cu.async_free(at) == 0
assert lib.cuCtxSynchronize() == 0 and lib.cuDeviceGraphMemTrim(0) == 0
""",
    )
    assert box.charged() == node.held() == 0


def test_graphs_that_free_inside_share_memory(node: Node) -> None:
    box = node.container()
    attack(
        box,
        NESTED
        + """
execs = []
for i in range(10):
    g = new(); allocates(g, 700 * MIB, free=True); r, e = instantiate(g); assert r == 0; execs.append(e)
say(*[run(e) for e in execs])
say(cu.alloc(700 * MIB)[0], lib.cuDeviceGraphMemTrim(0), cu.alloc(324 * MIB)[0])
""",
        " ".join("0" * 10),
        "0 0 0",
    )
    held_to(node, box, LIMIT)


def test_an_update_does_not_bring_memory(node: Node) -> None:
    box = node.container()
    attack(
        box,
        NESTED
        + """
small, large = new(), new(); allocates(small, MIB); allocates(large, 2048 * MIB)
r, e = instantiate(small); info = (c_uint64 * 3)()
updated = lib.cuGraphExecUpdate_v2(e, large, info)
say(r, updated == 0 and run(e) == 0)
""",
        "0 False",
    )
    assert node.held() <= box.charged() <= LIMIT


@pytest.mark.parametrize("call", ["lib.cuGraphExecChildGraphNodeSetParams(e, n, child)", "set_params(e, n, child)"])
def test_a_replaced_child_graph_counts(node: Node, call: str) -> None:
    """In place of the one before it, as often as that is done; the graph's other nodes count as before."""
    box = node.container()
    attack(
        box,
        NESTED
        + f"""
def set_params(e, n, child):
    params = (c_uint64 * 32)(4, 0, child.value); return lib.cuGraphExecNodeSetParams(e, n, params)
def frees(size): g = new(); allocates(g, size, free=True); return g
g, n = new(), c_void_p(); allocates(g, 100 * MIB, free=True)
assert lib.cuGraphAddChildGraphNode(byref(n), g, None, c_size_t(0), frees(MIB)) == 0
r, e = instantiate(g); say(r, run(e))
for size in [2048, *[900] * 5, 1]: child = frees(size * MIB); say({call}, run(e))
""",
        "0 0",
        "0 2",
        *["0 0"] * 6,
    )
    held_to(node, box, 900 * MIB)


MODULE = """
cu.init(); m, f, at, size = c_void_p(), c_void_p(), c_uint64(), c_size_t()
text = b".global .align 4 .b8 big[%d];\\n.entry k()"
"""


def test_variables_of_a_module_are_not_known_before_they_are_there(node: Node) -> None:
    """No call tells their size: the agent's surcharge has them (tests/agent). Unloaded, they are gone."""
    box = node.container()
    attack(
        box,
        MODULE
        + """
assert lib.cuModuleLoadData(byref(m), text % (64 * MIB)) == 0
assert lib.cuModuleGetGlobal_v2(byref(at), byref(size), m, b"big") == 0
say(size.value // MIB, cu.free(at.value), lib.cuModuleUnload(m))
""",
        "64 1 0",
    )
    assert box.charged() == node.held() == 0


ARRAY = """
cu.init(); r, array = cu.array(4096, 4096, flags=0x40); assert r == 0
def change(operation, handle, x=0):
    info = (c_uint64 * 12)()
    words = (c_uint * 24).from_buffer(info)
    info[1], words[8], words[14], info[8] = array, x, operation, handle.value
    return lib.cuMemMapArrayAsync(info, 1, None)
"""


def test_a_sparse_array_holds_memory(node: Node) -> None:
    box = node.container()
    attack(
        box,
        ARRAY
        + """
for i in range(20):
    r, h = cu.create(64 * MIB)
    if r: break
    h = c_uint64(h); assert change(1, h, i) == 0 and lib.cuMemRelease(h) == 0
say(r, i)
""",
        f"2 {LIMIT // (64 * MIB)}",
    )
    held_to(node, box, LIMIT)


MULTICAST = """
cu.init()
def multicast(size):
    m, prop = c_uint64(), (c_uint64 * 4)(1, size, 0, 0); assert lib.cuMulticastCreate(byref(m), prop) == 0; return m
def bind(m, offset, h, size):
    return lib.cuMulticastBindMem(m, c_size_t(offset), h, c_size_t(0), c_size_t(size), c_uint64(0))
"""


def test_a_multicast_object_holds_memory(node: Node) -> None:
    box = node.container()
    attack(
        box,
        MULTICAST
        + """
m = multicast(4096 * MIB); assert lib.cuMulticastAddDevice(m, 0) == 0
for i in range(40):
    r, h = cu.create(64 * MIB)
    if r: break
    h = c_uint64(h); assert bind(m, i * 64 * MIB, h, 64 * MIB) == 0 and lib.cuMemRelease(h) == 0
say(r, i)
""",
        f"2 {LIMIT // (64 * MIB)}",
    )
    held_to(node, box, LIMIT)


CHECKPOINT = """
import os
cu.init(); me = os.getpid()
def checkpoint(): return lib.cuCheckpointProcessLock(me, None) or lib.cuCheckpointProcessCheckpoint(me, None)
def restore(): return lib.cuCheckpointProcessRestore(me, None) or lib.cuCheckpointProcessUnlock(me, None)
"""


def test_a_checkpointed_process_keeps_its_charge(node: Node) -> None:
    """Its memory comes back at the restore, so nobody else of its container may take that room meanwhile."""
    box = node.container()
    first = box.start(CHECKPOINT + "cu.alloc(900 * MIB); say(checkpoint()); wait(); say(restore()); wait()")
    assert first.line() == "0"
    assert node.held() == 0
    assert box.charged() == 900 * MIB
    attack(box, "cu.init(); say(cu.alloc(200 * MIB)[0], cu.alloc(100 * MIB)[0])", "2 0")
    assert first.ask() == "0"
    held_to(node, box, 1000 * MIB)
    first.kill()
    attack(box, "cu.init(); say(cu.alloc(900 * MIB)[0])", "0")


def test_a_restore_does_not_move_memory_to_another_gpu(make_node: Callable[..., Node]) -> None:
    """From CUDA 13.0 on. It would be charged on the GPU where it was."""
    node = make_node(gpus=2)
    box = node.container()
    attack(
        box,
        CHECKPOINT
        + """
class Args(ctypes.Structure): _fields_ = [("pairs", c_void_p), ("count", c_uint), ("rest", ctypes.c_char * 60)]
cu.use(1); r, p = cu.alloc(2000 * MIB); say(r)
ids = [(ctypes.c_char * 16)(), (ctypes.c_char * 16)()]
for i in 0, 1: assert lib.cuDeviceGetUuid_v2(ids[i], i) == 0
def pairs(*to): return ctypes.create_string_buffer(b"".join(bytes(ids[i]) + bytes(ids[k]) for i, k in enumerate(to)), 64)
def args(buffer): return byref(Args(ctypes.addressof(buffer), 2, b""))
swapped, same = pairs(1, 0), pairs(0, 1)
say(checkpoint(), lib.cuCheckpointProcessRestore(me, args(swapped)))
say(lib.cuCheckpointProcessRestore(me, args(same)), lib.cuCheckpointProcessUnlock(me, None))
""",
        "0",
        "0 801",
        "0 0",
    )
    assert (node.held(0), node.held(1)) == (0, 2000 * MIB) == (box.charged(0), box.charged(1))


POOL = """
cu.init()
def pool_of(kind, where):
    p, props = c_void_p(), cu.Prop(type=kind, where=where, id=0)
    return lib.cuMemPoolCreate(byref(p), byref(props)), p.value
"""


@pytest.mark.parametrize(
    ("kind", "where", "charged"), [(1, 1, True), (2, 1, True), (2, 2, True), (2, 0, True), (1, 2, False)]
)
def test_pools_of_host_and_managed_memory(node: Node, kind: int, where: int, charged: bool) -> None:
    """Managed memory may lie on the GPU wherever its pool says (CUDA 13.0), so it is charged. Pinned host memory is not."""
    box = node.container()
    attack(
        box,
        POOL
        + f"r, p = pool_of({kind}, {where}); say(r, cu.pool_alloc(p, 600 * MIB)[0], cu.pool_alloc(p, 600 * MIB)[0])",
        "0 0 2" if charged else "0 0 0",
    )
    if charged:
        held_to(node, box, 600 * MIB)
    else:
        assert box.charged() == node.held() == 0


@pytest.mark.parametrize("name", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
@pytest.mark.parametrize(
    ("kind", "where", "charged"), [(1, 1, True), (2, 1, True), (2, 2, True), (2, 0, True), (1, 2, False)]
)
def test_pools_that_nobody_made(node: Node, name: str, kind: int, where: int, charged: bool) -> None:
    """The default pools by place and kind of memory (CUDA 13.0): the same as for those that a program makes."""
    box = node.container()
    attack(
        box,
        f"""
cu.init(); p = c_void_p(); place = (c_int * 2)({where}, 0); say(lib.{name}(byref(p), place, {kind}))
say(cu.pool_alloc(p.value, 600 * MIB)[0], cu.pool_alloc(p.value, 600 * MIB)[0])
""",
        "0",
        "0 2" if charged else "0 0",
    )
    if charged:
        held_to(node, box, 600 * MIB)
    else:
        assert box.charged() == node.held() == 0


def test_pools_and_thresholds(node: Node) -> None:
    """Ten pools keep what was freed; each asks in turn for nearly all."""
    box = node.container()
    attack(
        box,
        """
cu.init(); pools = [cu.pool() for _ in range(10)]; all_ = c_uint64(2**64 - 1)
for p in pools: assert lib.cuMemPoolSetAttribute(c_void_p(p), 4, byref(all_)) == 0
results = []
for turn in range(5):
    for p in pools:
        r, at = cu.pool_alloc(p, 900 * MIB); results.append(r)
        if r == 0: assert cu.async_free(at) == 0
        assert lib.cuMemPoolSetAttribute(c_void_p(p), 4, byref(c_uint64(turn * 100 * MIB))) == 0
say(*sorted(set(results)))
for p in pools: assert lib.cuMemPoolDestroy(c_void_p(p)) == 0
""",
        "0",
    )
    assert box.charged() == node.held() == 0


def test_managed_memory_and_where_it_prefers_to_be(node: Node) -> None:
    box = node.container()
    attack(
        box,
        """
cu.init(); p = c_uint64()
say(lib.cuMemAllocManaged(byref(p), c_size_t(1025 * MIB), 1), lib.cuMemAllocManaged(byref(p), c_size_t(1000 * MIB), 1))
lib.cuMemAdvise(p, c_size_t(1000 * MIB), 3, -1); lib.cuMemPrefetchAsync(p, c_size_t(1000 * MIB), -1, None)
say(cu.alloc(100 * MIB)[0])
lib.cuMemPrefetchAsync(p, c_size_t(1000 * MIB), 0, None)
""",
        "2 0",
        "2",
    )
    held_to(node, box, 1000 * MIB)


def test_managed_memory_moves_to_another_gpu(make_node: Callable[..., Node]) -> None:
    """GPU 0 has a limit of 1 GiB, GPU 1 one of 2 GiB. What may come to either is charged on both."""
    node = make_node(gpus=2)
    box = node.container()
    attack(
        box,
        """
cu.init(0); cu.use(1); p, q = c_uint64(), c_uint64()
say(*[lib.cuMemAllocManaged(byref(x), c_size_t(n * MIB), 1) for x, n in ((p, 1500), (p, 900), (q, 200), (q, 100))])
say(lib.cuMemPrefetchAsync(p, c_size_t(900 * MIB), 0, None), cu.alloc(1100 * MIB)[0])
cu.use(0); say(cu.alloc(100 * MIB)[0])
""",
        "2 0 2 0",
        "0 2",
        "2",
    )
    assert node.held(0) == 900 * MIB <= box.charged(0) == 1000 * MIB
    assert node.held(1) == 100 * MIB <= box.charged(1) == 1000 * MIB
    box.programs[0].kill()
    attack(
        box,
        """
cu.init(0)
for turn in range(20):
    p = c_uint64(); assert lib.cuMemAllocManaged(byref(p), c_size_t(1000 * MIB), 1) == 0
    if turn % 2: assert cu.free(p.value) == 0
    else: assert lib.cuDevicePrimaryCtxReset_v2(0) == 0; cu.use(0)
""",
    )
    assert node.held(0) == node.held(1) == box.charged(0) == box.charged(1) == 0


def test_pinned_host_memory_is_not_charged(node: Node) -> None:
    box = node.container()
    attack(
        box,
        """
cu.init(); p = c_void_p()
say(lib.cuMemHostAlloc(byref(p), c_size_t(1500 * MIB), 3), lib.cuMemFreeHost(p))
""",
        "0 0",
    )
    assert box.charged() == node.held() == 0
