"""What a grant lives by, as the kernel and the runtimes say it: processes, cgroups, the runtime's state file.

A process is named by its pid and its start time, so a reused pid is another process. The creator is the process that
asked for the grant; launcher, Python and the runtime follow each other by exec and keep its pid. When it is gone, the
runtime has written its state file and the container's init is found there. ledger/proof.py decides by all of it.
"""

import os
import time
from errno import ENODEV, ENOENT

from oci_hook.core.grant import Grant, Life
from oci_hook.core.layout import MARKER
from oci_hook.linux.proc import read_file, start_time
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

BUNDLE_ROOT = "bundle:"  # Identity.root of a grant made by an OCI hook, which cannot know the runtime's directory
CGROUP = "/sys/fs/cgroup"
STATE_MAX = 4 << 20
CGROUPS_MAX = 200  # below a container's that are looked into one by one
SCAN_SECONDS = 0.1


def found(grant: Grant) -> tuple[Life, bool] | None:
    """(what the container lives by, by the runtime's state file; whether the runtime itself says that it is this
    grant's), or None where no container of this id is known, or it is older than what the grant lived by so far."""
    who, life = grant.who, grant.life
    if who.root.startswith(BUNDLE_ROOT) or not valid_id(who.id):
        return None
    folder = who.root + "/" + who.id
    init = _runc_state(folder) or _crun_state(folder) or _youki_state(folder)
    if init is None:
        return None
    pid, start, cgroup, marker = init
    known = life.init or life.creator
    if known is not None and start < known[1]:
        return None
    inode = _cgroup_inode(cgroup)
    named = marker.partition(" ")[0] == grant.key
    new = Life(life.boot_id, None, (pid, start), cgroup if inode else "", inode, space=life.space)
    return new, named


def planned_cgroup(path: str, id: str) -> str:
    """The directory that a runtime will make for linux.cgroupsPath: of the devices controller, or of version 2. ""
    where the path does not tell. A relative one, or none, which means the id, is below the runtime's own (runc).

    With the systemd driver it is SLICE:PREFIX:NAME (runc, docs/systemd.md), and a-b.slice lies in a.slice.
    """
    if path.count(":") == 2:
        slice_, prefix, name = path.split(":")
        if not slice_.endswith(".slice") or "/" in path or not name:
            return ""
        parts = slice_[: -len(".slice")].split("-")
        above = "".join("/" + "-".join(parts[: i + 1]) + ".slice" for i in range(len(parts)))
        unit = name if name.endswith(".slice") else f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
        path = f"{above if slice_ != '-.slice' else ''}/{unit}"
    if not path.startswith("/"):
        own = _cgroup_of(os.getpid())
        path = path or (id if valid_id(id) else "")
        return f"{own}/{path}" if own and path and "/../" not in f"/{path}/" else ""
    if "/../" in path + "/" or not path.strip("/"):
        return ""
    top = CGROUP + "/devices" if os.path.isdir(CGROUP + "/devices") else CGROUP
    return os.path.normpath(f"{top}/{path}")


def valid_id(id: str) -> bool:
    """Whether a runtime would take this container id; such a name is one path component and never `.` or `..`.

    runc: `^[\\w+-\\.]+$` over ASCII, where `+-.` is the range `+ , - .` (libcontainer/factory_linux.go).
    """
    return (
        0 < len(id) <= 1024 and id not in (".", "..") and id.isascii() and all(c.isalnum() or c in "_+,-." for c in id)
    )


def expected(life: Life) -> bool:
    """Whether its container may still be made by somebody whom we cannot watch."""
    return time.monotonic() < life.deadline


