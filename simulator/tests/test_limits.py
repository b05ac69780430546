"""Memory limits of cgroups, which driver 615 keeps: real cgroups of version 2, at /sys/fs/cgroup in a mount namespace."""

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_hook_simulator import release
from simulator.driver import build
from simulator.tests.test_allocators import GRAPHS
from testbed.compiled import ZIG
from testbed.sim import cgroups
from testbed.sim.cgroups import Groups
from testbed.sim.gpus import CONTEXT_MIB, MEMORY_MIB, Sim

pytestmark = pytest.mark.root
TOP = cgroups.top()
if TOP is None:
    pytest.skip("cgroup v2 is not mounted", allow_module_level=True)
ROOM = 200 - CONTEXT_MIB  # of a process with one context under a limit of 200 MiB
REFUSED = "CUDA_ERROR_OUT_OF_MEMORY"
FILLED = f"fill: {ROOM} MiB allocated in pieces of 8, then {REFUSED}\n"


@pytest.fixture
def make_groups(tmp_path: Path, simulated: Path) -> Iterator[Callable[[str], Groups]]:
    made: list[Groups] = []

    def make(limits: str) -> Groups:
        assert TOP
        sim = Sim(tmp_path / limits, simulated, release=release.release("615", limits))
        made.append(Groups(sim, TOP))
        return made[-1]

    yield make
    for one in made:
        one.sim.close()
        one.close()


@pytest.fixture(params=["dmem", "misc"])
def groups(request: pytest.FixtureRequest, make_groups: Callable[[str], Groups]) -> Groups:
    return make_groups(request.param)


@pytest.fixture
def dmem(make_groups: Callable[[str], Groups]) -> Groups:
    return make_groups("dmem")


@pytest.fixture
def misc(make_groups: Callable[[str], Groups]) -> Groups:
    return make_groups("misc")


# --- what counts ---


@pytest.mark.parametrize(("asked", "result"), [("ROOM - 512", 0), ("ROOM", 0), ("ROOM + 1", 2), ("2 * ROOM", 2)])
def test_the_limit_to_the_byte(groups: Groups, asked: str, result: int) -> None:
    groups.make("a")
    groups.set("a", 200)
    code = f"ROOM = {ROOM} * MIB; context(); print(code('cuMemAlloc_v2', byref(c_uint64()), c_size_t({asked})))"
    assert groups.python("a", code) == f"{result}\n"
    assert groups.get("a") == [0, 200, 0]


@pytest.mark.parametrize("hard", [0, CONTEXT_MIB - 1, CONTEXT_MIB])
def test_contexts_count(groups: Groups, hard: int) -> None:
    groups.make("a")
    groups.set("a", hard)
    code = "cuda.cuInit(0); print(code('cuCtxCreate_v2', byref(c_void_p()), 0, 0))\n" * 2
    first = 0 if hard >= CONTEXT_MIB else 2
    assert groups.python("a", code).split() == [str(first), "2"]


HELPERS = f"""
ROOM = {ROOM} * MIB
def get(f, *args): return code(f, *args)
def u64(f, *args):
    v = c_uint64(); getattr(cuda, f)(*args, byref(v)); return v.value
"""
ALLOCATORS = {
    "alloc": "get('cuMemAlloc_v2', byref(c_uint64()), c_size_t(N))",
    "pitch": "get('cuMemAllocPitch_v2', byref(c_uint64()), byref(c_size_t()), c_size_t(512), c_size_t(N // 512), 4)",
    "pool": "get('cuMemAllocAsync', byref(c_uint64()), c_size_t(N), NONE)",
    "handle": "get('cuMemCreate', byref(c_uint64()), c_size_t(N), byref(Prop(1, 0, 1, 0)), c_uint64(0))",
    "exported": "get('cuMemCreate', byref(c_uint64()), c_size_t(N), byref(Prop(1, 1, 1, 0)), c_uint64(0))",
    "array": "get('cuArrayCreate_v2', byref(c_void_p()), (c_uint64 * 3)(65536, N // 65536, 0x0100000001))",
    "graph": "(g := graph(), add_alloc(g, N), get('cuGraphLaunch', instantiate(g), NONE))[2]",
    "module": "(m := c_void_p(), get('cuModuleLoadData', byref(m), b'.global .align 4 .b8 v[%d];' % N),"
    " get('cuModuleGetGlobal_v2', byref(c_uint64()), byref(c_size_t()), m, b'v'))[2]",
    "printf buffer": "get('cuCtxSetLimit', 1, c_size_t(N))",
    "managed": "get('cuMemAllocManaged', byref(c_uint64()), c_size_t(N), 1)",
}


