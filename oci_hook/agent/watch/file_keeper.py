"""Keeps the files that containers mount open, so that no lease can be taken on them (fcntl(2), F_SETLEASE).

A write lease is refused while another process has the file open. Without this, root in a container could take one on
the driver's library through its read-only mount while no process has it open; the next program that loads the library
would sleep for fs.lease-break-time, 45 s. A read lease is refused only while the file is open for writing; slot files
are therefore kept open for writing."""

import os
import stat
from collections.abc import Iterable

from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import CONTAINER_DIR, SHIM_DIR
from oci_hook.ledger.slot_files import slot_path

MOST = 4096  # files
KINDS = ("library", "binary", "data", "firmware")


def wanted(inventory: Inventory | None, prefix: str) -> list[str]:
    """The paths of the files that containers mount: the driver's and the install's."""
    paths = []
    if inventory is not None:
        paths = [inventory.libcuda, inventory.libnvml, *(f.path for f in inventory.files if f.kind in KINDS)]
    for top in (SHIM_DIR, CONTAINER_DIR):
        for folder, _, names in os.walk(os.path.join(prefix, top)):
            paths += [os.path.join(folder, name) for name in names]
    return [path for path in dict.fromkeys(paths) if path][:MOST]


def slots(state_dir: str, grants: Iterable[Grant]) -> list[str]:
    """The paths of the slot files of all grants."""
    shares = [share for grant in grants for share in grant.shares if share.slot]
    return [slot_path(state_dir, share.uuid, share.slot) for share in shares]


class FileKeeper:
    """`keep` opens these files and closes all others. access: os.O_RDONLY or os.O_RDWR. files: paths by (device, inode).

    missed: files that could not be opened because of a lease. The attempt makes the kernel break the lease, so that a
    later `keep` can open the file."""

    def __init__(self, access: int = os.O_RDONLY) -> None:
        self._access = access
        self.files: dict[tuple[int, int], str] = {}
        self.missed: list[str] = []
        self._open: dict[str, tuple[int, tuple[int, int]]] = {}

    def keep(self, paths: Iterable[str]) -> None:
        self.missed, self.files = [], {}
        new: dict[str, tuple[int, tuple[int, int]]] = {}
        for path in paths:
            fd, at = self._open.pop(path, (-1, (0, 0)))
            try:
                st = os.stat(path)
                if stat.S_ISREG(st.st_mode):
                    self.files[st.st_dev, st.st_ino] = path
                if fd >= 0 and at == (st.st_dev, st.st_ino):
                    new[path] = fd, at
                    continue
                if stat.S_ISREG(st.st_mode):
                    fresh = os.open(path, self._access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
                    st = os.fstat(fresh)
                    new[path] = fresh, (st.st_dev, st.st_ino)
            except BlockingIOError:
                self.missed.append(path)
            except OSError:
                pass  # the file is not there any more
            if fd >= 0:
                os.close(fd)
        for fd, _ in self._open.values():
            os.close(fd)
        self._open = new

    def close(self) -> None:
        self.keep(())
