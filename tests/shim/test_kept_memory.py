"""A process's memory lives as long as the driver's open file, which a forked child keeps: so does its account slot."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shim.box import MIB
from tests.shim.conftest import HERE, ROOT, compile_c, compile_kept
from tests.shim.sim_box import CONTEXT, LIMIT, SimBox

pytestmark = pytest.mark.root
MOST = LIMIT - 2 * CONTEXT  # one process beside another's context


@pytest.fixture(scope="session")
def over_simulated(shim: Path) -> Path:
    """The shim, and the simulated driver in `sim` below it."""
    command = [sys.executable, str(ROOT / "scripts" / "build"), "--part", "sim"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return shim


@pytest.fixture
def box(tmp_path: Path, over_simulated: Path) -> Iterator[SimBox]:
    made = SimBox(tmp_path, over_simulated)
    yield made
    made.close()


FORK = """
import ctypes, os, signal, sys, client as cu
ends = signal.SIGUSR1, signal.SIGUSR2
signal.pthread_sigmask(signal.SIG_BLOCK, ends)
def child():
    {child}
    print("ready", flush=True); sys.stdin.readline(); os._exit(0)
def fork():
    if not os.fork():
        child()
cu.lib.cuInit(0)
{before}
cu.use(0); assert cu.alloc(800 * cu.MIB)[0] == 0
{after}
if signal.sigwait(ends) == signal.SIGUSR2:
    os.execvp("sleep", ["sleep", "0"])
"""


def family(box: SimBox, child: str = "pass", before: str = "", after: str = "fork()") -> "subprocess.Popen[str]":
    """A process with 800 MiB; a child of it is ready, and ends with its input."""
    p = box.start([sys.executable, "-c", FORK.format(child=child, before=before, after=after)])
    assert p.stdout and p.stdout.readline() == "ready\n", p.communicate()
    return p


def end(p: "subprocess.Popen[str]", how: signal.Signals = signal.SIGKILL) -> None:
    """The process ends, its child does not."""
    p.send_signal(how)
    p.wait(120)


def end_child(p: "subprocess.Popen[str]") -> None:
    """Wait for the end of all processes that have the pipe."""
    p.communicate("\n", timeout=120)


REFUSED = "cu.init(); r = cu.alloc({} * cu.MIB)[0]; assert r == cu.OOM, (r, cu.info()[0] >> 20)"
GRANTED = "cu.init(); r = cu.alloc({} * cu.MIB)[0]; assert r == 0, (r, cu.info()[0] >> 20)"
ROOM = (MOST >> 20) - 800
# Python 3.12 has os.unshare; this is clone(2)'s CLONE_NEWPID.
NEW_PID_NAMESPACE = "ctypes.CDLL(None).unshare(0x20000000); os.fork() and os._exit(0)"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR1, signal.SIGUSR2], ids=["kill", "exit", "exec"])
@pytest.mark.parametrize(
    "child",
    [
        "pass",
        "os.closerange(3, 4096)",
        NEW_PID_NAMESPACE,
        "os.setgid(1234); os.setuid(1234)",
        "os.fork() and os._exit(0)",
        "cu.lib.cuInit(0); cu.alloc(1); cu.free(1)",
    ],
    ids=["child", "descriptors closed", "pid namespace", "user", "grandchild", "child with a slot"],
)
def test_a_child_keeps_the_memory_of_its_parent(box: SimBox, child: str, how: signal.Signals) -> None:
    p = family(box, child)
    end(p, how)
    box.python(REFUSED.format(ROOM + 1))
    box.python(GRANTED.format(ROOM))
    box.python(f"cu.init(); assert cu.used() == {800 * MIB + 2 * CONTEXT}, cu.used()")
    assert box.figures.counted() == 800 * MIB + CONTEXT
    end_child(p)
    box.python(GRANTED.format(900))
    box.python("cu.init(); assert cu.used() == 64 * cu.MIB")


def test_a_child_that_execs_keeps_nothing(box: SimBox) -> None:
    p = family(box, "os.execvp('sh', ['sh', '-c', 'echo ready; read x'])")
    end(p)
    box.python(GRANTED.format(900))
    end_child(p)


def test_a_child_that_was_forked_before_the_allocation_keeps_it_as_well(box: SimBox) -> None:
    """Once cuInit has opened the driver."""
    p = family(box, before="fork()", after="")
    while box.figures.counted() < 800 * MIB:
        pass
    end(p)
    box.python(REFUSED.format(ROOM + 1))
    end_child(p)
    box.python(GRANTED.format(900))


SHARES_DESCRIPTORS = """
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(1 << 20)
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def wait(_):
    libc.read(0, ctypes.create_string_buffer(1), 1)
    return 0