@pytest.mark.parametrize("how", ALLOCATORS)
def test_every_way_to_allocate(dmem: Groups, how: str) -> None:
    """Beyond the limit it fails, within it works, and `currentUsed` has it; but managed memory is not counted."""
    dmem.make("a")
    dmem.set("a", 200)
    call = ALLOCATORS[how]
    code = f"{HELPERS}{GRAPHS}context()\nN = ROOM + 2 * MIB; print({call})\nN = 100 * MIB; print({call})\n"
    code += f"print(code('cuMemAlloc_v2', byref(c_uint64()), c_size_t({ROOM} * MIB)))\n"
    code += f"nvml.nvmlInit(); print(get_limit({dmem.path('a')!r})[2] >> 20)"
    if how == "managed":
        assert dmem.python("a", code).split() == ["0", "0", "0", "200"]
        return
    beyond, within, more, used = dmem.python("a", code).split()
    assert (beyond, within, more) == ("2", "0", "2")
    assert CONTEXT_MIB + 99 <= int(used) <= CONTEXT_MIB + 110  # arrays and such are padded


def test_managed_memory_counts_on_the_gpu_only(dmem: Groups) -> None:
    """It is moved to another GPU and freed; neither that GPU's limit nor this one's counts it."""
    dmem.make("a")
    for gpu in (0, 1):
        dmem.set("a", 100, gpu=gpu)
    out = dmem.python(
        "a",
        f"""
nvml.nvmlInit(); context(1); context(0); at = c_uint64()
def used(): return [nvml.nvmlDeviceGetMemoryInfo(gpu(i)).used >> 20 for i in (0, 1)]
def charged(): return [get_limit({dmem.path("a")!r}, i)[2] >> 20 for i in (0, 1)]
cuda.cuMemAllocManaged(byref(at), c_size_t(300 * MIB), 1); print(used(), charged())
cuda.cuMemPrefetchAsync(at, c_size_t(300 * MIB), 1, NONE); print(used(), charged())
cuda.cuMemFree_v2(at); print(used(), charged())
""",
    )
    assert out.splitlines() == ["[364, 64] [64, 64]", "[64, 364] [64, 64]", "[64, 64] [64, 64]"]


def test_a_restore_from_a_checkpoint_is_limited(dmem: Groups) -> None:
    """One that has failed cannot be repeated, as with driver 580."""
    dmem.make("a")
    for limit, said in ((163, ["2", "304", "0"]), (164, ["0", "401", "164"])):
        dmem.set("a", 200)
        out = dmem.python(
            "a",
            f"""
import os
context(); alloc(100 * MIB); me = os.getpid()
cuda.cuMemAllocManaged(byref(c_uint64()), c_size_t(300 * MIB), 1)
nvml.nvmlInit(); used = lambda: get_limit({dmem.path("a")!r})[2] >> 20
print(used(), code("cuCheckpointProcessLock", me, NONE), code("cuCheckpointProcessCheckpoint", me, NONE), used())
set_limit({dmem.path("a")!r}, {limit} * MIB); print(code("cuCheckpointProcessRestore", me, NONE))
set_limit({dmem.path("a")!r}, 200 * MIB); print(code("cuCheckpointProcessRestore", me, NONE), used())
""",
        )
        assert out.split() == ["164", "0", "0", "0", *said]


