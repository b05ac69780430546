"""What the agent may do to a container that cheats: freeze its cgroup, or kill it. Each by descriptor, so that a pid or
a cgroup that is another one's by now is not hit."""

import os
import signal

from oci_hook.agent.members import cgroup_lines
from oci_hook.core.grant import Grant
from oci_hook.linux import cgroup
from oci_hook.node.life import start_time


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
    """SIGKILL to the container's init, with which its pid namespace ends, and to these processes (pid, start time) of
    it; "" or why not."""
    problems = []
    for pid, start in dict.fromkeys((*((grant.life.init,) if grant.life.init else ()), *others)):
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
    return "; ".join(problems)


def _shared(pid: int, controller: str) -> bool:
    """Whether its cgroup in that hierarchy ("": version 2) is the top, or also ours."""
    own = cgroup_lines(os.getpid())
    for line in cgroup_lines(pid):
        names, _, path = line.rpartition(":")
        if controller in names.split(","):
            return path == "/" or any(o == line or o.startswith(line + "/") for o in own)
    return True