top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 20) - 64)
assert libc.clone(wait, top, 0x400 | signal.SIGCHLD, None) > 0  # CLONE_FILES
print("ready", flush=True)
"""


def test_a_child_that_shares_the_descriptors_alone_keeps_the_memory(box: SimBox) -> None:
    """It has none of its parent's mappings, but the driver's open files."""
    p = family(box, before=SHARES_DESCRIPTORS, after="")
    while box.figures.counted() < 800 * MIB:
        pass
    end(p)
    box.python(REFUSED.format(ROOM + 1))
    end_child(p)
    box.python(GRANTED.format(900))


def test_a_slot_is_taken_before_the_driver_is_opened_or_never(box: SimBox) -> None:
    """A process that makes that impossible gets no memory, with one line: its children would not have its lock."""
    out = box.python("""
import os, resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
cu.lib.cuInit(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
p = cu.c_void_p()
assert cu.lib.cuInit(0) == 0
for _ in range(2):
    r = cu.lib.cuDevicePrimaryCtxRetain(cu.byref(p), 0)
    assert r == cu.OOM, r
""")
    assert out.stderr.count("GH-308") == 1 == out.stderr.count("\n"), out.stderr
    assert "(ulimit -n)" in out.stderr, out.stderr
    box.python(GRANTED.format(900))


def test_generations_do_not_add_up(box: SimBox) -> None:
    """3656 MiB under a limit of 1024: each generation allocates, forks and dies, and its child only waits."""
    first = family(box)
    end(first)
    for _ in range(3):
        p = box.start([sys.executable, "-c", FORK.format(child="pass", before="", after="fork()")])
        _, said = p.communicate(timeout=20)
        assert "AssertionError" in said
        assert box.figures.counted() <= LIMIT
    end_child(first)
    box.python(GRANTED.format(900))


COLLIDE = """
import ctypes, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (8000, 8000))
folded = lambda path: (lambda n: (n ^ n >> 10 ^ n >> 20) & 0x3FF)(os.stat(path).st_ino)
own, held = folded("/proc/self/ns/pid"), []
for _ in range(5000):
    out, back = os.pipe()
    if not os.fork():  # a new pid namespace, and a process that waits in it
        ctypes.CDLL(None).unshare(0x30000000)
        pid = os.fork()
        if pid:
            os.write(back, b"%d\\n" % pid)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        signal.sigwait({signal.SIGUSR1, signal.SIGUSR2})
        import client as cu
        assert cu.lib.cuInit(0) == 0
        cu.use(0)
        r = cu.alloc(600 * cu.MIB)[0]
        os._exit(0 if r == cu.OOM else 9)
    pid = int(os.read(out, 20))
    os.close(out); os.close(back)
    space = f"/proc/{pid}/ns/pid"
    held.append(os.open(space, os.O_RDONLY))  # so that the next one has another number
    if folded(space) == own:
        os.kill(pid, signal.SIGUSR1)
        print(len(held), os.waitstatus_to_exitcode(os.wait()[1]))
        sys.exit()
    os.kill(pid, signal.SIGKILL)
    os.wait()
