"""Streams, copies and stream memory operations of the simulated libcuda, in real processes."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.sim.gpus import CLIENT, Sim

MORE = """
import threading, time
def stream(flags=1, priority=0):
    s = c_void_p(); cuda.cuStreamCreateWithPriority(byref(s), flags, priority); return s
def wide(f, s=NONE): cuda.cuLaunchKernel(f, 132, 1, 1, 1, 1, 1, 0, s, NONE, NONE)
def small(f, s=NONE): cuda.cuLaunchKernel(f, 8, 1, 1, 1, 1, 1, 0, s, NONE, NONE)
def gate():
    "A word on the gpu that is 0, and its address."
    at = alloc(4096); cuda.cuMemsetD32_v2(at, 0, c_size_t(1024)); cuda.cuCtxSynchronize(); return at
def word(at): return ctypes.c_uint32.from_address(at.value)
def done(e): return code("cuEventQuery", e) == 0
"""


def python(sim: Sim, code: str) -> list[str]:
    return sim.python(MORE + code).split()


@pytest.fixture
def slow(make_sim: Callable[..., Sim]) -> Sim:
    """A GPU so slow that works which are submitted together begin together."""
    return make_sim(scale=20)


def test_small_kernels_of_two_streams_overlap_and_large_ones_do_not(slow: Sim) -> None:
    out = python(
        slow,
        """
context(); f = kernel(5000); g = gate()
for launch_in in small, wide:
    a, b = stream(), stream(); word(g).value = 0
    for s in a, b: cuda.cuStreamWaitValue32_v2(s, g, 1, 0)
    first = event(a), event(b)
    for s in a, b: launch_in(f, s)
    last = event(a), event(b); word(g).value = 1
    cuda.cuCtxSynchronize()
    print(round(max(elapsed(x, y) for x in first for y in last)))
""",
    )
    assert [int(ms) in around for ms, around in zip(out, ((5, 6), (10, 11)), strict=True)] == [True, True], out


def test_the_legacy_default_stream_waits_for_blocking_streams_and_they_for_it(slow: Sim) -> None:
    out = python(
        slow,
        """
context(); f = kernel(2000); g = gate()
blocking, free = stream(0), stream(1)
cuda.cuStreamWaitValue32_v2(blocking, g, 1, 0)
own = []
def thread():
    cuda.cuCtxSetCurrent(ctx); cuda.cuLaunchKernel_ptsz(f, 8, 1, 1, 1, 1, 1, 0, NONE, NONE, NONE)
    e = c_void_p(); cuda.cuEventCreate(byref(e), 0); cuda.cuEventRecord_ptsz(e, NONE); own.append(e)
ctx = c_void_p(); cuda.cuCtxGetCurrent(byref(ctx))
t = threading.Thread(target=thread); t.start(); t.join()         # per-thread: blocking, but nothing legacy is before it
small(f); legacy = event()                                       # waits for `blocking`
small(f, free); outside = event(free)                            # for nothing
later = stream(0); small(f, later); after = event(later)         # for the legacy stream
soon(lambda: done(own[0]) and done(outside) and code("cuStreamQuery", free) == 0)
print(done(own[0]), done(legacy), done(outside), done(after), code("cuStreamQuery", NONE), code("cuStreamQuery", free))
word(g).value = 1
cuda.cuStreamSynchronize(NONE)
print(done(legacy), elapsed(legacy, after) > 1.9 if code("cuEventSynchronize", after) == 0 else None)
""",
    )
    assert out == ["True", "False", "True", "False", "600", "0", "True", "True"]


def test_events_order_streams_and_priority_orders_kernels(slow: Sim) -> None:
    out = python(
        slow,
        """
context(); f = kernel(3000); g = gate()
a, b = stream(), stream()
cuda.cuStreamWaitValue32_v2(a, g, 1, 0); wide(f, a); e = event(a)
cuda.cuStreamWaitEvent(b, e, 0); wide(f, b); last = event(b)
time.sleep(0.2); print(done(last)); word(g).value = 1
cuda.cuEventSynchronize(last); print(2.9 < elapsed(e, last) < 3.5)
word(g).value = 0
low, high, busy = stream(1, 0), stream(1, -5), stream()
wide(kernel(20000, b"long"), busy)
wide(f, low); at_low = event(low); wide(f, high); at_high = event(high)
cuda.cuCtxSynchronize(); print(elapsed(at_high, at_low) > 2.9)
""",
    )
    assert out == ["False", "True", "True"]


def test_copies_take_time_on_their_own_engines(slow: Sim) -> None:
    """Bandwidths are those of calibration.json: 25 GB/s each way, 1500 within the GPU."""
    out = python(
        slow,
        """
