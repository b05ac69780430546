"""A terminal that is read key by key."""

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raw() -> Iterator[None]:
    """Read keys one by one, without echo."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def keys(seconds: float) -> list[str]:
    """The keys pressed within this time; returns as soon as there is one."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return []
    data = os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace")
    found = []
    while data:
        n = 3 if data.startswith("\x1b[") else 1
        found.append(data[:n])
        data = data[n:]
    return found or ["q"]  # end of file: the terminal is gone
