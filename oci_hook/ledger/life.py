"""What keeps a grant alive: its creator, the container's init, its cgroup. From /proc and the runtime's state file.

The creator is the process that asked for the grant. Launcher, Python and the runtime follow each other by exec and keep its pid. Once
the runtime has written its state file, the container's init is found there, also while the creator lives: `runc run` in the foreground
ends after its container. ledger/proof.py decides from all of these. Processes are (pid, start time), as in linux/proc.py.
"""

import os
import time
from errno import ENODEV

from oci_hook.core.grant import Grant, Life
from oci_hook.core.layout import MARKER
from oci_hook.linux import cgroup_tree
from oci_hook.linux.cgroup_tree import devices, directory_of, is_container
from oci_hook.linux.proc import read_file, start_time
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BUNDLE_ROOT = "bundle:"  # Identity.root of a grant made by an OCI hook, which cannot know the runtime's directory
CGROUP = cgroup_tree.MOUNTED
NO_END = 1 << 40  # a Life.deadline that no clock reaches: the grant of a ResourceClaim
STATE_MAX = 4 << 20  # bytes of a runtime's state file
CGROUPS_MAX = 200  # below a container's, that are looked into one by one
SCAN_SECONDS = 0.1


def found(grant: Grant) -> tuple[Life, bool] | None:
    """(the grant's Life according to the runtime's state file; whether that file names this grant). None if the runtime knows
    no container of this id, or only one older than the init that the grant's Life names. A container older than the grant's
    creator is not the grant's: the Life then names nothing."""
    who, life = grant.who, grant.life
    if who.root.startswith(BUNDLE_ROOT) or not valid_id(who.id):
        return None
    folder = who.root + "/" + who.id
    init = _runc_state(folder) or _crun_state(folder) or _youki_state(folder)
    if init is None:
        return None
    pid, start, cgroup, marker = init
    if life.init is not None and start < life.init[1]:
        return None
    if life.init is None and life.creator is not None and start < life.creator[1]:
        return Life(life.boot_id, space=life.space), False
    inode = _cgroup_inode(cgroup)
    named = marker.partition(" ")[0] == grant.key
    new = Life(life.boot_id, None, (pid, start), cgroup if inode else "", inode, space=life.space)
    return new, named


def kept(grant: Grant, folder: str) -> "tuple[Life, bool] | None":
    """(the grant's Life as the launcher kept it beside the grant's page; whether it names a cgroup). None if it kept nothing.
    The launcher copies the runtime's state file when the container is started, killed or deleted."""
    init = _runc_state(folder) or _crun_state(folder)
    life = grant.life
    if init is None or (life.creator is not None and init[1] < life.creator[1]):
        return None
    pid, start, cgroup, _ = init
    inode = _cgroup_inode(cgroup)
    return Life(life.boot_id, None, (pid, start), cgroup if inode else "", inode, space=life.space), bool(cgroup)


def gone(grant: Grant) -> bool:
    """Whether neither the runtime's directory of the container nor the cgroup that was planned for it is there."""
    who, cgroup = grant.who, grant.life.cgroup
    return bool(cgroup and valid_id(who.id) and not who.root.startswith(BUNDLE_ROOT)) and not (
        os.path.lexists(who.root + "/" + who.id) or os.path.lexists(cgroup)
    )


def planned_cgroup(path: str, id: str, crun: bool = False) -> str:
    """The cgroup directory that a runtime will make for linux.cgroupsPath, of the devices controller or of version 2;
    "" where the path does not determine it. The id counts where there is no path. A relative one is below the top (crun), below
    the runtime's own cgroup (runc, version 1) or beside that (runc, version 2, whose cgroups with processes have none below).
    No `..` leads above either (runc, CleanPath). It may be the top (`is_top`), which no Life names.

    With the systemd driver it is SLICE:PREFIX:NAME (runc, docs/systemd.md), and a-b.slice lies in a.slice.
    """
    if path.count(":") == 2:
        slice_, prefix, name = path.split(":")
        slice_ = slice_ or "system.slice"
        if not slice_.endswith(".slice") or "/" in path or not name:
            return ""
        parts = slice_[: -len(".slice")].split("-")
        above = "".join("/" + "-".join(parts[: i + 1]) + ".slice" for i in range(len(parts)))
        unit = name if name.endswith(".slice") else f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
        path = f"{above if slice_ != '-.slice' else ''}/{unit}"
    if not path:
        if not valid_id(id):
            return ""
        path = id
    above, v1 = "", devices()
    if not path.startswith("/") and not crun:
        if not (above := directory_of(os.getpid())):
            return ""
        if not v1 and above != CGROUP:
            above = os.path.dirname(above)
    return os.path.normpath(f"{above or v1 or CGROUP}{os.path.normpath('/' + path)}")


def is_top(cgroup: str) -> bool:
    """Whether this cgroup directory is the top of its hierarchy, which holds every process of the node."""
    return cgroup in (CGROUP, devices() or CGROUP)


def valid_id(id: str) -> bool:
    """Whether a runtime would accept this container id; such a name is one path component and never `.` or `..`.

    runc: `^[\\w+-\\.]+$` over ASCII, where `+-.` is the range `+ , - .` (libcontainer/factory_linux.go).
    """
    return (
        0 < len(id) <= 1024 and id not in (".", "..") and id.isascii() and all(c.isalnum() or c in "_+,-." for c in id)
    )


def expected(life: Life) -> bool:
    """Whether its container may still be made by a program whose process we do not know (Life.deadline)."""
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
    # crun keeps a copy of config.json beside its status file.
    marker = str((_member(_load(folder + "/config.json"), "annotations") or {}).get(MARKER, ""))
    # crun stores the path below the hierarchy: the unified one, or each v1 controller's.
    if not path.strip("/"):
        return pid, start, "", marker
    unified = os.path.exists(f"{CGROUP}/{path}/cgroup.procs")
    return pid, start, os.path.normpath(f"{CGROUP}{'' if unified else '/devices'}/{path}"), marker


def _youki_state(folder: str) -> tuple[int, int, str, str] | None:
    """youki writes no start time: a process that started after the file was last written is not the container's."""
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
        return pid, start, directory_of(pid), str((_member(state, "annotations") or {}).get(MARKER, ""))
    except (KeyError, TypeError, ValueError, OSError):
        return None


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
    """The directory's inode number; 0 when it is no container's cgroup."""
    try:
        return os.stat(path).st_ino if is_container(path, 0) else 0
    except (OSError, ValueError):
        return 0


def occupied(life: Life, but: int = 0) -> bool:
    """Whether a process is in its cgroup, other than `but`; a cgroup that cannot be read counts as occupied."""
    if not life.cgroup:
        return False
    try:
        if not is_container(life.cgroup, life.cgroup_inode):
            return False
        if not but and os.path.exists(life.cgroup + "/cgroup.events"):  # cgroup v2 answers for the whole subtree
            return b"populated 0" not in read_file(life.cgroup + "/cgroup.events")
        # 0: a process of a pid namespace that we do not see.
        found = cgroup_tree.processes(life.cgroup, CGROUPS_MAX)
        return any(not pid or pid != but and start_time(pid) for pids in found for pid in pids)
    except cgroup_tree.TooManyCgroups:
        return cgroup_tree.any_belongs(life.cgroup, SCAN_SECONDS)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        return e.errno != ENODEV  # removed meanwhile; anything else: never assume that a container has ended
