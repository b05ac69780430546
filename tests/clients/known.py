"""Differences between bare and share that are no limits. Each has its reason, which docs/guide/clients.md prints."""

from tests.clients.frame import Known

OTHERS = "A container must not change a GPU that others use; the shim refuses before the driver is asked."
GPU = "00000000:51:00.0"

KNOWN: tuple[Known, ...] = (
    Known(
        "nvidia-smi",
        "all",
        "change of compute mode",
        f"ok: Unable to set the compute mode for GPU {GPU}: Not Supported",
        f"failed: exit status 4: Unable to set the compute mode for GPU {GPU}: Insufficient Permissions",
        OTHERS,
    ),
    Known(
        "nvidia-smi",
        "all",
        "change of clocks",
        f"ok: Setting locked GPU clocks is not supported for GPU {GPU}.",
        f"failed: exit status 4: The current user does not have permission to change clocks for GPU {GPU}.",
        OTHERS,
    ),
    *(
        Known(
            "py3nvml",
            "calls",
            call,
            "failed: NVMLError_NotSupported: Not Supported",
            "failed: NVMLError_NoPermission: Insufficient Permissions",
            OTHERS,
        )
        for call in (
            "nvmlDeviceSetComputeMode",
            "nvmlDeviceSetPersistenceMode",
            "nvmlDeviceSetPowerManagementLimit",
            "nvmlDeviceResetApplicationsClocks",
        )
    ),
)