context(); n = 50 * MIB; to, back = alloc(n), alloc(n); host = c_void_p(); f = kernel(2000); g = gate()
cuda.cuMemAllocHost_v2(byref(host), c_size_t(n))
a, b, c = stream(), stream(), stream()
for s in a, b, c: cuda.cuStreamWaitValue32_v2(s, g, 1, 0)
first = event(a)
cuda.cuMemcpyHtoDAsync_v2(to, host, c_size_t(n), a); cuda.cuMemcpyDtoHAsync_v2(host, back, c_size_t(n), b); wide(f, c)
last = event(a), event(b), event(c); word(g).value = 1; cuda.cuCtxSynchronize()
print([round(elapsed(first, e), 1) for e in last])
word(g).value = 0; cuda.cuStreamWaitValue32_v2(a, g, 1, 0)
x = event(a); cuda.cuMemcpyDtoDAsync_v2(back, to, c_size_t(n), a); y = event(a)
word(g).value = 1; cuda.cuCtxSynchronize()
print(round(elapsed(x, y), 3))
""",
    )
    h2d, d2h, run = eval(" ".join(out[:3]))
    assert 2.1 <= h2d <= 2.6 and 2.1 <= d2h <= 2.6 and 2.0 <= run <= 2.6, out
    assert float(out[3]) == 0.035


def test_values_are_waited_for_and_written_in_order(slow: Sim) -> None:
    out = python(
        slow,
        """
context(); f = kernel(100); g = gate(); s = stream()
class Batch(ctypes.Structure):
    _fields_ = [("op", c_int), ("at", c_uint64), ("value", c_uint64), ("flags", c_uint), ("alias", c_uint64),
                ("pad", c_uint64)]
ops = (Batch * 3)(Batch(1, g.value, 5, 0), Batch(5, g.value + 8, 2**40, 0), Batch(2, g.value + 16, 7, 0))
cuda.cuStreamBatchMemOp_v2(s, 3, ops, 0); wide(f, s)
cuda.cuStreamWriteValue32_v2(s, c_uint64(g.value + 20), 9, 0)
u32 = lambda n: ctypes.c_uint32.from_address(g.value + n).value
read = lambda: (ctypes.c_uint64.from_address(g.value + 8).value, [u32(16), u32(20)])
word(g).value = 4; time.sleep(0.1); print(read(), code("cuStreamQuery", s))
word(g).value = 6; cuda.cuStreamSynchronize(s); print(read(), code("cuStreamQuery", s))
host = ctypes.create_string_buffer(64)
bad = lambda at, n=4: code("cuStreamWriteValue32_v2", s, c_uint64(at), 1, 0)
print(bad(ctypes.addressof(host)), bad(g.value + 1), code("cuStreamWaitValue32_v2", s, g, 1, 8))
for flags, value, seen in (1, 6, 6), (2, 4, 6), (3, 0, 6):   # equal, and, nor
    cuda.cuStreamWaitValue32_v2(s, g, value, flags)
cuda.cuStreamSynchronize(s); print("passed")
managed = c_uint64(); cuda.cuMemAllocManaged(byref(managed), c_size_t(4096), 1); print(bad(managed.value))
""",
    )
    assert " ".join(out) == "(0, [0, 0]) 600 (1099511627776, [7, 9]) 0 1 1 1 passed 801"


PEER = (
    MORE
    + """
import mmap, os
context(); f = kernel(1000)
fd = os.open(PATH, os.O_RDWR); page = mmap.mmap(fd, 4096); mine = ctypes.addressof(ctypes.c_char.from_buffer(page))
other = mmap.mmap(os.open(PATH + ".other", os.O_RDONLY), 4096, prot=mmap.PROT_READ)
libc = ctypes.CDLL(None); libc.mmap.restype = c_void_p
seen = libc.mmap(None, c_size_t(4096), 1, 1, os.open(PATH + ".other", os.O_RDONLY), c_size_t(0))
cuda.cuMemHostRegister_v2(c_void_p(mine), c_size_t(4096), 2)
register = lambda flags: code("cuMemHostRegister_v2", c_void_p(seen), c_size_t(4096), flags)
print(register(2), register(8),
      code("cuStreamWriteValue32_v2", NONE, c_uint64(seen), 1, 0), flush=True)
s = stream()
cuda.cuStreamWaitValue32_v2(s, c_uint64(seen), 1, 0)
for n in range(200):
    launch(f, s); cuda.cuStreamWriteValue32_v2(s, c_uint64(mine), n + 1, 0)