def test_pool_memory_that_is_not_used_goes_before_an_allocation_fails(dmem: Groups) -> None:
    dmem.make("a")
    dmem.set("a", 200)
    code = f"""
context(); at, p = c_uint64(), c_void_p(); cuda.cuDeviceGetDefaultMemPool(byref(p), 0)
cuda.cuMemPoolSetAttribute(p, 4, byref(c_uint64(2**63)))
cuda.cuMemAllocAsync(byref(at), c_size_t(100 * MIB), NONE); cuda.cuMemFreeAsync(at, NONE); cuda.cuCtxSynchronize()
alloc({ROOM} * MIB); print("ok")
"""
    assert dmem.python("a", code) == "ok\n"


# --- who is charged ---


def test_all_processes_of_a_cgroup_together(groups: Groups) -> None:
    groups.make("a")
    groups.make("b")
    groups.set("a", 300)
    groups.set("b", 100)
    groups.start("a", "context(); alloc(100 * MIB); print('ready', flush=True); input()")
    assert groups.get("a") == [0, 300, 164]
    assert groups.get("b") == [0, 100, 0]
    for size, result in ((73, 2), (72, 0)):
        code = f"context(); print(code('cuMemAlloc_v2', byref(c_uint64()), c_size_t({size} * MIB)))"
        assert groups.python("a", code) == f"{result}\n"


def test_at_once_many_processes_fill_the_limit_exactly(groups: Groups) -> None:
    """Also with several threads in each, and beside processes of another cgroup."""
    groups.make("a")
    groups.set("a", 500)
    code = """
import threading
ctx = context(); print("ready", flush=True); input(); got = []
def fill():
    cuda.cuCtxSetCurrent(ctx)
    while code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(MIB)) == 0: got.append(1)
threads = [threading.Thread(target=fill) for _ in range(2)]
for t in threads: t.start()
for t in threads: t.join()
print(len(got), flush=True); input()
"""
    fillers = [groups.start("a", code) for _ in range(4)]
    for child in fillers:
        Sim.tell(child)
    got = [int(Sim.line(child)) for child in fillers]
    assert sum(got) == 500 - 4 * CONTEXT_MIB
    assert groups.get("a") == [0, 500, 500]
    assert groups.python(None, "context(); alloc(100 * MIB); print('ok')") == "ok\n"


FORK = """
import os, time
context(); alloc(100 * MIB)
if not os.fork():
    {child}
    print("ready", flush=True); os.sys.stdin.readline(); os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("child", ["pass", "os.closerange(3, 4096)", "enter('b')"], ids=["fork", "closed", "moved"])
def test_a_forked_child_keeps_the_makers_charge(groups: Groups, child: str) -> None:
    """Also when its maker is killed, and when the child goes to another cgroup; it goes with the child."""
    for name in "ab":
        groups.make(name)
        groups.set(name, 200)
    enter = f"def enter(to): open({groups.path()!r} + '/' + to + '/cgroup.procs', 'w').write('0')\n"
    maker = groups.start("a", enter + FORK.format(child=child))
    maker.kill()
    maker.wait()
    assert [groups.get(name)[2] for name in "ab"] == [CONTEXT_MIB + 100, 0]
    probe = groups.sim.probe
    assert REFUSED in groups.run("a", probe, "alloc", "100").stdout
    assert REFUSED not in groups.run("b", probe, "alloc", "100").stdout
    Sim.tell(maker)
    assert maker.stdout and maker.stdout.read() == ""
    assert groups.get("a")[2] == 0
    assert groups.run("a", probe, "alloc", "100").returncode == 0


def test_a_process_stays_with_the_cgroup_in_which_it_made_its_client(groups: Groups) -> None:
    for name in "ab":
        groups.make(name)
    groups.set("a", 200)
    mover = groups.start(
        "a",
        f"""
