"""Functions that real programs stopped at: attributes, virtual memory by the thousand, events between processes, links."""

import pytest

from testbed.sim.gpus import CONTEXT_MIB, MEMORY_MIB, Sim

ROOM = MEMORY_MIB - CONTEXT_MIB

START = """
import os, resource, socket
def attribute(kind, number, address):
    v = kind(); r = code("cuPointerGetAttribute", byref(v), number, address); return v.value if not r else f"error {r}"
def several(address, *numbers):
    room = [c_uint64(77) for _ in numbers]; data = (c_void_p * len(room))(*map(ctypes.addressof, room))
    cuda.cuPointerGetAttributes(len(room), (c_int * len(room))(*numbers), data, address)
    return [r.value & 0xffffffff if n in (2, 8, 9) else r.value for n, r in zip(numbers, room)]
TYPE, DEVICE_POINTER, HOST_POINTER, MANAGED, ORDINAL, BEGIN, SIZE = 2, 3, 4, 8, 9, 11, 12
def created(size, handles=0):
    h = c_uint64(); cuda.cuMemCreate(byref(h), c_size_t(size), byref(Prop(1, handles, 1, 0)), c_uint64(0)); return h
"""


def run(sim: Sim, code: str) -> list[str]:
    return sim.python(START + code).splitlines()


def test_what_the_driver_says_of_an_address(sim: Sim) -> None:
    """Device, managed, pinned, registered and mapped memory; and an address that is none of them."""
    out = run(
        sim,
        """
context(); a = alloc(5000); host, m = c_void_p(), c_uint64(); cuda.cuMemHostAlloc(byref(host), c_size_t(8192), 1)
cuda.cuMemAllocManaged(byref(m), c_size_t(4096), 1); own = ctypes.create_string_buffer(8192)
page = c_uint64((ctypes.addressof(own) + 4095) & ~4095); cuda.cuMemHostRegister_v2(page, c_size_t(4096), 0)
h = created(4 * MIB); at = map_handle(h, 4 * MIB)
for p in (a, m, c_uint64(host.value), page, at):
    inside = c_uint64(p.value + 100)
    print(attribute(c_uint, TYPE, inside), attribute(c_uint64, DEVICE_POINTER, inside) == inside.value,
          attribute(c_uint64, HOST_POINTER, inside) == inside.value, attribute(c_uint, MANAGED, inside),
          attribute(c_int, ORDINAL, inside), attribute(c_uint64, BEGIN, inside) == p.value,
          attribute(c_size_t, SIZE, inside), several(inside, TYPE, MANAGED, ORDINAL, SIZE))
base, size = c_uint64(), c_size_t()
cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(at.value + 3 * MIB))
print(base.value == at.value, size.value)
nothing = c_uint64(ctypes.addressof(own)); print(attribute(c_uint, TYPE, nothing), several(nothing, TYPE, MANAGED, SIZE, ORDINAL))
print(code("cuPointerGetAttributes", 0, None, None, a), code("cuPointerGetAttributes", 1, (c_int * 1)(99), (c_void_p * 1)(1), a))
flags = c_uint(); cuda.cuMemHostGetFlags(byref(flags), host); print(flags.value, code("cuMemHostGetFlags", byref(flags), page))
cuda.cuMemHostUnregister(page); cuda.cuMemUnmap(at, c_size_t(4 * MIB))
print(attribute(c_uint, TYPE, page), attribute(c_uint, TYPE, at))
""",
    )
    assert out == [
        "2 True False 0 0 True 5120 [2, 0, 0, 5120]",
        "2 True True 1 0 True 4096 [2, 1, 0, 4096]",
        "1 True True 0 0 True 8192 [1, 0, 0, 8192]",
        "1 True True 0 0 True 4096 [1, 0, 0, 4096]",
        f"2 True False 0 0 True {4 << 20} [2, 0, 0, {4 << 20}]",
        f"True {4 << 20}",
        "error 1 [0, 0, 0, 4294967294]",
        "1 1",
        "3 1",
        "error 1 error 1",
    ]


