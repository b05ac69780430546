"""Memory of cuMemCreate that was exported is charged until its last handle, mapping, descriptor and importer is gone, in
whatever process and container; then the container has it back. The tests know who uses it, since they do it themselves."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shim.box import MIB, Box
from tests.shim.conftest import compile_c

pytestmark = pytest.mark.root

CODE = """
import os, socket, sys, client as cu
M, u64, size, lib = cu.MIB, cu.c_uint64, cu.c_size_t, cu.lib
cu.init()
AT = 0x500000000000
def export(h):
    fd = cu.c_int(-1)
    assert lib.cuMemExportToShareableHandle(cu.byref(fd), u64(h), 1, u64(0)) == 0
    return fd.value
def take(fd):
    h = u64()
    r = lib.cuMemImportFromShareableHandle(cu.byref(h), cu.c_void_p(fd), 1)
    return r, h.value
release = lambda h: lib.cuMemRelease(u64(h))
map_ = lambda at, n, h: lib.cuMemMap(u64(at), size(n), size(0), u64(h), u64(0))
unmap = lambda at, n: lib.cuMemUnmap(u64(at), size(n))
"""
# A process that does what it is told, one expression for each line.
SERVE = (
    CODE
    + """
box = socket.socket(fileno=int(sys.argv[1]))
def send(fd):
    socket.send_fds(box, [b"x"], [fd])
    os.close(fd)
def receive():
    global got
    got = socket.recv_fds(box, 1, 1)[1][0]
for line in sys.stdin:
    try:
        value = eval(line)
    except SyntaxError:
        exec(line)
        value = None
    print(value, flush=True)
"""
)


class Program:
    """A process in a box that makes calls."""

    def __init__(self, box: Box, end: socket.socket, **env: str) -> None:
        argv = box.command([sys.executable, "-c", SERVE, str(end.fileno())])
        self.process = subprocess.Popen(
            argv, env=box.env(**env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[end.fileno()]
        )
        end.close()

    def do(self, line: str) -> str:
        assert self.process.stdin and self.process.stdout
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def mib(self) -> float:
        return float(self.do("cu.used() / M"))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


KINDS = ["a file for each", "one device"]


def kind(name: str) -> dict[str, str]:
    return {"FAKE_ONE_INODE": "1"} if name == "one device" else {}


@pytest.mark.parametrize("how", KINDS)
def test_create_export_close_release_gives_the_memory_back(box: Box, how: str) -> None:
    """More often than the limit would allow, if each turn kept its 64 MiB."""
    box.python(
        CODE
        + """
for turn in range(100):
    r, h = cu.create(64 * M)
    assert r == 0, turn
    fd = export(h)
    if turn % 3 == 0:
        os.close(fd)
    assert release(h) == 0
    if turn % 3:
        assert cu.used() == 64 * M, "the descriptor is open"
        other = os.dup(fd)
        os.close(fd)
        assert cu.used() == 64 * M, "by another number"
        os.close(other)
    assert cu.used() == 0, turn
assert len(os.listdir("/proc/self/fd")) < 30, "no descriptors of ours are left behind"
""",
        **kind(how),
    )


@pytest.mark.parametrize("how", KINDS)
def test_memory_is_given_back_when_it_is_asked_for(box: Box, how: str) -> None:
    """A refusal first looks which descriptors were closed, by every way to allocate."""
    box.python(
        CODE
        + """
routes = [lambda: cu.alloc(800 * M), lambda: cu.create(800 * M), lambda: cu.async_alloc(800 * M)]
for route in routes:
    handles = [cu.create(100 * M)[1] for _ in range(10)]
    fds = [export(h) for h in handles]
    assert [release(h) for h in handles] == [0] * 10
    assert route()[0] == cu.OOM, "all are open"
    [os.close(fd) for fd in fds[1:]]
    r, p = route()
    assert r == 0
    os.close(fds[0])
    assert p and (release(p) == 0 if route is routes[1] else cu.free(p) == 0)
    lib.cuCtxSynchronize()
    assert cu.used() == 0, cu.used() / M
