"""Limits the time and the memory that one run of gpu-hook takes on the node, since it is in no container's cgroup.

Both limits belong to the process and survive execve(2), so gpu-hook lifts them before it becomes the real runtime.
"""

import _signal  # type: ignore[import-not-found]  # `signal` itself imports enum
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Bytes of address space. Python uses 14 MiB when it starts, an image a few MiB; the rest is for a config.json of
# oci/spec.py's MAX_SIZE.
MEMORY = 256 << 20

_before: "list[Any]" = []


def limit(seconds: float, late: "Callable[..., object]") -> None:
    """Call `late` in this thread after so many seconds, and make Python raise MemoryError beyond MEMORY bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = _signal.signal(_signal.SIGALRM, late)
    blocked = _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGALRM,))
    _before[:] = (soft, hard, handler, blocked)
    most = MEMORY if soft == resource.RLIM_INFINITY else min(soft, MEMORY)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    _signal.setitimer(_signal.ITIMER_REAL, seconds)


def lift() -> None:
    """Undo `limit`; nothing if it was not called."""
    _signal.setitimer(_signal.ITIMER_REAL, 0)
    if _before:
        soft, hard, handler, blocked = _before
        _before.clear()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)
        _signal.signal(_signal.SIGALRM, _signal.SIG_DFL if handler is None else handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
