"""What NVML shows a container: its share, its processes, its load; and what it refuses. By the real nvidia-ml-py."""

import pytest

from tests.shim.box import MIB, Box

pytestmark = pytest.mark.root

OPEN = """
import pynvml as nv
nv.nvmlInit()
gpu = nv.nvmlDeviceGetHandleByIndex(0)
"""


def test_memory_is_the_share(box: Box) -> None:
    box.python(
        OPEN
        + """
M = cu.MIB
for version in (None, nv.nvmlMemory_v2):
    m = nv.nvmlDeviceGetMemoryInfo(gpu, version)
    assert (m.total, m.free, m.used) == (1024 * M, 1024 * M, 0), m
cu.init()
cu.alloc(300 * M)
for version in (None, nv.nvmlMemory_v2):
    m = nv.nvmlDeviceGetMemoryInfo(gpu, version)
    assert (m.total, m.free, m.used) == (1024 * M, 724 * M, 300 * M), m
    assert (m.free, m.total) == cu.info()
b = nv.nvmlDeviceGetBAR1MemoryInfo(gpu)
assert (b.bar1Total, b.bar1Used) == (1024 * M, 300 * M)
other = nv.nvmlDeviceGetHandleByIndex(1)
m = nv.nvmlDeviceGetMemoryInfo(other)
assert (m.total, m.free, m.used) == (8192 * M, 0, 8192 * M), "a GPU that is not granted"
"""
    )


def test_a_function_newer_than_the_driver_says_what_the_older_one_says(box: Box) -> None:
    """A program that looks for the name finds it, and calls it."""
    box.python(
        OPEN
        + """
assert nv.nvmlDeviceGetTemperatureV(gpu, nv.NVML_TEMPERATURE_GPU) == nv.nvmlDeviceGetTemperature(gpu, 0) == 41
def refused(call):
    try:
        return call()
    except nv.NVMLError as e:
        return type(e).__name__
assert refused(lambda: nv.nvmlDeviceGetTemperatureV(gpu, 1)) == refused(lambda: nv.nvmlDeviceGetTemperature(gpu, 1))
call = nv._nvmlGetFunctionPointer("nvmlDeviceGetTemperatureV")
assert call(gpu, None) == 13
unknown = nv.c_nvmlTemperature_v1_t(version=0x200000C)
assert call(gpu, nv.byref(unknown)) == 13 and unknown.temperature == 0
"""
    )


def test_a_whole_gpu_shows_the_drivers_figures(box: Box) -> None:
    box.grant({0: 100 * MIB}, whole=(0,))
    box.python(
        OPEN
        + """
assert nv.nvmlDeviceGetMemoryInfo(gpu).used == 7 << 30
assert len(nv.nvmlDeviceGetComputeRunningProcesses(gpu)) == 2
assert nv.nvmlDeviceGetUtilizationRates(gpu).gpu == 77
"""
    )


def test_processes_are_the_containers_own(box: Box) -> None:
    hold = """
import sys, client as cu
cu.init()
print(cu.alloc(200 * cu.MIB)[0], flush=True)
sys.stdin.read()
"""
    with box.start(["python3", "-c", hold]) as other:
        assert other.stdout and other.stdout.readline() == "0\n"
        box.python(
            OPEN
            + f"""
import os
alone = nv.nvmlDeviceGetComputeRunningProcesses(gpu)
assert [(p.pid, p.usedGpuMemory) for p in alone] == [({other.pid}, 200 * cu.MIB)]
cu.init()
lists = [nv.nvmlDeviceGetComputeRunningProcesses_v2, nv.nvmlDeviceGetComputeRunningProcesses_v3]
for get in lists:
    got = sorted((p.pid, p.usedGpuMemory) for p in get(gpu))
    assert got == sorted([({other.pid}, 200 * cu.MIB), (os.getpid(), 0)]), got
assert nv.nvmlDeviceGetGraphicsRunningProcesses(gpu) == []
assert nv.nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu) == []
# the calls themselves: too little room, and version 1
ml = cu.ctypes.CDLL("libnvidia-ml.so.1")
n = cu.c_uint(1)
handle = cu.ctypes.cast(gpu, cu.c_void_p)
array = (cu.c_uint64 * 16)()
assert ml.nvmlDeviceGetComputeRunningProcesses(handle, cu.byref(n), array) == 7 and n.value == 2
n.value = 8
assert ml.nvmlDeviceGetComputeRunningProcesses(handle, cu.byref(n), array) == 0 and n.value == 2
assert sorted(array[:4]) == sorted([{other.pid}, 200 * cu.MIB, os.getpid(), 0])
"""
        )
        assert other.stdin
        other.stdin.close()
        other.wait(10)
    box.python(OPEN + "assert nv.nvmlDeviceGetComputeRunningProcesses(gpu) == []")


