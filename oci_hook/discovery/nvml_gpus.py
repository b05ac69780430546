"""Asks NVML for the GPUs and prints them as JSON. `discover` runs it as a program of its own, because NVML may hang.

With the argument `persistence` it only prints {"persistence": true} if the driver keeps every GPU initialised while nobody
uses it (nvmlDeviceGetPersistenceMode, of the GPUs that answer; the daemon sets that mode as `nvidia-smi -pm 1` does).

It uses the library that is named in LD_PRELOAD: nvidia-ml-py opens "libnvidia-ml.so.1", and the loader returns the
library that is already loaded under this soname.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pynvml  # type: ignore[import-untyped]

from oci_hook.boundary import cgroups
from oci_hook.boundary.nvml_limits import LimitError, NvmlLimits
from oci_hook.core.units import MIB
from oci_hook.discovery.nvml_memory import usable
from oci_hook.discovery.nvml_mig import is_split, parts

NVLINK_DISTANCE = 1  # nearer than any PCIe path; those are NVML_TOPOLOGY_* numbers from 0 (one board) to 50 (two CPUs)


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def mig_devices(handle: Any, gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPU's MIG devices, with the ids of their GPU and compute instances."""
    return [
        {
            **gpu,
            "uuid": text(pynvml.nvmlDeviceGetUUID(mig)),
            "memory_mib": usable(mig) // MIB,
            "name": text(pynvml.nvmlDeviceGetName(mig)),
            "parent": gpu["uuid"],
            "instance": i,
            "gi": pynvml.nvmlDeviceGetGpuInstanceId(mig),
            "ci": pynvml.nvmlDeviceGetComputeInstanceId(mig),
        }
        for i, mig in parts(handle)
    ]


def arch(handle: Any) -> str:
    """The compute capability, as 8.0; "" where NVML does not say."""
    try:
        return ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle)))
    except pynvml.NVMLError:
        return ""


def brand(handle: Any) -> str:
    """The brand as NVIDIA_REQUIRE_* has it: NVML_BRAND_QUADRO_RTX is quadrortx; "" where NVML does not say."""
    try:
        number = pynvml.nvmlDeviceGetBrand(handle)
    except pynvml.NVMLError:
        return ""
    names = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_BRAND_")}
    word = names.get(number, "").removeprefix("NVML_BRAND_").lower().replace("_", "")
    return "" if word in ("unknown", "count") else word


def cuda_version() -> str:
    """The newest CUDA that the driver supports, as 12.4; "" where NVML does not say."""
    try:
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    except pynvml.NVMLError:
        return ""
    return f"{number // 1000}.{number % 1000 // 10}"


def distance(a: Any, b: Any) -> int | None:
    try:
        if pynvml.nvmlDeviceGetP2PStatus(a, b, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == pynvml.NVML_P2P_STATUS_OK:
            return NVLINK_DISTANCE
    except pynvml.NVMLError:
        pass
    try:
        # One board is 0 there, and NVLink must remain the nearest.
        return max(int(pynvml.nvmlDeviceGetTopologyCommonAncestor(a, b)), NVLINK_DISTANCE + 1)
    except pynvml.NVMLError:
        return None


def limits_answers(uuids: list[str]) -> dict[str, str]:
    """UUID -> the driver's answer when asked for a cgroup's memory limit, in the words that core/boundary.py's why_not reads."""
    found = {}
    try:
        nvml = NvmlLimits("libnvidia-ml.so.1")
        if not nvml.knows("nvmlDeviceSetMemoryLimits_v1"):
            return dict.fromkeys(uuids, "missing")
    except LimitError as e:
        return dict.fromkeys(uuids, str(e))
    with any_cgroup() as cgroup:
        for uuid in uuids:
            try:
                nvml.get(uuid, cgroup)
                found[uuid] = ""
            except LimitError as e:
                found[uuid] = str(e)
    return found


@contextlib.contextmanager
def any_cgroup() -> Iterator[str]:
    """A cgroup to ask about: our own, or a new one where we are in the topmost, which can have no limit."""
    try:
        yield cgroups.path_of(os.getpid())
        return
    except cgroups.NoCgroup:
        made = f"{cgroups.MOUNTED}/gpu-hook-{os.getpid()}"
    if not cgroups.is_version2():
        yield cgroups.MOUNTED
        return
    try:
        os.mkdir(made)
    except OSError:  # a read-only mount
        pass
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(made)


def persistence() -> bool:
    """True if all GPUs that answer are in persistence mode, and one does."""
    modes = []
    for i in range(pynvml.nvmlDeviceGetCount()):
        try:
            modes.append(bool(pynvml.nvmlDeviceGetPersistenceMode(pynvml.nvmlDeviceGetHandleByIndex(i))))
        except pynvml.NVMLError:  # it has fallen off the bus, or has no such mode
            pass
    return bool(modes) and all(modes)


def main() -> int:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        json.dump({"error": str(e), "code": getattr(e, "value", 0)}, sys.stdout)
        return 0
    if sys.argv[1:] == ["persistence"]:
        json.dump({"persistence": persistence()}, sys.stdout)
        return 0
    gpus, handles, uuids, error = [], [], [], pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    for i in range(pynvml.nvmlDeviceGetCount()):
        try:
            h = pynvml.nvmlDeviceGetHandleByIndex(i)
            gpu = {
                "uuid": text(pynvml.nvmlDeviceGetUUID(h)),
                "index": i,
                "minor": pynvml.nvmlDeviceGetMinorNumber(h),
                "memory_mib": usable(h) // MIB,
                "name": text(pynvml.nvmlDeviceGetName(h)),
                "pci": text(pynvml.nvmlDeviceGetPciInfo(h).busId),
                "arch": arch(h),
                "brand": brand(h),
            }
            gpus += mig_devices(h, gpu) if is_split(h) else [gpu]
        except pynvml.NVMLError as e:  # this GPU has fallen off the bus; go on with the others
            error = e
            continue
        handles.append(h)
        uuids.append(gpu["uuid"])
    if not handles:
        json.dump({"error": str(error), "code": error.value}, sys.stdout)
        return 0
    links = []
    for i, a in enumerate(handles):
        for j in range(i):
            near = distance(a, handles[j])
            if near is not None:
                links.append([uuids[j], uuids[i], near])
    version = text(pynvml.nvmlSystemGetDriverVersion())
    limits = limits_answers([gpu["uuid"] for gpu in gpus if not gpu.get("parent")])
    answer = {"driver_version": version, "cuda_version": cuda_version(), "gpus": gpus, "links": links, "limits": limits}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
