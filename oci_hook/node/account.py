"""A container's account page (docs/account-page.md) as the host reads it, and the one word that the host writes.

The page belongs to the container, which may put anything in its place. It is found below the container's root without
leaving it or following a link, only if it is a regular file of a tmpfs, and read and written by pread and pwrite, never
mapped. What it says is a number to show or to compare with the driver's, never one to rely on.
"""

import os
import stat
import struct
from errno import ELOOP, ENOENT, EXDEV

from oci_hook.core.grant import Grant
from oci_hook.core.layout import ACCOUNT_DIR, ACCOUNT_FILE
from oci_hook.core.value import Value
from oci_hook.linux.mount import TMPFS_MAGIC, fstatfs_type, mountinfo
from oci_hook.linux.openat2 import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from oci_hook.node.life import start_time

# struct gh_account_page of shim/account_page.h
MAGIC = 0x3154434148474755
VERSION = 2
SLOTS = 1024
MOST_CARDS = 16
HEAD = struct.Struct("<QI")
CARDS_OFFSET = 1024
CARD = struct.Struct("<QQQQ32x")
OWNERS = struct.Struct(f"<{SLOTS}Q")
OWNERS_OFFSET = 4096
SURCHARGE_OFFSET = 8
SPARES = struct.Struct(f"<{SLOTS * MOST_CARDS}Q")
SPARES_OFFSET = 544768
SPARE_SHIFT = 40
SIZE = 675840
VALUE_SHIFT = 30
VALUE_MAX = (1 << 34) - 1
SWEEP = 1 << 41
UNIT = 512
MIB = 1 << 20


class DamagedPage(Exception):
    """What is in the page's place is no page: the reason."""


class Books(Value):
    """totals, surcharges: bytes per card, in the order of the grant's shares; totals without what processes keep for
    their next allocation, which any of them can have. owners: (pid in the container, start
    time's low 31 bits, pid namespace's low 10 bits) of each process that the stand-in keeps books for."""

    __slots__ = ("totals", "surcharges", "owners")

    def __init__(
        self, totals: tuple[int, ...], surcharges: tuple[int, ...], owners: frozenset[tuple[int, int, int]]
    ) -> None:
        self.totals = totals
        self.surcharges = surcharges
        self.owners = owners


