"""Memory that the simulated driver keeps for itself (pools, graphs, padding of arrays), and memory that is shared."""

import pytest

from testbed.sim.gpus import Sim

START = """
import os, socket
context(); whole = free_bytes()
def took(): return (whole - free_bytes()) // MIB
def u64(f, *args):
    v = c_uint64(); getattr(cuda, f)(*args, byref(v)); return v.value
def pool_of(device=0):
    p = c_void_p(); cuda.cuDeviceGetDefaultMemPool(byref(p), device); return p
def figures(p): return [u64("cuMemPoolGetAttribute", p, a) // MIB for a in (5, 6, 7, 8)]
def malloc(n, stream=NONE):
    at = c_uint64(); cuda.cuMemAllocAsync(byref(at), c_size_t(n), stream); return at
"""


def test_pool_takes_chunks_keeps_what_is_freed_and_gives_it_up_at_a_synchronisation(sim: Sim) -> None:
    out = sim.python(
        START
        + """
p = pool_of()
a, b = malloc(10 * MIB), malloc(10 * MIB); print(took(), figures(p))
c = malloc(100 * MIB); print(took(), figures(p))
cuda.cuMemFreeAsync(a, NONE); cuda.cuMemFreeAsync(c, NONE); print(took(), figures(p))
d = malloc(5 * MIB); print(d.value in (a.value, c.value), took())
cuda.cuCtxSynchronize(); print(took(), figures(p))
cuda.cuMemFreeAsync(b, NONE); cuda.cuMemFree_v2(d); cuda.cuCtxSynchronize(); print(took(), figures(p))
cuda.cuMemPoolSetAttribute(p, 6, byref(c_uint64(0))); cuda.cuMemPoolSetAttribute(p, 8, byref(c_uint64(0)))
print(figures(p), code("cuMemPoolSetAttribute", p, 6, byref(c_uint64(5))))
"""
    )
    assert out.splitlines() == [
        "32 [32, 32, 20, 20]",
        "132 [132, 132, 120, 120]",
        "132 [132, 132, 10, 120]",
        "True 132",
        "32 [32, 132, 15, 120]",
        "0 [0, 132, 0, 120]",
        "[0, 0, 0, 0] 1",
    ]


def test_release_threshold_and_trim(sim: Sim) -> None:
    out = sim.python(
        START
        + """
p = pool_of(); cuda.cuMemPoolSetAttribute(p, 4, byref(c_uint64(40 * MIB)))
parts = [malloc(30 * MIB) for _ in range(3)]; print(took())
for part in parts: cuda.cuMemFreeAsync(part, NONE)
cuda.cuStreamSynchronize(NONE); print(took())
cuda.cuMemPoolTrimTo(p, c_size_t(32 * MIB)); print(took())
cuda.cuMemPoolTrimTo(p, c_size_t(0)); print(took())
"""
    )
    assert out.split() == ["96", "32", "32", "0"]


def test_unused_pool_memory_goes_before_an_allocation_fails(sim: Sim) -> None:
    out = sim.python(
        START
        + """
p = pool_of(); cuda.cuMemPoolSetAttribute(p, 4, byref(c_uint64(2**63)))
a = malloc(600 * MIB); cuda.cuMemFreeAsync(a, NONE); cuda.cuCtxSynchronize(); print(took())
alloc(700 * MIB); print(took())
print(code("cuMemAllocAsync", byref(c_uint64()), c_size_t(400 * MIB), NONE))
b = malloc(258 * MIB); print(took())
"""
    )
    assert out.split() == ["600", "700", "2", "958"]


def test_pools_of_ones_own(sim: Sim) -> None:
    out = sim.python(
        START
        + """
p = c_void_p(); cuda.cuMemPoolCreate(byref(p), byref(Prop(1, 0, 1, 0)))
a = c_uint64(); cuda.cuMemAllocFromPoolAsync(byref(a), c_size_t(MIB), p, NONE); print(took(), figures(p)[2])
cuda.cuDeviceSetMemPool(0, p); b = malloc(MIB); print(figures(p)[2], figures(pool_of())[0])
cuda.cuMemPoolDestroy(p); print(took(), code("cuMemAllocFromPoolAsync", byref(a), c_size_t(MIB), p, NONE))
cuda.cuMemFreeAsync(a, NONE); print(took()); cuda.cuMemFreeAsync(b, NONE); print(took())
print(code("cuMemPoolDestroy", pool_of()), code("cuMemPoolDestroy", p))
"""
    )
    assert out.split() == ["32", "1", "2", "0", "32", "1", "32", "0", "1", "1"]


