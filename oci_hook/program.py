"""Common parts of the programs of the container path: the bounds of their work, and their end when it fails.

A failure is a coded line per problem (errors.py) where the program's caller looks for it, an event for the agent, and
the exit status. The programs: gpu-hook-runtime (runtime.py), oci-gpu-hook (hook.py) and its stage precreate
(precreate.py).
"""

import os

from oci_hook.errors import GhError, NoRoomError, Problem, refuse
from oci_hook.ledger import events
from oci_hook.linux import limits
from oci_hook.oci import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Program:
    """One run of one program.

    name: what messages call it. deadline: seconds that its work may take. failed: the exit status when the work fails.
    container, bundle: its id and its bundle, once known. pod: namespace/pod/container, once known. pod_uid: the pod's, ""
    outside Kubernetes. state_dir: where the event of a failure goes; "" until the settings are read, and then there is none.
    """

    __slots__ = ("name", "deadline", "failed", "container", "bundle", "state_dir", "pod", "pod_uid")

    def __init__(self, name: str, deadline: float, failed: int = 1, container: str = "", bundle: str = "") -> None:
        self.name = name
        self.deadline = deadline
        self.failed = failed
        self.container = container
        self.bundle = bundle
        self.state_dir = ""
        self.pod = ""
        self.pod_uid = ""

    def work(self) -> None:
        """The program's own job. It raises GhError to refuse the container, and undoes first what it has done."""
        raise NotImplementedError

    def report(self, problems: "Sequence[Problem]") -> None:
        """Say what went wrong where the caller looks for it. Must not fail."""
        raise NotImplementedError


def run(program: Program) -> int:
    """The exit status: 0 when the work is done, else `program.failed`, and then the problems have been reported."""

    def late(*_: object) -> None:
        raise refuse(
            "GH-405",
            f"{program.name} was not done after {program.deadline:.0f} s; is the node or its ledger's disk overloaded?",
        )

    problems: Sequence[Problem]
    try:
        limits.limit(program.deadline, late)
        program.work()
        return 0
    except GhError as e:
        limits.lift()
        problems = e.problems
        if program.state_dir and not isinstance(e, NoRoomError):  # admit() has recorded those
            who = program.container, problems, program.pod
            events.refused(program.state_dir, *who, pod_uid=program.pod_uid, bundle=program.bundle)
    except MemoryError:
        limits.lift()
        problems = [_no_memory(program.name)]
    except Exception as e:  # a mistake of ours: one line for the user, the traceback for the journal
        import traceback

        limits.lift()
        log.journal(traceback.format_exc())
        text = f"unexpected {type(e).__name__}: {e}; the journal has details; please report it"
        problems = [Problem("GH-405", text)]
    program.report(problems)
    return program.failed


def _no_memory(name: str) -> Problem:
    text = f"the container's config.json or image takes more than the {limits.MEMORY >> 20} MiB of memory that {name}"
    return Problem("GH-412", text + " may use; make config.json smaller, or use another image")


def isolate() -> None:
    """Keep nothing of the caller's: neither its working directory and umask nor descriptors above standard error.

    An inherited descriptor is inheritable. Those that Python opened, such as launcher/start.py's pack, are not, and stay.
    """
    os.chdir("/")
    os.umask(0o022)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                if os.get_inheritable(int(name)):
                    os.close(int(name))
            except OSError:
                pass  # the descriptor of listdir itself
