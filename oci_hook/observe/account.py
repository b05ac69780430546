"""A container's account page (docs/internals/account-page.md) as the host reads it, and the one word that the host
writes.

The page belongs to the container, which may put anything in its place. It is found below the container's root without
leaving that or following a link, it must be a regular file on a tmpfs, and it is read and written by pread and pwrite,
never mapped. Its numbers are shown, and compared with the driver's; nothing relies on them.

Only the container's own processes may clear the account slots of memory that has gone, at their next look. A reader
here leaves those slots out: a slot counts while the lock on it is held, and by nothing else; in doubt it is held. The
process that took it may have exited: then a forked child keeps its memory, and the lock.
"""

import fcntl
import os
import stat
import struct
import time
from errno import EAGAIN, EINVAL, ELOOP, ENOENT, EWOULDBLOCK, EXDEV

from oci_hook.core.grant import Grant
from oci_hook.core.layout import ACCOUNT_DIR, ACCOUNT_FILE
from oci_hook.core.value import Value
from oci_hook.linux.mount import TENANT_MOUNTS, TooManyMounts, mount_of
from oci_hook.linux.openat2 import (
    RESOLVE_CACHED,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)
from oci_hook.linux.patience import Late, Patience
from oci_hook.linux.proc import start_time, with_files
from oci_hook.observe import inside
from oci_hook.observe.inside import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# struct gh_account_page of shim/pages/account_page.h
MAGIC = 0x3154434148474755
VERSION = 3
SLOTS = 1024
MOST_GPUS = 16
HEAD = struct.Struct("<QI")
GPUS_OFFSET = 1024
GPU = struct.Struct("<QQQQQQ16x")
FIXED_OFFSET = 16
FIXED_SIZE = SLOTS // 8
SHARED = struct.Struct(f"<{SLOTS}H")
SHARED_OFFSET = 2048
OWNERS = struct.Struct(f"<{SLOTS}Q")
OWNERS_OFFSET = 4096
ENTRIES_OFFSET = 12288
ENTRY_STEP = 512  # of a slot, with its entries of all GPUs
ENTRY = struct.Struct("<QQQQ")  # announce, committed, ack, contexts
SURCHARGE_OFFSET = 8
WORD = struct.Struct("<Q")
FREE_CACHES = struct.Struct(f"<{SLOTS * MOST_GPUS}Q")
FREE_CACHES_OFFSET = 536576
FREE_SHIFT = 40
SIZE = 667648
FREE_TAKEN = (1 << FREE_SHIFT) - 1
VALUE_SHIFT = 30
TAG_BITS = 20
TAG_MASK = (1 << TAG_BITS) - 1
SLOT_MASK = 0x3FF
VALUE_MAX = (1 << 34) - 1
UNIT = 512
BLOCK = 32  # slots that are compared with EMPTY at once
EMPTY = bytes(8 * BLOCK)
FLOCK = struct.Struct("hhqqi4x")  # struct flock, fcntl(2), where off_t has 64 bits
# A tenant can make each query of a lock slow, and can have thousands of processes and any word in each slot. So a read
# may take PATIENCE seconds of our processor time for locks and LISTING for the container's processes, which are listed
# once for all slots, where one has an owner that is not known yet. After a longer one, neither is done for REST times
# what it took.
PATIENCE = 0.02
LISTING = 0.05
REST = 100
# What the container has mounted on the way to the page may never answer, whatever it is: an overlay on its own FUSE.
_walks = Patience(0.2, REST, 1024, os.close)

REFUSED = "device memory is refused in the container (GH-308)"  # as unusable() of shim/account/account_file.c says it
ANEW = f"; {REFUSED}: make it anew"


class DamagedPage(Exception):
    """The file in the page's place is not a valid page, or there is no room for one; the text says why."""