@pytest.mark.parametrize("handles", [0, 1])
def test_more_handles_than_descriptors(sim: Sim, handles: int) -> None:
    """Expandable segments are one cuMemCreate for each 2 MiB; none of them may cost a descriptor."""
    out = run(
        sim,
        f"""
context(); resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); n = {ROOM} // 2; before = len(os.listdir("/proc/self/fd"))
all = [created(2 * MIB, {handles}) for _ in range(n)]
print(code("cuMemCreate", byref(c_uint64()), c_size_t(2 * MIB), byref(Prop(1, 0, 1, 0)), c_uint64(0)), free_bytes())
maps = [map_handle(h, 2 * MIB) for h in all[:300]]
for i, m in enumerate(maps): ctypes.memset(m.value, i % 256, 4096)
print(all_same := [ctypes.string_at(m.value, 4096) for m in maps] == [bytes([i % 256]) * 4096 for i in range(300)])
print(len(os.listdir("/proc/self/fd")) - before <= 1)
for h in all: cuda.cuMemRelease(h)
for m in maps: cuda.cuMemUnmap(m, c_size_t(2 * MIB))
print(free_bytes() // MIB)
again = map_handle(created(2 * MIB), 2 * MIB); print(ctypes.string_at(again.value, 2 * MIB) == bytes(2 * MIB))
""",
    )
    assert out == ["2 0", "True", "True", str(ROOM), "True"]


def test_exported_memory_keeps_contents_and_mappings(sim: Sim) -> None:
    """It moves to where other processes reach it at the first export, also while it is mapped in parts."""
    out = run(
        sim,
        """
context(); h = created(6 * MIB, 1); part = c_uint64()
cuda.cuMemAddressReserve(byref(part), c_size_t(4 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
cuda.cuMemMap(part, c_size_t(4 * MIB), c_size_t(2 * MIB), h, c_uint64(0))
cuda.cuMemSetAccess(part, c_size_t(4 * MIB), byref(Access(1, 0, 3)), c_size_t(1))
ctypes.memset(part.value + 4 * MIB - 8, 7, 8); ctypes.memset(part.value, 5, 1)
fd = c_int(); cuda.cuMemExportToShareableHandle(byref(fd), h, 1, c_uint64(0)); left = free_bytes()
print(ctypes.string_at(part.value + 4 * MIB - 9, 9).hex(), ctypes.string_at(part.value, 2).hex())
i = c_uint64(); cuda.cuMemImportFromShareableHandle(byref(i), c_void_p(fd.value), 1); whole = map_handle(i, 6 * MIB)
print(ctypes.string_at(whole.value + 6 * MIB - 8, 8).hex(), ctypes.string_at(whole.value + 2 * MIB, 1).hex())
ctypes.memset(whole.value + 2 * MIB, 9, 1); print(ctypes.string_at(part.value, 1).hex(), free_bytes() == left)
for fd_of_ours in [int(f) for f in os.listdir("/proc/self/fd") if int(f) > 2]:
    try: os.close(fd_of_ours)
    except OSError: pass
print(ctypes.string_at(part.value, 1).hex(), map_handle(h, 6 * MIB).value > 0, created(2 * MIB).value > 0)
""",
    )
    assert out == ["000707070707070707 0500", "0707070707070707 05", "09 True", "09 True True"]


