"""Memory that was exported is in use until its last handle, mapping, descriptor and import are gone, in whatever process."""

import pytest

from testbed.sim.gpus import CONTEXT_MIB, MEMORY_MIB, Sim

START = (
    f"""
import os, socket
SIZE, ROOM = 64 * MIB, {MEMORY_MIB - CONTEXT_MIB} * MIB
"""
    + """
def took(): return (ROOM - free_bytes()) // MIB
def created():
    h = c_uint64(); cuda.cuMemCreate(byref(h), c_size_t(SIZE), byref(Prop(1, 1, 1, 0)), c_uint64(0)); return h
def exported(h):
    fd = c_int(); cuda.cuMemExportToShareableHandle(byref(fd), h, 1, c_uint64(0)); return fd.value
def imported(fd):
    h = c_uint64(); cuda.cuMemImportFromShareableHandle(byref(h), c_void_p(fd), 1); return h
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 64)]
here, there = socket.socketpair()
def maker(send, at_word=lambda: None):
    "A process that makes something and sends it; does at_word at the next word, and exits at the one after."
    if os.fork() == 0:
        here.close(); context(); send()
        if there.recv(1): at_word(); there.send(b"x"); there.recv(1)
        os._exit(0)
    there.close()
def word(): here.send(b"x"); return here.recv(1)
def end(): word(); here.send(b"x"); os.wait()
"""
)


def python(sim: Sim, code: str) -> list[str]:
    return sim.python(START + code).split()


def test_one_process(sim: Sim) -> None:
    """Handles, mappings and descriptors each keep it; only the last one's end frees it."""
    out = python(
        sim,
        """
context(); h = created(); m = map_handle(h, SIZE); fd = exported(h); again = imported(fd); print(took())
cuda.cuMemRelease(h); print(took()); os.close(fd); print(took()); cuda.cuMemRelease(again); print(took())
cuda.cuMemUnmap(m, c_size_t(SIZE)); print(took())
h = created(); fd = exported(h); cuda.cuMemRelease(h); print(took()); os.close(fd); print(took())
""",
    )
    assert out == ["64", "64", "64", "64", "0", "64", "0"]


def test_handles_for_a_fabric_are_not_supported(sim: Sim) -> None:
    """torch asks for these first, and takes descriptors where the driver refuses."""
    out = python(
        sim,
        """
context(); h = c_uint64(); print(code("cuMemCreate", byref(h), c_size_t(SIZE), byref(Prop(1, 8, 1, 0)), c_uint64(0)))
print(took())
""",
    )
    assert out == ["801", "0"]


def test_without_a_handle_type_nothing_is_exported(sim: Sim) -> None:
    out = python(
        sim,
        """
context(); h = c_uint64(); cuda.cuMemCreate(byref(h), c_size_t(SIZE), byref(Prop(1, 0, 1, 0)), c_uint64(0))
print(code("cuMemExportToShareableHandle", byref(c_int()), h, 1, c_uint64(0)))
print(code("cuMemImportFromShareableHandle", byref(h), c_void_p(os.open("/dev/null", 0)), 1))
""",
    )
    assert out == ["1", "1"]


@pytest.mark.parametrize("holds", ["descriptor", "import", "mapping", "message"])
def test_the_maker_exits(sim: Sim, holds: str) -> None:
    out = python(
        sim,
        f"""
maker(lambda: socket.send_fds(there, [b"x"], [exported(created())]))
context(); fd = socket.recv_fds(here, 1, 1)[1][0]
if {holds!r} == "message":
    a, b = socket.socketpair(); socket.send_fds(a, [b"x"], [fd]); os.close(fd); drop = b.close
elif {holds!r} == "descriptor":
    drop = lambda: os.close(fd)
else:
    h = imported(fd); os.close(fd); drop = lambda: cuda.cuMemRelease(h)
    if {holds!r} == "mapping":
        m = map_handle(h, SIZE); cuda.cuMemRelease(h); drop = lambda: cuda.cuMemUnmap(m, c_size_t(SIZE))
end(); print(took()); drop(); print(took())
""",
    )
    assert out == ["64", "0"]


@pytest.mark.parametrize("how", ["exit", "free"])
def test_memory_that_was_opened_by_ipc(sim: Sim, how: str) -> None:
    """Its maker frees it, or exits: the importer keeps it."""
    out = python(
        sim,
        f"""
at, h = c_uint64(), Handle()
def send():
    cuda.cuMemAlloc_v2(byref(at), c_size_t(SIZE)); cuda.cuIpcGetMemHandle(byref(h), at); there.send(bytes(h))
maker(send, lambda: cuda.cuMemFree_v2(at) if {how == "free"} else None)
context(); h = Handle.from_buffer_copy(here.recv(64)); cuda.cuIpcOpenMemHandle_v2(byref(at), h, 1)
if {how == "free"}:
    word(); here.send(b"x"); os.wait()
else:
    end()
print(took()); cuda.cuIpcCloseMemHandle(at); print(took(), code("cuIpcOpenMemHandle_v2", byref(at), h, 1))
""",
    )
    assert out == ["64", "0", "1"]


def test_a_shared_pool(sim: Sim) -> None:
    """Its memory is in use while an importer has the pool, or a pointer of it."""
    out = python(
        sim,
        """
p, a, data = c_void_p(), c_uint64(), ctypes.create_string_buffer(64)
def send():
    cuda.cuMemPoolCreate(byref(p), byref(Prop(1, 1, 1, 0)))
    cuda.cuMemAllocFromPoolAsync(byref(a), c_size_t(20 * MIB), p, NONE); cuda.cuMemPoolExportPointer(data, a)
    fd = c_int(); cuda.cuMemPoolExportToShareableHandle(byref(fd), p, 1, c_uint64(0))
    socket.send_fds(there, [data.raw], [fd.value])
maker(send)
context(); payload, fds, *_ = socket.recv_fds(here, 64, 1)
cuda.cuMemPoolImportFromShareableHandle(byref(p), c_void_p(fds[0]), 1, c_uint64(0)); os.close(fds[0])
cuda.cuMemPoolImportPointer(byref(a), p, payload); end(); print(took())
cuda.cuMemPoolDestroy(p); print(took()); cuda.cuMemFreeAsync(a, NONE); print(took())
""",
    )
    assert out == ["32", "32", "0"]
