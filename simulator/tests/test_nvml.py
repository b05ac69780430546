"""The simulated libnvidia-ml, used by real tools."""

import shutil
import sys
import time
from pathlib import Path
from random import Random

import pytest

from gpu_hook_simulator import driver_root
from testbed.sim.gpus import CLIENT, CONTEXT_MIB, MEMORY_MIB, Sim

BIN = Path(sys.executable).parent


def test_what_it_says_of_a_gpu(sim: Sim) -> None:
    out = sim.python(
        """
nvml.nvmlInit(); h = gpu(1); p = nvml.nvmlDeviceGetPciInfo(h); u = nvml.nvmlDeviceGetUUID(h)
print(nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetName(h), nvml.nvmlDeviceGetMinorNumber(h), p.busId, p.bus)
v2 = nvml.nvmlDeviceGetMemoryInfo(h, version=nvml.nvmlMemory_v2)
print(nvml.nvmlDeviceGetMemoryInfo(h).total >> 20, v2.free >> 20)
print(nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion(), u[:12])
same = [nvml.nvmlDeviceGetHandleByUUID(u), nvml.nvmlDeviceGetHandleByPciBusId(p.busId)]
print([nvml.nvmlDeviceGetIndex(x) for x in same], nvml.nvmlDeviceGetTopologyCommonAncestor(h, gpu(0)))
for call in (lambda: nvml.nvmlDeviceGetHandleByIndex(2), lambda: nvml.nvmlDeviceGetFanSpeed(h),
             lambda: nvml.nvmlDeviceGetHandleByUUID("GPU-x")):
    try: call()
    except nvml.NVMLError as e: print(e.value)
nvml.nvmlShutdown()
try: nvml.nvmlDeviceGetCount()
except nvml.NVMLError as e: print(e.value)
"""
    )
    assert out.splitlines() == [
        "2 Simulated GPU 1 GiB 1 00000000:52:00.0 82",
        "1024 1024",
        "550.0.0 12040 GPU-51de0001",
        "[1, 1] 40",
        "2",
        "3",
        "6",
        "1",
    ]


def test_no_gpu_is_driver_not_loaded(sim: Sim) -> None:
    code = "try: nvml.nvmlInit()\nexcept nvml.NVMLError as e: print(e.value)"
    assert sim.python(code, GPU_HOOK_SIM_GPUS="/nowhere") == "9\n"


PROCESSES = """
nvml.nvmlInit()
print([(p.pid, p.usedGpuMemory >> 20) for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))])
"""


def test_processes_by_their_number_here(sim: Sim) -> None:
    holder = sim.holder(100)
    assert sim.python(PROCESSES) == f"[({holder.pid}, {100 + CONTEXT_MIB})]\n"
    holder.kill()
    holder.wait()
    assert sim.python(PROCESSES) == "[]\n"


def test_memory_of_an_exited_process_is_counted_not_listed(sim: Sim) -> None:
    code = "import os, time\ncontext(); alloc(100 * MIB)\nif not os.fork():\n    print('ready', flush=True); input()\n"
    parent = sim.start_python(code + "else: time.sleep(600)")
    assert sim.python(PROCESSES) == f"[({parent.pid}, {100 + CONTEXT_MIB})]\n"
    parent.kill()
    parent.wait()
    assert sim.python(PROCESSES) == "[]\n"
    assert sim.free() == MEMORY_MIB - 100 - CONTEXT_MIB


def test_own_process_is_listed_by_both_libraries_in_one(sim: Sim) -> None:
    code = "import os\ncontext(); alloc(5 * MIB)\n" + PROCESSES + "print(os.getpid())"
    listed, pid = sim.python(code).splitlines()
    assert listed == f"[({pid}, {5 + CONTEXT_MIB})]"


@pytest.mark.root
def test_process_of_another_pid_namespace_is_counted_not_listed(sim: Sim) -> None:
    sim.holder(100)
    inside = "unshare", "--pid", "--fork", sys.executable, "-c"
    code = f"import sys; sys.path.insert(0, {str(CLIENT)!r})\nfrom client import *\n{PROCESSES}"
    used = "print(nvml.nvmlDeviceGetMemoryInfo(gpu(0)).used >> 20)"
    assert sim.run(*inside, code + used).stdout == f"[]\n{100 + CONTEXT_MIB}\n"


def test_nvml_does_not_disturb_the_owner(sim: Sim) -> None:
    """Both libraries of a process open the GPU's file. Ending NVML must not drop the process's lock on its slot."""
    code = """
context(); alloc(700 * MIB)
for _ in range(3): nvml.nvmlInit(); nvml.nvmlDeviceGetMemoryInfo(gpu(0)); nvml.nvmlShutdown()
print("ready", flush=True); input()
"""
    sim.start_python(code)
    assert "OUT_OF_MEMORY" in sim.run(sim.probe, "alloc", "700").stdout


