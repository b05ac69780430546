"""Finds leases (fcntl(2), F_SETLEASE) that processes of containers hold on files which gpu-hook or the driver needs.

No honest program takes a lease there. Another process that opens the file waits until the holder releases the lease, or
fails if it may not wait.
"""

import os
from collections.abc import Callable

from oci_hook.core.grant import Grant
from oci_hook.core.value import Value
from oci_hook.ledger.deliver import page_file
from oci_hook.ledger.slot_files import slot_path
from oci_hook.linux.proc import read_file

LOCKS_MAX = 8 << 20  # bytes of /proc/locks: some 120 000 locks
FDS_MAX = 65536


class Lease(Value):
    """file: (device, inode). write: a write lease, which keeps others even from reading. pid: the process that took it;
    it may have ended, and a child may have inherited the lease."""

    pid: int
    file: tuple[int, int]
    write: bool


class LeasedFile(Value):
    """A file on which no container may hold a lease. what: in words. owner: the key of the grant whose file it is; "" if
    all containers need it."""

    what: str
    owner: str = ""


def parse(text: bytes) -> list[Lease]:
    """The leases in /proc/locks (fs/locks.c, lock_get_status), whose lines are
    `1: LEASE  ACTIVE    WRITE 1234 00:19:567 0 EOF`, BREAKING or BREAKER in ACTIVE's place, UNLCK in WRITE's."""
    found = []
    end = 0
    while (at := text.find(b"LEASE", end)) >= 0:
        begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        end = len(text) if end < 0 else end
        words = text[begin:end].split()
        try:
            at = words.index(b"LEASE")
            major, minor, inode = words[at + 4].split(b":")
            device = os.makedev(int(major, 16), int(minor, 16))
            # For a lease that is being broken, the kernel shows what it is to become.
            write = words[at + 2] != b"READ" or words[at + 1] != b"ACTIVE"
            found.append(Lease(int(words[at + 3]), (device, int(inode)), write))
        except (ValueError, IndexError):
            continue
    return found


def now() -> tuple[list[Lease], bool]:
    """(the leases that are held, whether these are all): of /proc/locks, LOCKS_MAX bytes are read. Raises OSError."""
    data = read_file("/proc/locks", LOCKS_MAX)
    return parse(data), len(data) < LOCKS_MAX


def holds(pid: int, file: tuple[int, int], spent: Callable[[], bool]) -> bool:
    """True if this process has the descriptor to which a lease on this file belongs. /proc/PID/fdinfo (proc(5)) lists
    leases since Linux 4.1. spent: a budget (proc.budget); once it is, no further descriptor is looked at."""
    folder = f"/proc/{pid}/fdinfo"
    try:
        for name in () if spent() else os.listdir(folder)[:FDS_MAX]:
            if spent():
                return False
            try:
                data = read_file(f"{folder}/{name}", 1 << 16)
            except FileNotFoundError:
                continue
            if b"LEASE" in data and any(lease.file == file for lease in parse(data)):
                return True
    except OSError:
        pass
    return False


def of_state(state_dir: str, grants: dict[str, Grant]) -> dict[tuple[int, int], LeasedFile]:
    """The files of the state directory that containers have mounted, by device and inode."""
    found: dict[tuple[int, int], LeasedFile] = {}

    def add(path: str, file: LeasedFile) -> None:
        try:
            st = os.stat(path)  # a lease does not delay stat
            found[st.st_dev, st.st_ino] = file
        except OSError:
            pass

    for key, grant in grants.items():
        add(page_file(state_dir, key), LeasedFile("its policy page", key))
        for share in grant.shares:
            if share.slot:
                who = f"slot file {share.slot} of GPU {share.uuid}"
                add(slot_path(state_dir, share.uuid, share.slot), LeasedFile(who, key))
    return found
