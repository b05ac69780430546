"""What NVML shows and refuses in a container; nothing of CUDA is loaded."""

import pynvml as nvml

nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
print("devices", nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetMinorNumber(gpu))
memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
print("memory", memory.total >> 20, memory.used >> 20, memory.free >> 20)
print("processes", *((p.pid, p.usedGpuMemory >> 20) for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)))
for change in (
    lambda: nvml.nvmlDeviceSetComputeMode(gpu, nvml.NVML_COMPUTEMODE_PROHIBITED),
    lambda: nvml.nvmlDeviceSetPersistenceMode(gpu, 1),
    lambda: nvml.nvmlDeviceSetPowerManagementLimit(gpu, 1),
    lambda: nvml.nvmlDeviceSetGpuLockedClocks(gpu, 1, 1),
    lambda: nvml.nvmlDeviceResetApplicationsClocks(gpu),
):
    try:
        change()
        print("changed")
    except nvml.NVMLError as e:
        print("refused", e.value)
