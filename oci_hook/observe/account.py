"""A container's account page (docs/internals/account-page.md) as the host reads it, and the one word that the host
writes.

The page belongs to the container, which may put anything in its place. It is found below the container's root without
leaving it or following a link, only if it is a regular file of a tmpfs, and read and written by pread and pwrite, never
mapped. What it says is a number to show or to compare with the driver's, never one to rely on.

Nobody may take the slots of dead processes out of the page but the container's own processes, at their next look. Who
reads it here leaves them out: a slot counts while its owner lives, by the lock that it holds on the slot, or else by
being among the container's processes; in doubt it lives.
"""

import fcntl
import os
import stat
import struct
import time
from errno import ELOOP, ENOENT, EWOULDBLOCK, EXDEV

from oci_hook.core.grant import Grant
from oci_hook.core.layout import ACCOUNT_DIR, ACCOUNT_FILE
from oci_hook.core.value import Value
from oci_hook.linux.mount import TENANT_MOUNTS, TMPFS_MAGIC, TooManyMounts, fstatfs_type, mountinfo
from oci_hook.linux.openat2 import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from oci_hook.linux.proc import start_time
from oci_hook.observe import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# struct gh_account_page of shim/pages/account_page.h
MAGIC = 0x3154434148474755
VERSION = 2
SLOTS = 1024
MOST_GPUS = 16
HEAD = struct.Struct("<QI")
GPUS_OFFSET = 1024
GPU = struct.Struct("<QQQQ32x")
OWNERS = struct.Struct(f"<{SLOTS}Q")
OWNERS_OFFSET = 4096
STACKS_OFFSET = 12288
ENTRIES_OFFSET = 20480
ENTRY = struct.Struct("<QQQQ")  # announce, committed, ack, contexts
SURCHARGE_OFFSET = 8
WORD = struct.Struct("<Q")
SPARES = struct.Struct(f"<{SLOTS * MOST_GPUS}Q")
SPARES_OFFSET = 544768
SPARE_SHIFT = 40
SIZE = 675840
SPARE_TAKEN = (1 << SPARE_SHIFT) - 1
VALUE_SHIFT = 30
TAG_BITS = 20
TAG_MASK = (1 << TAG_BITS) - 1
SLOT_MASK = 0x3FF
VALUE_MAX = (1 << 34) - 1
SWEEP = 1 << 41
UNIT = 512
MIB = 1 << 20
BLOCK = 32  # slots
EMPTY = bytes(8 * BLOCK)
FLOCK = struct.Struct("hhqqi4x")  # struct flock, fcntl(2), where off_t has 64 bits
# A tenant can make each question for a lock long, and have thousands of processes and any word in each slot.
PATIENCE = 0.02  # seconds of our processor time for the locks of one page
LISTING = 0.05  # and for the container's processes, which are listed once for all its slots
REST = 100  # and after that, for so many times what it took, neither is asked for

Owner = tuple[int, int, int]


class DamagedPage(Exception):
    """What is in the page's place is no page: the reason."""


class Books(Value):
    """totals, surcharges: bytes per GPU, in the order of the grant's shares; totals of what lives, and without what
    processes keep for their next allocation, which any of them can have. owners: (pid in the container, start time's
    low 31 bits, pid namespace's low 10 bits) of each living process that the shim keeps books for. shares: what each
    of them has per GPU, where that was asked for."""

    totals: tuple[int, ...]
    surcharges: tuple[int, ...]
    owners: frozenset[Owner]
    shares: dict[Owner, tuple[int, ...]] = {}


