"""Which containers can have memory of a GPU without being listed by NVML: those whose processes have the driver's device
nodes open, as a forked child has by inheritance."""

import os
from collections.abc import Iterator

from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Gpu
from oci_hook.core.layout import SIM_GPUS
from oci_hook.linux.proc import pids, read_file
from oci_hook.observe import inside

UVM = "/dev/nvidia-uvm"  # each CUDA process has it open; tools that only query the GPU do not


def able(gpu: Gpu, grants: dict[str, Grant]) -> set[str]:
    """The keys of the containers that can have memory of the GPU; with "" if a process of none of them can, or if that
    cannot be found out."""
    members: dict[int, str] = {}
    found = set()
    for key, grant in grants.items():
        own = inside.pids(grant.life.init[0], grant.life.cgroup) if grant.life.init else None
        if own is None:
            return {""}
        members.update(dict.fromkeys(own, key))
    names: tuple[str, ...] = (UVM,)
    if gpu.simulated:
        parts = gpu.file.split("/")  # a path of another mount namespace may lack its beginning
        names = ("/".join(("", *parts[-3:])), f"{SIM_GPUS.removeprefix('/dev')}/{parts[-1]}")
    for pid in pids():
        key = members.get(pid, "")
        if key not in found and any(not gpu.simulated or _of(gpu, pid, n) for n in _open(pid, names)):
            found.add(key)
    return found


def _open(pid: int, endings: tuple[str, ...]) -> Iterator[str]:
    """The numbers of the process's descriptors whose paths end so."""
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                if os.readlink(f"{folder}/{name}").endswith(endings):
                    yield name
            except FileNotFoundError:
                continue
    except OSError:
        return


def _of(gpu: Gpu, pid: int, name: str) -> bool:
    """Whether a descriptor is of this simulated GPU, and not of another install's; and open for writing, since the
    simulated NVML opens the same files as CUDA, but for reading."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), os.stat(gpu.file)) and _written(pid, name)
    except (OSError, StopIteration):
        return False


def _written(pid: int, name: str) -> bool:
    line = next(w for w in read_file(f"/proc/{pid}/fdinfo/{name}").splitlines() if w.startswith(b"flags:"))
    return bool(int(line.split()[1], 8) & (os.O_RDWR | os.O_WRONLY))