"""


def test_no_pid_namespace_makes_a_living_process_look_dead(box: SimBox) -> None:
    """Its number used to be folded to 10 bits, and an unprivileged user can make namespaces until one looks like ours."""
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})\n"
    with box.start(
        [sys.executable, "-c", "import client as cu\ncu.init(); cu.alloc(700 * cu.MIB); print(); input()"]
    ) as p:
        assert p.stdout and p.stdout.readline() == "\n"
        out = box.run([sys.executable, "-c", block + COLLIDE], timeout=60).stdout.split()
        assert out[1:] == ["0"], out
        assert box.total() >= 700 * MIB + CONTEXT == box.figures.counted()
        p.communicate("\n")


IMPORT = """
import ctypes, sys, client as cu
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
cu.init()
library = ctypes.CDLL(sys.argv[1])
assert library.race(Handle.from_buffer_copy(bytes.fromhex(sys.argv[2]))) == 0
print(cu.used() // cu.MIB, flush=True)
input()
print(cu.used() // cu.MIB, flush=True)
"""
RACE = """
#include <pthread.h>
struct handle { char bytes[64]; };
extern int cuCtxGetCurrent(void **), cuCtxSetCurrent(void *);
extern int cuIpcOpenMemHandle_v2(unsigned long long *, struct handle, unsigned);
extern int cuIpcCloseMemHandle(unsigned long long);
static struct handle handle;
static void *context;
static void *open_and_close(void *none) {
    unsigned long long at;
    if (cuCtxSetCurrent(context))
        return &handle;
    for (int i = 0; i < 20000; i++)
        if (cuIpcOpenMemHandle_v2(&at, handle, 1) || cuIpcCloseMemHandle(at))
            return &handle;
    return none;
}
int race(struct handle given) {
    pthread_t thread[3];
    void *failed, *any = 0;
    handle = given;
    cuCtxGetCurrent(&context);
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], 0, open_and_close, 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], &failed);
        any = failed ? failed : any;
    }
    return any != 0;
}
"""
EXPORT = """
import ctypes
cu.init()
r, at = cu.alloc(100 * cu.MIB)
handle = ctypes.create_string_buffer(64)
assert cu.lib.cuIpcGetMemHandle(handle, cu.c_uint64(at)) == 0
print(handle.raw.hex(), flush=True)
input()
assert cu.free(at) == 0
print(flush=True)
input()
"""


def test_threads_that_open_one_ipc_handle_hold_it_no_longer_than_they_have_it(box: SimBox, tmp_path: Path) -> None:
    (tmp_path / "race.c").write_text(RACE)
    library = compile_c(tmp_path / "race.so", "-shared", "-fPIC", str(tmp_path / "race.c"), "-lpthread")
    maker = box.start([sys.executable, "-c", "import client as cu\n" + EXPORT])
    assert maker.stdin and maker.stdout
    handle = maker.stdout.readline().strip()
    importer = box.start([sys.executable, "-c", IMPORT, str(library), handle])
    assert importer.stdin and importer.stdout
    shown = [importer.stdout.readline()]
    print(file=maker.stdin, flush=True)
    assert maker.stdout.readline() == "\n", maker.communicate()
    shown += importer.communicate("\n", timeout=60)[:1]
    maker.communicate("\n", timeout=60)
    assert [int(mib) for mib in shown] == [100 + 2 * (CONTEXT >> 20), 2 * (CONTEXT >> 20)], shown


def test_a_storm_of_kills_leaves_what_the_gpu_has(box: SimBox, tmp_path: Path) -> None:
    """Processes that allocate and fork, killed at any moment. GH_STORM: how many kills; GH_SEED."""
    link = [f"-I{ROOT}", str(box.shim / "libcuda.so.1"), "-Wl,--allow-shlib-undefined", "-ldl", "-lpthread"]
    storm = compile_kept("storm", str(HERE / "storm.c"), *link)
    kills, seed = os.environ.get("GH_STORM", "300"), os.environ.get("GH_SEED", "5")
    out = box.run([str(storm), kills, seed, str(box.gpus / "0")], timeout=10 + int(kills) / 10)
    done, compared, kept = map(int, out.stdout.split())
    print(out.stdout)
    assert done == int(kills) and compared == -(-done // 50) and kept


@pytest.fixture(scope="session")
def outlive(over_simulated: Path) -> Path:
    """The program of outlive.c."""
    link = [str(over_simulated / "libcuda.so.1"), "-Wl,--allow-shlib-undefined", "-ldl", "-lpthread"]
    return compile_kept("outlive", str(HERE / "outlive.c"), *link)


SLOWLY_RELEASED = [
    "exec linger",
    "exec linger threads",
    "exec linger low",
    "exec linger files",
    "exec linger memory-too",
    "exec memory",
    "exec mapped",
    "exit memory",
    "exit_group memory threads",
    "exit_group memory late threads",
    "close mapped",
    "close mapped low-taken",
    "kill memory",
    "kill memory low",
    "kill memory threads",
    "kill memory late threads",
    "kill memory files",
    "kill memory memory-too",
    "fault memory threads",
    "import exec linger",
    "import kill memory late threads",
]


@pytest.mark.parametrize("how", SLOWLY_RELEASED)
def test_a_slot_is_in_use_until_the_driver_has_let_go(box: SimBox, outlive: Path, how: str) -> None:
    """However long the kernel takes for what else the process had open, and whichever of its threads comes last."""
    with box.start([str(outlive), "take", str((MOST - CONTEXT) >> 20)]) as taker:
        assert taker.stdout and taker.stdout.readline() == "ready\n", taker.communicate()
        held = MOST - CONTEXT if "import" in how else MOST
        with box.start([str(outlive), "hold", str(held >> 20), *how.split()]) as holder:
            assert holder.stdout and holder.stdout.readline() == "full\n", holder.communicate()
            print(file=taker.stdin, flush=True)
            assert holder.stdout.readline() == "ready\n", holder.communicate()
            if "kill" in how or "close" in how:
                holder.kill()
            assert taker.stdout.readline() == "taken\n", taker.communicate()
            in_use = box.figures.counted()
            holder.kill()
        assert in_use <= LIMIT, in_use >> 20
        taker.communicate("\n")
