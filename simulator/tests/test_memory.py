"""The simulated GPU's memory: one sum over all processes, and released when a process ends in any way."""

import shlex
import signal
import sys
import time
from collections.abc import Callable

import pytest

from testbed.sim.gpus import CLIENT, CONTEXT_MIB, MEMORY_MIB, Sim

ROOM = MEMORY_MIB - CONTEXT_MIB


def test_info_tells_every_gpu_and_what_is_free(sim: Sim) -> None:
    r = sim.run(sim.probe, "info")
    assert r.returncode == 0
    assert r.stdout.splitlines() == [
        "2 devices",
        f"device 0: Simulated GPU 1 GiB, {MEMORY_MIB} MiB total, {ROOM} MiB free",
        f"device 1: Simulated GPU 1 GiB, {MEMORY_MIB} MiB total, {ROOM} MiB free",
    ]


def test_linked_program_works_as_well(sim: Sim) -> None:
    assert "2 devices" in sim.run(sim.probe + "-linked", "info").stdout


def test_allocation_beyond_the_gpu_is_out_of_memory(sim: Sim) -> None:
    r = sim.run(sim.probe, "fill", "1", "free", "alloc", str(ROOM), "alloc", "1")
    assert r.stdout.splitlines() == [
        f"fill: {ROOM} MiB allocated in pieces of 1, then CUDA_ERROR_OUT_OF_MEMORY",
        "free: ok",
        f"alloc {ROOM} MiB: ok",
        "alloc 1 MiB: CUDA_ERROR_OUT_OF_MEMORY",
    ]
    assert r.returncode == 1


def test_no_gpu_is_no_device(sim: Sim) -> None:
    r = sim.run(sim.probe, "info", GPU_HOOK_SIM_GPUS="/nowhere")
    assert (r.returncode, r.stdout) == (3, "cuInit: CUDA_ERROR_NO_DEVICE\n")


def test_file_that_is_no_gpu_is_not_used(sim: Sim) -> None:
    (sim.gpus / "1").write_bytes(b"x" * 4096)
    (sim.gpus / "7").write_bytes(bytes(3 << 20))
    assert "1 device\n" in sim.run(sim.probe, "info").stdout


@pytest.mark.root
@pytest.mark.parametrize(("option", "seen"), [("dev", "2 devices"), ("nodev", "1 device")])
def test_gpu_whose_node_may_not_be_opened_is_not_there(sim: Sim, option: str, seen: str) -> None:
    """Opening the node fails with ENXIO, since there is no driver behind it; that does not count as a refusal."""
    script = (
        f"mount -t tmpfs -o {option} none /dev && mknod /dev/nvidia0 c 195 0 && exec {shlex.quote(str(sim.probe))} info"
    )
    r = sim.run("unshare", "--mount", "sh", "-c", script)
    assert r.stdout.splitlines()[0] == seen, r.stdout + r.stderr


@pytest.mark.parametrize("visible", ["1", "uuid"])
def test_cuda_visible_devices(sim: Sim, visible: str) -> None:
    code = "context(); d = c_int(); n = c_int(); cuda.cuDeviceGetCount(byref(n)); "
    code += "u = ctypes.create_string_buffer(16); cuda.cuDeviceGetUuid_v2(u, 0); print(n.value, u.raw[:4].hex())"
    if visible == "uuid":
        visible = (sim.gpus / "1").read_bytes()[16:64].rstrip(b"\0").decode()
    assert sim.python(code, CUDA_VISIBLE_DEVICES=visible) == "1 51de0001\n"


def test_processes_share_one_gpu(sim: Sim) -> None:
    sim.holder(600)
    r = sim.run(sim.probe, "alloc", "600", "alloc", "200")
    assert r.stdout == "alloc 600 MiB: CUDA_ERROR_OUT_OF_MEMORY\nalloc 200 MiB: ok\n"


def test_killed_process_gives_its_memory_back(sim: Sim) -> None:
    holder = sim.holder(900)
    assert sim.free() == MEMORY_MIB - 900 - CONTEXT_MIB
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert sim.free() == MEMORY_MIB
    assert sim.run(sim.probe, "alloc", "900").stdout == "alloc 900 MiB: ok\n"


