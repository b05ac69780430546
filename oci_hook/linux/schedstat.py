"""Times for which threads have waited for a processor: /proc/PID/task/TID/schedstat (proc(5), the kernel's sched-stats.rst)."""

import os

from oci_hook.linux.proc import read_once

THREADS_MAX = 256  # that are looked at: a process may have tens of thousands


def run_delays(pid: int) -> dict[int, int]:
    """Nanoseconds in which each thread could run and had no processor, by thread id. Empty: no such process, or the
    kernel does not count them."""
    delays = {}
    try:
        for name in os.listdir(f"/proc/{pid}/task")[:THREADS_MAX]:
            delays[int(name)] = int(read_once(f"/proc/{pid}/task/{name}/schedstat", 128).split()[1])
    except (OSError, ValueError, IndexError):
        pass  # the part read until then counts
    return delays
