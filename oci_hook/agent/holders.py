"""Who can hold memory of a GPU without being listed by NVML: whoever has the driver's nodes open, by inheritance."""

import os
from collections.abc import Iterator

from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Gpu
from oci_hook.core.layout import SIM_GPUS
from oci_hook.linux.proc import read_file
from oci_hook.observe import inside

UVM = "/dev/nvidia-uvm"  # every CUDA process has it; tools that only look at the GPU do not


def able(gpu: Gpu, grants: dict[str, Grant]) -> set[str]:
    """Keys of the containers that can hold memory of the GPU; "": a process of none of them can, or we cannot tell."""
    members: dict[int, str] = {}
    found = set()
    for key, grant in grants.items():
        pids = inside.pids(grant.life.init[0], grant.life.cgroup) if grant.life.init else None
        if pids is None:
            return {""}
        members.update(dict.fromkeys(pids, key))
    names: tuple[str, ...] = (UVM,)
    if gpu.simulated:
        parts = gpu.file.split("/")  # a path of another mount namespace may lack its beginning
        names = ("/".join(("", *parts[-3:])), f"{SIM_GPUS.removeprefix('/dev')}/{parts[-1]}")
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        key = members.get(pid, "")
        if key not in found and any(link.endswith(names) for link in _open(pid, gpu.simulated)):
            found.add(key)
    return found


def _open(pid: int, writable: bool) -> Iterator[str]:
    """What it has open, by name. writable: only that; the simulated NVML opens GPUs as CUDA does, but to read."""
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                link = os.readlink(f"{folder}/{name}")
                if not writable or _written(pid, name):
                    yield link
            except FileNotFoundError:
                continue
    except OSError:
        return


def _written(pid: int, name: str) -> bool:
    line = next(w for w in read_file(f"/proc/{pid}/fdinfo/{name}").splitlines() if w.startswith(b"flags:"))
    return bool(int(line.split()[1], 8) & (os.O_RDWR | os.O_WRONLY))
