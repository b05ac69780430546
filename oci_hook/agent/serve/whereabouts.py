"""The running agent's process and address, in the file that it locks, and whether it keeps off the driver. The settings do
not tell them, since flags of the command may override the address."""

import os

from oci_hook.agent.options import Options
from oci_hook.core.layout import AGENT_LOCK

MAX = 16384
OFF = "off"


def tell(fd: int, options: Options, why: str = "", off: bool = False) -> None:
    """Write down this process and its options in the lock file. why: it is at no address, though it should be at one. off: no
    process of the agent uses the driver. Never fails: a full disk leaves the file empty."""
    words = (str(os.getpid()), options.address, options.token_file, why, OFF if off else "")
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, "\n".join(words).encode(), 0)
    except OSError:
        pass


def is_off(state_dir: str) -> bool:
    """True if the agent has said that it keeps off the driver."""
    try:
        with open(f"{state_dir}/{AGENT_LOCK}", "rb") as file:
            return file.read(MAX).endswith(f"\n{OFF}".encode())
    except OSError:
        return False


def used(state_dir: str, given: Options) -> Options:
    """The options of the agent that runs; `given`, those of the settings, where none runs or says other ones."""
    words = _told(state_dir)
    return given.replace(address=words[1], token_file=words[2]) if words else given


def why_nowhere(state_dir: str) -> str:
    """Why the agent that runs is not at the address where it should be; "" where it is there, or should be at none."""
    words = _told(state_dir)
    return words[3] if words else ""


def _told(state_dir: str) -> list[str]:
    """The lines of the agent that runs: process, address, token's file, why; [] where none runs or the file says less."""
    path = f"{state_dir}/{AGENT_LOCK}"
    try:
        with open(path, "rb") as file:
            words = file.read(MAX).decode().split("\n")
    except (OSError, ValueError):
        return []
    pid = holder(path)
    return words if pid and len(words) >= 4 and words[0] == str(pid) else []


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