def test_utilisation_is_of_the_last_sampling_period(sim: Sim) -> None:
    """A GPU with hours of work queued is busy all the time."""
    child = sim.start(sim.probe, "-")
    sim.tell(child, "free launch 60000000 100 ")
    assert sim.line(child) == "free: ok\n"
    out = sim.python(
        """
import time
nvml.nvmlInit()
def look():
    s = nvml.nvmlDeviceGetUtilizationRates(gpu(0)).gpu
    try: p = [(x.pid, x.smUtil) for x in nvml.nvmlDeviceGetProcessUtilization(gpu(0), 0)]
    except nvml.NVMLError: p = []
    return s, p
def busy():
    global seen
    seen = look()
    return seen[0] == 100 and seen[1]
soon(busy)
print(seen, nvml.nvmlDeviceGetUtilizationRates(gpu(1)).gpu)
"""
    )
    assert out == f"(100, [({child.pid}, 100)]) 0\n"


def test_gpustat(sim: Sim) -> None:
    tool = shutil.which("gpustat", path=str(BIN))
    if not tool:
        pytest.skip("gpustat is not installed")
    holder = sim.holder(300)
    r = sim.run(tool, "--show-pid")
    assert r.returncode == 0, r.stderr
    assert "Simulated GPU 1 GiB" in r.stdout
    assert f"{300 + CONTEXT_MIB} /  {MEMORY_MIB} MB" in r.stdout
    assert f"/{holder.pid}(" in r.stdout


def test_nvitop(sim: Sim) -> None:
    tool = shutil.which("nvitop", path=str(BIN))
    if not tool:
        pytest.skip("nvitop is not installed")
    holder = sim.holder(300)
    r = sim.run(tool, "--once", "--no-unicode")
    assert r.returncode == 0, r.stderr
    assert "Driver Version: 550.0.0" in r.stdout
    assert f"{300 + CONTEXT_MIB}.0MiB / 1024MiB" in r.stdout or f"{300 + CONTEXT_MIB}MiB / 1024MiB" in r.stdout
    assert f" {holder.pid} C " in r.stdout
    assert "Traceback" not in r.stderr


def test_a_gpu_scribbled_over_hangs_and_crashes_nobody(sim: Sim) -> None:
    """A process with a simulated GPU may write to its file. That only makes NVML's answers wrong."""
    random = Random(3)
    whole = (sim.gpus / "0").read_bytes()
    for _ in range(12):
        data = bytearray(whole)
        for _ in range(200):
            at = random.randrange(512, len(data) - 8)
            data[at : at + 8] = random.randbytes(8)
        queues = driver_root.FILE_SIZE - driver_root.QUEUES * driver_root.QUEUE_SIZE
        for at in (512, 4096, 4160, *range(12288, 16384, 24), *range(18432, 80000, 512)):
            data[at : at + 24] = random.randbytes(24)  # among them the live word, slots, groups, states and queues
        for queue in range(8):
            at = queues + queue * driver_root.QUEUE_SIZE
            data[at : at + 64 * 8] = random.randbytes(64 * 8)
        (sim.gpus / "0").write_bytes(data)
        sim.python(
            """
nvml.nvmlInit(); h = gpu(0)
nvml.nvmlDeviceGetMemoryInfo(h); nvml.nvmlDeviceGetUtilizationRates(h); nvml.nvmlDeviceGetComputeRunningProcesses(h)
try: nvml.nvmlDeviceGetProcessUtilization(h, 0)
except nvml.NVMLError: pass
"""
        )
        assert sim.run(sim.probe, "alloc", "10", "launch", "100", "20").returncode in (0, 1)


def test_a_neighbour_that_scribbles_crashes_no_running_program(sim: Sim) -> None:
    """Its times are wrong and its streams may wait for ever, but it does not crash. A new GPU works again."""
    code = "context(); f = kernel(50); print('ready', flush=True)\n"
    code += "while True: launch(f); code('cuStreamSynchronize', NONE)"
    children = [sim.start_python(code) for _ in range(2)]
    random = Random(5)
    end = time.monotonic() + 2
    with open(sim.gpus / "0", "r+b") as f:
        while time.monotonic() < end:
            area = random.choice((512, 4096, 12288, 18432, driver_root.FILE_SIZE - 64 * driver_root.QUEUE_SIZE))
            f.seek(area + 8 * random.randrange(400))
            f.write(random.choice((bytes(8), b"\xff" * 8, random.randbytes(8))))
            f.flush()
    assert [child.poll() for child in children] == [None, None]
    for child in children:
        child.kill()
        child.wait()
    driver_root.make_gpu(sim.gpus / "0", 0, MEMORY_MIB)
    assert sim.run(sim.probe, "launch", "100", "20").returncode == 0