class Account:
    """The way to one container's page, kept open: the tmpfs that the runtime made for it, by descriptor.

    A file system that the container mounts there later, which might never answer, is not entered. `close` ends it.
    """

    __slots__ = ("_dir", "_init", "_told", "_alive", "_rest", "_took", "_table", "file")

    def __init__(self, pid: int, start: int, told: str = "") -> None:
        """pid, start time: the container's init. told: its cgroup's directory, where the runtime told it. Raises
        OSError, DamagedPage."""
        self._init, self._told = pid, told
        self._alive: dict[tuple[int, int, int], bool | tuple[int, int]] = {}  # by (slot, owner, stack)
        self._rest = self._took = 0.0
        self._table: inside.Table | None = None  # during one read
        self.file = (0, 0)  # device and inode of the page, once it was looked at
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if start_time(pid) != start:
                raise ProcessLookupError(pid)
            try:
                mounts = mountinfo(str(pid), TENANT_MOUNTS)
            except TooManyMounts:
                raise DamagedPage("it has too many mounts") from None
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
            there = os.fstat(path)
            self.file = there.st_dev, there.st_ino
            if not stat.S_ISREG(there.st_mode):
                raise DamagedPage("it is not a regular file")
            fd = openat2(self._dir, name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, resolve)
            if os.path.samestat(os.fstat(fd), there):
                return fd
            os.close(fd)
            raise DamagedPage("it is being replaced")
        except OSError as e:
            if e.errno == EWOULDBLOCK:  # fcntl(2), F_SETLEASE: to those who will not wait
                raise DamagedPage("a lease is held on it") from None
            raise
        finally:
            os.close(path)

    def read(self, gpus: int, shares: bool = False) -> Books | None:
        """The books of the first `gpus` GPUs; None: the container has none yet. Raises OSError, DamagedPage."""
        try:
            fd = self._open(os.O_RDONLY)
        except OSError as e:
            if e.errno == ENOENT:
                return None
            raise
        try:
            data = os.pread(fd, ENTRIES_OFFSET, 0)
            kept = os.pread(fd, SPARES.size, SPARES_OFFSET) if lent(data, gpus) else b""
            slots, self._took, self._table = slots_of(data), 0.0, None
            dead = [slot for slot in slots if not self._lives(fd, *slot)]
            asked = [slot for slot in slots if shares or slot in dead]
            entries = {slot: os.pread(fd, ENTRY.size * gpus, ENTRIES_OFFSET + 512 * slot[0]) for slot in asked}
            # A slot that another process has by now tells nothing of the one that had it.
            for slot in [slot for slot in dead if os.pread(fd, 8, OWNERS_OFFSET + 8 * slot[0]) != WORD.pack(slot[1])]:
                dead.remove(slot)
        finally:
            os.close(fd)
            self._table = None
        self._alive = {slot: known for slot, known in self._alive.items() if slot in slots}
        return parse(data, gpus, kept, dead, entries, slots)

    def _lives(self, fd: int, slot: int, owner: int, stack: int) -> bool:
        """Whether the process that has this slot lives. Who is dead stays so."""
        if owner & SWEEP:
            return False  # nobody's but a sweeper's
        known = self._alive.get((slot, owner, stack))
        if known is False:
            return False
        if isinstance(known, tuple) and start_time(known[0]) == known[1]:
            return True
        if time.monotonic() < self._rest:
            return True
        began = time.thread_time()
        try:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_RDLCK, 0, slot, 1, 0))
            held = FLOCK.unpack(answer)[0] != fcntl.F_UNLCK
        except OSError:
            held = True
        self._took += time.thread_time() - began
        if self._took > PATIENCE:
            self._rest = time.monotonic() + REST * self._took
        if held:
            return True
        self._alive[slot, owner, stack] = found = self._process(owner, stack)
        return found is not False

    def _process(self, owner: int, stack: int) -> "bool | tuple[int, int]":
        """The process of the host whose slot this is, as shim/process/identity.c judges it: (pid, start time); True: in doubt."""
        if self._table is None:
            began = time.thread_time()
            self._table = inside.Table(inside.pids(self._init, self._told), LISTING)
            if (took := time.thread_time() - began) > LISTING:
                self._rest = time.monotonic() + REST * took
        for process in self._table.find(who(owner)):
            if stack and process.stack > 1 and process.stack != stack:
                continue  # another program since exec
            return process.pid, process.start
        return not self._table.whole

    def surcharge(self, gpu: int, amount: int) -> None:
        """Write how many bytes count beyond the total. Raises OSError, DamagedPage."""
        fd = self._open(os.O_RDWR)
        try:
            if os.fstat(fd).st_size != SIZE or HEAD.unpack(os.pread(fd, HEAD.size, 0)) != (MAGIC, VERSION):
                raise DamagedPage("it is not of this version, or was cut")
            word = struct.pack("<Q", min(-(-amount // UNIT), VALUE_MAX))
            os.pwrite(fd, word, GPUS_OFFSET + GPU.size * gpu + SURCHARGE_OFFSET)
        except struct.error:
            raise DamagedPage("it was cut") from None
        finally:
            os.close(fd)


def lent(data: bytes, gpus: int) -> bool:
    """Whether any process may keep idle memory: then `parse` needs the page's bytes from SPARES_OFFSET, too."""
    whole = min(gpus, (len(data) - GPUS_OFFSET) // GPU.size)
    return any(GPU.unpack_from(data, GPUS_OFFSET + GPU.size * i)[3] for i in range(whole))


def slots_of(data: bytes) -> list[tuple[int, int, int]]:
    """(number, owner's word, bottom of its stack) of the slots in use, from a page's first bytes."""
    if len(data) < ENTRIES_OFFSET:
        return []
    found = []
    for first in range(0, SLOTS, BLOCK):  # nearly all of it is empty
        at = OWNERS_OFFSET + WORD.size * first
        if data[at : at + len(EMPTY)] != EMPTY:
            for i in range(first, first + BLOCK):
                (owner,) = WORD.unpack_from(data, OWNERS_OFFSET + WORD.size * i)
                if owner:
                    found.append((i, owner, *WORD.unpack_from(data, STACKS_OFFSET + WORD.size * i)))
    return found


def who(owner: int) -> Owner:
    """An owner's word, taken apart."""
    return owner >> 42, owner & 0x7FFFFFFF, owner >> 31 & 0x3FF


def share(slot: int, total: int, entry: bytes, spare: int) -> int:
    """What a slot's process uses of a GPU, in units: gh_slot_use of shim/account/account.c."""
    words: tuple[int, ...] = ENTRY.unpack(entry)
    announce, committed, ack, _ = words
    held, tag = committed >> TAG_BITS & VALUE_MAX, announce & TAG_MASK
    if tag != committed & TAG_MASK and ((total >> 20 & SLOT_MASK, total & TAG_MASK) == (slot, tag) or ack == tag):
        held += (announce >> TAG_BITS) - ((announce >> 63) << 44)
    held = (held - (spare & SPARE_TAKEN)) & VALUE_MAX
    return max(0, held - (spare >> SPARE_SHIFT))


def parse(
    data: bytes,
    gpus: int,
    kept: bytes = b"",
    dead: "Sequence[tuple[int, int, int]]" = (),
    entries: "Mapping[tuple[int, int, int], bytes] | None" = None,
    slots: "Sequence[tuple[int, int, int]] | None" = None,
) -> Books | None:
    """Books from a page's first bytes; None where nothing was booked yet (all zero). dead: the slots, as slots_of has
    them, that do not count. entries: of these, and of those whose shares are wanted, their part of the page from
    ENTRIES_OFFSET. slots: all that are in use, where that is known. Raises DamagedPage."""
    if not any(data[: HEAD.size]):
        return None
    if len(data) < ENTRIES_OFFSET or HEAD.unpack_from(data) != (MAGIC, VERSION):
        raise DamagedPage("it is not of this version, or was cut")
    words = [GPU.unpack_from(data, GPUS_OFFSET + GPU.size * i) for i in range(gpus)]
    spares = SPARES.unpack(kept) if len(kept) == SPARES.size else ()
    used = [
        (w[0] >> VALUE_SHIFT) - sum(spare >> SPARE_SHIFT for spare in spares[i::MOST_GPUS]) for i, w in enumerate(words)
    ]
    shares: dict[Owner, tuple[int, ...]] = {}
    for slot, entry in (entries or {}).items():
        if len(entry) < ENTRY.size * gpus:
            raise DamagedPage("it was cut")
        own = [
            share(
                slot[0],
                words[i][0],
                entry[ENTRY.size * i : ENTRY.size * (i + 1)],
                spares[slot[0] * MOST_GPUS + i] if spares else 0,
            )
            for i in range(gpus)
        ]
        if slot in dead:
            used = [n - m for n, m in zip(used, own, strict=True)]
        else:
            shares[who(slot[1])] = tuple(n * UNIT for n in own)
    gone = set(dead)
    return Books(
        tuple(max(n, 0) * UNIT for n in used),
        tuple(min(w[1], VALUE_MAX) * UNIT for w in words),
        frozenset(who(slot[1]) for slot in slots or slots_of(data) if slot not in gone and not slot[1] & SWEEP),
        shares,
    )


def look(grant: Grant, shares: bool = False) -> "Books | str | None":
    """The books of a container; a text: what is wrong with its page; None: it tells nothing (not started, no CUDA yet,
    ended, or we may not look)."""
    if grant.life.init is not None and grant.shares:
        try:
            with Account(*grant.life.init, grant.life.cgroup) as account:
                return account.read(len(grant.shares), shares)
        except DamagedPage as e:
            return str(e)
        except OSError:
            pass
    return None
