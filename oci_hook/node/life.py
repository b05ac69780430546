"""Does a grant still count? Only while something of it lives: creator, container init, a process of the cgroup.

A process is named by its pid and its start time, so a reused pid is another process. The creator is the process that
asked for the grant; launcher, Python and the runtime follow each other by exec and keep its pid. When it is gone, the
runtime has written its state file and the container's init is found there.
"""

import os
import time

from oci_hook.core.grant import Grant, Life
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BUNDLE_ROOT = "bundle:"  # Identity.root of a grant made by an OCI hook, which cannot know the runtime's directory
CGROUP = "/sys/fs/cgroup"
STATE_MAX = 4 << 20


def read_file(path: str, limit: int = 1 << 16) -> bytes:
    """The file's first `limit` bytes. Raises OSError. (A quarter of the time that `open` takes.)"""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, limit)
        while data and len(data) < limit and (more := os.read(fd, limit - len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def read_once(path: str, limit: int) -> bytes:
    """What one read() gives: all of a regular file, or of a record of /proc that the kernel writes at once."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)


def boot_id() -> str:
    """This boot's random id. Raises OSError when /proc is not mounted."""
    return read_once("/proc/sys/kernel/random/boot_id", 64).decode().strip()


def start_time(pid: int) -> int:
    """The living process's start in clock ticks since boot; 0 when there is none, or only its zombie.

    proc_pid_stat(5): the name in field 2 may hold anything, so fields are counted from the last ')'.
    """
    try:
        data = read_once(f"/proc/{pid}/stat", 1024)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = data[data.rindex(b")") + 2 :].split(None, 20)
    # A main thread that ended is a zombie beside its living siblings: field 20 counts the threads.
    if fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1):
        return 0
    return int(fields[19])


def process_life(pid: int) -> tuple[int, int]:
    """(pid, start time) of a living process. Raises ProcessLookupError."""
    start = start_time(pid)
    if not start:
        raise ProcessLookupError(pid)
    return pid, start


def alive(life: Life) -> bool:
    """Whether any process that this life names is there, in this boot. Looks into no runtime's state file."""
    return life.boot_id == boot_id() and (_runs(life.init) or _runs(life.creator) or _occupied(life) or _expected(life))


def learn(grant: Grant) -> Grant:
    """The grant with the container's init and cgroup from the runtime's state file; itself if that tells nothing.

    Only a process that started after what the grant lived by so far is believed: a container of the same id that was
    there before (whose `create` this one failed against) is not ours. A restored container has a new, later init.
    """
    who, life = grant.who, grant.life
    if who.root.startswith(BUNDLE_ROOT) or not valid_id(who.id):
        return grant
    folder = who.root + "/" + who.id
    init = _runc_state(folder) or _crun_state(folder) or _youki_state(folder)
    if init is None:
        return grant
    pid, start, cgroup = init
    known = life.init or life.creator
    if (known is not None and start < known[1]) or (pid, start) == life.init:
        return grant
    inode = _cgroup_inode(cgroup)
    return grant.replace(life=Life(life.boot_id, None, (pid, start), cgroup if inode else "", inode))


def current(grant: Grant, boot: str) -> Grant | None:
    """The grant, with what it lives by brought up to date, or None if it counts no more. `boot`: this boot's id."""
    life = grant.life
    if life.boot_id != boot:
        return None
    if _runs(life.init) or _runs(life.creator):
        return grant
    learned = learn(grant)
    if learned is not grant and (_runs(learned.life.init) or _occupied(learned.life)):
        return learned
    return grant if _occupied(life) or _expected(life) else None


def valid_id(id: str) -> bool:
    """Whether a runtime would take this container id; such a name is one path component and never `.` or `..`.

    runc: `^[\\w+-\\.]+$` over ASCII, where `+-.` is the range `+ , - .` (libcontainer/factory_linux.go).
    """
    return (
        0 < len(id) <= 1024 and id not in (".", "..") and id.isascii() and all(c.isalnum() or c in "_+,-." for c in id)
    )


def _expected(life: Life) -> bool:
    return time.monotonic() < life.deadline


def _runs(process: tuple[int, int] | None) -> bool:
    return process is not None and start_time(process[0]) == process[1] > 0


def _runc_state(folder: str) -> tuple[int, int, str] | None:
    state = _load(folder + "/state.json")
    try:
        paths = state.get("cgroup_paths") or {}
        cgroup = paths.get("devices") or paths.get("") or next(iter(paths.values()), "")
        return int(state["init_process_pid"]), int(state["init_process_start"]), str(cgroup)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _crun_state(folder: str) -> tuple[int, int, str] | None:
    status = _load(folder + "/status")
    try:
        pid, start = int(status["pid"]), int(status["process-start-time"])
        path = str(status.get("cgroup-path") or "")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    # crun stores the path below the hierarchy: the unified one, or each v1 controller's.
    for top in (CGROUP, CGROUP + "/devices") if path.strip("/") else ():
        if os.path.exists(f"{top}/{path}/cgroup.procs"):
            return pid, start, os.path.normpath(f"{top}/{path}")
    return pid, start, ""


def _youki_state(folder: str) -> tuple[int, int, str] | None:
    """youki writes no start time: a process that started after the file was last written is somebody else's."""
    path = folder + "/state.json"
    state = _load(path)
    try:
        if "useSystemd" not in state:  # runc's file has the same name
            return None
        pid = int(state["pid"])
        start = start_time(pid)
        ticks = os.sysconf("SC_CLK_TCK")
        since_written = time.time() - os.stat(path).st_mtime
        if not start or start / ticks > time.clock_gettime(time.CLOCK_BOOTTIME) - since_written + 1:
            return None
        return pid, start, _cgroup_of(pid)
    except (KeyError, TypeError, ValueError, OSError):
        return None


def _cgroup_of(pid: int) -> str:
    """Its cgroup of the devices controller, or of version 2; "" where neither is mounted in the usual place."""
    v2 = ""
    for line in read_file(f"/proc/{pid}/cgroup").decode("utf-8", "surrogateescape").splitlines():
        number, controllers, path = line.split(":", 2)
        if "devices" in controllers.split(","):
            return os.path.normpath(f"{CGROUP}/devices{path}")
        if number == "0":
            v2 = os.path.normpath(f"{CGROUP}{path}")
    return v2 if os.path.exists(v2 + "/cgroup.procs") else ""


def _load(path: str) -> "Any":
    try:
        return fastjson.loads(read_file(path, STATE_MAX))
    except (OSError, ValueError):
        return None


def _cgroup_inode(path: str) -> int:
    """The directory's inode; 0 when it is no cgroup, or the top of a hierarchy, where every process of the node is."""
    try:
        if os.path.exists(path + "/../cgroup.procs"):
            return os.stat(path).st_ino
    except (OSError, ValueError):
        pass
    return 0


def _occupied(life: Life) -> bool:
    if not life.cgroup:
        return False
    try:
        if life.cgroup_inode not in (0, os.stat(life.cgroup).st_ino):
            return False  # removed (so it was empty) and made again
        if os.path.exists(life.cgroup + "/cgroup.events"):  # cgroup v2 answers for the whole subtree
            return b"populated 0" not in read_file(life.cgroup + "/cgroup.events")
        return _any_process(life.cgroup)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # there, but not to be read: never assume that a container is gone


def _any_process(cgroup: str) -> bool:
    with os.scandir(cgroup) as entries:
        below = [e.path for e in entries if e.is_dir(follow_symlinks=False)]
    for word in read_file(cgroup + "/cgroup.procs", STATE_MAX).split():
        if word == b"0" or start_time(int(word)):  # 0: a process of a PID namespace that we do not see
            return True
    for path in below:
        try:
            if _any_process(path):
                return True
        except FileNotFoundError:
            pass
    return False
