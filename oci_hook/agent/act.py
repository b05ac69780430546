"""What the agent may do to a container that cheats: freeze its cgroup, or kill it. Each by descriptor, so that a pid or
a cgroup that is another one's by now is not hit."""

import os
import signal

from oci_hook.agent.members import cgroup_lines
from oci_hook.core.grant import Grant
from oci_hook.linux import cgroup
from oci_hook.node import inside
from oci_hook.node.life import start_time

ROUNDS = 5


def freeze(grant: Grant) -> str:
    """Stop every process of the container where it is; "" or why not. `runc resume ID` undoes it."""
    init = grant.life.init
    try:
        if init is None or start_time(init[0]) != init[1]:
            return "its init is not known, or gone"
        directory, controller = cgroup.open_v1(init[0], "freezer"), "freezer"
        name, word = "freezer.state", "FROZEN"
        if directory is None:
            directory, controller = cgroup.open_v2(init[0]), ""
            name, word = "cgroup.freeze", "1"
        if directory is None:
            return "it is in no cgroup that can be frozen"
        try:
            if _shared(init[0], controller):
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
    and to all in its cgroup; "" or why not."""
    init = (grant.life.init,) if grant.life.init else ()
    problems: list[str] = []
    inner = _inside(grant)
    _send((*init, *others, *inner), problems)
    for _ in range(ROUNDS):  # without a pid namespace of its own, what it forks meanwhile lives on
        if not (inner := _inside(grant)):
            break
        _send(inner, problems)
    _thaw(grant)
    return "; ".join(dict.fromkeys(problems))


def _inside(grant: Grant) -> tuple[tuple[int, int], ...]:
    """(pid, start time) of the processes in its cgroup, where that is its alone."""
    if grant.life.cgroup:
        found = inside.below(grant.life.cgroup, grant.life.cgroup_inode)
    else:
        found = inside.pids(grant.life.init[0]) if grant.life.init and _is(grant.life.init) else None
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


def _thaw(grant: Grant) -> None:
    """Let a paused container die: version 1 of cgroups delivers no signal to a frozen process."""
    init = grant.life.init
    try:
        if init is None or not _is(init) or (directory := cgroup.open_v1(init[0], "freezer")) is None:
            return
        try:
            if not _shared(init[0], "freezer") and cgroup.read(directory, "freezer.state").strip() != "THAWED":
                cgroup.write(directory, "freezer.state", "THAWED")
        finally:
            os.close(directory)
    except OSError:
        pass


def _shared(pid: int, controller: str) -> bool:
    """Whether its cgroup in that hierarchy ("": version 2) is the top, or also ours."""
    own = cgroup_lines(os.getpid())
    for line in cgroup_lines(pid):
        names, _, path = line.rpartition(":")
        if controller in names.split(","):
            return path == "/" or any(o == line or o.startswith(line + "/") for o in own)
    return True
