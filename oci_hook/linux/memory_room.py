"""How much more memory the processes of a cgroup may take, and the node has (cgroups(7), proc_meminfo(5))."""

import os

from oci_hook.linux import cgroup
from oci_hook.linux.proc import read_file

# (most, in use, in memory.stat: what of that goes when memory is short) of cgroup v1 and v2
FILES = (
    ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file"),
    ("memory.max", "memory.current", b"inactive_file"),
)
NO_LIMIT = 1 << 60  # cgroup v1 shows a number as large as this where there is none


def of_cgroup(pid: int) -> int | None:
    """Bytes that the process may take until a limit of its cgroup, or of one above that is seen here, is reached; None: no
    limit. Raises OSError."""
    found: list[int] = []
    for path, files in zip((cgroup.v1_path(pid, "memory"), cgroup.v2_path(pid)), FILES, strict=True):
        while path and os.path.exists(f"{path}/cgroup.procs"):
            room = _room(path, *files)
            found += [] if room is None else [room]
            path = os.path.dirname(path)
    return min(found, default=None)


def _room(path: str, most: str, used: str, file_pages: bytes) -> int | None:
    try:
        limit = read_file(f"{path}/{most}").strip()
        if not limit.isdigit() or int(limit) >= NO_LIMIT:
            return None
        lines = (line.split() for line in read_file(f"{path}/memory.stat").splitlines())
        goes = next((int(words[1]) for words in lines if words[0] == file_pages), 0)
        return max(0, int(limit) - int(read_file(f"{path}/{used}")) + goes)
    except FileNotFoundError:  # the top of a hierarchy has no such files
        return None


def of_node() -> tuple[int, int]:
    """(bytes that programs can take without swapping, all bytes). Raises OSError."""
    lines = (line.split() for line in read_file("/proc/meminfo").splitlines())
    size = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    return size[b"MemAvailable:"], size[b"MemTotal:"]
