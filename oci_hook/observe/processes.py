"""The processes of containers that use GPUs, for display: by the account pages, and what /proc says of a process."""

import os
import pwd
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

from oci_hook.core.grant import Grant
from oci_hook.core.units import MIB
from oci_hook.linux import proc
from oci_hook.observe import account, inside

SECONDS = 0.5  # of our processor time for the containers' processes, whatever tenants do
COMMAND_MAX = 512  # bytes of a command line
REMEMBERED = 4096  # command lines


def accounted(grants: Iterable[Grant]) -> list[dict[str, Any]]:
    """The processes in the account pages, in the form of agent/serve/process_view.py. pid: None where the process has exited and a forked
    child keeps its memory, or where it was not found; utilization: never known."""
    found = []
    end = time.thread_time() + SECONDS
    for grant in grants:
        usage = account.look(grant, by_process=True)
        if not isinstance(usage, account.PageFigures) or not usage.by_process or grant.life.init is None:
            continue
        listed = inside.pids(grant.life.init[0], grant.life.cgroup)
        table = inside.Table(listed, max(0.0, end - time.thread_time()))
        for pid, start, used in by_pid(usage, table):
            for share, n in zip(grant.shares, used, strict=False):
                if n:
                    found.append(
                        {
                            "pid": pid,
                            "start": start,
                            "key": grant.key,
                            "uuid": share.uuid,
                            "used_mib": -(-n // MIB),
                            "utilization": None,
                        }
                    )
    return found


def by_pid(usage: account.PageFigures, table: inside.Table) -> list[tuple[int | None, int, tuple[int, ...]]]:
    """(pid, start time, bytes per GPU) of the processes on an account page; all that were not found are one."""
    found: dict[tuple[int | None, int], tuple[int, ...]] = {}
    for owner, used in usage.by_process.items():
        process = table.find(owner) or (None, 0)
        before = found.get(process, (0,) * len(used))
        found[process] = tuple(n + m for n, m in zip(before, used, strict=True))
    return [(*process, used) for process, used in found.items()]


def user(pid: int) -> str:
    """The name of the process's user on the host, or its number; "" where there is no such process."""
    try:
        lines = proc.read_file(f"/proc/{pid}/status").splitlines()
        uid = int(next(line for line in lines if line.startswith(b"Uid:")).split()[2])
    except (OSError, ValueError, StopIteration, IndexError):
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Commands:
    """`get` the command line of a process without waiting for it: reading it touches the memory of that process, which may
    make the reader wait (userfaultfd(2)). So one thread reads them all, and until it has, the process's name stands."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str | None] = {}  # None: it is being read
        self._wanted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._begun = False

    def get(self, pid: int, wait: float = 0.0) -> str:
        """The command line, or the name in brackets as ps(1) has it; "" where there is no such process. wait: seconds
        that it may take."""
        try:
            process = pid, proc.start_time(pid)
            name = proc.read_file(f"/proc/{pid}/comm", 64).decode("utf-8", "replace").rstrip("\n")
        except OSError:
            return ""
        if process not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[process] = None
            self._wanted.put(process)
            if not self._begun:
                self._begun = True
                self._thread.start()
        end = time.monotonic() + wait
        while self._known.get(process, "") is None and time.monotonic() < end:
            time.sleep(0.005)
        return self._known.get(process) or f"[{name}]"

    def _read(self) -> None:
        while True:
            process = self._wanted.get()
            try:
                data = proc.read_once(f"/proc/{process[0]}/cmdline", COMMAND_MAX)
            except OSError:  # it has ended
                data = b""
            words = data.rstrip(b"\0").split(b"\0")
            words[0] = os.path.basename(words[0]) or words[0]
            self._known[process] = b" ".join(words).decode("utf-8", "replace").strip()