""",
        **kind(how),
    )


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("across", [False, True])
def test_an_importer_keeps_its_maker_charged(make_box: Callable[[str], Box], across: bool, how: str) -> None:
    """Also in another container, and after the descriptor was closed everywhere."""
    one = make_box("one")
    other = make_box("other") if across else one
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    maker, importer = Program(one, a, **kind(how)), Program(other, b, **kind(how))
    try:
        maker.do("h = cu.create(300 * M)[1]; fd = export(h); send(fd); r = release(h)")
        assert maker.mib() == 300, "on its way"
        importer.do("receive(); r, i = take(got); os.close(got)")
        assert importer.do("r") == "0" and maker.mib() == 300, "imported"
        importer.do("r = [map_(AT, 300 * M, i), release(i)]")
        assert importer.do("r") == "[0, 0]" and maker.mib() == 300, "mapped"
        importer.do("again = u64(); r = lib.cuMemRetainAllocationHandle(cu.byref(again), cu.c_void_p(AT))")
        importer.do("unmap(AT, 300 * M)")
        assert importer.do("r") == "0" and maker.mib() == 300, "retained"
        importer.do("second = export(again.value); release(again.value)")
        assert maker.mib() == 300, "exported on"
        importer.do("r, i = take(second); os.close(second)")
        assert importer.do("r") == "0" and maker.mib() == 300, "and imported again"
        if across:
            assert importer.mib() == 0, "charged once, to the process that made it"
        importer.do("release(i)")
        assert maker.mib() == 0
    finally:
        maker.end()
        importer.end()


@pytest.mark.parametrize("how", KINDS)
def test_an_importer_that_is_killed_keeps_nothing(box: Box, how: str) -> None:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    maker, importer = Program(box, a, **kind(how)), Program(box, b, **kind(how))
    try:
        maker.do("h = cu.create(300 * M)[1]; fd = export(h); send(fd); r = release(h)")
        importer.do("receive(); r, i = take(got)")
        assert maker.mib() == 300
        importer.end()
        assert maker.mib() == 0
    finally:
        maker.end()
        importer.end()


def test_a_forked_child_that_has_the_descriptor_keeps_it_charged(box: Box) -> None:
    box.python(
        CODE
        + """
import signal
r, h = cu.create(300 * M)
fd = export(h)
child = os.fork()
if not child:
    signal.pause()
os.close(fd)
assert release(h) == 0 and cu.used() == 300 * M
os.kill(child, 9)
os.waitpid(child, 0)
assert cu.used() == 0
"""
    )


def test_what_cannot_be_followed_stays_charged(box: Box) -> None:
    """Handles that are no descriptors; descriptors, when no further one is free; observers that were closed."""
    box.python(
        CODE
        + """
import resource
fabric = cu.ctypes.create_string_buffer(64)
r, h = cu.create(100 * M)
assert lib.cuMemExportToShareableHandle(fabric, u64(h), 8, u64(0)) == 0
assert release(h) == 0 and cu.used() == 100 * M
r, h = cu.create(100 * M)
most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, most[1]))
taken = []
while len(taken) < 40:
    try:
        taken.append(os.dup(0))
    except OSError:
        break
os.close(taken.pop())
fd = export(h)
assert fd >= 0
resource.setrlimit(resource.RLIMIT_NOFILE, most)
[os.close(n) for n in [fd, *taken]]
assert release(h) == 0 and cu.used() == 200 * M
r, h = cu.create(100 * M)
fd = export(h)
os.closerange(100, 200)
os.close(fd)
assert release(h) == 0 and cu.used() == 300 * M
r, h = cu.create(100 * M)
os.close(export(h))
assert release(h) == 0 and cu.used() == 300 * M, "new ones are followed all the same"
"""
    )


def test_few_descriptors_are_enough(box: Box) -> None:
    box.python(
        CODE
        + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
r, h = cu.create(100 * M)
fd = export(h)
r, i = take(fd)
assert r == 0
os.close(fd)
assert release(h) == 0 and cu.used() == 100 * M
assert release(i) == 0 and cu.used() == 0
"""
    )


def test_a_limit_of_descriptors_does_not_limit_imports(box: Box) -> None:
    """Each import holds one. The program keeps half of those that it had; the hard limit holds."""
    box.python(
        CODE
        + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 1500))
r, h = cu.create(2 * M)
fd = export(h)
assert [take(fd)[0] for _ in range(1000)] == [0] * 1000
mine = [os.dup(fd) for _ in range(180)]
assert max(mine) < 400, "none needs a higher number than before"
assert cu.OOM in [take(fd)[0] for _ in range(500)]
"""
    )


def test_a_hard_limit_that_is_near_costs_no_imports(box: Box) -> None:
    box.python(
        CODE
        + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1024))
fd = export(cu.create(2 * M)[1])
assert [take(fd)[0] for _ in range(900)] == [0] * 900
"""
    )


def test_numbers_of_closed_observers_that_stand_for_the_export_itself(box: Box) -> None:
    """The descriptor cannot be asked about its own lock: that must not look like a descriptor that was closed."""
    box.python(
        CODE
        + """
r, h = cu.create(100 * M)
fd = export(h)
assert release(h) == 0
for n in range(100, 110):
    os.dup2(fd, n)
os.close(fd)
assert cu.used() == 100 * M
os.closerange(100, 110)
assert cu.used() == 100 * M, "nobody can tell any more"
""",
        FAKE_ONE_INODE="1",
    )


