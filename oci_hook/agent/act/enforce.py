"""Freezes or kills the cgroup of a container that cheats. Processes and cgroups are addressed
by descriptor, so that a reused pid or a cgroup made anew is not hit."""

import os
import signal
import time

from oci_hook.agent.watch.process_owner import is_below
from oci_hook.core.grant import Grant
from oci_hook.linux import cgroup, cgroup_tree
from oci_hook.linux.mount import CGROUP2_SUPER_MAGIC, CGROUP_SUPER_MAGIC
from oci_hook.linux.proc import cgroups, is_running, start_time
from oci_hook.observe import inside

EXIT_SECONDS = 0.5  # for all processes of a killed container to end; after that it counts as not killed
MOST_CGROUPS = 4096  # of one container, that are thawed


def freeze(grant: Grant) -> str:
    """Freeze every process of the container; "" or why that failed. `runc resume ID` undoes it."""
    init = grant.life.init
    try:
        if init is None or not is_running(init):
            return "its init is not known, or has ended"
        controller, directory = _open_freezer(init[0], grant.life.cgroup)
        if directory is None:
            return "it is in no cgroup that can be frozen"
        try:
            if _shared(init[0], controller, grant.life.cgroup):
                return "its cgroup is not its alone"
            if not is_running(init):
                return "it has just ended"
            cgroup.write(directory, *(("freezer.state", "FROZEN") if controller else ("cgroup.freeze", "1")))
        finally:
            os.close(directory)
    except OSError as e:
        return str(e)
    return ""


def is_thawed(grant: Grant) -> bool:
    """True if somebody has let the container go on since `freeze`; in doubt nobody has. By what was asked of the kernel: the
    container's processes can hold up the freezing itself."""
    init = grant.life.init
    try:
        if init is None:
            return False
        controller, directory = _open_freezer(init[0], grant.life.cgroup)
        if directory is None:
            return False
        try:
            asked = cgroup.read(directory, "freezer.self_freezing" if controller else "cgroup.freeze")
            return asked.strip() == "0" and is_running(init)
        finally:
            os.close(directory)
    except OSError:
        return False


def _open_freezer(init: int, reported: str) -> tuple[str, int | None]:
    """The controller that freezes the container ("": version 2), and a descriptor of its cgroup's directory there; None where
    there is none. Raises OSError."""
    for controller, magic in (("freezer", CGROUP_SUPER_MAGIC), ("", CGROUP2_SUPER_MAGIC)):
        if (path := inside.directory(init, controller, reported)) is not None:
            return controller, cgroup.open_path(path, magic)
    return "", None


def kill(grant: Grant, others: tuple[tuple[int, int], ...]) -> str:
    """Kill the container: its init, with which its pid namespace ends, the processes `others` (pid, start time) of it,
    and all processes in its cgroup. Returns "" or why that failed, also if some of them still run after
    EXIT_SECONDS, or were too many to see."""
    init = (grant.life.init,) if grant.life.init else ()
    problems: list[str] = []
    # cgroup version 1 delivers no signal to a frozen process. The cgroup is found by the init, so before it is killed.
    freezer = _freezer(grant)
    _thaw(freezer)
    path, inner, more = _inside(grant)
    _kill_cgroup(path, grant.life.cgroup_inode)
    living = [*dict.fromkeys((*init, *others, *inner))]
    _send(living, problems)
    end = time.monotonic() + EXIT_SECONDS
    while True:
        # In a container without a pid namespace of its own, children forked meanwhile run on.
        _, inner, more = _inside(grant)
        _send(inner, problems)
        living = [process for process in dict.fromkeys((*living, *inner)) if is_running(process)]
        if not living and not more:
            break
        if time.monotonic() >= end:
            if living:
                problems.append(f"{len(living)} of its processes still run, process {living[0][0]} among them")
            if more:
                problems.append("it has too many processes or cgroups to see all of them")
            break
        _thaw(freezer)  # a process that still runs may freeze another one meanwhile
        time.sleep(0.01)
    return "; ".join(dict.fromkeys(problems))


def _inside(grant: Grant) -> tuple[str, list[tuple[int, int]], bool]:
    """(its directory, (pid, start time) of the processes in it, True if there may be more) of the container's cgroup, if that is the
    container's alone."""
    init, own = grant.life.init, os.getpid()
    try:
        path = grant.life.cgroup or (inside.own(init[0]) if init and is_running(init) else None)
        if path and cgroup_tree.is_container(path, grant.life.cgroup_inode):
            found, more = inside.below(path)
            if own not in found and not (more and cgroup_tree.belongs(own, frozenset((path,)))):
                return path, [(pid, start) for pid in found if (start := start_time(pid))], more
    except (OSError, ValueError):
        pass
    return "", [], False


def _kill_cgroup(path: str, inode: int) -> None:
    """Have the kernel kill all in this cgroup and below, however many there are and whatever they fork meanwhile: in version 2, since
    Linux 5.14 (cgroup.kill). inode: of the directory (0: any)."""
    try:
        directory = cgroup.open_path(path or None, CGROUP2_SUPER_MAGIC)
        if directory is None:
            return
        try:
            if inode in (0, os.fstat(directory).st_ino):
                cgroup.write(directory, "cgroup.kill", "1")
        finally:
            os.close(directory)
    except OSError:
        pass  # each is sent a signal


def _send(processes: list[tuple[int, int]], problems: list[str]) -> None:
    for pid, start in processes:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        except OSError as e:
            problems.append(f"process {pid}: {e.strerror}")
            continue
        try:
            if start_time(pid) == start:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except OSError as e:
            problems.append(f"process {pid}: {e.strerror}")
        finally:
            os.close(fd)


def _freezer(grant: Grant) -> str:
    """The container's cgroup in version 1's freezer hierarchy, if that cgroup is the container's alone; else ""."""
    init, reported = grant.life.init, grant.life.cgroup
    try:
        if init is not None and is_running(init) and not _shared(init[0], "freezer", reported):
            return inside.directory(init[0], "freezer", reported) or ""
        # Its init has ended: take the cgroup of the same path as the known one, in the freezer hierarchy.
        head, found, tail = reported.partition("/devices/")
        return f"{head}/freezer/{tail}" if found and init is not None and not is_running(init) else ""
    except OSError:
        return ""


def _thaw(top: str) -> None:
    """Thaw this cgroup and those below, in which a tenant may have frozen processes to keep them from being killed."""
    left = [top] if top else []
    for n, path in enumerate(left):
        try:
            directory = cgroup.open_path(path, CGROUP_SUPER_MAGIC)
            if directory is None:
                continue
            try:
                if cgroup.read(directory, "freezer.self_freezing").strip() != "0":
                    cgroup.write(directory, "freezer.state", "THAWED")
            finally:
                os.close(directory)
            if n < MOST_CGROUPS:
                with os.scandir(path) as entries:
                    left += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue


def _shared(pid: int, controller: str, reported: str) -> bool:
    """True if the container's cgroup in that hierarchy ("": version 2) is the top one or has the agent in it."""
    own = cgroups(os.getpid())
    for names, path in cgroups(pid):
        if controller in names.split(","):
            path = inside.ancestor(path, reported) or path
            return path == "/" or any(is_below(o, (names, path)) for o in own)
    return True