print("ready", flush=True); input(); cuda.cuCtxSynchronize(); print("all", flush=True)
"""
)


def test_progress_is_written_while_the_program_is_stopped(slow: Sim, tmp_path: Path) -> None:
    """gate: a word in a file that the program may only read. progress: a file of the program, which a neighbour reads."""
    path = tmp_path / "slot"
    for file in (path, Path(f"{path}.other")):
        file.write_bytes(bytes(4096))
    child = slow.start(
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {str(CLIENT)!r})\nfrom client import *\nPATH = {str(path)!r}\n" + PEER,
    )
    assert Sim.line(child) == "1 0 1\n"
    assert Sim.line(child) == "ready\n"

    def written() -> int:
        return int.from_bytes(path.read_bytes()[:4], "little")

    child.send_signal(signal.SIGSTOP)
    assert written() == 0
    with open(f"{path}.other", "r+b") as f:
        f.write(b"\1")
    end = time.monotonic() + 60
    while written() < 10:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert Path(f"/proc/{child.pid}/stat").read_text().split(") ")[1][0] == "T"
    child.send_signal(signal.SIGCONT)
    Sim.tell(child)
    assert Sim.line(child) == "all\n" and written() == 200
    # The front end ends with the program, and the GPU releases all that it had.
    child.kill()
    child.wait()
    out = python(slow, "context(); f = kernel(10); launch(f); cuda.cuCtxSynchronize(); print(free_bytes() >> 20)")
    assert out == ["960"]


def test_the_front_end_is_no_child_that_a_program_waits_for_and_does_not_outlive_it(slow: Sim) -> None:
    """An exec ends it too, and the GPU releases what the program had."""
    out = python(
        slow,
        """
import os, sys
def children(task): return open(f"/proc/self/task/{task}/children").read().split()
def front_ends(): return sum(len(children(task)) for task in os.listdir("/proc/self/task"))
context(); alloc(500 * MIB); s = stream(); g = gate(); cuda.cuStreamWaitValue32_v2(s, g, 1, 0)
soon(front_ends)
print(front_ends())
try: os.wait()
except ChildProcessError: print("none")
sys.stdout.flush()
again = "from client import *; context(); alloc(500 * MIB); print('again', free_bytes() >> 20)"
os.execv(sys.executable, [sys.executable, "-c", again])
""",
    )
    assert out == ["1", "none", "again", "460"]


def test_work_for_a_destroyed_context_is_refused(slow: Sim) -> None:
    """Its channels may belong to another context by then. Only cuStreamDestroy takes its stream."""
    out = python(
        slow,
        """
context(); one, two = c_void_p(), c_void_p(); cuda.cuCtxCreate_v2(byref(one), 0, 0)
s = stream(); f = kernel(1000); g = gate(); h = gate(); e = event(s)
cuda.cuStreamWaitValue32_v2(s, g, 1, 0); cuda.cuStreamWriteValue32_v2(s, h, 1, 0); wide(f, s); last = event(s)
cuda.cuCtxDestroy_v2(one); cuda.cuCtxCreate_v2(byref(two), 0, 0)
t = stream(); f = kernel(1000); wide(f, t)
launched = code("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, s, NONE, NONE)
print(launched, code("cuEventRecord", last, s), code("cuStreamSynchronize", s), code("cuEventQuery", e))
cuda.cuStreamSynchronize(t); cuda.cuStreamDestroy_v2(s); cuda.cuCtxSynchronize(); print("done")
""",
    )
    assert out == ["709", "709", "709", "0", "done"]


def test_neighbours_go_on_when_programs_are_stopped_at_any_instant(slow: Sim) -> None:
    """A process that computes the GPU's time holds no lock: after none of 100 stops a neighbour waits longer than a turn."""
    busy = (
        "context(); f = kernel(20)\nprint('ready', flush=True)\nwhile True: launch(f); event(); cuda.cuCtxSynchronize()"
    )
    children = [slow.start_python(busy) for _ in range(2)]
    out = slow.start_python(
        "import time\ncontext(); f = kernel(50); worst = 0; print('ready', flush=True)\n"
        "end = time.monotonic() + 6\n"
        "while time.monotonic() < end:\n"
        "    begin = time.monotonic(); launch(f); cuda.cuCtxSynchronize()\n"
        "    worst = max(worst, time.monotonic() - begin)\n"
        "print(worst)"
    )
    for i in range(100):
        child = children[i % 2]
        time.sleep(0.005 + 0.0007 * (i % 10))
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.04)
        child.send_signal(signal.SIGCONT)
    assert float(Sim.line(out)) < 20
