"""The account page is right after forks, execs, kills at any instruction, and whatever is written over it."""

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oci_hook.observe import account
from testbed.long import long
from tests.shim.box import MIB, Box
from tests.shim.conftest import HERE, ROOT, compile_c, compile_kept

pytestmark = pytest.mark.root
OWNERS, FREE_CACHES, PAGE = account.OWNERS_OFFSET, account.FREE_CACHES_OFFSET, account.SIZE

HOLD = """
import sys, client as cu
cu.init()
print(cu.alloc({mib} * cu.MIB)[0], flush=True)
for line in sys.stdin:
    exec(line)
"""


def hold(box: Box, mib: int) -> "subprocess.Popen[str]":
    p = box.start([sys.executable, "-c", HOLD.format(mib=mib)])
    assert p.stdout and p.stdout.readline() == "0\n"
    return p


def test_a_killed_process_gives_its_memory_back(box: Box) -> None:
    with hold(box, 700) as p:
        p.kill()
        p.wait()
    box.python("cu.init(); assert cu.alloc(1024 * cu.MIB)[0] == 0")
    with hold(box, 700) as p:
        p.kill()  # a zombie until the end of this block
        box.python("cu.init(); assert cu.info()[0] == 1024 * cu.MIB, cu.info()")


COUNT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
long locks_asked;
long syscall(long n, ...) {
    static long (*next)(long, long, long, long, long, long, long);
    long a[6];
    va_list more;
    va_start(more, n);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    locks_asked += n == SYS_fcntl;
    return next(n, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"""


def test_a_figure_asks_for_others_locks_now_and_then(box: Box, tmp_path: Path) -> None:
    """Whatever the number of processes that hold memory; and an exited one is no longer shown a moment later."""
    (tmp_path / "count.c").write_text(COUNT)
    count = compile_c(tmp_path / "count.so", "-shared", "-fPIC", str(tmp_path / "count.c"), "-ldl")
    peers, calls = 8, 4000
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(hold(box, 10)) for _ in range(peers)]
        asks = f"import ctypes; asked = ctypes.c_long.in_dll(ctypes.CDLL({str(count)!r}), 'locks_asked')\n"
        code = asks + "cu.init(); cu.info(); input(); before = asked.value\n"
        code += f"for _ in range({calls}): cu.info()\nprint(asked.value - before, flush=True); input()\n"
        code += "while cu.info()[0] < 954 * cu.MIB: pass\nprint('shown')"
        argv = [sys.executable, "-c", "import client as cu\n" + code]
        p = stack.enter_context(box.start(argv, LD_PRELOAD=str(count)))
        assert p.stdin and p.stdout
        print(file=p.stdin, flush=True)
        assert int(p.stdout.readline()) < calls * peers / 4
        held[0].kill()
        print(file=p.stdin, flush=True)
        assert p.stdout.readline() == "shown\n"
        for one in held:
            one.kill()


def test_forked_children_have_books_of_their_own(box: Box) -> None:
    box.python("""
import os
def child(code):
    pid = os.fork()
    if not pid:
        try:
            code()
            os._exit(0)
        except BaseException as e:
            print("child:", repr(e))
            os._exit(1)
    return pid
def small():
    cu.init()
    assert cu.alloc(100 * cu.MIB)[0] == 0
for pid in [child(small) for _ in range(8)]:
    assert os.waitpid(pid, 0)[1] == 0
cu.init()
assert cu.info()[0] == 1024 * cu.MIB
r, p = cu.alloc(600 * cu.MIB)
def unusable():
    assert cu.alloc(1)[0] == 3, "CUDA does not survive a fork"
    assert cu.free(p) == 3
    child(small)
    os.wait()
for pid in [child(unusable) for _ in range(5)]:
    assert os.waitpid(pid, 0)[1] == 0
assert cu.info()[0] == 424 * cu.MIB, cu.info()
assert cu.free(p) == 0
assert cu.info()[0] == 1024 * cu.MIB
""")
    assert box.peak() <= 1024 * MIB


def test_exec_gives_the_old_programs_memory_back(box: Box) -> None:
    again = "import client as cu; cu.init(); assert cu.info()[0] == 1024 * cu.MIB, cu.info()"
    box.python(f"""
import os, sys
cu.init()
assert cu.alloc(600 * cu.MIB)[0] == 0
os.execv(sys.executable, [sys.executable, "-c", {again!r}])
""")
    code = 'import os, client as cu; cu.init(); cu.alloc(600 * cu.MIB); os.execvp("sh", ["sh", "-c", "echo; read x"])'
    with box.start([sys.executable, "-c", code]) as p:
        assert p.stdout and p.stdout.readline() == "\n"
        box.python("cu.init(); assert cu.alloc(1000 * cu.MIB)[0] == 0")


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory, shim: Path) -> Path:
    """stepper and worker, linked against the shim."""
    out = tmp_path_factory.mktemp("tools")
    link = [f"-I{ROOT / 'oci_hook' / 'shim'}", str(shim / "libcuda.so.1"), "-Wl,--allow-shlib-undefined", "-ldl"]
    for name in ("stepper", "worker"):
        (out / name).symlink_to(compile_kept(name, str(HERE / f"{name}.c"), *link))
    return out


@pytest.fixture(scope="session")
def noop() -> Path:
    """A driver that does nothing."""
    source = ROOT / "benchmarks/shim_c/noop.c"
    return compile_kept("noop.so", "-shared", "-fPIC", str(source))


def test_first_calls_of_threads_that_race_with_forks(tmp_path: Path, shim: Path, tools: Path, noop: Path) -> None:
    """One slot for a process, whatever its threads do; its children have their own, and nothing stays of any of them."""
    box = Box(tmp_path / "box", shim, noop)
    assert box.run([str(tools / "worker"), "race", "300"], timeout=60).stdout == "0\n"
    assert box.run([str(tools / "worker"), "short", "1"]).stdout == "0\n"
    code = "cu.init(); assert cu.alloc(1 << 40)[0] == cu.OOM; assert cu.used() == 0, cu.used()"
    box.python(code)
    assert sum(word > 0 for word in account.OWNERS.unpack_from(box.account(), OWNERS)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        *("alloc", "free", "refuse", "sweep", "alloc other", "free other", "refuse other", "sweep other", "pause"),
        *("keep", "lend", "attach", "attach other"),
    ],
)
def test_killed_at_every_instruction(tmp_path: Path, shim: Path, tools: Path, noop: Path, what: str) -> None:
    """A part of the instructions, each time another one; --long: all."""
    box = Box(tmp_path / "box", shim, noop)
    step = 1 if long() else 34 if what.startswith(("sweep", "attach")) else 8
    first = int(time.time()) % step
    out = box.run([str(tools / "stepper"), *what.split()], timeout=600, GH_STEP=str(step), GH_FIRST=str(first))
    assert int(out.stdout) > (3000 if "attach" in what else 400) // step, out.stdout


@pytest.mark.slow
def test_a_lowered_limit_holds_for_what_is_kept(tmp_path: Path, shim: Path, tools: Path, noop: Path) -> None:
    assert Box(tmp_path / "box", shim, noop).run([str(tools / "stepper"), "lower"]).stdout == "2\n"


def test_hundreds_of_short_processes(box: Box, tools: Path) -> None:
    out = box.run([str(tools / "worker"), "short", "400"], timeout=120)
    assert out.stdout == "0\n"
    box.python("cu.init(); assert cu.info()[0] == 1024 * cu.MIB")


@pytest.mark.parametrize("seed", [11, 12])
def test_threads_leave_the_books_at_zero(box: Box, tools: Path, seed: int) -> None:
    assert box.run([str(tools / "worker"), "threads", str(seed), "2000"]).stdout == "0\n"
    assert 900 * MIB < box.peak() <= 1024 * MIB


def free_caches(box: Box) -> list[tuple[int, int]]:
    """The free cache of each process on the first GPU, (idle, taken) in units; without those that are (0, 0)."""
    page = box.place / "account" / "page"
    data = page.read_bytes() if page.exists() else b""
    if len(data) < account.SIZE:  # no process has made it yet
        return []
    words = account.FREE_CACHES.unpack_from(data, FREE_CACHES)[:: account.MOST_GPUS]
    return [(w >> account.FREE_SHIFT, w & (1 << account.FREE_SHIFT) - 1) for w in words if w]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "pause", "seed"), [("busy", 0.05, 1), ("busy", 0.05, 2), ("churn", 0.2, 3)])
def test_never_over_the_limit_under_random_kills(box: Box, tools: Path, what: str, pause: float, seed: int) -> None:
    """For two seconds; --long: six."""
    rng = random.Random(seed)
    running: list[subprocess.Popen[str]] = []
    end = time.monotonic() + (6 if long() else 2)
    patience = end + 120  # for a machine whose processors are busy
    started = taken = 0

    def enough() -> bool:
        return started > 20 and (what == "busy" or taken > 0)

    try:
        while time.monotonic() < (end if enough() else patience):
            while len(running) < 6:
                running.append(box.start([str(tools / "worker"), what, str(rng.randrange(1 << 30))]))
                started += 1
            time.sleep(rng.random() * pause)
            if what == "churn":
                taken += sum(took for _, took in free_caches(box))
            victim = running.pop(rng.randrange(len(running)))
            victim.kill()
            victim.communicate()
    finally:
        for p in running:
            p.send_signal(signal.SIGTERM)
            p.communicate()
    assert enough(), f"{started} started; nobody kept anything that another needed"
    assert 900 * MIB < box.peak() <= 1024 * MIB
    box.python("cu.init(); assert cu.info()[0] == 1024 * cu.MIB, cu.info(); assert cu.alloc(1024 * cu.MIB)[0] == 0")


def lock(fd: int, slot: int, slots: int = 1, kind: int = fcntl.F_WRLCK) -> None:
    """Take the locks of account slots through an open file."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, account.FLOCK.pack(kind, os.SEEK_SET, slot, slots, 0))


def test_a_full_page_refuses_with_a_line(box: Box) -> None:
    box.python("cu.init(); assert cu.alloc(1)[0] == 0")
    kept = 501 if account.OWNERS.unpack_from(box.account(), OWNERS)[500] else 500  # not the slot of that program
    with open(box.place / "account" / "page", "r+b") as f:
        f.seek(OWNERS)
        f.write((os.getpid() << 32 | 1).to_bytes(8, "little") * 1024)
        f.flush()
        lock(f.fileno(), 0, 1024)
        out = box.python("assert cu.lib.cuInit(0) == cu.OOM and cu.lib.cuInit(0) == cu.OOM and cu.alloc(1)[0]")
        assert out.stderr.count("GH-308") == 1 and out.stderr.count("\n") == 1
        lock(f.fileno(), 0, kept, fcntl.F_UNLCK)
        lock(f.fileno(), kept + 1, 1023 - kept, fcntl.F_UNLCK)
        box.python("cu.init(); assert cu.alloc(1024 * cu.MIB)[0] == 0")
        assert account.OWNERS.unpack_from(box.account(), OWNERS)[kept], "a slot whose lock is held was swept"
    box.python("cu.init(); assert cu.alloc(1024 * cu.MIB)[0] == 0")


def test_who_found_no_slot_has_one_when_others_have_ended(box: Box) -> None:
    box.python("cu.init(); assert cu.alloc(1)[0] == 0")
    code = """
import sys, client as cu
for line in sys.stdin:
    print(cu.lib.cuInit(0), cu.lib.cuInit(0) or cu.use(0) or cu.alloc(1 << 20)[0], flush=True)
"""
    with open(box.place / "account" / "page", "r+b") as f, box.start([sys.executable, "-c", code]) as p:
        assert p.stdin and p.stdout
        lock(f.fileno(), 0, 1024)
        print(file=p.stdin, flush=True)
        assert p.stdout.readline() == "2 2\n"
        lock(f.fileno(), 0, 1024, fcntl.F_UNLCK)
        print(file=p.stdin, flush=True)
        assert p.stdout.readline() == "0 0\n"
        p.stdin.close()
        assert p.wait(10) == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_scribbled_page_is_right_again_after_a_sweep(box: Box, seed: int) -> None:
    rng = random.Random(seed)
    with hold(box, 200) as p:
        assert p.stdin and p.stdout
        with open(box.place / "account" / "page", "r+b") as f:
            first, size = (4096, PAGE - 4096) if seed % 2 else (1024, 1024)
            f.seek(first)
            f.write(rng.randbytes(size))
        print("cu.alloc(1 << 30); print(cu.info()[0], flush=True)", file=p.stdin, flush=True)
        if seed % 2 == 0:  # totals, surcharges and pressure; only the agent writes surcharges, so reset them
            with open(box.place / "account" / "page", "r+b") as f:
                for gpu in range(16):
                    f.seek(1024 + 64 * gpu + 8)
                    f.write(bytes(8))
        p.stdout.readline()
        print("cu.alloc(1 << 30); print(cu.info()[0] // cu.MIB, flush=True)", file=p.stdin, flush=True)
        assert p.stdout.readline() == "824\n"
        box.python("cu.init(); assert cu.info()[0] == 824 * cu.MIB, cu.info(); assert cu.alloc(824 * cu.MIB)[0] == 0")
        p.stdin.close()
        assert p.wait(10) == 0
    box.python("cu.init(); assert cu.info()[0] == 1024 * cu.MIB, cu.info()")


@pytest.mark.parametrize("damage", [b"x", b"\0" * 8 + b"\x07", b""], ids=["magic", "version", "missing folder"])
def test_a_page_that_cannot_be_used_refuses_with_a_line(box: Box, damage: bytes) -> None:
    page = box.place / "account" / "page"
    if damage:
        page.write_bytes(damage)
    else:
        page.parent.rmdir()
    out = box.python(
        "cu.init(); assert cu.alloc(1)[0] == cu.OOM; f, t = cu.info(); assert (f, t) == (0, 1 << 30), (f, t)"
    )
    assert out.stderr.count("GH-308") == 1 and out.stderr.count("\n") == 1
    assert ("changed it: make the container anew" if damage else "run `gpu-hook install` on the host") in out.stderr
    assert ("gpu-hook install" in out.stderr) != bool(damage) and len(out.stderr) < 300
    if damage:
        page.unlink()
    else:
        page.parent.mkdir()
    box.python("cu.init(); assert cu.alloc(1)[0] == 0")


def test_users_of_different_ids_and_masks_share_the_page(box: Box) -> None:
    box.place.chmod(0o755)
    for parent in list(box.place.parents)[:4]:
        if parent != Path("/tmp"):
            parent.chmod(0o755)
    (box.place / "gpu").chmod(0o666)
    code = """
import os
os.umask(0o077); os.setgid({0}); os.setuid({0})
cu.init()
assert cu.alloc(100 * cu.MIB)[0] == 0
"""
    box.python(code.format(1001))
    box.python(code.format(1002) + "assert cu.used() == 100 * cu.MIB, cu.used()")
    box.python(code.format(0))


def test_a_nested_pid_namespace_is_counted_and_swept(box: Box) -> None:
    code = HOLD.format(mib=600).replace("import sys", "import sys, os")
    with box.start(["unshare", "-pf", "--mount-proc", "--kill-child", sys.executable, "-c", code]) as p:
        assert p.stdin and p.stdout and p.stdout.readline() == "0\n"
        box.python(
            "cu.init(); assert cu.info()[0] == 424 * cu.MIB, cu.info(); assert cu.alloc(500 * cu.MIB)[0] == cu.OOM"
        )
        p.kill()
        p.wait(10)
        time.sleep(0.2)
        box.python("cu.init(); assert cu.alloc(1024 * cu.MIB)[0] == 0")


def test_closing_every_descriptor_is_survived(box: Box) -> None:
    with hold(box, 600) as p:
        assert p.stdin and p.stdout
        print(
            "import os; os.closerange(3, 4096); cu.alloc(1 << 30); print(cu.used() // cu.MIB, flush=True)",
            file=p.stdin,
            flush=True,
        )
        assert p.stdout.readline() == "600\n"
        box.python("cu.init(); assert cu.alloc(500 * cu.MIB)[0] == cu.OOM")