class Account:
    """The way to one container's page, kept open: the tmpfs that the runtime made for it, by descriptor.

    A file system that the container mounts there later, which might never answer, is not entered. `close` ends it.
    """

    __slots__ = ("_dir",)

    def __init__(self, pid: int, start: int) -> None:
        """pid, start time: the container's init. Raises OSError, DamagedPage."""
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if start_time(pid) != start:
                raise ProcessLookupError(pid)
            mounts = mountinfo(str(pid))
            slow = [m.point.rstrip("/") + "/" for m in mounts if m.fstype.startswith("fuse")]
            if any((ACCOUNT_DIR + "/").startswith(point) for point in slow):
                raise DamagedPage("a file system of a user's process is mounted on the way to it")
            # A link on the way (an image's /run) is followed inside the root; where it could lead into such a file
            # system, which may never answer, it is not.
            resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (RESOLVE_NO_SYMLINKS if slow else 0)
            self._dir = openat2(root, ACCOUNT_DIR, os.O_PATH | os.O_DIRECTORY, resolve)
        except OSError as e:
            if e.errno == ELOOP:
                raise DamagedPage("a link is in its place") from None
            raise
        finally:
            os.close(root)
        try:
            if fstatfs_type(self._dir) != TMPFS_MAGIC:
                raise DamagedPage("it is not on a tmpfs")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._dir >= 0:
            os.close(self._dir)
            self._dir = -1

    def __enter__(self) -> "Account":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, flags: int) -> int:
        resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
        name = os.path.basename(ACCOUNT_FILE)
        try:
            # Not opened for I/O before it is known to be a file: some devices act on that.
            path = openat2(self._dir, name, os.O_PATH | os.O_NOFOLLOW, resolve)
        except OSError as e:
            if e.errno in (ELOOP, EXDEV):
                raise DamagedPage("a link or a mount is in its place") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(path).st_mode):
                raise DamagedPage("it is not a regular file")
            fd = openat2(self._dir, name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, resolve)
            if os.path.samestat(os.fstat(fd), os.fstat(path)):
                return fd
            os.close(fd)
            raise DamagedPage("it is being replaced")
        finally:
            os.close(path)

    def read(self, cards: int, owners: bool = True) -> Books | None:
        """The books of the first `cards` cards; None: the container has none yet. Raises OSError, DamagedPage."""
        try:
            fd = self._open(os.O_RDONLY)
        except OSError as e:
            if e.errno == ENOENT:
                return None
            raise
        try:
            data = os.pread(fd, OWNERS_OFFSET + OWNERS.size if owners else OWNERS_OFFSET, 0)
            kept = os.pread(fd, SPARES.size, SPARES_OFFSET) if lent(data, cards) else b""
        finally:
            os.close(fd)
        return parse(data, cards, owners, kept)

    def surcharge(self, card: int, amount: int) -> None:
        """Write how many bytes count beyond the total. Raises OSError, DamagedPage."""
        fd = self._open(os.O_RDWR)
        try:
            if os.fstat(fd).st_size != SIZE or HEAD.unpack(os.pread(fd, HEAD.size, 0)) != (MAGIC, VERSION):
                raise DamagedPage("it is not of this version, or was cut")
            word = struct.pack("<Q", min(-(-amount // UNIT), VALUE_MAX))
            os.pwrite(fd, word, CARDS_OFFSET + CARD.size * card + SURCHARGE_OFFSET)
        except struct.error:
            raise DamagedPage("it was cut") from None
        finally:
            os.close(fd)


def lent(data: bytes, cards: int) -> bool:
    """Whether any process may keep idle memory: then `parse` needs the page's bytes from SPARES_OFFSET, too."""
    whole = min(cards, (len(data) - CARDS_OFFSET) // CARD.size)
    return any(CARD.unpack_from(data, CARDS_OFFSET + CARD.size * i)[3] for i in range(whole))


def parse(data: bytes, cards: int, owners: bool = True, kept: bytes = b"") -> Books | None:
    """Books from a page's first bytes; None where nothing was booked yet (all zero). Raises DamagedPage."""
    if not any(data[: HEAD.size]):
        return None
    need = OWNERS_OFFSET + OWNERS.size if owners else OWNERS_OFFSET
    if len(data) < need or HEAD.unpack_from(data) != (MAGIC, VERSION):
        raise DamagedPage("it is not of this version, or was cut")
    words = [CARD.unpack_from(data, CARDS_OFFSET + CARD.size * i) for i in range(cards)]
    found = OWNERS.unpack_from(data, OWNERS_OFFSET) if owners else ()
    spares = SPARES.unpack(kept) if len(kept) == SPARES.size else ()
    idle = [sum(spare >> SPARE_SHIFT for spare in spares[i::MOST_CARDS]) for i in range(cards)]
    return Books(
        tuple(max((w[0] >> VALUE_SHIFT) - idle[i], 0) * UNIT for i, w in enumerate(words)),
        tuple(min(w[1], VALUE_MAX) * UNIT for w in words),
        frozenset((o >> 42, o & 0x7FFFFFFF, o >> 31 & 0x3FF) for o in found if o and not o & SWEEP),
    )


def used_mib(grant: Grant) -> list[int | None]:
    """MiB in use per share, rounded up; None where the container tells nothing (not started, no CUDA yet, ended)."""
    if grant.life.init is not None and grant.shares:
        try:
            with Account(*grant.life.init) as account:
                books = account.read(len(grant.shares), owners=False)
            if books is not None:
                return [-(-total // MIB) for total in books.totals]
        except (OSError, DamagedPage):
            pass
    return [None] * len(grant.shares)