context(); alloc(50 * MIB); print("ready", flush=True); input()
open({groups.path("b")!r} + "/cgroup.procs", "w").write("0")
print(code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(100 * MIB)), flush=True)
alloc(80 * MIB); print("ok", flush=True); input()
""",
    )
    Sim.tell(mover)
    assert [Sim.line(mover), Sim.line(mover)] == ["2\n", "ok\n"]
    assert [groups.get(name)[2] for name in "ab"] == [CONTEXT_MIB + 130, 0]
    groups.set("b", 0)  # it does not concern the process that came
    assert groups.get("a") == [0, 200, CONTEXT_MIB + 130]
    assert groups.host("b/cgroup.procs").read_text().split() == [str(mover.pid)]


def test_exported_memory_is_its_makers(groups: Groups) -> None:
    """It was imported by a process of another cgroup, and its maker exited; the maker's cgroup has the charge."""
    for name in "ab":
        groups.make(name)
        groups.set(name, 200)
    code = f"""
import os, socket
here, there = socket.socketpair()
def enter(to): open({groups.path()!r} + "/" + to + "/cgroup.procs", "w").write("0")
def report(): nvml.nvmlInit(); print([get_limit({groups.path()!r} + "/" + n)[2] >> 20 for n in "ab"], flush=True)
if not os.fork():
    enter("a"); context(); h, fd = c_uint64(), c_int()
    cuda.cuMemCreate(byref(h), c_size_t(100 * MIB), byref(Prop(1, 1, 1, 0)), c_uint64(0))
    cuda.cuMemExportToShareableHandle(byref(fd), h, 1, c_uint64(0)); socket.send_fds(there, [b"x"], [fd.value])
    there.recv(1); os._exit(0)
there.close(); enter("b"); context(); h = c_uint64(); fd = socket.recv_fds(here, 1, 1)[1][0]
cuda.cuMemImportFromShareableHandle(byref(h), c_void_p(fd), 1); os.close(fd); report()
here.send(b"x"); os.wait(); report(); cuda.cuMemRelease(h); report()
"""
    assert groups.python(None, code).splitlines() == ["[164, 64]", "[100, 64]", "[0, 64]"]


def test_a_process_that_execs_is_charged_anew(groups: Groups) -> None:
    for name in "ab":
        groups.make(name)
        groups.set(name, 200)
    code = f"""
import os
context(); alloc(100 * MIB); open({groups.path("b")!r} + "/cgroup.procs", "w").write("0")
os.execv({groups.sim.probe!r}, ["gpu-probe", "alloc", "136", "pause"])
"""
    child = groups.sim.start(*groups.command("a", *groups.program(code)))
    assert Sim.line(child) == "alloc 136 MiB: ok\n"
    assert [groups.get(name)[2] for name in "ab"] == [0, 200]


@pytest.mark.parametrize("program", ["gpu-probe", "gpu-probe-linked", "gpu-probe-static"])
def test_any_program(groups: Groups, program: str) -> None:
    """A static one has the driver's code in itself; a container's namespaces change nothing."""
    groups.make("a")
    groups.set("a", 200)
    file = str(Path(groups.sim.probe).with_name(program))
    for way in (
        (),
        ("unshare", "--cgroup", "--pid", "--fork", "--mount"),
        ("setpriv", "--reuid=1234", "--clear-groups"),
    ):
        groups.sim.open_for_all()
        out = groups.run("a", *way, file, "fill", "8").stdout
        assert out == FILLED, (way, out)


def test_the_drivers_library_by_a_private_path(groups: Groups, tmp_path: Path) -> None:
    groups.make("a")
    groups.set("a", 200)
    copy = tmp_path / "mine.so"
    copy.write_bytes((groups.sim.libraries / "libcuda.so.1").read_bytes())
    code = f"""
context()
print(code("cuMemAlloc_v2", byref(c_uint64()), c_size_t({ROOM + 1} * MIB)), alloc({ROOM} * MIB).value > 0)
"""
    assert groups.python("a", code, LD_LIBRARY_PATH="/nowhere", CUDA_LIBRARY=str(copy)).split() == ["2", "True"]