def test_a_pool_keeps_to_its_own_maximum(sim: Sim) -> None:
    """CUmemPoolProps::maxSize, since CUDA 12.2."""
    out = sim.python(
        START
        + """
def make(most, kind=1, where=1):
    p = c_void_p(); props = (c_uint64 * 11)(kind, where, 0, most)
    return code("cuMemPoolCreate", byref(p), props), p
def take(n): return code("cuMemAllocFromPoolAsync", byref(at), c_size_t(n * MIB), p, NONE)
at = c_uint64()
r, p = make(64 * MIB); print(r, take(40), take(20), take(20), took(), figures(p)[:1])
cuda.cuMemFreeAsync(at, NONE); print(take(65), take(20), take(5), took())
r, p = make(10 * MIB); print(r, take(4), take(4), take(4))
print(make(MIB, kind=2, where=0)[0], make(0, kind=2, where=0)[0])
"""
    )
    assert out.splitlines() == ["0 0 0 2 60 [60]", "2 0 2 60", "0 0 0 2", "1 0"]


def test_random_pool_use_adds_up(sim: Sim) -> None:
    """Parts never overlap; `used` is what was allocated; `reserved` is the memory that the GPU has less."""
    out = sim.python(
        START
        + """
import random
random.seed(7); p = pool_of(); held = {}; bad = 0
for step in range(4000):
    if held and random.random() < 0.5:
        at = random.choice(list(held)); held.pop(at); cuda.cuMemFreeAsync(c_uint64(at), NONE)
    else:
        n = random.choice([1, 700, 4096, MIB, 5 * MIB + 3, 40 * MIB]); a = c_uint64()
        r = code("cuMemAllocAsync", byref(a), c_size_t(n), NONE)
        if r == 0: held[a.value] = (n + 511) // 512 * 512
        elif r != 2: bad += 1
    if step % 97 == 0:
        cuda.cuCtxSynchronize()
    if step % 50 == 0:
        spans = sorted(held.items())
        bad += any(a + n > b for (a, n), (b, _) in zip(spans, spans[1:]))
        bad += u64("cuMemPoolGetAttribute", p, 7) != sum(held.values())
        bad += u64("cuMemPoolGetAttribute", p, 5) != whole - free_bytes()
for at in held: cuda.cuMemFreeAsync(c_uint64(at), NONE)
cuda.cuCtxSynchronize(); print(bad, took())
"""
    )
    assert out == "0 0\n"


def test_pool_is_shared_with_another_process(sim: Sim) -> None:
    out = sim.python(
        """
import os, socket
left, right = socket.socketpair()
if os.fork() == 0:
    context(); data, fds, *_ = socket.recv_fds(right, 64, 1); before = free_bytes()
    p, a = c_void_p(), c_uint64()
    cuda.cuMemPoolImportFromShareableHandle(byref(p), c_void_p(fds[0]), 1, c_uint64(0))
    cuda.cuMemPoolImportPointer(byref(a), p, data)
    back = ctypes.create_string_buffer(5); cuda.cuMemcpyDtoH_v2(back, a, c_size_t(5))
    print(back.raw.decode(), before - free_bytes(), code("cuMemAllocFromPoolAsync", byref(a), c_size_t(9), p, NONE))
    os.sys.stdout.flush(); os._exit(0)
context(); p, a, fd = c_void_p(), c_uint64(), c_int(); data = ctypes.create_string_buffer(64)
cuda.cuMemPoolCreate(byref(p), byref(Prop(1, 1, 1, 0)))
for _ in range(3): cuda.cuMemAllocFromPoolAsync(byref(a), c_size_t(20 * MIB), p, NONE)
cuda.cuMemcpyHtoD_v2(a, b"hello", c_size_t(5))
cuda.cuMemPoolExportToShareableHandle(byref(fd), p, 1, c_uint64(0)); cuda.cuMemPoolExportPointer(data, a)
socket.send_fds(left, [data.raw], [fd.value]); os.wait()
"""
    )
    assert out == "hello 0 1\n"


