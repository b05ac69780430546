"""This boot and its processes by /proc (proc(5)), and reads of files there. A hot module: no ctypes.

A process is named by its pid and its start time together, so that a reused pid is another process.
"""

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_ENDED = 64  # threads of a process that are looked at for one that runs
WALL = 5  # a busy machine takes so much longer than the processor time


def budget(seconds: float) -> "Callable[[], bool]":
    """True once this thread has used so many seconds of processor time, or WALL times as many have passed."""
    until, latest = time.thread_time() + seconds, time.monotonic() + WALL * seconds
    return lambda: time.thread_time() > until or time.monotonic() > latest


def read_file(path: str, limit: int = 1 << 16, folder: int | None = None) -> bytes:
    """The file's first `limit` bytes. folder: the descriptor that a relative path starts from. Raises OSError.

    It takes a quarter of the time of `open`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        data = os.read(fd, limit)
        while data and len(data) < limit and (more := os.read(fd, limit - len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def read_once(path: str, limit: int) -> bytes:
    """The result of one read(): all of a regular file, or of a /proc record that the kernel writes at once."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def boot_id() -> str:
    """This boot's random id. Raises OSError when /proc is not mounted."""
    return read_once("/proc/sys/kernel/random/boot_id", 64).decode().strip()


def memory_total() -> int:
    """Bytes of the machine's memory (sysconf(3))."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third one (the state) on, so field N of proc_pid_stat(5) is at N - 3.

    The name in field 2 may contain anything, so fields are counted from the last ')'. Raises OSError, ValueError.
    """
    return _stat(str(pid))


def _stat(process: str) -> list[bytes]:
    data = read_once(f"/proc/{process}/stat", 1024)
    return data[data.rindex(b")") + 2 :].split()


def has_ended(fields: list[bytes]) -> bool:
    """True if the process with this `stat` has ended, or only its zombie is left."""
    # A main thread that ended is a zombie beside its living siblings: field 20 counts the threads.
    return fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1)


def with_files(pid: int) -> str:
    """The process's folder below /proc that has its root and its mounts: of another thread where the main thread has ended,
    and those run on. Raises OSError, ValueError."""
    if _stat(str(pid))[0] == b"Z":
        with os.scandir(f"/proc/{pid}/task") as threads:
            for _, thread in zip(range(MOST_ENDED), threads, strict=False):
                try:
                    if _stat(found := f"{pid}/task/{thread.name}")[0] not in b"ZXx":
                        return found
                except (FileNotFoundError, ProcessLookupError):
                    pass
    return str(pid)


def start_time(pid: int) -> int:
    """The living process's start in clock ticks since boot; 0 when there is none, or only its zombie."""
    try:
        fields = stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if has_ended(fields) else int(fields[19])


def start_at(pid: int, at: float) -> int:
    """As start_time, of the process that had this pid at this time of the monotonic clock, in seconds; 0 where that has ended, or
    may have: what now has its pid began later, or within the same tick."""
    start = start_time(pid)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    return start if seconds_since(start) - tick > time.monotonic() - at else 0


def seconds_since(start: int) -> float:
    """Since a process's start time; no step of the clock changes it, as it does those of files in /proc."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK")


def is_running(process: tuple[int, int] | None) -> bool:
    """True if this process, (pid, start time), lives."""
    return process is not None and start_time(process[0]) == process[1] > 0


def process_life(pid: int) -> tuple[int, int]:
    """(pid, start time) of a living process. Raises ProcessLookupError."""
    start = start_time(pid)
    if not start:
        raise ProcessLookupError(pid)
    return pid, start


def pids() -> "Iterator[int]":
    """The pids of all processes that /proc shows, in no order. Raises OSError when /proc is not mounted."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def parent(pid: int) -> int:
    """The parent's pid. Raises OSError when there is no such process."""
    return int(stat(pid)[1])


def is_fork_of(pid: int, other: int) -> bool:
    """True if both processes run one program file with one command line, as after fork(2) and until one of them calls
    exec(2). Raises OSError."""
    one, two = os.stat(f"/proc/{pid}/exe"), os.stat(f"/proc/{other}/exe")
    if (one.st_dev, one.st_ino) != (two.st_dev, two.st_ino):
        return False
    words = read_file(f"/proc/{pid}/cmdline")
    return bool(words) and words == read_file(f"/proc/{other}/cmdline")


def cgroups(pid: int) -> list[tuple[str, str]]:
    """(controllers, path) of each cgroup that the process is in (cgroups(7), /proc/PID/cgroup): controllers are
    separated by commas, "" is version 2. Raises OSError."""
    found = []
    for line in read_file(f"/proc/{pid}/cgroup", 1 << 18).decode("utf-8", "surrogateescape").splitlines():
        _, colon, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if colon and second:
            found.append((controllers, path))
    return found


def pid_namespace(pid: int) -> int:
    """The inode number of the process's pid namespace. Raises OSError."""
    return os.stat(f"/proc/{pid}/ns/pid").st_ino


def pid_space() -> int:
    """The inode number of our own pid namespace: pids have a meaning only together with it. Raises OSError."""
    return os.stat("/proc/self/ns/pid").st_ino


def inner_pid(pid: int) -> int:
    """The process's pid in its own pid namespace (proc_pid_status(5), NSpid); `pid` where the kernel does not say.
    Raises OSError."""
    for line in read_file(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def boottime_ahead(pid: int) -> int:
    """Nanoseconds that the process's clock since boot is ahead of ours (time_namespaces(7)): it sees all start times so much
    later, as /proc shows them by the reader's clock. Raises OSError."""
    try:
        if os.stat(f"/proc/{pid}/ns/time").st_ino == os.stat("/proc/self/ns/time").st_ino:
            return 0
        return _boottime_offset(str(pid)) - _boottime_offset("self")
    except FileNotFoundError:  # before Linux 5.6, or the process has ended
        return 0


def _boottime_offset(process: str) -> int:
    for line in read_file(f"/proc/{process}/timens_offsets").splitlines():
        clock, seconds, nanoseconds = line.split()
        if clock == b"boottime":
            return int(seconds) * 10**9 + int(nanoseconds)
    return 0


def ticks(monotonic_ns: int) -> int:
    """A time of the monotonic clock as a process's start time, at most a second early. 0 for times before the boot."""
    ago = time.monotonic() - monotonic_ns / 1e9
    return max(0, int((time.clock_gettime(time.CLOCK_BOOTTIME) - ago - 1) * os.sysconf("SC_CLK_TCK")))