def test_where_the_kernel_does_not_tell_the_cgroups_number(groups: Groups) -> None:
    """Before Linux 6.13, or without pidfd_open: the number is that of the directory, if it can be seen."""
    groups.make("a")
    groups.set("a", 200)
    seccomp = """
import struct
libc = ctypes.CDLL(None, use_errno=True)
# if the call is pidfd_open (434): EPERM, else allow
filter = struct.pack("=HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, 434, 0x06, 0, 0, 0x50001, 0x06, 0, 0, 0x7fff0000)
held = ctypes.create_string_buffer(filter)
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(held))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
"""
    look = "print(code('cuMemAlloc_v2', byref(c_uint64()), c_size_t(199 * MIB)))"
    assert groups.python("a", f"{seccomp}context(); {look}") == "2\n"
    # ... and where it cannot be seen, by misc the path says it, by dmem nothing does: nobody is charged
    hidden = "libc = ctypes.CDLL(None); libc.umount2(b'/sys/fs/cgroup', 2)\n" * 2
    path_is_enough = groups.name in groups.python("a", f"{hidden}print(open('/proc/self/cgroup').read())")
    assert path_is_enough
    gone = f"import subprocess\nfor m in {mounted()!r}: libc.umount2(m.encode(), 2)\n"
    by_path = groups.python("a", f"{seccomp}{hidden}{gone}context(); {look}")
    assert by_path == ("2\n" if is_misc(groups) else "0\n")


def mounted() -> list[str]:
    """The places of version 2 on this machine, which the test's mount namespace has as well."""
    return [mount.point for mount in cgroups.mountinfo() if mount.fstype == "cgroup2"]


def is_misc(groups: Groups) -> bool:
    return groups.sim.root.parent.parent.parent.name == "misc"


# --- cgroups within cgroups ---


def test_dmem_limits_of_ancestors_hold(dmem: Groups) -> None:
    for name in ("pod", "pod/a", "pod/b", "other"):
        dmem.make(name)
    dmem.set("pod", 300)
    dmem.set("pod/a", 250)
    dmem.start("pod/a", "context(); alloc(100 * MIB); print('ready', flush=True); input()")
    assert [dmem.get(name)[2] for name in ("pod", "pod/a", "pod/b", "")] == [164, 164, 0, 164]
    for size, result in ((73, 2), (72, 0)):
        code = f"context(); print(code('cuMemAlloc_v2', byref(c_uint64()), c_size_t({size} * MIB)))"
        assert dmem.python("pod/b", code) == f"{result}\n"
    assert dmem.run("other", dmem.sim.probe, "alloc", "300").returncode == 0
    dmem.set("pod", None)
    assert dmem.run("pod/b", dmem.sim.probe, "alloc", "300").returncode == 0


def test_dmem_ancestors_hold_for_a_client_that_cannot_see_them(dmem: Groups) -> None:
    """In a cgroup namespace without the hierarchy's mount, the number of its own cgroup is all that a client knows."""
    for name in ("pod", "pod/a"):
        dmem.make(name)
    dmem.set("pod", 200)
    dmem.set("pod/a", 300)
    blind = ("unshare", "--cgroup", "--mount", "sh", "-c")
    hide = "".join(f"umount -l {point}; " for point in ("/sys/fs/cgroup", *mounted()))
    child = dmem.sim.start(*dmem.command("pod/a", *blind, f"({hide}) 2>&-; exec '{dmem.sim.probe}' fill 8 pause"))
    assert Sim.line(child) == FILLED
    assert [dmem.get(name)[2] for name in ("pod", "pod/a")] == [200, 200]


def test_misc_limits_are_the_cgroups_own(misc: Groups) -> None:
    """The pessimistic model: who can make a cgroup below its own, escapes."""
    for name in ("pod", "pod/a"):
        misc.make(name)
    misc.set("pod", 0)
    assert misc.run("pod/a", misc.sim.probe, "alloc", "300").returncode == 0
    misc.set("pod/a", 200)
    assert REFUSED in misc.run("pod/a", misc.sim.probe, "alloc", "300").stdout


