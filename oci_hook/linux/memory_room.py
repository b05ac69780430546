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


def of_cgroup(pid: int, own: tuple[str | None, str | None]) -> tuple[int | None, int | None]:
    """Bytes that the process may take until a limit of its cgroup, or of one above that is seen here, is reached: (now, if nobody
    outside of its container took any); None: no limit. own: the directories of the container's own cgroup, in version 1's memory
    hierarchy and in version 2; None: the process's. What a container's own cgroup without the memory controller uses is not known: it
    counts as nothing where nobody else took any. Raises OSError."""
    now: list[int] = []
    alone: list[int] = []
    for path, top, files in zip((cgroup.v1_path(pid, "memory"), cgroup.v2_path(pid)), own, FILES, strict=True):
        top, its = top or path, None
        while path and os.path.exists(f"{path}/cgroup.procs"):
            found = _limit_and_use(path, *files)
            if found:
                limit, used = found
                if limit < NO_LIMIT:
                    now.append(max(0, limit - used))
                    alone.append(max(0, limit - (used if its is None else its)))
            if path == top:
                its = found[1] if found else 0
            path = os.path.dirname(path)
    return min(now, default=None), min(alone, default=None)


def _limit_and_use(path: str, most: str, used: str, file_pages: bytes) -> tuple[int, int] | None:
    """limit: NO_LIMIT where there is none."""
    try:
        limit = read_file(f"{path}/{most}").strip()
        lines = (line.split() for line in read_file(f"{path}/memory.stat").splitlines())
        goes = next((int(words[1]) for words in lines if words[0] == file_pages), 0)
        return int(limit) if limit.isdigit() else NO_LIMIT, int(read_file(f"{path}/{used}")) - goes
    except FileNotFoundError:  # the top of a hierarchy has no such files
        return None


def of_node() -> tuple[int, int]:
    """(bytes that programs can take without swapping, all bytes). Raises OSError."""
    lines = (line.split() for line in read_file("/proc/meminfo").splitlines())
    size = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
    return size[b"MemAvailable:"], size[b"MemTotal:"]
