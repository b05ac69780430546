"""What one run of ours may take of the node, outside of any container's cgroup: time and memory.

Both are the process's own and outlive execve(2), so they are lifted before it becomes the real runtime.
"""

import _signal  # type: ignore[import-not-found]  # `signal` itself imports enum
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Bytes of address space, of which Python has 14 MiB when it starts. The rest is for a config.json of oci/spec.py's
# MAX_SIZE; an image takes a few MiB.
MEMORY = 256 << 20

_before: "list[Any]" = []


def limit(seconds: float, late: "Callable[..., object]") -> None:
    """After that time `late` is called, in this thread; more memory than MEMORY is a MemoryError from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = _signal.signal(_signal.SIGALRM, late)
    blocked = _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGALRM,))
    _before[:] = (soft, hard, handler, blocked)
    most = MEMORY if soft == resource.RLIM_INFINITY else min(soft, MEMORY)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    _signal.setitimer(_signal.ITIMER_REAL, seconds)


def no_deadline() -> None:
    """From now on `late` is not called: what follows must come to its end."""
    _signal.setitimer(_signal.ITIMER_REAL, 0)


def lift() -> None:
    """Everything as `limit` found it; nothing where it was not called."""
    _signal.setitimer(_signal.ITIMER_REAL, 0)
    if _before:
        soft, hard, handler, blocked = _before
        _before.clear()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)
        _signal.signal(_signal.SIGALRM, _signal.SIG_DFL if handler is None else handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