@pytest.mark.parametrize(("depth", "fits"), [(29, True), (30, False)])
def test_how_deep_a_client_may_be(dmem: Groups, depth: int, fits: bool) -> None:
    """31 cgroups, the hierarchy's top and the test's own included: a deeper one could not be charged to all of them."""
    path = "/".join("c" * depth)
    dmem.make(path)
    dmem.set("c", 200)
    out = dmem.run(path, dmem.sim.probe, "fill", "8").stdout
    assert out == (FILLED if fits else f"cuDevicePrimaryCtxRetain: {REFUSED}\n"), out
    code = f"nvml.nvmlInit(); print(nvml_code(set_limit, {dmem.path(path)!r}, MIB))"
    assert dmem.python(None, code) == ("0\n" if fits else "2\n")


# --- cgroups that go and come ---


def test_dmem_a_removed_cgroup_takes_its_limit_along(dmem: Groups) -> None:
    dmem.make("a")
    dmem.set("a", 10)
    dmem.remove("a")
    dmem.make("a")
    assert dmem.get("a") == [0, None, 0]
    assert dmem.run("a", dmem.sim.probe, "alloc", "300").returncode == 0


NAMESPACE = ("unshare", "--cgroup")


@pytest.mark.parametrize("way", [(), NAMESPACE], ids=["host", "namespace"])
def test_misc_a_new_cgroup_of_the_same_path_has_the_old_ones_limit(misc: Groups, way: tuple[str, ...]) -> None:
    """Until it is cleared, also by who sets none. A client in a cgroup namespace counts once somebody has asked NVML."""
    misc.make("a")
    misc.set("a", 10)
    misc.remove("a")
    assert misc.get("a") == [0, 10, 0]
    misc.make("a")
    if way:
        assert misc.get("a") == [0, 10, 0]
    assert REFUSED in misc.run("a", *way, misc.sim.probe, "alloc", "300").stdout
    misc.remove("a")
    misc.set("a", None)
    code = (
        f"nvml.nvmlInit(); print(nvml_code(get_limit, {misc.path('a')!r}), nvml_code(set_limit, {misc.path('a')!r}, 5))"
    )
    assert misc.python(None, code) == "2 2\n"
    misc.make("a")
    assert misc.get("a") == [0, None, 0]
    assert misc.run("a", *way, misc.sim.probe, "alloc", "300").returncode == 0


def test_the_charge_of_a_removed_cgroup_is_not_a_new_ones(groups: Groups) -> None:
    """A child that left keeps memory which was charged to a cgroup that is no more."""
    groups.make("a")
    groups.set("a", 200)
    leave = f"open({groups.path()!r} + '/cgroup.procs', 'w').write('0')"
    maker = groups.start("a", FORK.format(child=leave))
    maker.kill()
    maker.wait()
    groups.remove("a")
    groups.make("a")
    groups.set("a", 200)
    assert groups.get("a")[2] == (CONTEXT_MIB + 100 if is_misc(groups) else 0)  # by misc, the path is the same
    Sim.tell(maker)


# --- changes ---


def test_a_limit_can_be_changed_and_cleared(groups: Groups) -> None:
    groups.make("a")
    child = groups.start(
        "a",
        """
context(); alloc(100 * MIB); print("ready", flush=True)
while input(): print(code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(MIB)), flush=True)
""",
    )

    def more() -> str:
        Sim.tell(child, "x\n")
        return Sim.line(child).strip()

    said = [more()]
    for hard in (10, 166, None):  # below what is in use; room for one; no limit
        groups.set("a", hard)
        said += [more(), more()]
    assert said == ["0", "2", "2", "0", "2", "0", "0"]
    groups.set("a", 400, soft_mib=300)
    assert groups.get("a") == [300, 400, CONTEXT_MIB + 104]
    groups.set("a", None, soft_mib=300)  # a soft limit alone
    assert groups.get("a") == [300, None, CONTEXT_MIB + 104]
    groups.set("a", None)
    assert groups.get("a") == [0, None, CONTEXT_MIB + 104]


