"""The processes that NVML lists, as plain data for `top`."""

from typing import Any

from oci_hook.agent.judge.audit_rules import TenantProcess
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.core.units import MIB


def processes(gpus: dict[str, GpuSample], owners: dict[int, tuple[str, TenantProcess]]) -> list[dict[str, Any]]:
    """gpus: by UUID. owners: by pid, the grant's key and the process, as of the last sample. A process of no container
    with a share has the key ""; its start time is then not known (0)."""
    found = []
    for uuid, gpu in gpus.items():
        for pid, used, busy in gpu.processes:
            key, process = owners.get(pid, ("", None))
            found.append(
                {
                    "pid": pid,
                    "start": process.start if process else 0,
                    "key": key,
                    "uuid": uuid,
                    "used_mib": None if used is None else -(-used // MIB),
                    "utilization": busy,
                }
            )
    return found
