"""Soft limits whose cgroup was removed before they were made 0, STATE/boundary/leaks. The cgroups above may keep them in
theirs, so that memory stays set aside for nobody: NVIDIA's documents differ (docs/guide/boundary.md). Written under the
lock of the records (boundary/limit_records.py).
"""

import os

from oci_hook.boundary.limit_records import folder
from oci_hook.core.value import Value
from oci_hook.ledger import messages
from oci_hook.linux.cgroup_tree import MOUNTED
from oci_hook.linux.proc import boot_id, read_file
from oci_hook.oci import fastjson

FILE = "leaks"
MAX = 1 << 20
MOST = 256  # cgroups; further ones are not remembered


class Leak(Value):
    """size: bytes that the GPU may still set aside at this cgroup, the lowest one left above those that were removed."""

    uuid: str
    cgroup: str
    size: int


def above(cgroup: str) -> str:
    """The nearest cgroup above this path that exists; "" where only the hierarchy's top does, which keeps none."""
    while cgroup := cgroup.rpartition("/")[0]:
        if not cgroup.startswith(MOUNTED + "/"):
            return ""
        if os.path.isdir(cgroup):
            return cgroup
    return ""


def read(state_dir: str) -> list[Leak]:
    """What was noted since this boot. Needs no lock."""
    try:
        data = fastjson.loads(read_file(f"{folder(state_dir)}/{FILE}", MAX))
        found = [Leak(str(uuid), str(cgroup), int(size)) for uuid, cgroup, size in data["left"]]
        return found if data["boot"] == boot_id() else []
    except (OSError, ValueError, TypeError, KeyError):
        return []


def write(state_dir: str, leaks: list[Leak]) -> None:
    """Replace all notes; those of one cgroup become one, and a cgroup that has gone since is replaced by the one above it.
    Raises OSError."""
    sizes: dict[tuple[str, str], int] = {}
    for leak in leaks:
        cgroup = leak.cgroup if os.path.isdir(leak.cgroup) else above(leak.cgroup)
        if cgroup:
            sizes[leak.uuid, cgroup] = sizes.get((leak.uuid, cgroup), 0) + leak.size
    left = [[uuid, cgroup, size] for (uuid, cgroup), size in sizes.items()][:MOST]
    path = f"{folder(state_dir)}/{FILE}"
    if left:
        messages.replace(path, fastjson.dumps({"boot": boot_id(), "left": left}).encode(), path + ".new")
    elif os.path.lexists(path):
        os.unlink(path)
