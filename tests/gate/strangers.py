"""Locks and leases that a tenant can take on a slot file that it may read, and the owner on its own."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

READ_LOCK = "fcntl.lockf(fd, fcntl.LOCK_SH)"
# From the end: the kernel keeps the list sorted and searches it from the beginning.
MANY_LOCKS = "[fcntl.lockf(fd, fcntl.LOCK_EX, 1, 1000 + 2 * i) for i in range(20000, 0, -1)]"
MANY_READ_LOCKS = "[fcntl.lockf(fd, fcntl.LOCK_SH, 1, 1000 + 2 * i) for i in range(20000, 0, -1)]"
WRITE_LEASE = "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)"
READ_LEASE = "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)"


@contextlib.contextmanager
def holds(path: Path, what: str, write: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A process that keeps the lock or lease until it is killed."""
    script = (
        "import fcntl, os, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        f"fd = os.open(sys.argv[1], os.{'O_RDWR' if write else 'O_RDONLY'})\n"
        f"{what}\n"
        "print('there', flush=True)\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-I", "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        assert process.stdout.readline() == "there\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
