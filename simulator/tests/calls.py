"""Calls every function of a library in a process of its own, with no context and with one, all arguments 0.

python calls.py LIBRARY CONTEXT(0|1) NAME...: a line for each name: the result, "signal N", "hangs" or "missing".
"""

import ctypes
import os
import signal
import sys

ZEROS = [ctypes.c_void_p(0)] * 24  # registers, and what a structure passed by value takes on the stack
SECONDS = 20


def ready(library: ctypes.CDLL) -> None:
    context = ctypes.c_void_p()
    for result in (
        library.cuInit(0),
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        library.cuCtxSetCurrent(context),
    ):
        assert result == 0, result


def child(library: ctypes.CDLL, name: str, context: bool, out: int) -> None:
    signal.alarm(SECONDS)
    if name.startswith("nvml"):
        if context:
            assert library.nvmlInit_v2() == 0
    elif context:
        ready(library)
    result = getattr(library, name)(*ZEROS)
    os.write(out, str(ctypes.c_int(result).value).encode())


def call(library: ctypes.CDLL, name: str, context: bool) -> str:
    if not hasattr(library, name):
        return "missing"
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(library, name, context, there)
        finally:
            os._exit(1)
    os.close(there)
    said = os.read(here, 100).decode()
    os.close(here)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "hangs" if number == signal.SIGALRM else f"signal {number}"
    return said or "no result"


if __name__ == "__main__":
    loaded = ctypes.CDLL(sys.argv[1])
    for word in sys.argv[3:]:
        print(word, call(loaded, word, sys.argv[2] == "1"), flush=True)
