"""cuda-bindings and nvidia-ml-py in one process: takes all it gets, and says what both libraries show meanwhile."""

import os

import pynvml as nvml
from cuda.bindings import driver

MIB = 1 << 20


def ok(answer: tuple) -> object:  # type: ignore[type-arg]
    """The one result of a call that must succeed."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]


def free_mib() -> list[int]:
    return [n // MIB for n in ok(driver.cuMemGetInfo())]  # type: ignore[attr-defined]


def all_there_is() -> None:
    """By cuMemAlloc, then by cuMemCreate and a pool, each in steps of 32 MiB until it is refused."""
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    for name, take, give in (
        ("cuMemAlloc", lambda: driver.cuMemAlloc(32 * MIB), driver.cuMemFree),
        ("cuMemCreate", lambda: driver.cuMemCreate(32 * MIB, prop, 0), driver.cuMemRelease),
        ("cuMemAllocAsync", lambda: driver.cuMemAllocAsync(32 * MIB, 0), driver.cuMemFree),
    ):
        held = []
        while (answer := take())[0] == driver.CUresult.CUDA_SUCCESS:
            held.append(answer[1])
        print(name, 32 * len(held), answer[0].name, *free_mib())
        if name == "cuMemAlloc":
            shown()
        for one in held:
            ok((*give(one), None))
        ok((*driver.cuCtxSynchronize(), None))


def shown() -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    v1, v2 = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    print("nvml", *(n // MIB for n in (v1.total, v1.free, v1.used, v2.total, v2.free)))
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    print("processes", *(f"{p.pid == os.getpid()}:{p.usedGpuMemory // MIB}" for p in processes))


nvml.nvmlInit()
ok((*driver.cuInit(0), None))
device = ok(driver.cuDeviceGet(0))
ok((*driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))), None))
total = ok(driver.cuDeviceTotalMem(device)) // MIB  # type: ignore[operator]
print("devices", ok(driver.cuDeviceGetCount()), nvml.nvmlDeviceGetCount(), total)
all_there_is()