def test_stopped_process_keeps_its_memory(sim: Sim) -> None:
    holder = sim.holder(900)
    holder.send_signal(signal.SIGSTOP)
    assert "OUT_OF_MEMORY" in sim.run(sim.probe, "alloc", "900").stdout


@pytest.mark.root
def test_processes_in_other_pid_namespaces_count_and_are_reaped(sim: Sim) -> None:
    holder = sim.holder(900, "unshare", "--pid", "--fork", "--kill-child")
    assert "OUT_OF_MEMORY" in sim.run("unshare", "--pid", "--fork", sim.probe, "alloc", "900").stdout
    holder.kill()
    holder.wait()
    assert sim.free() == MEMORY_MIB
    assert sim.run("unshare", "--pid", "--fork", sim.probe, "alloc", "900").returncode == 0


def test_forked_child_neither_uses_nor_frees_the_parents_memory(sim: Sim) -> None:
    out = sim.python(
        """
import os
context(); alloc(500 * MIB)
before = free_bytes()
if os.fork() == 0:
    at = c_uint64()
    os._exit(code("cuMemAlloc_v2", byref(at), c_size_t(MIB)))
status = os.waitstatus_to_exitcode(os.wait()[1])
print(status, free_bytes() == before)
"""
    )
    assert out == "3 True\n"  # CUDA_ERROR_NOT_INITIALIZED


FORK = """
import os, time
context(); alloc(900 * MIB)
if not os.fork():
    {child}
    print("ready", flush=True); os.sys.stdin.readline(); os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("child", "kept"),
    [
        ("pass", True),
        ("os.closerange(3, 4096)", True),
        ("os.fork() and os._exit(0)", True),
        ("os.execvp('sh', ['sh', '-c', 'echo ready; read x'])", False),
    ],
    ids=["fork", "descriptors closed", "grandchild", "exec"],
)
def test_memory_lives_as_long_as_the_open_file(sim: Sim, child: str, kept: bool) -> None:
    parent = sim.start_python(FORK.format(child=child))
    assert sim.free() == MEMORY_MIB - 900 - CONTEXT_MIB
    parent.kill()
    parent.wait()
    if kept:
        assert sim.free() == MEMORY_MIB - 900 - CONTEXT_MIB
        assert "OUT_OF_MEMORY" in sim.run(sim.probe, "alloc", "900").stdout
    else:
        assert sim.free() == MEMORY_MIB
    sim.tell(parent)
    assert parent.stdout and parent.stdout.read() == ""
    assert sim.free() == MEMORY_MIB
    assert sim.run(sim.probe, "alloc", "900").returncode == 0


@pytest.mark.root
@pytest.mark.parametrize("where", ["namespace", "user"])
def test_a_child_elsewhere_keeps_memory(sim: Sim, where: str) -> None:
    child = (
        "ctypes.CDLL(None).unshare(0x20000000); os.fork() and os._exit(0)"
        if where == "namespace"
        else "os.setuid(1234)"
    )
    parent = sim.start_python(FORK.format(child=child))
    parent.kill()
    parent.wait()
    assert "OUT_OF_MEMORY" in sim.run(sim.probe, "alloc", "900").stdout
    sim.tell(parent)
    assert parent.stdout and parent.stdout.read() == ""
    assert sim.run(sim.probe, "alloc", "900").returncode == 0


def test_a_descriptor_that_was_sent_keeps_memory(sim: Sim) -> None:
    code = f"""
import os, socket
left, right = socket.socketpair()
if not os.fork():  # before there is a GPU: only what comes by the socket counts
    fds = socket.recv_fds(right, 1, 1)[1]
    print("ready", flush=True); os.sys.stdin.readline(); os._exit(0)
