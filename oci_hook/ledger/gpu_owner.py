"""One install per real GPU: /run/gpu-hook-claims/UUID names the state directory whose ledger may book the GPU.

A transaction holds the file's flock from its look at the other install's ledger until its own grant is committed, so
two installs cannot both find the other one idle. An owner file needs no release: it lapses when its ledger has no grant of
a living container on the GPU. An uninstall removes its own.
"""

import fcntl
import os

from oci_hook.errors import GhError, refuse
from oci_hook.ledger import store
from oci_hook.linux.lock import lock_file, own_dir

OWNERS = "/run/gpu-hook-claims"  # not below /run/lock, where every user of the machine may be first


class OwnGpus:
    """`with OwnGpus(uuids, state_dir):` takes the GPUs for this install, until the block ends and while it has grants.

    Raises NodeError GH-304 when another install has living grants on one, GH-303 when that cannot be found out.
    """

    __slots__ = ("_uuids", "_owner", "_locks")

    def __init__(self, uuids: tuple[str, ...], state_dir: str) -> None:
        self._uuids = sorted(uuids)  # one order for all installs, so that they do not deadlock
        self._owner = os.path.realpath(state_dir) if uuids else ""
        self._locks: list[int] = []

    def __enter__(self) -> None:
        try:
            for uuid in self._uuids:
                fd = _open(f"{OWNERS}/{uuid.replace('/', '_')}")
                self._locks.append(fd)
                self._take(fd, uuid)
        except BaseException as e:
            self._close()
            if isinstance(e, OSError):
                raise store.unusable(OWNERS, e) from None
            raise

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for fd in self._locks:
            os.close(fd)
        self._locks = []

    def _take(self, fd: int, uuid: str) -> None:
        owner = os.fsdecode(os.pread(fd, 4096, 0))
        if owner == self._owner:
            return
        if owner and _has_booked(owner, uuid):
            raise refuse(
                "GH-304",
                f"GPU {uuid} is in use by the install with state directory {owner[:100]}; stop its containers there,"
                " or use another GPU",
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, os.fsencode(self._owner), 0)


def _open(path: str) -> int:
    for _ in range(8):
        own_dir(OWNERS)
        try:
            return lock_file(path, fcntl.LOCK_EX)
        except FileNotFoundError:  # an uninstall removed the folder with its last file
            pass
    return lock_file(path, fcntl.LOCK_EX)


def forget(state_dir: str) -> None:
    """For an uninstall: remove the owner files of this state directory, and the folder if none is left."""
    owner = os.path.realpath(state_dir)
    if not os.path.lexists(OWNERS):
        return
    try:
        own_dir(OWNERS)
        names = os.listdir(OWNERS)
    except (GhError, OSError):
        return
    for name in names:
        try:
            fd = lock_file(f"{OWNERS}/{name}", fcntl.LOCK_EX, wait=False)
        except OSError:  # another process is taking it now
            continue
        if os.fsdecode(os.pread(fd, 4096, 0)) in (owner, ""):
            os.unlink(f"{OWNERS}/{name}")
        os.close(fd)
    try:
        os.rmdir(OWNERS)
    except OSError:
        pass


def _has_booked(state_dir: str, uuid: str) -> bool:
    try:
        # Not snapshot(): the holder of the ledger's lock may be waiting for the file that we hold.
        return any(s.uuid == uuid for g in store.peek(state_dir) for s in g.shares)
    except FileNotFoundError:
        return False
    except GhError:
        return True  # any GPU may be booked in a ledger that cannot be read