def test_load_is_the_containers_own_or_nothing(box: Box) -> None:
    box.python(
        OPEN
        + """
r = nv.nvmlDeviceGetUtilizationRates(gpu)
assert (r.gpu, r.memory) == (0, 0), "no process of ours, no load of ours"
cu.init()
for call in (lambda: nv.nvmlDeviceGetUtilizationRates(gpu), lambda: nv.nvmlDeviceGetSamples(gpu, 1, 0),
             lambda: nv.nvmlDeviceGetAccountingPids(gpu)):
    try:
        call()
    except nv.NVMLError as e:
        assert e.value == nv.NVML_ERROR_NOT_SUPPORTED, e
    else:
        raise AssertionError("shows the neighbours' load")
try:
    got = nv.nvmlDeviceGetProcessUtilization(gpu, 0)
except nv.NVMLError as e:
    assert e.value == nv.NVML_ERROR_NOT_FOUND
else:
    raise AssertionError(got)
"""
    )
    # a driver that uses the container's pids: our own samples are shown
    box.python(
        OPEN
        + """
cu.init()
assert [(p.pid, p.smUtil) for p in nv.nvmlDeviceGetProcessUtilization(gpu, 0)] == [(cu.ctypes.CDLL(None).getpid(), 40)]
r = nv.nvmlDeviceGetUtilizationRates(gpu)
assert (r.gpu, r.memory) == (40, 10)
""",
        FAKE_OWN_PID="1",
    )
    # the same driver, while only others have load
    box.python(
        OPEN
        + """
cu.init()
r = nv.nvmlDeviceGetUtilizationRates(gpu)
assert (r.gpu, r.memory) == (0, 0)
""",
        FAKE_LISTED_PID="1",
    )


def test_what_changes_the_gpu_is_refused(box: Box) -> None:
    box.python(
        OPEN
        + """
for call in (lambda: nv.nvmlDeviceSetPersistenceMode(gpu, 1), lambda: nv.nvmlDeviceSetComputeMode(gpu, 0),
             lambda: nv.nvmlDeviceSetPowerManagementLimit(gpu, 1000), lambda: nv.nvmlDeviceResetGpuLockedClocks(gpu)):
    try:
        call()
    except nv.NVMLError as e:
        assert e.value == nv.NVML_ERROR_NO_PERMISSION, e
    else:
        raise AssertionError("the GPU was changed")
assert nv.nvmlDeviceGetName(gpu) == "Fake"
"""
    )


def test_functions_of_later_drivers(box: Box) -> None:
    """Those of 555 to 615 are known: none changes the GPU, and none shows what other containers used."""
    box.python(
        OPEN
        + """
lib, room = cu.ctypes.CDLL("libnvidia-ml.so.1"), cu.ctypes.create_string_buffer(1 << 16)
for name in ("nvmlDeviceSetClockOffsets", "nvmlDeviceReadWritePRM_v1", "nvmlDeviceSetMemoryLimits_v1"):
    assert lib[name](gpu, room) == nv.NVML_ERROR_NO_PERMISSION, name
assert lib.nvmlDeviceGetAccountingStats_v2(gpu, room) == nv.NVML_ERROR_NOT_SUPPORTED and not room.raw.strip(b"\\0")
"""
    )
    box.grant({0: 100 * MIB}, whole=(0,))
    box.python(
        OPEN
        + """
lib, room = cu.ctypes.CDLL("libnvidia-ml.so.1"), cu.ctypes.create_string_buffer(1 << 16)
assert lib.nvmlDeviceSetMemoryLimits_v1(gpu, room) == nv.NVML_ERROR_NO_PERMISSION
assert lib.nvmlDeviceGetAccountingStats_v2(gpu, room) == 0 and room.raw.strip(b"\\0")
"""
    )


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["gpustat", "nvitop"])
def test_real_clients_run(box: Box, tool: str) -> None:
    import sys
    from pathlib import Path

    path = Path(sys.executable).parent / tool
    if not path.exists():
        pytest.skip(f"{tool} is not installed here")
    argv = [str(path), "--json"] if tool == "gpustat" else [str(path), "--once"]
    out = box.run(argv, check=False, TERM="dumb", COLUMNS="120", LINES="50")
    assert "1024" in out.stdout or "1.00GiB" in out.stdout or "1024MiB" in out.stdout, out.stdout + out.stderr
