"""Simulated MIG: splits GPU 0 of the simulated driver into devices with their own memory and multiprocessors.

Each device has a GPU file of its own (gpu.h GPU_PART), which names its GPU. Programs cannot use the GPU itself any more
(GPU_SPLIT). The driver root's proc/ has the numbers of the device nodes, as the kernel driver's /proc has.
"""

import re
import uuid
from pathlib import Path
from struct import Struct, pack

from oci_hook.core.value import Value

MIB = 1 << 20
SLICES = 7  # of multiprocessors, on all GPUs with MIG
GPU, SPLIT, PART = 0, 1, 2  # gpu.h enum gpu_mig
AT = 360  # gpu.h struct gpu_head, mig
FILE = 100  # gpu.h GPU_MIG
CAPS_MAJOR = 508  # on real machines it is dynamic, and close to this
PROFILE = re.compile(r"(\d)g\.(\d+)gb")


class Profile(Value):
    """A kind of MIG device, by NVIDIA's name: 3g.20gb has 3 of 7 slices and 20 GiB."""

    name: str
    slices: int
    memory_mib: int


def profiles(text: str, memory_mib: int) -> tuple[Profile, ...]:
    """Parse --mig; () for "". Raises ValueError for unknown profiles, and for more than the GPU has."""
    found = []
    for word in text.split(",") if text else ():
        said = PROFILE.fullmatch(word.strip())
        if not said:
            raise ValueError(f"{word[:20]!r} is no profile")
        found.append(Profile(said[0], int(said[1]), int(said[2]) * 1024))
    if sum(p.slices for p in found) > SLICES or not all(p.slices and p.memory_mib for p in found):
        raise ValueError(f"a GPU has {SLICES} slices, a device at least one")
    if sum(p.memory_mib for p in found) > memory_mib:
        raise ValueError(f"together more than the GPU's {memory_mib} MiB")
    return tuple(found)


def split(root: Path, files: Path, parts: tuple[Profile, ...], head: Struct) -> None:
    """Make the files of the devices in `files`, and root/proc. head: the layout of gpu_head before `mig`."""
    gpu = files / "0"
    with open(gpu, "rb") as f:
        data = f.read(AT)
    size = gpu.stat().st_size
    fields = list(head.unpack_from(data))
    parent: bytes = fields[3].rstrip(b"\0")
    with open(gpu, "r+b") as f:
        f.seek(AT)
        f.write(pack("<I", SPLIT))
    caps = root / "proc/driver/nvidia/capabilities/gpu0/mig"
    for i, part in enumerate(parts):
        gi, ci = i + 1, 0
        mine = list(fields)
        mine[3] = b"MIG-" + str(uuid.uuid5(uuid.NAMESPACE_OID, f"{parent!r} {i}")).encode()
        mine[4] = fields[4].rstrip(b"\0") + f" MIG {part.name}".encode()
        mine[7] = part.memory_mib * MIB
        mine[12] = fields[12] * part.slices // SLICES
        path = files / str(FILE + i)
        with open(path, "xb") as f:
            f.write(head.pack(*mine) + data[head.size :] + pack("<IIII48s", PART, i, gi, ci, parent))
            f.truncate(size)
        path.chmod(0o666)
        for folder, minor in ((caps / f"gi{gi}", 9 * gi + 3), (caps / f"gi{gi}/ci{ci}", 9 * gi + 4)):
            folder.mkdir(parents=True)
            (folder / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    (root / "proc/devices").write_text(f"Character devices:\n195 nvidia\n{CAPS_MAJOR} nvidia-caps\n\nBlock devices:\n")
