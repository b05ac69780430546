"""cuda-bindings (driver API) and nvidia-ml-py in one process: what there is, memory until it ends by each of three ways,
streams, events, graphs, a module and a launch."""

import os

import pynvml as nvml
from cuda.bindings import driver
from steps import outcome, said

MIB = 1 << 20
DEVICE = driver.CUdevice_attribute


def ok(answer: tuple) -> object:  # type: ignore[type-arg]
    """The results of a call that must succeed."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(answer[0].name)
    return None if len(answer) == 1 else answer[1] if len(answer) == 2 else list(answer[1:])


def free_and_total() -> list[int]:
    return [n // MIB for n in ok(driver.cuMemGetInfo())]  # type: ignore[attr-defined]


def memory() -> None:
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    for name, take, give in (
        ("cuMemAlloc", lambda: driver.cuMemAlloc(32 * MIB), driver.cuMemFree),
        ("cuMemAllocManaged", lambda: driver.cuMemAllocManaged(32 * MIB, 1), driver.cuMemFree),
        ("cuMemCreate", lambda: driver.cuMemCreate(32 * MIB, prop, 0), driver.cuMemRelease),
        ("cuMemAllocAsync", lambda: driver.cuMemAllocAsync(32 * MIB, 0), driver.cuMemFree),
    ):
        held = []
        while (answer := take())[0] == driver.CUresult.CUDA_SUCCESS and len(held) < 1000:
            held.append(answer[1])
        said(f"{name}: MiB until refused", 32 * len(held))
        said(f"{name}: refused by", answer[0].name)
        said(f"{name}: free and total MiB then", free_and_total())
        if name == "cuMemAlloc":
            shown()
        for one in held:
            ok(give(one))
        ok(driver.cuCtxSynchronize())
        said(f"{name}: free and total MiB after", free_and_total())


def shown() -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    v1, v2 = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    said("NVML: total, free, used MiB", [n // MIB for n in (v1.total, v1.free, v1.used)])
    said("NVML: total, free MiB, version 2", [n // MIB for n in (v2.total, v2.free)])
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    said("NVML: processes, of which this one", [len(processes), sum(p.pid == os.getpid() for p in processes)])


def small_sizes() -> None:
    for size in (0, 1, 511, 512, 513, MIB - 1, MIB, MIB + 1):
        answer = driver.cuMemAlloc(size)
        said(f"cuMemAlloc of {size}", answer[0].name)
        if answer[0] == driver.CUresult.CUDA_SUCCESS:
            said(f"cuMemGetAddressRange of {size}", ok(driver.cuMemGetAddressRange(answer[1]))[1])  # type: ignore[index]
            ok(driver.cuMemFree(answer[1]))
    said("cuMemFree of 0", driver.cuMemFree(0)[0].name)
    said("cuMemFree of what is none", driver.cuMemFree(12345)[0].name)


def queues() -> None:
    stream = outcome("cuStreamCreate", lambda: ok(driver.cuStreamCreate(1)))
    first, last = (ok(driver.cuEventCreate(0)) for _ in range(2))
    outcome("cuEventRecord", lambda: ok(driver.cuEventRecord(first, stream)))
    array = ok(driver.cuMemAlloc(MIB))
    outcome("cuMemsetD8Async", lambda: ok(driver.cuMemsetD8Async(array, 7, MIB, stream)))
    back = bytearray(MIB)
    outcome("cuMemcpyDtoHAsync", lambda: ok(driver.cuMemcpyDtoHAsync(back, array, MIB, stream)))
    outcome("cuEventRecord again", lambda: ok(driver.cuEventRecord(last, stream)))
    outcome("cuStreamSynchronize", lambda: ok(driver.cuStreamSynchronize(stream)))
    outcome("cuEventElapsedTime", lambda: ok(driver.cuEventElapsedTime(first, last)) >= 0)  # type: ignore[operator]
    said("what came back", [min(back), max(back)])
    outcome(
        "cuPointerGetAttribute",
        lambda: str(
            ok(driver.cuPointerGetAttribute(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, array))
        ),
    )
    outcome(
        "cuStreamBeginCapture",
        lambda: ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)),
    )
    outcome("a captured cuMemsetD8Async", lambda: ok(driver.cuMemsetD8Async(array, 9, MIB, stream)))
    graph = outcome("cuStreamEndCapture", lambda: ok(driver.cuStreamEndCapture(stream)))
    outcome("cuGraphGetNodes", lambda: ok(driver.cuGraphGetNodes(graph, 10))[-1])  # type: ignore[index]
    run = outcome("cuGraphInstantiate", lambda: ok(driver.cuGraphInstantiate(graph, 0)))
    outcome("cuGraphLaunch", lambda: ok(driver.cuGraphLaunch(run, stream)))
    outcome("cuMemcpyDtoH", lambda: ok(driver.cuMemcpyDtoH(back, array, MIB)) or [min(back), max(back)])
    outcome("cuMemFree", lambda: ok(driver.cuMemFree(array)))


def kernels() -> None:
    ptx = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"
    module = outcome("cuModuleLoadData", lambda: ok(driver.cuModuleLoadData(ptx)))
    kernel = outcome("cuModuleGetFunction", lambda: ok(driver.cuModuleGetFunction(module, b"nothing")))
    outcome("cuLaunchKernel", lambda: ok(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)))
    outcome("cuCtxSynchronize", lambda: ok(driver.cuCtxSynchronize()))
    outcome(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        lambda: ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 128, 0)),
    )


nvml.nvmlInit()
ok(driver.cuInit(0))
said("cuDriverGetVersion", ok(driver.cuDriverGetVersion()))
device = ok(driver.cuDeviceGet(0))
said("cuDeviceGetName", ok(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode())  # type: ignore[attr-defined]
said("devices, by CUDA and by NVML", [ok(driver.cuDeviceGetCount()), nvml.nvmlDeviceGetCount()])
said("cuDeviceTotalMem MiB", ok(driver.cuDeviceTotalMem(device)) // MIB)  # type: ignore[operator]
said("cuDeviceGetPCIBusId", ok(driver.cuDeviceGetPCIBusId(13, device)).split(b"\0")[0].decode())  # type: ignore[attr-defined]
for attribute in DEVICE:
    answer = driver.cuDeviceGetAttribute(attribute, device)
    said(attribute.name, answer[1] if answer[0] == driver.CUresult.CUDA_SUCCESS else f"failed: {answer[0].name}")
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
memory()
small_sizes()
queues()
kernels()
