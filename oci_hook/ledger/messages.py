"""Messages for containers: what their pages are to say after a transaction, kept on disk until it is delivered.

A container may hold a lease on a file that it sees (fcntl(2), F_SETLEASE: container root with CAP_SETUID can become any
user, and so the file's owner). A process that opens such a file then sleeps for fs.lease-break-time. Therefore a
transaction of the ledger writes each message to a file that only root sees (`write`). Messages are delivered after the
ledger's lock is released (ledger/deliver.py), to all containers that can be reached without waiting.

STATE/messages/NAME             the message that was delivered last
STATE/messages/NAME.new         the message to deliver next
STATE/messages/NAME.delivering  the message that is being delivered; after a crash the next delivery starts there
STATE/messages/NAME.lock        flock of the process that delivers it; policies.lock: for all policy pages
STATE/messages/unclear          a transaction changed grants and may not have written all its messages: the next one
                                writes the messages of all grants

NAME: GPU-UUID, for all containers on a GPU; KEY-N, for page N of one container's page file alone.
"""

import os

from oci_hook.core.layout import MESSAGES_DIR
from oci_hook.linux.proc import read_file

GPU = "gpu-"
NEW, DELIVERING, LOCK, TEMPORARY = ".new", ".delivering", ".lock", ".tmp"
UNCLEAR = "unclear"
POLICIES = "policies"
MESSAGE_MAX = 1 << 20


def folder(state_dir: str) -> str:
    return f"{state_dir}/{MESSAGES_DIR}"


def write(state_dir: str, name: str, message: bytes) -> None:
    """Write a message. For the holder of the ledger's lock. Created by rename: a reader sees all of it or none. Raises
    OSError."""
    path = f"{folder(state_dir)}/{name}"
    replace(path + NEW, message, path + TEMPORARY)


def replace(path: str, data: bytes, temporary: str) -> None:
    """Replace a file that only root sees in one step. Raises OSError."""
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    os.rename(temporary, path)


def newest(state_dir: str, name: str) -> bytes:
    """The newest message of this name, delivered or not; b"" for none. Raises OSError.

    A message moves from .new to .delivering to its plain name and never back, so looking in this order finds it.
    """
    return _first(f"{folder(state_dir)}/{name}", (NEW, DELIVERING, ""))


def delivered(state_dir: str, name: str) -> bytes:
    """The message that was delivered last; b"" for none. Raises OSError."""
    return _first(f"{folder(state_dir)}/{name}", ("",))


def _first(path: str, ends: tuple[str, ...]) -> bytes:
    for end in ends:
        try:
            return read_file(path + end, MESSAGE_MAX)
        except FileNotFoundError:
            pass
    return b""


def begin(state_dir: str, name: str) -> bytes | None:
    """For the holder of NAME.lock: the message to deliver now; None where there is none. Raises OSError."""
    path = f"{folder(state_dir)}/{name}"
    try:
        os.rename(path + NEW, path + DELIVERING)  # replaces one that a crash left, which is out of date
    except FileNotFoundError:
        pass
    try:
        return read_file(path + DELIVERING, MESSAGE_MAX)
    except FileNotFoundError:
        return None


def end(state_dir: str, name: str) -> None:
    """The message that `begin` gave is delivered. A GPU's is kept, to compare the next one with. Raises OSError."""
    path = f"{folder(state_dir)}/{name}"
    try:
        if name.startswith(GPU):
            os.rename(path + DELIVERING, path)
        else:
            os.unlink(path + DELIVERING)
    except FileNotFoundError:  # the grant ended meanwhile, and the sweep removed its message
        pass


def names(state_dir: str) -> list[str]:
    """The names of all files in the folder; [] where there is no folder."""
    try:
        return os.listdir(folder(state_dir))
    except FileNotFoundError:
        return []


def pending(there: list[str]) -> list[str]:
    """The names of the messages that are not delivered yet, given the folder's files; those of GPUs first."""
    found = {name.removesuffix(end) for name in there for end in (NEW, DELIVERING) if name.endswith(end)}
    return sorted(found, key=lambda name: (not name.startswith(GPU), name))


def gpus(there: list[str]) -> list[str]:
    """The UUIDs of all GPUs that ever had a message, given the folder's files."""
    ends = (NEW, DELIVERING, LOCK, TEMPORARY)
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
            except FileNotFoundError:  # the message was delivered just now
                pass


def set_unclear(state_dir: str) -> None:
    """Before the first change of a transaction. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    os.close(os.open(f"{folder(state_dir)}/{UNCLEAR}", flags, 0o600))


def set_clear(state_dir: str) -> None:
    """After the last one. Raises OSError."""
    os.unlink(f"{folder(state_dir)}/{UNCLEAR}")