context(); alloc(900 * MIB)
fds = [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{{fd}}")]
gpu, = [fd for fd in fds if os.readlink(f"/proc/self/fd/{{fd}}") == {str(sim.gpus / "0")!r}]
socket.send_fds(left, [b"x"], [gpu])
os.kill(os.getpid(), 9)
"""
    child = sim.start_python(code)
    child.wait()
    assert sim.free() == MEMORY_MIB - 900 - CONTEXT_MIB
    sim.tell(child)
    assert child.stdout and child.stdout.read() == ""
    assert sim.free() == MEMORY_MIB


def test_queued_work_lives_as_long_as_the_open_file(sim: Sim) -> None:
    code = FORK.format(child="pass").replace("alloc(900 * MIB)", "f = kernel(600000000); launch(f)")
    parent = sim.start_python(code)
    parent.kill()
    parent.wait()
    busy = "nvml.nvmlInit(); print(nvml.nvmlDeviceGetUtilizationRates(gpu(0)).gpu)"
    deadline = time.monotonic() + 120
    while sim.python(busy) != "100\n":
        assert time.monotonic() < deadline
    sim.tell(parent)
    assert parent.stdout and parent.stdout.read() == ""
    while sim.python(busy) != "0\n":
        assert time.monotonic() < deadline


CLOSE = "os.closerange(3, 4096); held = [os.open('/dev/zero', os.O_RDONLY) for _ in range(20)]"


@pytest.mark.parametrize(
    "code",
    [
        "{close}; context(); at = alloc(MIB)",
        "cuda.cuInit(0); {close}; context(); at = alloc(MIB)",
        "context(); {close}; at = alloc(MIB)",
        "context(); at = alloc(MIB); {close}",
        "cuda.cuInit(0); nvml.nvmlInit(); {close}; context(); at = alloc(MIB)",
    ],
)
def test_a_program_may_close_every_descriptor(sim: Sim, code: str) -> None:
    """Also where the numbers then belong to other files."""
    code = "import os\n" + code.format(close=CLOSE)
    code += """
launch(kernel(50)); cuda.cuCtxSynchronize(); cuda.cuMemcpyHtoD_v2(at, b"x" * 4096, c_size_t(4096))
print(code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1024 * MIB)), alloc(900 * MIB) and "ready", flush=True)
"""
    code += "os.sys.stdin.readline(); print(code('cuMemFree_v2', at), free_bytes() // MIB)"
    child = sim.start(
        sys.executable, "-c", f"import sys; sys.path.insert(0, {str(CLIENT)!r})\nfrom client import *\n{code}"
    )
    assert sim.line(child) == "2 ready\n"
    assert "OUT_OF_MEMORY" in sim.run(sim.probe, "alloc", "900").stdout
    sim.tell(child)
    assert sim.line(child) == f"0 {ROOM - 900}\n"
    child.wait()
    assert sim.free() == MEMORY_MIB


def test_exec_gives_memory_back(sim: Sim) -> None:
    code = f"import os; context(); alloc(900 * MIB); os.execv({sim.probe!r}, ['gpu-probe', 'alloc', '900'])"
    assert sim.python(code) == "alloc 900 MiB: ok\n"


def test_destroying_a_context_frees_what_it_allocated(sim: Sim) -> None:
    out = sim.python(
        """