def test_an_event_of_another_process(sim: Sim) -> None:
    """The importer sees it recorded, not done, done; it waits for it, orders a stream after it, and records it itself."""
    out = run(
        sim,
        """
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 64)]
def raw(h): return bytes(bytearray(h))
here, there = socket.socketpair()
if os.fork() == 0:
    context(); e, h, s = c_void_p(), Handle(), c_void_p(); cuda.cuStreamCreate(byref(s), 1); f = kernel(2000000)
    print(code("cuEventCreate", byref(e), 4)); cuda.cuEventCreate(byref(e), 6)
    cuda.cuIpcGetEventHandle(byref(h), e); there.send(raw(h)); there.recv(1)
    launch(f, s); cuda.cuEventRecord(e, s); there.send(b"x"); there.recv(1)
    cuda.cuEventSynchronize(e); print("maker", code("cuEventQuery", e), flush=True); there.send(b"x"); there.recv(1); os._exit(0)
context(); e, mine, s = c_void_p(), c_void_p(), c_void_p(); h = Handle.from_buffer_copy(here.recv(64))
cuda.cuIpcOpenEventHandle(byref(e), h); print(code("cuEventQuery", e)); here.send(b"x"); here.recv(1)
print(code("cuEventQuery", e)); cuda.cuStreamCreate(byref(s), 1); cuda.cuStreamWaitEvent(s, e, 0)
cuda.cuEventCreate(byref(mine), 0); cuda.cuEventRecord(mine, s); print(code("cuEventQuery", mine))
cuda.cuEventSynchronize(mine); print(code("cuEventQuery", e)); cuda.cuEventSynchronize(e)
launch(kernel(1500000), s); cuda.cuEventRecord(e, s); print(code("cuEventQuery", e), flush=True)
here.send(b"x"); here.recv(1); print(code("cuEventQuery", e)); here.send(b"x"); os.wait()
print(code("cuEventElapsedTime", byref(c_float()), e, mine)); cuda.cuEventDestroy_v2(e)
plain = c_void_p(); cuda.cuEventCreate(byref(plain), 2); print(code("cuIpcGetEventHandle", byref(h), plain))
print(code("cuIpcOpenEventHandle", byref(e), h), code("cuIpcOpenEventHandle", byref(e), Handle()))
""",
    )
    assert out == ["1", "0", "600", "600", "0", "600", "maker 0", "0", "400", "400", "1 1"]


def test_the_maker_of_an_event_is_killed(sim: Sim) -> None:
    """Its work has gone with it: whoever waits for the event goes on."""
    out = run(
        sim,
        """
import signal
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 64)]
here, there = socket.socketpair(); child = os.fork()
if child == 0:
    context(); e, h = c_void_p(), Handle(); cuda.cuEventCreate(byref(e), 6); cuda.cuIpcGetEventHandle(byref(h), e)
    launch(kernel(100000000)); cuda.cuEventRecord(e, NONE); there.send(bytes(bytearray(h))); there.recv(1)
context(); e = c_void_p(); cuda.cuIpcOpenEventHandle(byref(e), Handle.from_buffer_copy(here.recv(64)))
print(code("cuEventQuery", e)); os.kill(child, signal.SIGKILL); os.wait()
cuda.cuEventSynchronize(e); print(code("cuEventQuery", e))
""",
    )
    assert out == ["600", "0"]


def test_kernels_occupancy_and_links(sim: Sim) -> None:
    out = run(
        sim,
        """
context(); link, image, n, lib, k, v = c_void_p(), c_void_p(), c_size_t(), c_void_p(), c_void_p(), c_int()
text = b".visible .entry add(.param .u64 a, .param .u8 b, .param .align 16 .b8 c[24], .param .f32 d) // sim_us=30"
cuda.cuLinkCreate_v2(0, None, None, byref(link))
cuda.cuLinkAddData_v2(link, 1, text, c_size_t(len(text)), b"a", 0, None, None)
other = b".visible .entry second()"; cuda.cuLinkAddData_v2(link, 1, other, c_size_t(len(other) + 1), b"b", 0, None, None)
cuda.cuLinkComplete(link, byref(image), byref(n))
cuda.cuLibraryLoadData(byref(lib), image, None, None, 0, None, None, 0); cuda.cuLinkDestroy(link)
count = c_uint(); cuda.cuLibraryGetKernelCount(byref(count), lib); kernels = (c_void_p * 2)()
cuda.cuLibraryEnumerateKernels(kernels, 2, lib); name = c_char_p(); names = []
for one in kernels: cuda.cuKernelGetName(byref(name), c_void_p(one)); names.append(name.value.decode())
print(count.value, names); k = c_void_p(kernels[0]); layout = []
while not code("cuKernelGetParamInfo", k, c_size_t(len(layout)), byref(at := c_size_t()), byref(n)): layout.append((at.value, n.value))
print(layout)
for number in (0, 8): cuda.cuKernelGetAttribute(byref(v), number, k, 0); print(v.value)
cuda.cuKernelSetAttribute(8, 65536, k, 0); cuda.cuFuncGetAttribute(byref(v), 8, k)
print(v.value, code("cuKernelSetAttribute", 8, 1 << 20, k, 0))
grid, block = c_int(), c_int(); cuda.cuOccupancyMaxPotentialBlockSize(byref(grid), byref(block), k, None, c_size_t(0), 0)
print(grid.value, block.value)
cuda.cuOccupancyMaxPotentialBlockSize(byref(grid), byref(block), k, None, c_size_t(0), 100); print(block.value)
shared = ctypes.CFUNCTYPE(c_size_t, c_int)(lambda threads: threads * 200)
cuda.cuOccupancyMaxPotentialBlockSize(byref(grid), byref(block), k, shared, c_size_t(0), 0); print(block.value * 200 < 101376)
cuda.cuProfilerStart(); cuda.cuProfilerStop()
""",
    )
    assert out == [
        "2 ['add', 'second']",
        "[(0, 8), (8, 1), (16, 24), (40, 4)]",
        "1024",
        "49152",
        "65536 1",
        "264 1024",
        "64",
        "True",
    ]


