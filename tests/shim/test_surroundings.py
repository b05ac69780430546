"""Honest programs in odd surroundings: limits, full file systems, sandboxes that they enter after cuInit."""

import subprocess
from pathlib import Path

import pytest

from oci_hook.observe import account
from testbed.sanitize import SHIM
from tests.shim.box import Box
from tests.shim.conftest import HERE, compile_kept

pytestmark = pytest.mark.root
# Python ignores the signal, which would end another program.
LIMIT = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, {hard}))
"""
# A filter that answers EPERM to openat: struct sock_filter, seccomp(2).
FILTER = """
import ctypes, platform, struct
number = 257 if platform.machine() == "x86_64" else 56
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
libc = ctypes.CDLL(None, use_errno=True)
assert not libc.prctl(38, 1, 0, 0, 0)
assert not libc.prctl(22, 2, struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program)), 0, 0), ctypes.get_errno()
"""
# The same for locks of open files alone: fcntl(F_OFD_SETLK), by the low word of the second argument.
NO_LOCKS = (
    FILTER.replace("257", "72")
    .replace("else 56", "else 25")
    .replace("(6, 0, 0, 0x50001)", "(0x20, 0, 0, 24), (0x15, 0, 1, 37), (6, 0, 0, 0x50001)")
    .replace("(0x15, 0, 1, number)", "(0x15, 0, 3, number)")
)
CHROOT = """
import os, tempfile
os.chroot(tempfile.mkdtemp()); os.chdir("/")
"""


def test_a_limit_of_file_sizes_ends_nobody(box: Box) -> None:
    """The account page is larger. The program's own limit is as before."""
    box.python(
        LIMIT.format(hard="resource.RLIM_INFINITY")
        + """
cu.init()
assert cu.alloc(cu.MIB)[0] == 0 and cu.info()[0] == 1023 * cu.MIB
assert resource.getrlimit(resource.RLIMIT_FSIZE) == (0, resource.RLIM_INFINITY)
"""
    )
    box.python(LIMIT.format(hard="0") + "cu.init(); assert cu.alloc(cu.MIB)[0] == 0")  # the page is there


@pytest.mark.parametrize("why", ["limit", "full"])
def test_where_the_page_cannot_be_made_memory_is_refused(box: Box, why: str) -> None:
    code = "cu.init(); assert cu.alloc(1)[0] == cu.OOM and cu.alloc(1)[0] == cu.OOM"
    if why == "limit":
        out = box.python(LIMIT.format(hard="0") + code)
    else:
        mount = "import os; assert not os.system('mount -t tmpfs -o size=64k none /run/gpu-hook/account')\n"
        out = box.python(mount + code)
    assert out.stderr.count("GH-308") == 1 and out.stderr.count("\n") == 1, out.stderr
    assert ("(ulimit -f)" if why == "limit" else "its folder is full") in out.stderr and len(out.stderr) < 300
    assert "gpu-hook install" not in out.stderr
    assert box.peak() == 0


def test_where_files_cannot_be_locked_the_line_says_so(box: Box) -> None:
    """Not that all slots were taken."""
    out = box.python(NO_LOCKS + "cu.init(); assert cu.alloc(1)[0] == cu.OOM")
    assert out.stderr.count("GH-308") == 1 == out.stderr.count("\n"), out.stderr
    assert "fcntl(F_OFD_SETLK) is refused" in out.stderr and len(out.stderr) < 300, out.stderr


def test_the_page_is_allocated(box: Box) -> None:
    box.python("cu.init(); assert cu.alloc(cu.MIB)[0] == 0")
    assert (box.place / "account" / "page").stat().st_blocks * 512 >= account.SIZE


@pytest.mark.parametrize("sandbox", [CHROOT, FILTER], ids=["chroot", "filter"])
def test_a_sandbox_between_init_and_the_first_allocation(box: Box, sandbox: str) -> None:
    box.python(
        "cu.lib.cuInit(0)\n"
        + sandbox
        + """
cu.use(0)
assert cu.alloc(1023 * cu.MIB)[0] == 0 and cu.alloc(2 * cu.MIB)[0] == cu.OOM
"""
    )


def test_a_thread_that_waits_for_a_lock_leaves_its_processor_to_all() -> None:
    """The holder may have a lower priority, which yielding alone gives nothing to."""
    sources = [str(SHIM / "process" / f"{name}.c") for name in ("state", "identity")]
    command = ["-D_GNU_SOURCE", f"-I{SHIM}", str(HERE / "check_wait.c"), *sources, "-lpthread"]
    done = subprocess.run([str(compile_kept("check_wait", *command))], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30


BROKEN = {
    "pipe": "ends = os.pipe(); os.close(ends[0]); os.dup2(ends[1], 2)",
    "limit": "os.dup2(os.open(b'/run/file', os.O_CREAT | os.O_WRONLY), 2); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
}


@pytest.mark.parametrize("before", ["", "signal.raise_signal(name)"], ids=["", "pending"])
@pytest.mark.parametrize("why", BROKEN)
def test_a_line_on_stderr_that_cannot_be_written_ends_nobody(box: Box, why: str, before: str) -> None:
    """A signal that was pending before stays pending, and the program's mask is as before."""
    done = box.python(
        f"""
import os, resource, signal
cu.init()
assert cu.alloc(cu.MIB)[0] == 0
name = signal.{"SIGPIPE" if why == "pipe" else "SIGXFSZ"}
signal.signal(name, signal.SIG_DFL)
{"signal.pthread_sigmask(signal.SIG_BLOCK, [name]); " + before if before else ""}
{BROKEN[why]}
was = signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending()
cu.use(1)
assert cu.alloc(cu.MIB)[0] == cu.OOM, "of GPU 1 nothing is granted"
now = signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending()
print(was == now, len(now[1]))
""",
        check=False,
    )
    assert done.returncode == 0 and done.stdout == f"True {int(bool(before))}\n", (done.returncode, done.stdout)


LEAKS = """
#include <dlfcn.h>
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *pool;
    unsigned long long at, handle;
    #define CALL(name) ((int (*)())dlsym(cuda, name))
    if (CALL("cuInit")(0) || CALL("cuDevicePrimaryCtxRetain")(&context, 0) || CALL("cuCtxSetCurrent")(context))
        return 1;
    if (CALL("cuMemAllocAsync")(&at, 1ul << 20, (void *)0))
        return 2;
    return 0;
}
"""


def test_no_leak_is_reported(box: Box, tmp_path: Path) -> None:
    (tmp_path / "leaks.c").write_text(LEAKS)
    program = [
        "gcc",
        "-fsanitize=address",
        "-g",
        "-w",
        "-o",
        str(tmp_path / "leaks"),
        str(tmp_path / "leaks.c"),
        "-ldl",
    ]
    subprocess.run(program, check=True)
    done = box.run([str(tmp_path / "leaks")], check=False, ASAN_OPTIONS="detect_leaks=1")
    assert done.returncode == 0 and "leak" not in done.stderr, done.stderr