context(); before = free_bytes()
ctx = c_void_p()
cuda.cuCtxCreate_v2(byref(ctx), 0, 0); alloc(300 * MIB)
print((before - free_bytes()) // MIB)
cuda.cuCtxDestroy_v2(ctx)
print(before - free_bytes(), code("cuCtxSetCurrent", ctx), code("cuCtxDestroy_v2", ctx))
"""
    )
    assert out.split() == [str(300 + CONTEXT_MIB), "0", "201", "201"]


def test_primary_context_is_one_and_counted(sim: Sim) -> None:
    out = sim.python(
        """
a, b = context(), context()
print(a.value == b.value, code("cuDevicePrimaryCtxRelease_v2", 0), free_bytes() // MIB)
alloc(MIB)
print(code("cuDevicePrimaryCtxRelease_v2", 0), code("cuDevicePrimaryCtxRelease_v2", 0))
f = c_size_t()
print(code("cuMemGetInfo_v2", byref(f), byref(f)))
nvml.nvmlInit(); print(nvml.nvmlDeviceGetMemoryInfo(gpu(0)).used)
"""
    )
    assert out.split() == ["True", "0", str(ROOM), "0", "201", "709", "0"]


def test_every_way_to_allocate_is_counted(sim: Sim) -> None:
    out = sim.python(
        """
context(); whole = free_bytes(); at = c_uint64(); pitch = c_size_t()
def took(): return (whole - free_bytes()) // 1024
alloc(1); print(whole - free_bytes()); whole = free_bytes()
cuda.cuMemAllocPitch_v2(byref(at), byref(pitch), c_size_t(1000), c_size_t(1024), 4); print(pitch.value, took())
cuda.cuMemFree_v2(at); print(took())
cuda.cuMemAllocManaged(byref(at), c_size_t(MIB), 1); print(took()); ctypes.memset(at.value, 1, MIB)
cuda.cuMemFree_v2(at); print(took())
cuda.cuMemAllocAsync(byref(at), c_size_t(MIB), NONE); print(took())
cuda.cuMemFreeAsync(at, NONE); cuda.cuCtxSynchronize(); print(took())
h = c_uint64(); prop = Prop(1, 1, 1, 0)
cuda.cuMemCreate(byref(h), c_size_t(4 * MIB), byref(prop), c_uint64(0)); print(took())
m = map_handle(h, 4 * MIB); cuda.cuMemRelease(h); print(took())
cuda.cuMemUnmap(m, c_size_t(4 * MIB)); print(took())
print(code("cuMemFree_v2", c_uint64(12345)), code("cuMemFree_v2", c_uint64(0)))
"""
    )
    assert out.split() == ["512", "1024", "1024", "0", "1024", "0", "32768", "0", "4096", "4096", "0", "1", "0"]


def test_bytes_are_kept(sim: Sim) -> None:
    out = sim.python(
        """
context()
a, b = alloc(8 * MIB), alloc(8 * MIB)
data = bytes(range(256)) * 4096
cuda.cuMemcpyHtoD_v2(c_uint64(a.value + 4096), data, c_size_t(len(data)))
cuda.cuMemcpyDtoDAsync_v2(b, c_uint64(a.value + 4096), c_size_t(len(data)), NONE)
back = ctypes.create_string_buffer(len(data))
cuda.cuMemcpyDtoH_v2(back, b, c_size_t(len(data)))
print(back.raw == data)
cuda.cuMemsetD32_v2(b, 0xdeadbeef, c_size_t(4)); cuda.cuMemsetD8_v2(c_uint64(b.value + 2), 7, c_size_t(1))
cuda.cuMemcpyDtoH_v2(back, b, c_size_t(17)); print(back.raw[:17].hex())
base, size = c_uint64(), c_size_t()
cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(a.value + 5000))
print(base.value == a.value, size.value)
"""
    )
    assert out.split() == ["True", "efbe07de" + "efbeadde" * 3 + "10", "True", "8388608"]


def test_shared_handle_is_the_same_memory_in_two_processes(sim: Sim) -> None:
    out = sim.python(
        """
import os, socket
left, right = socket.socketpair()
if os.fork() == 0:
    context(); fd = socket.recv_fds(right, 1, 1)[1][0]
    h = c_uint64(); cuda.cuMemImportFromShareableHandle(byref(h), c_void_p(fd), 1)
    before = free_bytes()
    m = map_handle(h, 2 * MIB)
    back = ctypes.create_string_buffer(5); cuda.cuMemcpyDtoH_v2(back, m, c_size_t(5))
    print(back.raw.decode(), before - free_bytes()); os.sys.stdout.flush(); os._exit(0)
context()
h = c_uint64(); prop = Prop(1, 1, 1, 0)
cuda.cuMemCreate(byref(h), c_size_t(2 * MIB), byref(prop), c_uint64(0))
m = map_handle(h, 2 * MIB); cuda.cuMemcpyHtoD_v2(m, b"hello", c_size_t(5))
fd = c_int(); cuda.cuMemExportToShareableHandle(byref(fd), h, 1, c_uint64(0))
socket.send_fds(left, [b"x"], [fd.value]); os.wait()
"""
    )
    assert out == "hello 0\n"


def test_memory_is_mapped_into_reserved_free_addresses_alone(sim: Sim) -> None:
    out = sim.python(
        """
context(); S, Z = c_size_t, c_uint64(0); B = 2 * MIB; at, other, h, d = c_uint64(), c_uint64(), c_uint64(), c_uint64()
cuda.cuMemCreate(byref(h), S(2 * B), byref(Prop(type=1, location=1, device=0)), Z)
for a in (at, other): cuda.cuMemAddressReserve(byref(a), S(3 * B), S(0), Z, Z)
def map(a, n=1): return code("cuMemMap", c_uint64(a), S(n * B), S(0), h, Z)
def allow(a, n, *devices):
    return code("cuMemSetAccess", c_uint64(a), S(n * B), (Access * len(devices))(*((1, i, 3) for i in devices)), S(len(devices)))
def drop(a, n): return code("cuMemAddressFree", c_uint64(a), S(n * B))
a = at.value
print(map(a), map(a), map(a + B, 2), map(a + 2 * B, 2), map(0x700000000000))
print(allow(a, 1, 0), allow(a, 1, 1, 0), allow(a, 1, 7), allow(a, 3, 0), allow(other.value, 1, 0))
print(drop(a, 3), drop(other.value, 1), drop(other.value + B, 2), drop(other.value, 3), map(other.value))
cuda.cuMemUnmap(at, S(B)); cuda.cuMemUnmap(c_uint64(a + B), S(2 * B)); print(map(a, 2), allow(a, 2, 0))
cuda.cuMemUnmap(at, S(2 * B)); print(drop(a, 3))
buffer = ctypes.create_string_buffer(8192); print(code("cuMemHostGetDevicePointer_v2", byref(d), buffer, 0))
cuda.cuMemHostRegister_v2(buffer, S(8192), 0); print(code("cuMemHostGetDevicePointer_v2", byref(d), buffer, 0))
"""
    )
    assert out.split("\n") == ["0 1 0 1 1", "0 0 101 0 1", "1 1 1 0 1", "0 0", "0", "1", "0", ""]


def test_a_released_handle_means_nothing_while_its_memory_is_mapped(sim: Sim) -> None:
    out = sim.python(
        """
context(); S, Z = c_size_t, c_uint64(0); B = 2 * MIB; at, h, again = c_uint64(), c_uint64(), c_uint64(); before = free_bytes()
def taken(): return (before - free_bytes()) // MIB
cuda.cuMemCreate(byref(h), S(B), byref(Prop(type=1, location=1, device=0)), Z)
cuda.cuMemAddressReserve(byref(at), S(2 * B), S(0), Z, Z); cuda.cuMemMap(at, S(B), S(0), h, Z)
print(code("cuMemRelease", h), code("cuMemRelease", h), code("cuMemRelease", h), taken())
print(code("cuMemMap", c_uint64(at.value + B), S(B), S(0), h, Z), code("cuMemExportToShareableHandle", byref(c_int()), h, 1, Z))
print(code("cuMemRetainAllocationHandle", byref(again), at), again.value == h.value)
print(code("cuMemUnmap", at, S(B)), taken(), code("cuMemRelease", again), code("cuMemRelease", again), taken())
print(code("cuMemUnmap", at, S(B)), code("cuMemAddressFree", at, S(2 * B)))
"""
    )
    assert out.splitlines() == ["0 1 1 2", "1 1", "0 True", "0 2 0 1 0", "1 0"]


def test_a_multicast_object_lives_while_it_is_mapped(sim: Sim) -> None:
    """And so does what is bound to it."""
    out = sim.python(
        """
context(); S, Z = c_size_t, c_uint64(0); B = 2 * MIB; at, h, mc = c_uint64(), c_uint64(), c_uint64(); before = free_bytes()
def taken(): return (before - free_bytes()) // MIB
props = (c_uint64 * 4)(1, B, 1, 0)
cuda.cuMemCreate(byref(h), S(B), byref(Prop(type=1, location=1, device=0)), Z)
print(code("cuMulticastCreate", byref(mc), props), code("cuMulticastBindMem", mc, S(0), mc, S(0), S(B), Z))
print(code("cuMulticastBindMem", mc, S(0), h, S(0), S(B), Z), code("cuMemRelease", h))
cuda.cuMemAddressReserve(byref(at), S(B), S(0), Z, Z); print(code("cuMemMap", at, S(B), S(0), mc, Z))
print(code("cuMemRelease", mc), code("cuMulticastUnbind", mc, 0, S(0), S(B)), taken())
print(code("cuMemUnmap", at, S(B)), taken())
"""
    )
    assert out.splitlines() == ["0 1", "0 0", "0", "0 1 2", "0 0"]


def test_large_gpus_cost_no_host_memory(make_sim: Callable[..., Sim]) -> None:
    sim = make_sim(memory_mib=80 << 10, gpus=1)
    assert sim.run(sim.probe, "alloc", str(79 << 10)).stdout == f"alloc {79 << 10} MiB: ok\n"
    held = sum(f.stat().st_blocks for f in sim.gpus.iterdir()) * 512
    assert held < 1 << 20


def test_at_once_many_processes_fill_the_gpu_exactly(sim: Sim) -> None:
    fillers = [sim.start(sim.probe, "-") for _ in range(6)]
    for child in fillers:  # first a context for each
        sim.tell(child, "free ")
    assert [sim.line(child) for child in fillers] == ["free: ok\n"] * 6
    for child in fillers:
        sim.tell(child, "fill 1 ")
    got = []
    for child in fillers:
        words = sim.line(child).split()
        assert words[-1] == "CUDA_ERROR_OUT_OF_MEMORY"
        got.append(int(words[1]))
    assert sum(got) == MEMORY_MIB - 6 * CONTEXT_MIB
    assert sim.free() == 0


def test_who_asks_for_too_much_has_nobody_refused(sim: Sim) -> None:
    """Not even for the moment in which it is told so: it may be preempted just then."""
    greedy = f"""
context(); print("ready", flush=True); input()
while True:
    assert code("cuMemAlloc_v2", byref(c_uint64()), c_size_t({MEMORY_MIB - CONTEXT_MIB} * MIB)) == 2
"""
    modest = """
context(); first = alloc(MIB); print("ready", flush=True); input()
for _ in range(3000):
    cuda.cuMemFree_v2(alloc(100 * MIB))
print("done")
"""
    last = sim.start_python(modest)
    children = [sim.start_python(greedy) for _ in range(4)]
    for child in [*children, last]:
        sim.tell(child)
    assert sim.line(last) == "done\n"
    for child in children:
        assert child.poll() is None
        child.kill()


@pytest.mark.slow
def test_random_kills_leak_nothing_and_overbook_nothing(sim: Sim) -> None:
    """Processes that allocate and free at random are killed at random moments; the GPU's sum always adds up."""
    code = """
import random
context(); held = []
print("ready", flush=True); input()
while True:
    at = c_uint64()
    if held and random.random() < 0.5:
        cuda.cuMemFree_v2(held.pop(random.randrange(len(held))))
    elif code("cuMemAlloc_v2", byref(at), c_size_t(random.randrange(1, 64 * MIB))) == 0:
        held.append(at)
"""
    for _ in range(6):
        children = [sim.start_python(code) for _ in range(3)]
        for child in children:
            sim.tell(child)
        time.sleep(0.05)
        assert 0 <= sim.free() <= MEMORY_MIB - 3 * CONTEXT_MIB
        for child in children:
            child.kill()
            child.wait()
        assert sim.free() == MEMORY_MIB
    assert sim.run(sim.probe, "fill", "1").stdout.startswith(f"fill: {ROOM} MiB")