@pytest.mark.parametrize("limits", ["dmem", "dmem-keeps", "misc"])
def test_soft_limits_count_above(make_groups: Callable[[str], Groups], limits: str) -> None:
    """Whether those above lose one with its cgroup is what NVIDIA's two documents differ in."""
    groups = make_groups(limits)
    for name in ("a", "a/b", "a/b/c"):
        groups.make(name)
    adds = limits != "misc"

    def above() -> list[int | None]:
        return [groups.get(name)[0] for name in ("a", "a/b")]

    groups.set("a", 900, soft_mib=10)
    groups.set("a/b/c", 100, soft_mib=70)
    assert above() == [10 + 70 * adds, 70 * adds]
    groups.set("a/b/c", 100, soft_mib=50)
    assert above() == [10 + 50 * adds, 50 * adds]
    groups.set("a/b/c", 100)
    groups.remove("a/b/c")
    assert above() == [10, 0], "made 0 before: nothing stays"
    groups.make("a/b/c")
    groups.set("a/b/c", 100, soft_mib=30)
    groups.remove("a/b/c")
    kept = 30 * (limits == "dmem-keeps")
    assert above() == [10 + kept, kept]
    groups.make("a/b/c")
    groups.set("a/b/c", 100, soft_mib=5)
    assert above() == [10 + kept + 5 * adds, kept + 5 * adds]


def test_each_gpu_has_its_own(groups: Groups) -> None:
    groups.make("a")
    groups.set("a", 100, gpu=1)
    assert [groups.get("a", gpu) for gpu in (0, 1)] == [[0, None, 0], [0, 100, 0]]
    assert groups.run("a", groups.sim.probe, "alloc", "300").returncode == 0
    assert REFUSED in groups.run("a", groups.sim.probe, "device", "1", "alloc", "300").stdout


SETTERS = """
import os, random, signal
print("ready", flush=True)
while input():
    children = []
    for _ in range(3):
        children.append(os.fork())
        if not children[-1]:
            nvml.nvmlInit(); os.write(1, b"sets\\n")
            while True:
                n = random.randrange(1, 500); set_limit(random.choice(PATHS), (2 * n + 1) * MIB, n * MIB)
    input()
    for child in children: os.kill(child, signal.SIGKILL)
    for child in children: os.waitpid(child, 0)
    print("killed", flush=True)
"""


def test_setters_at_once_and_killed_at_any_moment(groups: Groups) -> None:
    """A limit is always one that somebody set as a whole, and never none; the last one that is set holds."""
    paths = [groups.make(name) for name in "abc"]
    for name in "abc":
        groups.set(name, 3, soft_mib=1)
    watcher = groups.start(
        None,
        f"""
import select, sys
nvml.nvmlInit(); print("ready", flush=True); seen = set(); bad = set()
while not select.select([sys.stdin], [], [], 0)[0]:
    for path in {paths!r}:
        soft, hard, used = get_limit(path); seen.add(soft); bad |= {{(soft, hard, used)}} if hard != 2 * soft + MIB else set()
print(sorted(bad), len(seen) > 20, flush=True)
""",
    )
    dice = random.Random(11)
    setters = groups.start(None, f"PATHS = {paths!r}\n{SETTERS}")
    for _ in range(8):
        Sim.tell(setters, "set\n")
        assert [Sim.line(setters) for _ in range(3)] == ["sets\n"] * 3
        time.sleep(0.02 + dice.random() * 0.1)
        Sim.tell(setters, "kill\n")
        assert Sim.line(setters) == "killed\n"
    Sim.tell(watcher)
    assert Sim.line(watcher) == "[] True\n"
    for name in "abc":
        groups.set(name, 200, soft_mib=100)
        assert groups.get(name) == [100, 200, 0]
        assert REFUSED in groups.run(name, groups.sim.probe, "alloc", "200").stdout
        groups.set(name, None)
        assert groups.get(name) == [0, None, 0]


@pytest.mark.parametrize("limits", ["dmem", "misc"])
def test_setters_that_are_killed_or_stopped_at_the_worst_moments(tmp_path: Path, simulated: Path, limits: str) -> None:
    sim = Sim(tmp_path / "sim", simulated, release=release.release("615", limits))
    program = str(tmp_path / "harness")
    parts = [str(build.HERE / name) for name in build.GPU if name != "limits.c"]
    cc = [*ZIG, *build.FLAGS, f"-I{build.HERE}"]
    subprocess.run([*cc, "-o", program, str(Path(__file__).with_name("limits_harness.c")), *parts], check=True)
    assert sim.run(program).stdout.splitlines() == [
        "wrong looks: 0",
        "the last one: 15 1",
        "half written: 0 14 1",
        "not replaced: 13 2 12 1",
        "stopped: 11 1, in cell 270",
        "cleared: 1 0",
    ]


