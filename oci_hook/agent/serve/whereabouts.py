"""The running agent's process and address, in the file that it locks. The settings do not tell them, since flags of the
command may override the address."""

import os

from oci_hook.agent.options import Options
from oci_hook.core.layout import AGENT_LOCK

MAX = 16384


def tell(fd: int, options: Options) -> None:
    """Write down this process and its options in the lock file. Never fails: a full disk leaves the file empty."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n{options.address}\n{options.token_file}\n".encode(), 0)
    except OSError:
        pass


def used(state_dir: str, given: Options) -> Options:
    """The options of the agent that runs; `given`, those of the settings, where none runs or says other ones."""
    path = f"{state_dir}/{AGENT_LOCK}"
    try:
        with open(path, "rb") as file:
            words = file.read(MAX).decode().split("\n")
    except (OSError, ValueError):
        return given
    pid = holder(path)
    if not pid or len(words) < 4 or words[0] != str(pid):
        return given
    return given.replace(address=words[1], token_file=words[2])


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
