"""The running agent's process, in the file that it locks, and whether it keeps off the driver."""

import os

from oci_hook.core.layout import AGENT_LOCK

MAX = 16384
OFF = "off"


def tell(fd: int, off: bool = False) -> None:
    """Write down this process in the lock file. off: no process of the agent uses the driver. Never fails: a full disk leaves the
    file empty."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n{OFF if off else ''}".encode(), 0)
    except OSError:
        pass


def is_off(state_dir: str) -> bool:
    """True if the agent has said that it keeps off the driver."""
    try:
        with open(f"{state_dir}/{AGENT_LOCK}", "rb") as file:
            return file.read(MAX).endswith(f"\n{OFF}".encode())
    except OSError:
        return False


def holder(path: str) -> int:
    """The process that holds this lock file, or 0. Read from /proc/locks, since trying it could keep an agent out."""
    try:
        st = os.stat(path)
        place = f"{os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}:{st.st_ino}"
        with open("/proc/locks") as locks:  # tenants may hold any number
            words = (line.split() for line in locks)
            return next((int(w[4]) for w in words if w[1] == "FLOCK" and w[5:6] == [place]), 0)
    except OSError:
        return 0