@pytest.mark.parametrize("limits", ["dmem", "misc"])
def test_a_table_of_256(make_groups: Callable[[str], Groups], limits: str) -> None:
    """Limits can be replaced and cleared when it is full. By dmem, those of removed cgroups make room."""
    groups = make_groups(limits)
    for i in range(258):
        groups.make(f"c{i}")
    code = f"""
nvml.nvmlInit(); at = lambda i: {groups.path("c")!r} + str(i)
print({{nvml_code(set_limit, at(i), (i + 1) * MIB) for i in range(256)}}, nvml_code(set_limit, at(256), MIB))
print({{nvml_code(set_limit, at(i), (i + 2) * MIB) for i in range(256)}}, [get_limit(at(i))[1] >> 20 for i in (0, 255)])
print(nvml_code(set_limit, at(9), 2**64 - 1), nvml_code(set_limit, at(256), MIB), nvml_code(set_limit, at(257), MIB))
"""
    assert groups.python(None, code).splitlines() == ["{0} 23", "{0} [2, 257]", "0 0 23"]
    groups.remove("c8")
    code = f"nvml.nvmlInit(); print(nvml_code(set_limit, {groups.path('c257')!r}, 100 * MIB))"
    assert groups.python(None, code) == ("0\n" if limits == "dmem" else "23\n")
    if limits == "dmem":
        assert REFUSED in groups.run("c257", groups.sim.probe, "alloc", "100").stdout
    assert groups.get("c200") == [0, 202, 0]


def test_what_a_program_in_a_limited_cgroup_is_told(groups: Groups) -> None:
    """nvmlDeviceGetMemoryInfo_v2 says the limit, and so does cuMemGetInfo where it is the cgroup's own; the other figures, of
    which nobody says so, the GPU's."""
    groups.make("a")
    groups.make("a/b")
    groups.sim.holder(100)
    code = """
nvml.nvmlInit(); context(); alloc(30 * MIB); h = gpu(0)
def figures(i): return i.total >> 20, i.used >> 20, i.free >> 20
free, total = c_size_t(), c_size_t(); cuda.cuMemGetInfo_v2(byref(free), byref(total))
print(figures(nvml.nvmlDeviceGetMemoryInfo(h, version=nvml.nvmlMemory_v2)), figures(nvml.nvmlDeviceGetMemoryInfo(h)),
      total.value >> 20, free.value >> 20)
"""
    used = 100 + 30 + 2 * CONTEXT_MIB
    whole = f"({MEMORY_MIB}, {used}, {MEMORY_MIB - used})"
    free = MEMORY_MIB - used
    assert groups.python("a", code) == f"{whole} {whole} {MEMORY_MIB} {free}\n"
    groups.set("a", 200)
    mine = CONTEXT_MIB + 30
    assert groups.python("a", code) == f"(200, {mine}, {200 - mine}) {whole} 200 {200 - mine}\n"
    assert groups.python("a/b", code).endswith(f"{whole} {MEMORY_MIB} {free}\n")
    assert groups.python(None, code) == f"{whole} {whole} {MEMORY_MIB} {free}\n"
    groups.set("a", 4 * MEMORY_MIB)  # more than the GPU has
    assert groups.python("a", code) == f"{whole} {whole} {MEMORY_MIB} {free}\n"


def test_without_limits_a_process_learns_nothing_of_its_cgroup(sim: Sim) -> None:
    """Before driver 615, nobody is charged."""
    sim.python("context(); alloc(MIB)")
    with open(sim.gpus / "0", "rb") as f:
        f.seek(29696)  # gpu.h slot_home
        assert f.read(256) == bytes(256)