def test_two_exports_of_one_piece_are_both_followed(box: Box) -> None:
    box.python(
        CODE
        + """
r, h = cu.create(100 * M)
fds = [export(h) for _ in range(5)]
os.close(fds[2])
assert map_(AT, 100 * M, h) == 0 and release(h) == 0
for n in (0, 4, 1):
    os.close(fds[n])
    assert cu.used() == 100 * M
assert unmap(AT, 100 * M) == 0 and cu.used() == 100 * M
os.close(fds[3])
assert cu.used() == 0
"""
    )


def test_a_descriptor_of_a_range_keeps_the_memory_charged(box: Box) -> None:
    """A DMA-BUF, which cannot be opened again; of linear memory and of pieces mapped side by side."""
    box.python(
        CODE
        + """
def dma_buf(at, n):
    fd = cu.c_int(-1)
    assert lib.cuMemGetHandleForAddressRange(cu.byref(fd), u64(at), size(n), 1, u64(0)) == 0
    return fd.value
for turn in range(30):
    r, p = cu.alloc(500 * M)
    assert r == 0, turn
    fds = [dma_buf(p, 500 * M), dma_buf(p + 4 * M, M)]
    os.close(fds[0])
    assert cu.free(p) == 0
    assert cu.used() == 500 * M, "the driver keeps it"
    assert cu.alloc(600 * M)[0] == cu.OOM
    os.close(fds[1])
    r, p = cu.alloc(600 * M)
    assert r == 0 and cu.free(p) == 0 and cu.used() == 0
handles = [cu.create(100 * M)[1] for _ in range(3)]
for i, h in enumerate(handles):
    assert map_(AT + i * 100 * M, 100 * M, h) == 0 and release(h) == 0
fd = dma_buf(AT + 50 * M, 100 * M)
assert unmap(AT, 300 * M) == 0
assert cu.used() == 200 * M, "the third is not in the range"
other = os.dup(fd)
os.close(fd)
assert cu.used() == 200 * M
os.close(other)
assert cu.used() == 0
r, p = cu.alloc(100 * M)
fd = dma_buf(p, 100 * M)
os.closerange(100, 200)
assert cu.free(p) == 0
os.close(fd)
assert cu.used() == 100 * M, "nobody can tell any more"
r, p = cu.alloc(100 * M)
fd = dma_buf(p, 100 * M)
assert cu.free(p) == 0
os.close(fd)
assert cu.used() == 100 * M, "new ones are followed all the same"
assert lib.cuMemGetHandleForAddressRange(cu.byref(cu.c_int()), u64(p), size(M), 7, u64(0)) == 1
"""
    )


def test_threads_export_map_and_release_at_once(box: Box) -> None:
    """Races for one handle value may keep something charged; they never release what is in use."""
    box.python(
        CODE
        + """
import random, threading
def work(seed):
    rng = random.Random(seed)
    for turn in range(60):
        r, h = cu.create(2 * M)
        if r:
            continue
        fd = export(h) if rng.random() < 0.5 else -1
        at = AT + seed * 1024 * M
        mapped = rng.random() < 0.5 and map_(at, 2 * M, h) == 0
        assert release(h) == 0
        if mapped:
            assert unmap(at, 2 * M) == 0
        if fd >= 0:
            os.close(fd)
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
assert cu.used() == 0, cu.used() / M
"""
    )
    assert box.peak() <= 1024 * MIB


CANCELLED = """
#include <pthread.h>
typedef unsigned long long u64;
extern int cuMemUnmap(u64, unsigned long);
static void *unmap(void *none) {
    pthread_cancel(pthread_self());
    cuMemUnmap(0x500000000000, 2 << 20);
    pthread_testcancel();
    return none;
}
int cancelled(void) {
    pthread_t thread;
    void *end;
    pthread_create(&thread, 0, unmap, 0);
    pthread_join(thread, &end);
    return end == PTHREAD_CANCELED;
}
"""


@pytest.mark.parametrize("how", KINDS)
def test_a_cancelled_thread_leaves_no_lock_held(box: Box, tmp_path: Path, how: str) -> None:
    """The last of two pieces is unmapped by a thread that was cancelled, and then looks which exports were closed."""
    (tmp_path / "cancelled.c").write_text(CANCELLED)
    library = compile_c(tmp_path / "cancelled.so", "-shared", "-fPIC", str(tmp_path / "cancelled.c"), "-lpthread")
    box.python(
        CODE
        + f"""
import ctypes, time
r, mapped = cu.create(2 * M)
assert r == 0 and map_(AT, 2 * M, mapped) == 0
for turn in range(3):
    r, h = cu.create(64 * M)
    fd = export(h)
    assert r == 0 and release(h) == 0
    os.close(fd)
    time.sleep(0.11)
    before = time.monotonic()
    assert ctypes.CDLL("{library}").cancelled()
    assert cu.used() == 2 * M, cu.used() / M
    assert time.monotonic() < before + 4, "a lock was held"
    assert map_(AT, 2 * M, mapped) == 0
""",
        **kind(how),
    )