class PageFigures(Value):
    """A page's contents. totals, surcharges: bytes per GPU, in the order of the grant's shares. totals is of the slots in
    use, without the memory that processes have ready for their next allocation, which any of them can have. owners: (pid
    in the container, low 32 bits of the start time) of each process that took one of these slots. by_process: what each
    of them has per GPU, in bytes, if that was asked for; else only of those that have exited. kept: of totals, what is of
    processes that have exited."""

    totals: tuple[int, ...]
    surcharges: tuple[int, ...]
    owners: frozenset[Owner]
    by_process: dict[Owner, tuple[int, ...]] = {}
    kept: tuple[int, ...] = ()


class Account:
    """One container's page, reached by a descriptor of the tmpfs that the runtime made for it; `close` releases that.

    What the container mounts there later might never answer, and is not waited for.
    """

    __slots__ = ("_dir", "_init", "_reported", "_processes", "_rest", "_took", "_table", "file")

    def __init__(self, pid: int, start: int, reported: str = "") -> None:
        """Open the folder of the page. pid, start: the container's init. reported: the directory of its cgroup, if the
        runtime reports it. Raises OSError, DamagedPage."""
        self._init, self._reported = pid, reported
        self._processes: dict[int, tuple[int, int] | None] = {}  # by owner word: its process on the host; None: exited
        self._rest = self._took = 0.0
        self._table: inside.Table | None = None  # during one read
        self.file = (0, 0)  # device and inode of the page, once it was opened
        try:
            self._dir = _folder(pid, start)
        except OSError as e:
            if e.errno == ELOOP:
                raise DamagedPage("a link is in its place") from None
            raise
        try:
            mount = mount_of(self._dir, with_files(pid), TENANT_MOUNTS)
            if mount is None or mount.fstype != "tmpfs":
                raise DamagedPage("it is not on a tmpfs")
        except BaseException as e:
            self.close()
            if isinstance(e, TooManyMounts):
                raise DamagedPage("it has too many mounts") from None
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
            # It is opened for I/O only once it is known to be a file: some devices act on being opened.
            path = openat2(self._dir, name, os.O_PATH | os.O_NOFOLLOW, resolve)
        except OSError as e:
            if e.errno in (ELOOP, EXDEV):
                raise DamagedPage("a link or a mount is in its place") from None
            raise
        try:
            there = os.fstat(path)
            self.file = there.st_dev, there.st_ino
            if not stat.S_ISREG(there.st_mode):
                raise DamagedPage(f"it is not a regular file{ANEW}")
            fd = openat2(self._dir, name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, resolve)
            if os.path.samestat(os.fstat(fd), there):
                return fd
            os.close(fd)
            raise DamagedPage("it is being replaced")
        except OSError as e:
            if e.errno == EWOULDBLOCK:  # fcntl(2), F_SETLEASE: the answer to O_NONBLOCK
                raise DamagedPage("a lease is held on it") from None
            raise
        finally:
            os.close(path)

    def read(self, gpus: int, by_process: bool = False) -> PageFigures | None:
        """The usage of the first `gpus` GPUs; None: the container has no page yet. Raises OSError, DamagedPage."""
        try:
            fd = self._open(os.O_RDONLY)
        except OSError as e:
            if e.errno == ENOENT:
                self._check_room(0, 1)
                return None
            raise
        try:
            self._check_room(512 * os.fstat(fd).st_blocks)
            data = os.pread(fd, ENTRIES_OFFSET, 0)
            ready = os.pread(fd, FREE_CACHES.size, FREE_CACHES_OFFSET) if has_free_caches(data, gpus) else b""
            slots, self._took, self._table = slots_of(data), 0.0, None
            gone = [slot for slot in slots if not self._locked(fd, slot[0])]
            exited = [slot for slot in slots if slot not in gone and not self._runs(slot[1])]
            asked = slots if by_process else sorted(gone + exited)
            entries = _entries(fd, asked, gpus)
            # An entry that was read after another process had taken the slot is not the former owner's.
            owners = set(slots_of(os.pread(fd, ENTRIES_OFFSET, 0))) if gone else set()
            gone = [slot for slot in gone if slot in owners]
        finally:
            os.close(fd)
            self._table = None
        words = {word for _, word in slots}
        self._processes = {word: process for word, process in self._processes.items() if word in words}
        return parse(data, gpus, ready, gone, entries, slots, exited)

    def _check_room(self, has: int, inodes: int = 0) -> None:
        """has: bytes of the page that have their room. inodes: that it needs still. Raises DamagedPage where the
        shim, which needs room for all of it, has none."""
        if has >= SIZE:
            return
        folder = os.fstatvfs(self._dir)  # a tmpfs without limits says 0 blocks, 0 inodes
        no_inode = folder.f_files and folder.f_ffree < inodes
        if no_inode or folder.f_blocks and folder.f_bavail * folder.f_bsize < SIZE - has:
            then = f"remove other files in {ACCOUNT_DIR} there, then start the program again"
            raise DamagedPage(f"its folder is full; {REFUSED}: {then}")

    def immovable(self) -> "tuple[tuple[Owner, ...], tuple[Owner, ...]]":
        """The processes with memory that the driver cannot move to the host: with managed or multicast memory, and those
        that made memory which several share. Raises OSError, DamagedPage."""
        try:
            fd = self._open(os.O_RDONLY)
        except FileNotFoundError:
            return (), ()
        try:
            data = os.pread(fd, ENTRIES_OFFSET, 0)
            slots = [(slot, owner_of(word)) for slot, word in slots_of(data) if self._locked(fd, slot)]
        finally:
            os.close(fd)
        if not slots or HEAD.unpack_from(data) != (MAGIC, VERSION):
            return (), ()
        fixed, shared = data[FIXED_OFFSET : FIXED_OFFSET + FIXED_SIZE], SHARED.unpack_from(data, SHARED_OFFSET)
        return (
            tuple({owner for slot, owner in slots if fixed[slot // 8] >> slot % 8 & 1}),
            tuple({owner for slot, owner in slots if shared[slot]}),
        )

    def _locked(self, fd: int, slot: int) -> bool:
        """True if the slot is in use."""
        if time.monotonic() < self._rest:
            return True
        began = time.thread_time()
        try:
            locked = any(_lock_is_held(fd, at) for at in (slot, SLOTS + slot))
        except OSError:
            locked = True
        self._took += time.thread_time() - began
        if self._took > PATIENCE:
            self._rest = time.monotonic() + REST * self._took
        return locked

    def _runs(self, owner: int) -> bool:
        """True if the process that took this slot runs; in doubt it does."""
        if owner in self._processes:
            known = self._processes[owner]
            if known is None or start_time(known[0]) == known[1]:
                return known is not None
        if time.monotonic() < self._rest:
            return True
        if self._table is None:
            began = time.thread_time()
            self._table = inside.Table(inside.pids(self._init, self._reported), LISTING)
            if (took := time.thread_time() - began) > LISTING:
                self._rest = time.monotonic() + REST * took
        found = self._table.find(owner_of(owner))
        if found is not None:
            self._processes[owner] = found
        elif self._table.whole:
            self._processes[owner] = None
        return found is not None or not self._table.whole

    def waiting(self, gpus: int) -> "tuple[tuple[int, int], ...]":
        """Of each of the first `gpus` GPUs: bytes that an allocation waits for, and a number that changes with each of its
        tries. () where the container has no page. Raises OSError, DamagedPage."""
        try:
            fd = self._open(os.O_RDONLY)
        except FileNotFoundError:
            return ()
        try:
            data = os.pread(fd, GPU.size * gpus, GPUS_OFFSET)
        finally:
            os.close(fd)
        words = [GPU.unpack_from(data, GPU.size * i) for i in range(len(data) // GPU.size)]
        return tuple((min(w[4], VALUE_MAX) * UNIT, w[5]) for w in words)

    def surcharge(self, gpu: int, amount: int) -> None:
        """Write into the page how many bytes count beyond a GPU's total. gpu: index of the grant's share.

        Raises OSError, DamagedPage.
        """
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


def _folder(pid: int, start: int) -> int:
    """The page's folder; a link on the way (an image's /run) is followed inside the root. The kernel knows the way by heart
    to what the runtime mounted; else file systems are asked. Raises OSError, DamagedPage."""
    try:
        return _walk(pid, start, RESOLVE_CACHED)
    except OSError as e:
        if e.errno not in (EAGAIN, EINVAL):  # the latter before Linux 5.12
            raise
    try:
        return int(_walks.call((pid, start), lambda: _walk(pid, start, 0)))
    except Late:
        raise DamagedPage("a file system on the way to it does not answer") from None


def _walk(pid: int, start: int, how: int) -> int:
    root = os.open(f"/proc/{with_files(pid)}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if start_time(pid) != start:
            raise ProcessLookupError(pid)
        return openat2(root, ACCOUNT_DIR, os.O_PATH | os.O_DIRECTORY, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | how)
    finally:
        os.close(root)


def _lock_is_held(fd: int, at: int) -> bool:
    """True if somebody holds a lock on a byte of the page's file. Raises OSError."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, 0, at, 1, 0))
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _entries(fd: int, slots: list[tuple[int, int]], gpus: int) -> dict[tuple[int, int], bytes]:
    """The entries of these slots, by one read: the container can have thousands told of each read, at our cost."""
    if not slots:
        return {}
    first, last = slots[0][0], slots[-1][0]
    data = os.pread(fd, ENTRY_STEP * (last + 1 - first), ENTRIES_OFFSET + ENTRY_STEP * first)
    at = {slot: ENTRY_STEP * (slot[0] - first) for slot in slots}
    return {slot: data[begin : begin + ENTRY.size * gpus] for slot, begin in at.items()}


def has_free_caches(data: bytes, gpus: int) -> bool:
    """True if a process may have a free cache: then `parse` needs the page's bytes from FREE_CACHES_OFFSET, too."""
    whole = min(gpus, (len(data) - GPUS_OFFSET) // GPU.size)
    return any(GPU.unpack_from(data, GPUS_OFFSET + GPU.size * i)[3] for i in range(whole))


def slots_of(data: bytes) -> list[tuple[int, int]]:
    """(number, owner's word) of the slots that have an owner, from a page's first bytes."""
    if len(data) < ENTRIES_OFFSET:
        return []
    found = []
    for first in range(0, SLOTS, BLOCK):  # nearly all of it is empty
        at = OWNERS_OFFSET + WORD.size * first
        if data[at : at + len(EMPTY)] != EMPTY:
            for i in range(first, first + BLOCK):
                (owner,) = WORD.unpack_from(data, OWNERS_OFFSET + WORD.size * i)
                if owner:
                    found.append((i, owner))
    return found


def owner_of(owner: int) -> Owner:
    """The fields of an owner's word."""
    return owner >> 32, owner & 0xFFFFFFFF


def slot_use(slot: int, total: int, entry: bytes, cache: int) -> int:
    """A slot's use of a GPU, in units: gh_account_slot_used of shim/account/operation.c."""
    words: tuple[int, ...] = ENTRY.unpack(entry)
    announce, committed, ack, _ = words
    used, tag = committed >> TAG_BITS & VALUE_MAX, announce & TAG_MASK
    if tag != committed & TAG_MASK and ((total >> 20 & SLOT_MASK, total & TAG_MASK) == (slot, tag) or ack == tag):
        used += (announce >> TAG_BITS) - ((announce >> 63) << 44)
    used = (used - (cache & FREE_TAKEN)) & VALUE_MAX
    return max(0, used - (cache >> FREE_SHIFT))


def parse(
    data: bytes,
    gpus: int,
    ready: bytes = b"",
    gone: "Sequence[tuple[int, int]]" = (),
    entries: "Mapping[tuple[int, int], bytes] | None" = None,
    slots: "Sequence[tuple[int, int]] | None" = None,
    exited: "Sequence[tuple[int, int]]" = (),
) -> PageFigures | None:
    """The usage in a page's first bytes; None where nothing was accounted yet (all zero). ready: the page's bytes from
    FREE_CACHES_OFFSET, or b"". gone, exited: the slots, as slots_of has them, that do not count, and those that count
    though their process has exited. entries: their part of the page from ENTRIES_OFFSET, and that of the slots wanted in
    `by_process`. slots: all that have an owner, if known. Raises DamagedPage."""
    if not any(data[: HEAD.size]):
        return None
    if HEAD.unpack(data[: HEAD.size].ljust(HEAD.size, b"\0")) != (MAGIC, VERSION):
        raise DamagedPage(f"it is not of this version{ANEW}")
    if len(data) < ENTRIES_OFFSET:
        raise DamagedPage("it was cut")
    words = [GPU.unpack_from(data, GPUS_OFFSET + GPU.size * i) for i in range(gpus)]
    caches = FREE_CACHES.unpack(ready) if len(ready) == FREE_CACHES.size else ()
    used = [
        (w[0] >> VALUE_SHIFT) - sum(cache >> FREE_SHIFT for cache in caches[i::MOST_GPUS]) for i, w in enumerate(words)
    ]
    kept = [0] * gpus
    by_process: dict[Owner, tuple[int, ...]] = {}
    for slot, entry in (entries or {}).items():
        if len(entry) < ENTRY.size * gpus:
            raise DamagedPage("it was cut")
        own = [
            slot_use(
                slot[0],
                words[i][0],
                entry[ENTRY.size * i : ENTRY.size * (i + 1)],
                caches[slot[0] * MOST_GPUS + i] if caches else 0,
            )
            for i in range(gpus)
        ]
        if slot in gone:
            used = [n - m for n, m in zip(used, own, strict=True)]
            continue
        before = by_process.get(owner_of(slot[1]), (0,) * gpus)
        by_process[owner_of(slot[1])] = tuple(n + m * UNIT for n, m in zip(before, own, strict=True))
        if slot in exited:
            kept = [n + m for n, m in zip(kept, own, strict=True)]
    not_used = set(gone)
    return PageFigures(
        tuple(max(n, 0) * UNIT for n in used),
        tuple(min(w[1], VALUE_MAX) * UNIT for w in words),
        frozenset(owner_of(slot[1]) for slot in slots or slots_of(data) if slot not in not_used),
        by_process,
        tuple(n * UNIT for n in kept),
    )


def look(grant: Grant, by_process: bool = False) -> "PageFigures | str | None":
    """A container's page; a text: its fault; None: there is nothing to read (the container
    has not started, uses no CUDA yet or has ended, or we may not look)."""
    if grant.life.init is not None and grant.shares:
        try:
            with Account(*grant.life.init, grant.life.cgroup) as account:
                return account.read(len(grant.shares), by_process)
        except DamagedPage as e:
            return str(e)
        except OSError:
            pass
    return None


def waiting(grant: Grant) -> "tuple[tuple[int, int], ...]":
    """Account.waiting of a container's page; () where it cannot be read."""
    if grant.life.init is not None and grant.shares:
        try:
            with Account(*grant.life.init, grant.life.cgroup) as account:
                return account.waiting(len(grant.shares))
        except (DamagedPage, OSError):
            pass
    return ()


def immovable(grant: Grant) -> "tuple[tuple[Owner, ...], tuple[Owner, ...]]":
    """Account.immovable of a container's page; nobody where it cannot be read."""
    if grant.life.init is not None and grant.shares:
        try:
            with Account(*grant.life.init, grant.life.cgroup) as account:
                return account.immovable()
        except (DamagedPage, OSError):
            pass
    return (), ()