def test_managed_memory_says_what_was_advised(sim: Sim) -> None:
    out = run(
        sim,
        """
context(); m = c_uint64(); cuda.cuMemAllocManaged(byref(m), c_size_t(MIB), 1); size = c_size_t(MIB)
def said(number, n=1):
    v = (c_int * n)(); cuda.cuMemRangeGetAttribute(v, c_size_t(4 * n), number, m, size); return list(v)
print(said(1), said(2), said(3, 2), said(4))
cuda.cuMemAdvise(m, size, 1, 0); cuda.cuMemAdvise(m, size, 3, -1); cuda.cuMemAdvise(m, size, 5, 0)
cuda.cuMemPrefetchAsync(m, size, 0, NONE)
print(said(1), said(2), said(3, 2), said(4))
print(code("cuMemAdvise", m, c_size_t(2 * MIB), 1, 0), code("cuMemAdvise", alloc(4096), c_size_t(1), 1, 0),
      code("cuMemAdvise", m, size, 7, 0))
""",
    )
    assert out == ["[0] [-2] [-2, -2] [-2]", "[1] [-1] [0, -2] [0]", "1 1 1"]


def test_nodes_of_graphs_are_read_and_set(sim: Sim) -> None:
    out = run(
        sim,
        """
context(); g, e, s = c_void_p(), c_void_p(), c_void_p(); cuda.cuGraphCreate(byref(g), 0); cuda.cuStreamCreate(byref(s), 1)
class Kernel(ctypes.Structure):
    _fields_ = [("f", c_void_p), ("shape", c_uint * 7)] + [(n, c_void_p) for n in ("params", "extra", "kernel", "ctx")]
class Fill(ctypes.Structure):
    _fields_ = [("to", c_uint64), ("pitch", c_size_t), ("value", c_uint), ("width", c_uint),
                ("n", c_size_t), ("rows", c_size_t)]
def shape(n): return (c_uint * 7)(n, 1, 1, 32, 1, 1, 64)
a = alloc(4096); k, fill, count = c_void_p(), c_void_p(), c_size_t(9)
cuda.cuGraphAddKernelNode_v2(byref(k), g, None, c_size_t(0), byref(Kernel(kernel(10), shape(3))))
cuda.cuGraphAddMemsetNode(byref(fill), g, byref(k), c_size_t(1), byref(Fill(a.value, 0, 1, 1, 16, 1)), None)
back = Kernel(); cuda.cuGraphKernelNodeGetParams_v2(k, byref(back)); print(list(back.shape))
found, to = (c_void_p * 9)(), (c_void_p * 9)(); cuda.cuGraphGetEdges(g, found, to, byref(count))
print(count.value, found[0] == k.value, to[0] == fill.value)
count.value = 9; cuda.cuGraphGetRootNodes(g, found, byref(count)); print(count.value, found[0] == k.value, found[1])
cuda.cuGraphNodeGetDependencies(fill, None, byref(count)); print(count.value)
cuda.cuGraphInstantiateWithFlags(byref(e), g, c_uint64(0))
def run():
    cuda.cuGraphLaunch(e, s); cuda.cuStreamSynchronize(s); return ctypes.string_at(a.value, 17).hex()
print(run()); cuda.cuGraphExecMemsetNodeSetParams(e, fill, byref(Fill(a.value, 0, 2, 1, 16, 1)), None); print(run())
cuda.cuGraphNodeSetEnabled(e, fill, 0); cuda.cuMemsetD8_v2(a, 9, c_size_t(17)); print(run())
cuda.cuGraphNodeSetEnabled(e, fill, 1); print(run()); on = c_uint(7); cuda.cuGraphNodeGetEnabled(e, k, byref(on)); print(on.value)
cuda.cuGraphMemsetNodeSetParams(fill, byref(Fill(a.value, 0, 3, 1, 16, 1))); was = Fill(); cuda.cuGraphMemsetNodeGetParams(fill, byref(was))
print(was.value, run()[:2], code("cuGraphExecMemsetNodeSetParams", e, k, byref(was), None))
copy, there = c_void_p(), c_void_p(); cuda.cuGraphClone(byref(copy), g); cuda.cuGraphNodeFindInClone(byref(there), fill, copy)
print(code("cuGraphNodeFindInClone", byref(there), there, g)); cuda.cuGraphDestroyNode(k); count.value = 9
cuda.cuGraphGetNodes(g, found, byref(count))
print(count.value, code("cuGraphRemoveDependencies", g, byref(fill), byref(fill), c_size_t(1)))
""",
    )
    one, two, nine = "01" * 16, "02" * 16, "09" * 17
    assert out == [
        "[3, 1, 1, 32, 1, 1, 64]",
        "1 True True",
        "1 True None",
        "1",
        one + "00",
        two + "00",
        nine,
        two + "09",
        "1",
        "3 02 1",
        "1",
        "1 1",
    ]


