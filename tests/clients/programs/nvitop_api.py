"""nvitop beside a process that holds 300 MiB: its table, and its classes that other programs use."""

import re
import subprocess
import sys

from held import hold
from steps import outcome, said

hold()
done = subprocess.run(
    [sys.executable, "-m", "nvitop", "--once", "--no-unicode"], capture_output=True, text=True, timeout=60
)
said("nvitop --once: ended", done.returncode or "ok")
for number, line in enumerate(done.stdout.splitlines(), 1):
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\(B", "", line).rstrip()
    if "MiB /" in text and "Mem:" not in text:  # the rows of GPUs and processes; other rows show the host and the time
        said(f"nvitop --once: line {number}", text)

import nvitop  # noqa: E402

device = nvitop.Device(0)
for name in (
    "name", "uuid", "bus_id", "memory_total", "memory_used", "memory_free", "memory_percent", "gpu_utilization",
    "memory_utilization", "compute_mode", "persistence_mode", "cuda_compute_capability", "is_mig_device",
    "mig_mode", "fan_speed", "temperature", "power_usage", "power_limit", "display_active", "current_driver_model",
    "total_volatile_uncorrected_ecc_errors", "performance_state", "max_clock_infos", "bar1_memory_total",
):  # fmt: skip
    outcome(name, lambda name=name: str(getattr(device, name)()))
said("driver_version", nvitop.Device.driver_version())
said("devices", [nvitop.Device.count(), len(nvitop.CudaDevice.all())])
outcome("cuda_driver_version", lambda: nvitop.Device.cuda_driver_version())
outcome("cuda_runtime_version", lambda: str(nvitop.Device.cuda_runtime_version()))
for process in device.processes().values():
    said("process", [process.pid, process.gpu_memory_human(), process.type, process.command()[-30:]])
outcome("CudaDevice.uuid", lambda: nvitop.CudaDevice(0).uuid())
outcome("select_devices", lambda: nvitop.select_devices(min_count=1, format="index"))
