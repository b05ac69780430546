"""Points at which a crash test may stop or kill the ledger: before each call by which it changes or locks a file.

The product has no hook for this: `install` replaces functions of `os` and `fcntl` in this process by ones that first
call `act`, if their caller is the ledger's code. To kill before call N+1 is to kill after call N, so each commit point
is hit on both sides.
"""

import fcntl
import os
import sys
from collections.abc import Callable
from typing import Any

CODE = ("oci_hook.ledger.", "oci_hook.linux.lock")
CALLS = ("mkdir", "rename", "unlink", "rmdir", "chmod", "chown", "fchmod", "fchown", "write", "pwrite", "ftruncate")
CALLS += ("posix_fallocate", "open")


def install(act: Callable[[str], None]) -> None:
    """act gets the call's name and the last two parts of its path ("rename ledger/KEY.tmp"), or the name alone for a
    call by descriptor. To open a file for reading is no such call."""
    for module, name in (*((os, name) for name in CALLS), (fcntl, "flock")):
        setattr(module, name, _acting(act, name, getattr(module, name)))


def _acting(act: Callable[[str], None], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        writes = name != "open" or arguments[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
        if writes and caller.startswith(CODE):
            path = arguments[0] if isinstance(arguments[0], str) else ""
            act(f"{name} {'/'.join(path.split('/')[-2:])}".strip())
        return real(*arguments, **keywords)

    return call