def test_ipc_handle_opens_the_same_memory_and_books_nothing(sim: Sim) -> None:
    out = sim.python(
        """
import os
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 64)]
def copy(h): return Handle.from_buffer_copy(h)
r, w = os.pipe(); done_r, done_w = os.pipe()
if os.fork() == 0:
    context(); h = Handle.from_buffer_copy(os.read(r, 64)); before = free_bytes(); a, b = c_uint64(), c_uint64()
    cuda.cuIpcOpenMemHandle_v2(byref(a), h, 1); cuda.cuIpcOpenMemHandle_v2(byref(b), h, 1)
    back = ctypes.create_string_buffer(5); cuda.cuMemcpyDtoH_v2(back, c_uint64(a.value + 4 * MIB), c_size_t(5))
    cuda.cuMemcpyHtoD_v2(a, b"world", c_size_t(5))
    print(back.raw.decode(), a.value == b.value, before - free_bytes())
    print([code("cuIpcCloseMemHandle", a) for _ in range(3)], before - free_bytes())
    os.sys.stdout.flush(); os.write(done_w, b"x"); os._exit(0)
context(); a = alloc(5 * MIB); cuda.cuMemcpyHtoD_v2(c_uint64(a.value + 4 * MIB), b"hello", c_size_t(5))
h = Handle(); cuda.cuIpcGetMemHandle(byref(h), a); own = code("cuIpcOpenMemHandle_v2", byref(c_uint64()), copy(h), 1)
os.write(w, bytes(h)); os.read(done_r, 1); os.wait()
back = ctypes.create_string_buffer(5); cuda.cuMemcpyDtoH_v2(back, a, c_size_t(5)); print(back.raw.decode(), own)
cuda.cuMemFree_v2(a)
"""
    )
    assert out.splitlines() == ["hello True 0", "[0, 0, 1] 0", "world 201"]


def test_external_memory_is_not_booked(sim: Sim) -> None:
    out = sim.python(
        START
        + """
class Desc(ctypes.Structure):
    _fields_ = [("type", c_int), ("pad", c_int), ("fd", c_int), ("p", c_uint64), ("size", c_uint64), ("r", c_uint * 17)]
class Buffer(ctypes.Structure): _fields_ = [("offset", c_uint64), ("size", c_uint64), ("r", c_uint * 17)]
fd = os.memfd_create("vulkan"); os.ftruncate(fd, 4 * MIB); os.pwrite(fd, b"hello", MIB)
d = Desc(1, 0, os.dup(fd), 0, 4 * MIB)
e, a = c_void_p(), c_uint64(); cuda.cuImportExternalMemory(byref(e), byref(d))
cuda.cuExternalMemoryGetMappedBuffer(byref(a), e, byref(Buffer(MIB, MIB)))
back = ctypes.create_string_buffer(5); cuda.cuMemcpyDtoH_v2(back, a, c_size_t(5)); print(back.raw.decode(), took())
cuda.cuMemFree_v2(a); cuda.cuDestroyExternalMemory(e)
"""
    )
    assert out == "hello 0\n"


ARRAYS = """
class Desc(ctypes.Structure):
    _fields_ = [(n, c_size_t) for n in "whd"] + [(n, c_uint) for n in ("format", "channels", "flags")]
def array(*d):
    a = c_void_p(); r = code("cuArray3DCreate_v2", byref(a), byref(Desc(*d)))
    return (whole - free_bytes()) // 1024, r, a
"""


