"""What the agent may do to a container that cheats: freeze its cgroup, or kill it. Each by descriptor, so that a pid or
a cgroup that is another one's by now is not hit."""

import os
import signal
import time

from oci_hook.agent.process_owner import cgroup_lines
from oci_hook.core.grant import Grant
from oci_hook.linux import cgroup
from oci_hook.linux.mount import CGROUP2_SUPER_MAGIC, CGROUP_SUPER_MAGIC
from oci_hook.linux.proc import start_time
from oci_hook.observe import inside

GONE_SECONDS = 0.5  # that a killed container is given to be gone, until it counts as not killed
MOST_CGROUPS = 4096  # of one container, that are thawed


def freeze(grant: Grant) -> str:
    """Stop every process of the container where it is; "" or why not. `runc resume ID` undoes it."""
    init = grant.life.init
    try:
        if init is None or start_time(init[0]) != init[1]:
            return "its init is not known, or gone"
        controller, magic, name, word = "freezer", CGROUP_SUPER_MAGIC, "freezer.state", "FROZEN"
        path = inside.directory(init[0], controller, grant.life.cgroup)
        if path is None:
            controller, magic, name, word = "", CGROUP2_SUPER_MAGIC, "cgroup.freeze", "1"
            path = inside.directory(init[0], controller, grant.life.cgroup)
        directory = cgroup.open_path(path, magic)
        if directory is None:
            return "it is in no cgroup that can be frozen"
        try:
            if _shared(init[0], controller, grant.life.cgroup):
                return "its cgroup is not its alone"
            if start_time(init[0]) != init[1]:
                return "it has just ended"
            cgroup.write(directory, name, word)
        finally:
            os.close(directory)
    except OSError as e:
        return str(e)
    return ""


def kill(grant: Grant, others: tuple[tuple[int, int], ...]) -> str:
    """SIGKILL to the container's init, with which its pid namespace ends, to these processes (pid, start time) of it,
    and to all in its cgroup; "" or why not, which is also that some of them still live after GONE_SECONDS."""
    init = (grant.life.init,) if grant.life.init else ()
    problems: list[str] = []
    # While its init tells where: version 1 of cgroups delivers no signal to a frozen process.
    tops = _frozen(grant)
    _thaw(tops)
    hit = dict.fromkeys((*init, *others, *_inside(grant)))
    _send(tuple(hit), problems)
    end = time.monotonic() + GONE_SECONDS
    while True:
        # Without a pid namespace of its own, what it forks meanwhile lives on.
        if inner := _inside(grant):
            hit.update(dict.fromkeys(inner))
            _send(inner, problems)
        if not (living := [process for process in hit if _is(process)]):
            break
        if time.monotonic() >= end:
            problems.append(f"{len(living)} of its processes still live, process {living[0][0]} among them")
            break
        _thaw(tops)  # whoever still runs may freeze another one meanwhile
        time.sleep(0.01)
    return "; ".join(dict.fromkeys(problems))


def _inside(grant: Grant) -> tuple[tuple[int, int], ...]:
    """(pid, start time) of the processes in its cgroup, where that is its alone."""
    if grant.life.cgroup:
        found = inside.below(grant.life.cgroup, grant.life.cgroup_inode)
    else:
        found = inside.pids(grant.life.init[0], grant.life.cgroup) if grant.life.init and _is(grant.life.init) else None
    own = os.getpid()
    if found is None or own in found:
        return ()
    return tuple((pid, start) for pid in found if (start := start_time(pid)))


def _is(process: tuple[int, int]) -> bool:
    return start_time(process[0]) == process[1]


def _send(processes: tuple[tuple[int, int], ...], problems: list[str]) -> None:
    for pid, start in dict.fromkeys(processes):
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


def _frozen(grant: Grant) -> str:
    """The container's cgroup in version 1's freezer hierarchy, where that is its alone; else ""."""
    init, told = grant.life.init, grant.life.cgroup
    try:
        if init is not None and _is(init) and not _shared(init[0], "freezer", told):
            return inside.directory(init[0], "freezer", told) or ""
        # Its init is gone: the same cgroup beside the one that is known.
        head, found, tail = told.partition("/devices/")
        return f"{head}/freezer/{tail}" if found and init is not None and not _is(init) else ""
    except OSError:
        return ""


def _thaw(top: str) -> None:
    """Thaw this cgroup and those below: a tenant that has cgroups of its own freezes whom it wants to keep."""
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


def _shared(pid: int, controller: str, told: str) -> bool:
    """Whether its container's cgroup in that hierarchy ("": version 2) is the top, or also ours."""
    own = cgroup_lines(os.getpid())
    for line in cgroup_lines(pid):
        names, _, path = line.rpartition(":")
        if controller in names.split(","):
            path = inside.ancestor(path, told) or path
            line = f"{names}:{path}"
            return path == "/" or any(o == line or o.startswith(line + "/") for o in own)
    return True
