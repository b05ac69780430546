"""py3nvml beside a process that holds 300 MiB: every question about a device, and its own helpers."""

import inspect
import os

from held import hold
from py3nvml import py3nvml as nvml
from steps import outcome, said


def plain(value: object) -> object:
    fields = [name for name, *_ in getattr(value, "_fields_", ())]
    if fields:
        return [f"{name}={plain(getattr(value, name))}" for name in fields]
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, bool | int | float | str | list) or value is None else str(value)


hold()
nvml.nvmlInit()
gpu = nvml.nvmlDeviceGetHandleByIndex(0)
for name, function in sorted(vars(nvml).items()):
    if name.startswith("nvmlSystemGet") and not inspect.signature(function).parameters:
        outcome(name, lambda function=function: plain(function()))
    # Only what takes a device and nothing else; which topology or sample is asked for would need words of its own.
    if name.startswith("nvmlDeviceGet") and list(inspect.signature(function).parameters) == ["handle"]:
        outcome(name, lambda function=function: plain(function(gpu)))
for name, change in (
    ("nvmlDeviceSetComputeMode", lambda: nvml.nvmlDeviceSetComputeMode(gpu, nvml.NVML_COMPUTEMODE_PROHIBITED)),
    ("nvmlDeviceSetPersistenceMode", lambda: nvml.nvmlDeviceSetPersistenceMode(gpu, 1)),
    ("nvmlDeviceSetPowerManagementLimit", lambda: nvml.nvmlDeviceSetPowerManagementLimit(gpu, 1)),
    ("nvmlDeviceResetApplicationsClocks", lambda: nvml.nvmlDeviceResetApplicationsClocks(gpu)),
):
    outcome(name, change)
import py3nvml  # noqa: E402

said("get_num_procs", [int(n) for n in py3nvml.get_num_procs()])
said("get_free_gpus", [bool(free) for free in py3nvml.get_free_gpus()])
said("grab_gpus", py3nvml.grab_gpus(1, gpu_fraction=0.5))
said("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "not set"))
outcome("nvmlShutdown", lambda: nvml.nvmlShutdown())