@pytest.mark.parametrize(
    ("desc", "kib"),
    [
        ((1, 0, 0, 1, 1, 0), 64),  # one byte takes a page
        ((65536, 0, 0, 0x20, 4, 0), 1024),
        ((1000, 1000, 0, 1, 1, 0), 1024 * 1000 // 1024 + 24),  # rows of 1000 bytes take 1024
        ((16, 1, 0, 0x20, 4, 0), 64),
        ((256, 129, 0, 0x20, 1, 0), 192),  # 129 rows take 136 rows: 136 KiB, in pages of 64 KiB
        ((64, 64, 6, 1, 4, 4), 128),  # a cubemap: 96 KiB
        ((64, 64, 10, 1, 4, 1), 192),  # layers
        ((64, 64, 10, 0x10, 2, 0), 192),  # a volume
        ((4096, 4096, 0, 1, 1, 0x40), 0),  # sparse: no memory yet
        ((4096, 4096, 0, 1, 1, 0x80), 0),  # mapped later
    ],
)
def test_arrays_are_padded(sim: Sim, desc: tuple[int, ...], kib: int) -> None:
    out = sim.python(
        START
        + ARRAYS
        + f"""
kib, r, a = array(*{desc!r}); print(kib, r)
cuda.cuArrayDestroy(a); print(took(), code("cuArrayDestroy", NONE))
"""
    )
    assert out.split() == [str(kib), "0", "0", "400"]


@pytest.mark.parametrize(
    "desc",
    [
        (0, 0, 0, 1, 1, 0),
        (8, 8, 0, 1, 3, 0),
        (8, 8, 0, 0x77, 1, 0),
        (8, 4, 6, 1, 1, 4),
        (8, 8, 5, 1, 1, 4),
        (8, 8, 0, 1, 1, 1),
        (8, 0, 8, 1, 1, 0),
    ],
)
def test_arrays_that_cannot_be(sim: Sim, desc: tuple[int, ...]) -> None:
    assert sim.python(START + ARRAYS + f"kib, r, a = array(*{desc!r}); print(kib, r)") == "0 1\n"


def test_mip_maps_and_their_contents(sim: Sim) -> None:
    out = sim.python(
        START
        + ARRAYS
        + """
m, level = c_void_p(), c_void_p()
cuda.cuMipmappedArrayCreate(byref(m), byref(Desc(1024, 1024, 0, 1, 4, 0)), 20)
print((whole - free_bytes()) // 1024)
print(code("cuMipmappedArrayGetLevel", byref(level), m, 10), code("cuMipmappedArrayGetLevel", byref(level), m, 11))
cuda.cuMipmappedArrayGetLevel(byref(level), m, 3); d = Desc()
cuda.cuArray3DGetDescriptor_v2(byref(d), level); print(d.w, d.h)
side = [("x", c_size_t), ("y", c_size_t), ("type", c_uint), ("host", c_void_p), ("dev", c_uint64)]
side += [("array", c_void_p), ("pitch", c_size_t)]
class Copy(ctypes.Structure):
    _fields_ = [(a + n, t) for a in "ft" for n, t in side] + [("w", c_size_t), ("h", c_size_t)]
data = bytes(range(256)) * 2; back = ctypes.create_string_buffer(512)
src = ctypes.create_string_buffer(data, 512)
host, there = dict(type=1, pitch=64), dict(type=3, array=level, x=128, y=5)
def copy(f, t):
    sides = {**{"f" + k: v for k, v in f.items()}, **{"t" + k: v for k, v in t.items()}}
    cuda.cuMemcpy2D_v2(byref(Copy(**sides, w=64, h=8)))
copy(dict(host, host=ctypes.addressof(src)), there)
copy(there, dict(host, host=ctypes.addressof(back)))
print(back.raw == data)
cuda.cuMipmappedArrayDestroy(m); print(took())
"""
    )
    # 4 MiB, 1 MiB, 256 KiB ... with the padding of the small levels, in pages of 64 KiB.
    kib, rest = out.split("\n", 1)
    assert 5461 < int(kib) <= 5504 and int(kib) % 64 == 0
    assert rest.split() == ["0", "1", "128", "128", "True", "0"]


GRAPHS = """
class Alloc(ctypes.Structure):
    _fields_ = [("prop", c_int * 4), ("rest", ctypes.c_char * 72), ("access", c_void_p), ("n", c_size_t),
                ("bytes", c_size_t), ("at", c_uint64)]
def graph():
    g = c_void_p(); cuda.cuGraphCreate(byref(g), 0); return g
def deps(*nodes): return (c_void_p * len(nodes))(*[n.value for n in nodes]), c_size_t(len(nodes))
def add_alloc(g, n, *before):
    p = Alloc((c_int * 4)(1, 0, 1, 0)); p.bytes = n; node = c_void_p()
    cuda.cuGraphAddMemAllocNode(byref(node), g, *deps(*before), byref(p)); return node, c_uint64(p.at)
def add_free(g, at, *before):
    node = c_void_p(); cuda.cuGraphAddMemFreeNode(byref(node), g, *deps(*before), at); return node
def instantiate(g, flags=0):
    e = c_void_p(); cuda.cuGraphInstantiateWithFlags(byref(e), g, c_uint64(flags)); return e
def memory(): return [u64("cuDeviceGetGraphMemAttribute", 0, a) // MIB for a in range(4)]
"""


def test_graph_memory_is_taken_at_the_launch_and_kept_until_trimmed(sim: Sim) -> None:
    out = sim.python(
        START
        + GRAPHS
        + """
g = graph(); n1, a1 = add_alloc(g, 100 * MIB); f1 = add_free(g, a1, n1); n2, a2 = add_alloc(g, 60 * MIB, f1)
f2 = add_free(g, a2, n2); e = instantiate(g); print(took(), memory())
cuda.cuGraphLaunch(e, NONE); cuda.cuCtxSynchronize(); print(took(), memory())
cuda.cuGraphLaunch(e, NONE); print(took())
cuda.cuDeviceGraphMemTrim(0); print(took(), memory())
cuda.cuGraphExecDestroy(e); cuda.cuGraphDestroy(g)
"""
    )
    assert out.splitlines() == ["0 [0, 0, 0, 0]", "100 [0, 100, 100, 100]", "100", "0 [0, 100, 0, 100]"]


def test_memory_that_outlives_its_graph(sim: Sim) -> None:
    out = sim.python(
        START
        + GRAPHS
        + """
g = graph(); n1, a1 = add_alloc(g, 100 * MIB); e = instantiate(g)
cuda.cuGraphLaunch(e, NONE); print(memory()[0], code("cuGraphLaunch", e, NONE))
cuda.cuMemcpyHtoD_v2(a1, b"hello", c_size_t(5)); cuda.cuDeviceGraphMemTrim(0); print(took())
cuda.cuMemFreeAsync(a1, NONE); print(memory()[0], took()); cuda.cuGraphLaunch(e, NONE)
h = graph(); add_free(h, a1); k = instantiate(h); cuda.cuGraphLaunch(k, NONE); print(memory()[0])
auto = instantiate(g, 1); cuda.cuGraphLaunch(auto, NONE); cuda.cuGraphLaunch(auto, NONE); print(memory()[0])
cuda.cuMemFree_v2(a1); cuda.cuDeviceGraphMemTrim(0); print(took())
"""
    )
    assert out.split() == ["100", "1", "100", "0", "100", "0", "100", "0"]


def test_graph_that_does_not_fit_is_out_of_memory_and_takes_nothing(sim: Sim) -> None:
    out = sim.python(
        START
        + GRAPHS
        + """
g = graph(); add_alloc(g, 700 * MIB); add_alloc(g, 700 * MIB); e = instantiate(g)
print(code("cuGraphLaunch", e, NONE), took(), memory())
"""
    )
    assert out == "2 0 [0, 0, 0, 0]\n"


def test_graphs_run_their_nodes_in_order(sim: Sim) -> None:
    out = sim.python(
        START
        + GRAPHS
        + """
class Kernel(ctypes.Structure):
    _fields_ = [("f", c_void_p), ("dim", c_uint * 6), ("shared", c_uint), ("rest", c_void_p * 4)]
class Host(ctypes.Structure): _fields_ = [("f", c_void_p), ("data", c_void_p)]
class Fill(ctypes.Structure):
    _fields_ = [("to", c_uint64), ("pitch", c_size_t), ("value", c_uint), ("width", c_uint)]
    _fields_ += [("n", c_size_t), ("rows", c_size_t)]
said = []; Call = ctypes.CFUNCTYPE(None, c_void_p); calls = [Call(lambda data, i=i: said.append(i)) for i in range(3)]
a = alloc(4096); child, g = graph(), graph(); nodes = [c_void_p() for _ in range(6)]
k = Kernel(kernel(200).value, (c_uint * 6)(1, 1, 1, 1, 1, 1))
cuda.cuGraphAddKernelNode_v2(byref(nodes[0]), child, None, c_size_t(0), byref(k))
host = [Host(ctypes.cast(c, c_void_p).value, None) for c in calls]
cuda.cuGraphAddHostNode(byref(nodes[1]), g, None, c_size_t(0), byref(host[2]))
cuda.cuGraphAddHostNode(byref(nodes[2]), g, None, c_size_t(0), byref(host[0]))
cuda.cuGraphAddChildGraphNode(byref(nodes[3]), g, *deps(nodes[2]), child)
cuda.cuGraphAddHostNode(byref(nodes[4]), g, *deps(nodes[3]), byref(host[1]))
cuda.cuGraphAddMemsetNode(byref(nodes[5]), g, None, c_size_t(0), byref(Fill(a.value, 0, 7, 1, 16, 1)), NONE)
cuda.cuGraphAddDependencies(g, *deps(nodes[4])[:1], (c_void_p * 1)(nodes[1].value), c_size_t(1))
e = instantiate(g); cuda.cuGraphDestroy(g); cuda.cuGraphDestroy(child)
b = event(); cuda.cuGraphLaunch(e, NONE); c = event(); cuda.cuCtxSynchronize()
back = ctypes.create_string_buffer(16); cuda.cuMemcpyDtoH_v2(back, a, c_size_t(16))
print(said, elapsed(b, c) >= 0.1999, back.raw == b"\\7" * 16)
h = graph(); cuda.cuGraphAddEmptyNode(byref(nodes[0]), h, None, c_size_t(0))
cuda.cuGraphAddEmptyNode(byref(nodes[1]), h, *deps(nodes[0]))
cuda.cuGraphAddDependencies(h, *deps(nodes[1])[:1], (c_void_p * 1)(nodes[0].value), c_size_t(1))
print(code("cuGraphInstantiateWithFlags", byref(e), h, c_uint64(0)))
"""
    )
    assert out == "[0, 1, 2] True True\n1\n"


def test_capture(sim: Sim) -> None:
    out = sim.python(
        START
        + GRAPHS
        + """
s, t, g = c_void_p(), c_void_p(), c_void_p(); cuda.cuStreamCreate(byref(s), 1); cuda.cuStreamCreate(byref(t), 1)
f = kernel(100); a = alloc(4096); e1 = c_void_p(); cuda.cuEventCreate(byref(e1), 0); status = c_int()
cuda.cuStreamBeginCapture_v2(s, 0)
cuda.cuStreamIsCapturing(s, byref(status)); print(status.value)
cuda.cuMemsetD8Async(a, 9, c_size_t(8), s); launch(f, s); m = malloc(50 * MIB, s)
cuda.cuEventRecord(e1, s); cuda.cuStreamWaitEvent(t, e1, 0); launch(f, t)
cuda.cuEventRecord(e1, t); cuda.cuStreamWaitEvent(s, e1, 0)
print(code("cuEventQuery", e1), code("cuMemFreeAsync", a, s)); cuda.cuMemFreeAsync(m, s)
cuda.cuStreamEndCapture(s, byref(g)); cuda.cuStreamIsCapturing(t, byref(status)); print(status.value)
back = ctypes.create_string_buffer(8); cuda.cuMemcpyDtoH_v2(back, a, c_size_t(8)); print(back.raw.hex(), took())
n = c_size_t(); cuda.cuGraphGetNodes(g, None, byref(n)); nodes = (c_void_p * n.value)()
cuda.cuGraphGetNodes(g, nodes, byref(n)); kinds = [c_int() for _ in nodes]
for x, k in zip(nodes, kinds): cuda.cuGraphNodeGetType(c_void_p(x), byref(k))
print([k.value for k in kinds])
e = instantiate(g); b = event(s); cuda.cuGraphLaunch(e, s); c = event(s); cuda.cuStreamSynchronize(s)
cuda.cuMemcpyDtoH_v2(back, a, c_size_t(8)); print(back.raw.hex(), took(), elapsed(b, c) >= 0.1999)
"""
    )
    assert out.splitlines() == ["1", "907 1", "0", "0" * 16 + " 0", "[2, 0, 10, 0, 11]", "09" * 8 + " 50 True"]


@pytest.mark.parametrize(
    ("mode", "call", "spoils"),
    [
        (0, 'code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1))', True),
        (1, 'code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1))', True),
        (2, 'code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1))', False),
        (2, 'code("cuStreamSynchronize", s)', True),
        (0, 'code("cuStreamQuery", s)', True),
        (0, 'code("cuCtxSynchronize")', True),
    ],
)
def test_what_cannot_be_captured_spoils_the_capture(sim: Sim, mode: int, call: str, spoils: bool) -> None:
    out = sim.python(
        START
        + f"""
s, g = c_void_p(), c_void_p(); cuda.cuStreamCreate(byref(s), 1); cuda.cuStreamBeginCapture_v2(s, {mode})
print({call}, code("cuStreamEndCapture", s, byref(g)), code("cuStreamEndCapture", s, byref(g)))
print(code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1)))
"""
    )
    assert out.split() == (["900", "901", "401", "0"] if spoils else ["0", "0", "401", "0"])