def _runc_state(folder: str) -> tuple[int, int, str, str] | None:
    state = _load(folder + "/state.json")
    try:
        paths = state.get("cgroup_paths") or {}
        cgroup = paths.get("devices") or paths.get("") or next(iter(paths.values()), "")
        # runc keeps annotations as labels, KEY=VALUE (libcontainer/specconv).
        labels = (state.get("config") or {}).get("labels") or ()
        marker = next((str(x)[len(MARKER) + 1 :] for x in labels if str(x).startswith(MARKER + "=")), "")
        return int(state["init_process_pid"]), int(state["init_process_start"]), str(cgroup), marker
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _crun_state(folder: str) -> tuple[int, int, str, str] | None:
    status = _load(folder + "/status")
    try:
        pid, start = int(status["pid"]), int(status["process-start-time"])
        path = str(status.get("cgroup-path") or "")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    # Beside it crun keeps a copy of config.json.
    marker = str((_member(_load(folder + "/config.json"), "annotations") or {}).get(MARKER, ""))
    # crun stores the path below the hierarchy: the unified one, or each v1 controller's.
    for top in (CGROUP, CGROUP + "/devices") if path.strip("/") else ():
        if os.path.exists(f"{top}/{path}/cgroup.procs"):
            return pid, start, os.path.normpath(f"{top}/{path}"), marker
    return pid, start, "", marker


def _youki_state(folder: str) -> tuple[int, int, str, str] | None:
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
        return pid, start, _cgroup_of(pid), str((_member(state, "annotations") or {}).get(MARKER, ""))
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


def _member(document: "Any", key: str) -> "dict[str, Any] | None":
    """The object at this key of an object; None for anything else."""
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, dict) else None


def _cgroup_inode(path: str) -> int:
    """The directory's inode; 0 when it is no cgroup, or the top of a hierarchy, where every process of the node is."""
    try:
        if os.path.exists(path + "/../cgroup.procs"):
            return os.stat(path).st_ino
    except (OSError, ValueError):
        pass
    return 0


def occupied(life: Life) -> bool:
    """Whether a process is in its cgroup; one that cannot be read counts as occupied."""
    if not life.cgroup:
        return False
    try:
        if not os.path.exists(life.cgroup + "/../cgroup.procs"):
            return False  # no cgroup, or the top of a hierarchy, where every process of the node is
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
    """Whether a process is in this cgroup or below (version 1). By descriptor: a tenant that is root in a user
    namespace can make the tree below its own as deep and as wide as it likes."""
    todo = [os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    left = CGROUPS_MAX
    try:
        while todo:
            fd = todo.pop()
            try:
                for word in read_file("cgroup.procs", STATE_MAX, fd).split():
                    if word == b"0" or start_time(int(word)):  # 0: a process of a PID namespace that we do not see
                        return True
                with os.scandir(fd) as entries:
                    for name in (e.name for e in entries if e.is_dir(follow_symlinks=False)):
                        if not left:
                            return is_in((cgroup,), SCAN_SECONDS)
                        todo.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd))
                        left -= 1
            except OSError as e:
                if e.errno not in (ENOENT, ENODEV):  # removed meanwhile
                    raise
            finally:
                os.close(fd)
        return False
    finally:
        for fd in todo:
            os.close(fd)


def is_in(cgroups: "Iterable[str]", seconds: float) -> bool:
    """Whether any process of the node is in one of these or below; in doubt, after so many seconds, yes."""
    until = time.monotonic() + seconds
    cgroups = tuple(cgroups)
    for name in os.listdir("/proc"):
        if name.isdigit():
            if time.monotonic() > until:
                return True
            try:
                if belongs(int(name), cgroups):
                    return True
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has just ended
    return False


def belongs(pid: int, cgroups: "Iterable[str]") -> bool:
    """Whether a process is in one of these directories or below. Raises OSError."""
    for line in read_file(f"/proc/{pid}/cgroup").decode("utf-8", "surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            place = f"{CGROUP}/{name}{path}/" if name else f"{CGROUP}{path}/"
            if any(place.startswith(cgroup + "/") for cgroup in cgroups):
                return True
    return False