def test_user_objects_end_with_their_last_holder(sim: Sim) -> None:
    out = run(
        sim,
        """
context(); ended = []; destroy = ctypes.CFUNCTYPE(None, c_void_p)(lambda p: ended.append(p))
o, g, e, copy = c_void_p(), c_void_p(), c_void_p(), c_void_p(); cuda.cuUserObjectCreate(byref(o), c_void_p(5), destroy, 1, 1)
cuda.cuGraphCreate(byref(g), 0); cuda.cuGraphRetainUserObject(g, o, 1, 1); cuda.cuGraphInstantiateWithFlags(byref(e), g, c_uint64(0))
cuda.cuGraphClone(byref(copy), g); cuda.cuGraphDestroy(g); cuda.cuGraphDestroy(copy); print(ended); cuda.cuGraphExecDestroy(e); print(ended)
""",
    )
    assert out == ["[]", "[5]"]


def test_a_checkpoint_moves_memory_and_refuses_managed_one(sim: Sim) -> None:
    """Before CUDA 13.0. The process stays locked then, and goes on once it is unlocked."""
    out = run(
        sim,
        """
def checkpoint(name): return code("cuCheckpointProcess" + name, os.getpid(), None)
def state(): s = c_int(-1); cuda.cuCheckpointProcessGetState(os.getpid(), byref(s)); return s.value
context(); alloc(5000); print(checkpoint("Checkpoint"), checkpoint("Lock"), state(), checkpoint("Checkpoint"), state())
print(checkpoint("Unlock"), checkpoint("Restore"), checkpoint("Unlock"), state())
m = c_uint64(); cuda.cuMemAllocManaged(byref(m), c_size_t(4096), 1)
print(checkpoint("Lock"), checkpoint("Checkpoint"), state(), checkpoint("Unlock"), state())
cuda.cuMemFree_v2(m); print(checkpoint("Lock"), checkpoint("Checkpoint"), checkpoint("Restore"), checkpoint("Unlock"))
""",
    )
    assert out == ["401 0 1 0 2", "401 0 0 0", "0 801 1 0 0", "0 0 0 0"]
