"""What containers are to be told by the pages that they see, and how it gets there.

A container may hold a lease on a file that it sees (fcntl(2), F_SETLEASE: container root with CAP_SETUID can be any
user, and so the file's owner). Whoever opens that file then sleeps for fs.lease-break-time. So a transaction of the
ledger writes what is to be said to a file that root alone sees (`say`), and what is said goes out after the ledger's
lock is let go (ledger/deliver.py), to whoever can be told without waiting.

STATE/told/NAME          what was said last, and went out
STATE/told/NAME.new      what is said now
STATE/told/NAME.telling  what is going out; a crash leaves it, and the next delivery begins with it
STATE/told/NAME.lock     flock of the one who delivers it; policies.lock: for all policy pages
STATE/told/unclear       a transaction changed grants, and may not have said so: the next one says everything anew

NAME: GPU-UUID, for all containers on a GPU; KEY-N, for page N of one container's page file alone.
"""

import os

from oci_hook.core.layout import TOLD_DIR
from oci_hook.linux.proc import read_file

GPU = "gpu-"
NEW, TELLING, LOCK, TEMPORARY = ".new", ".telling", ".lock", ".tmp"
UNCLEAR = "unclear"
POLICIES = "policies"
MESSAGE_MAX = 1 << 20


def folder(state_dir: str) -> str:
    return f"{state_dir}/{TOLD_DIR}"


def say(state_dir: str, name: str, message: bytes) -> None:
    """For the holder of the ledger's lock. Comes into being by rename: there wholly or not at all. Raises OSError."""
    path = f"{folder(state_dir)}/{name}"
    replace(path + NEW, message, path + TEMPORARY)


def replace(path: str, data: bytes, temporary: str) -> None:
    """Put a file of root's own in its place in one step. Raises OSError."""
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    os.rename(temporary, path)


def said(state_dir: str, name: str) -> bytes:
    """The newest message of this name, delivered or not; b"" for none. Raises OSError.

    A message moves on from .new to .telling to its plain name, never back: looked for in this order it is found.
    """
    return _first(f"{folder(state_dir)}/{name}", (NEW, TELLING, ""))


def delivered(state_dir: str, name: str) -> bytes:
    """The message that went out last; b"" for none. Raises OSError."""
    return _first(f"{folder(state_dir)}/{name}", ("",))


def _first(path: str, ends: tuple[str, ...]) -> bytes:
    for end in ends:
        try:
            return read_file(path + end, MESSAGE_MAX)
        except FileNotFoundError:
            pass
    return b""


def begin(state_dir: str, name: str) -> bytes | None:
    """For the holder of NAME.lock: the message that is to go out now; None where there is none. Raises OSError."""
    path = f"{folder(state_dir)}/{name}"
    try:
        os.rename(path + NEW, path + TELLING)  # over what a crash left: it is out of date
    except FileNotFoundError:
        pass
    try:
        return read_file(path + TELLING, MESSAGE_MAX)
    except FileNotFoundError:
        return None


def end(state_dir: str, name: str) -> None:
    """What `begin` gave went out. A GPU's message is kept, to compare the next one with. Raises OSError."""
    path = f"{folder(state_dir)}/{name}"
    try:
        if name.startswith(GPU):
            os.rename(path + TELLING, path)
        else:
            os.unlink(path + TELLING)
    except FileNotFoundError:  # its grant ended meanwhile, and the sweep took it away
        pass


def names(state_dir: str) -> list[str]:
    """All that is in the folder; none where there is none."""
    try:
        return os.listdir(folder(state_dir))
    except FileNotFoundError:
        return []


def pending(there: list[str]) -> list[str]:
    """The names of messages that have not gone out, among the folder's files; GPUs first."""
    found = {name.removesuffix(end) for name in there for end in (NEW, TELLING) if name.endswith(end)}
    return sorted(found, key=lambda name: (not name.startswith(GPU), name))


def gpus(there: list[str]) -> list[str]:
    """The UUIDs of all GPUs of which ever was said anything."""
    ends = (NEW, TELLING, LOCK, TEMPORARY)
    plain = {next((name.removesuffix(e) for e in ends if name.endswith(e)), name) for name in there}
    return sorted(name[len(GPU) :] for name in plain if name.startswith(GPU))


def private(name: str) -> tuple[str, int]:
    """(key, page number) of the message for one container alone. Raises ValueError for another name."""
    key, _, page = name.rpartition("-")
    return key, int(page)


def forget(state_dir: str, there: list[str], keep: "set[str] | dict[str, object]") -> None:
    """Remove the messages for containers that have no grant, and half-written files. For the holder of the ledger's
    lock. Raises OSError."""
    for name in there:
        key = name.partition("-")[0]
        half = name.startswith(GPU) and name.endswith(TEMPORARY)
        if half or (name not in (UNCLEAR, POLICIES + LOCK) and key != GPU[:-1] and key not in keep):
            try:
                os.unlink(f"{folder(state_dir)}/{name}")
            except FileNotFoundError:  # it went out just now
                pass


def set_unclear(state_dir: str) -> None:
    """Before the first change of a transaction. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    os.close(os.open(f"{folder(state_dir)}/{UNCLEAR}", flags, 0o600))


def set_clear(state_dir: str) -> None:
    """After the last one. Raises OSError."""
    os.unlink(f"{folder(state_dir)}/{UNCLEAR}")
