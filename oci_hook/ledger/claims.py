"""One install per real GPU: /run/gpu-hook-claims/UUID names the state directory whose ledger may book the GPU.

The file's flock is held from the look at the other install's ledger until our own grant is committed: no two installs
can both find the other one idle. A claim needs no release; it lapses when its ledger has no living grant on the GPU.
An uninstall takes its own away.
"""

import fcntl
import os

from oci_hook.errors import GhError, refuse
from oci_hook.ledger import store
from oci_hook.linux.lock import lock_file, own_dir

CLAIMS = "/run/gpu-hook-claims"  # not below /run/lock, where every user of the machine may be first


class Claims:
    """`with Claims(uuids, state_dir):` the GPUs stay ours at least until the block ends, and then while we use them.

    Raises NodeError GH-304 when another install has living grants on one, GH-303 when that cannot be found out.
    """

    __slots__ = ("_uuids", "_owner", "_held")

    def __init__(self, uuids: tuple[str, ...], state_dir: str) -> None:
        self._uuids = sorted(uuids)  # one order for all installs, so none waits for the other in a circle
        self._owner = os.path.realpath(state_dir) if uuids else ""
        self._held: list[int] = []

    def __enter__(self) -> None:
        try:
            for uuid in self._uuids:
                fd = _open(f"{CLAIMS}/{uuid.replace('/', '_')}")
                self._held.append(fd)
                self._claim(fd, uuid)
        except BaseException as e:
            self._close()
            if isinstance(e, OSError):
                raise store.unusable(CLAIMS, e) from None
            raise

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held = []

    def _claim(self, fd: int, uuid: str) -> None:
        owner = os.fsdecode(os.pread(fd, 4096, 0))
        if owner == self._owner:
            return
        if owner and _books(owner, uuid):
            raise refuse(
                "GH-304",
                f"GPU {uuid} is in use by the install with state directory {owner[:100]}; stop its containers there,"
                " or use another GPU",
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, os.fsencode(self._owner), 0)


def _open(path: str) -> int:
    for _ in range(8):
        own_dir(CLAIMS)
        try:
            return lock_file(path, fcntl.LOCK_EX)
        except FileNotFoundError:  # the last claim of an install that goes took the folder along
            pass
    return lock_file(path, fcntl.LOCK_EX)


def forget(state_dir: str) -> None:
    """Remove the claims of an install that goes, and the folder with the last one. Others' stay."""
    owner = os.path.realpath(state_dir)
    if not os.path.lexists(CLAIMS):
        return
    try:
        own_dir(CLAIMS)
        names = os.listdir(CLAIMS)
    except (GhError, OSError):
        return
    for name in names:
        try:
            fd = lock_file(f"{CLAIMS}/{name}", fcntl.LOCK_EX, wait=False)
        except OSError:  # somebody claims it now
            continue
        if os.fsdecode(os.pread(fd, 4096, 0)) in (owner, ""):
            os.unlink(f"{CLAIMS}/{name}")
        os.close(fd)
    try:
        os.rmdir(CLAIMS)
    except OSError:
        pass


def _books(state_dir: str, uuid: str) -> bool:
    try:
        # Not snapshot(): its lock may be held by a process that waits for the claim that we hold.
        return any(s.uuid == uuid for g in store.peek(state_dir) for s in g.shares)
    except FileNotFoundError:
        return False
    except GhError:
        return True  # a ledger that cannot be read may book anything
