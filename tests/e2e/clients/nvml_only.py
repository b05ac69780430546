"""What NVML shows and refuses in a container; nothing of CUDA is loaded."""

import pynvml as nvml

nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
print("devices", nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetMinorNumber(card))
memory = nvml.nvmlDeviceGetMemoryInfo(card)
print("memory", memory.total >> 20, memory.used >> 20, memory.free >> 20)
print("processes", *((p.pid, p.usedGpuMemory >> 20) for p in nvml.nvmlDeviceGetComputeRunningProcesses(card)))
for change in (
    lambda: nvml.nvmlDeviceSetComputeMode(card, nvml.NVML_COMPUTEMODE_PROHIBITED),
    lambda: nvml.nvmlDeviceSetPersistenceMode(card, 1),
    lambda: nvml.nvmlDeviceSetPowerManagementLimit(card, 1),
    lambda: nvml.nvmlDeviceSetGpuLockedClocks(card, 1, 1),
    lambda: nvml.nvmlDeviceResetApplicationsClocks(card),
):
    try:
        change()
        print("changed")
    except nvml.NVMLError as e:
        print("refused", e.value)
