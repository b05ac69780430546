"""The ledger on disk: which container holds which share of this node's GPUs.

STATE/ledger/lock        flock: one transaction (read, sweep, decide, write) at a time
STATE/ledger/KEY.json    a grant; created by rename, so a reader sees all of it or none
STATE/ledger/UUID.return flock: whoever has memory moved back to this GPU (suspend/mover.py)
STATE/pages/KEY/policy   the pages that its container sees, made before the grant and removed after it
STATE/pages/KEY/copy     a copy of its policy page that only root sees
STATE/pages/KEY/moving   flock: whoever suspends or resumes the container (suspend/hold.py)
STATE/pages/KEY/state.json, status   a copy of the runtime's state file (launcher/keep_state.c)
STATE/messages           messages for containers about changes (ledger/messages.py)

Under the lock no file is opened that a container sees, since a tenant can make such an open wait. Messages are
delivered after the lock is released (ledger/deliver.py).
A crash at any instruction leaves either no grant, or one whose creator has ended; the next sweep removes that together
with half-made files. A grant file that cannot be read stops all new grants of the node (GH-303): any GPU may be booked
in it. The state directory is for root alone (0700). Page folders and pages are open (0755, 0644) for runtimes that open
bind sources as the root of a user namespace; such a runtime still needs a descriptor above them (runc >= 1.1 and crun
have one).
"""

import fcntl
import os
from errno import ENOTEMPTY

from oci_hook.core.gpu_page import SIZE as GPU_PAGE_SIZE
from oci_hook.core.grant import Grant, Share
from oci_hook.core.layout import LEDGER_DIR, MESSAGES_DIR, PAGE_UID, PAGES_DIR
from oci_hook.core.policy_page import SIZE, amended, held, hold_of
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import messages, slot_files
from oci_hook.ledger.deliver import PAGE_FILE, deliver
from oci_hook.ledger.grant_file import GRANT_MAX, encode
from oci_hook.ledger.grant_file import read as _read
from oci_hook.ledger.proof import QUICK, Judge
from oci_hook.linux.lock import lock_file, own_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

COPY_FILE = "copy"  # of the policy page
TRIES = 8  # to remove a folder


def grant_key(root: str, id: str) -> str:
    """32 hex digits for (the runtime's state directory, container id)."""
    try:
        from _blake2 import blake2b  # what hashlib wraps; hashlib itself takes 2 ms to import
    except ImportError:
        from hashlib import blake2b
    return blake2b(f"{root}\0{id}".encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def valid_key(key: str) -> bool:
    return len(key) == 32 and all(c in "0123456789abcdef" for c in key)


class Ledger:
    """An open transaction. grants: those whose containers live, ordered by key. swept: those that it removed, since
    their containers have ended. unsure: the keys of grants that are kept only because not every process could be looked
    at in time. late, after the transaction: the keys of grants whose container delays its own messages by a lease.
    """

    __slots__ = (
        *("grants", "swept", "late", "unsure"),
        *(
            "_folder",
            "_pages",
            "_state",
            "_lock",
            "_wait",
            "_judge",
            "_unclear",
            "_messages",
            "_made",
            "_must",
            "_starts",
        ),
    )

    def __init__(self, state_dir: str, wait: bool = True, seconds: float = QUICK, made: str = "", new: int = 0) -> None:
        self.grants: tuple[Grant, ...] = ()
        self.swept: tuple[Grant, ...] = ()
        self.late: set[str] = set()
        self.unsure: set[str] = set()
        self._state = state_dir
        self._folder = f"{state_dir}/{LEDGER_DIR}"
        self._pages = f"{state_dir}/{PAGES_DIR}"
        self._lock = -1
        self._wait = wait
        self._judge = Judge(self._pages, seconds, later=True, made=made, new=new)
        self._unclear = False  # STATE/messages/unclear is set
        self._messages: list[str] = []  # the names of its messages
        self._made: list[str] = []  # the keys of its new grants
        self._must = False  # the transaction fails if a message cannot be delivered
        self._starts = False  # a container sees the mounts of this process

    def __enter__(self) -> "Ledger":
        try:
            for folder in (self._state, self._folder, self._pages, messages.folder(self._state)):
                own_dir(folder)
            self._lock = lock_file(self._folder + "/lock", fcntl.LOCK_EX, self._wait)
            judged = self._judged()
            if self._judge.wanted:  # a look at all processes may take long, so it is done without the lock
                self._unlock()
                self._judge.look()
                self._lock = lock_file(self._folder + "/lock", fcntl.LOCK_EX, self._wait)
                judged = self._judged()
            self.unsure = self._judge.unsure
            self._sweep(judged)
        except BaseException as e:
            self._unlock()
            if isinstance(e, OSError) and (self._wait or not isinstance(e, BlockingIOError)):
                raise unusable(self._state, e) from None
            raise
        return self

    def __exit__(
        self, kind: "type[BaseException] | None", value: "BaseException | None", trace: "TracebackType | None"
    ) -> None:
        """Release the lock, then deliver the messages. Raises NodeError GH-303 where that fails: then the grants that
        this transaction made are removed again, and the next transaction delivers what it changed."""
        self._unlock()
        try:
            self.late = deliver(self._state, self._messages if kind is None else (), self._starts)
        except BaseException as e:
            if kind is not None or not self._must and isinstance(e, (OSError, GhError)):
                return  # the message stays pending, and the next transaction delivers it
            for key in self._made:
                try:
                    forget(self._state, key)
                except GhError:
                    pass  # the first failure is reported; the grant's creator ends, so the next sweep removes the grant
            if isinstance(e, OSError):
                raise unusable(self._state, e) from None
            raise

    def put(
        self,
        grant: Grant,
        page: bytes,
        time_scales: "dict[str, int] | None" = None,
        tiers: "dict[str, int] | None" = None,
    ) -> None:
        """Commit a grant, or raise and leave nothing: GH-303 the disk, GH-407 the key is in use, GH-105 too large. The
        end of the transaction delivers the messages about it and may raise GH-303 as well; then it is removed again.

        time_scales: by UUID, of simulated GPUs; 1 for others. tiers: by UUID, the bits that containers may use; else 0.
        """
        data = encode(grant)
        if len(data) > GRANT_MAX:
            raise refuse("GH-105", f"names and paths of the container take {len(data)} bytes, at most {GRANT_MAX}")
        if any(g.key == grant.key for g in self.grants):
            raise refuse("GH-407", f"container {grant.who.id} already holds a grant ({grant.key})")
        folder = f"{self._pages}/{grant.key}"
        try:
            if until := self._hold_beside(grant):
                page = held(page, until)
            os.mkdir(folder)
            os.chmod(folder, 0o755)  # despite the umask: a runtime in a user namespace opens the page
            create(f"{folder}/{COPY_FILE}", page, 0o600)
            gpus = [i for i, share in enumerate(grant.shares) if share.slot]
            room = bytes(GPU_PAGE_SIZE * (1 + gpus[-1])) if gpus else b""  # the delivery fills its GPU pages
            create(f"{folder}/{PAGE_FILE}", page + room, 0o644, PAGE_UID)
            self._begin()  # the next transaction may still see a creator alive that is killed after this
            self._save(grant.key, data)
            self._write_messages(
                (*self.grants, grant), [share.uuid for share in shared(grant)], time_scales or {}, tiers or {}
            )
            self._done()
        except BaseException as e:
            try:
                for name in (f"{grant.key}.json", f"{grant.key}.tmp"):
                    _unlink(f"{self._folder}/{name}")
                _drop_folder(folder)
                self._write_messages(self.grants, [share.uuid for share in shared(grant)])
            except OSError:
                pass  # the first failure is reported; the next sweep removes the rest
            if isinstance(e, OSError):
                raise unusable(self._state, e) from None
            raise
        self._made.append(grant.key)
        self._must = self._starts = True
        self.grants = (*self.grants, grant)

    def update(self, grant: Grant) -> None:
        """Replace a grant of the ledger by one that differs only in its Identity and its Life. Its messages are delivered then, if
        whoever made it was killed before.

        Raises NodeError GH-303 and leaves the old one.
        """
        try:
            self._save(grant.key, encode(grant))
        except OSError as e:
            raise unusable(self._state, e) from None
        self.grants = tuple(grant if g.key == grant.key else g for g in self.grants)
        self._messages += [messages.GPU + share.uuid for share in shared(grant)]
        self._must = self._starts = True

    def change(self, grant: Grant) -> None:
        """Replace a grant by one that differs only in limits, policy, class or freeze; its pages tell the container.

        Raises NodeError GH-303; then either the grant is unchanged, or the next transaction tells the container.
        """
        try:
            self._begin()
            self._save(grant.key, encode(grant))
            self.grants = tuple(grant if g.key == grant.key else g for g in self.grants)
            self._amend(grant)
            self._write_messages(self.grants, [share.uuid for share in shared(grant)])
            self._must = True
            self._done()
        except OSError as e:
            raise unusable(self._state, e) from None

    def remove(self, key: str) -> bool:
        """Remove a grant, whether its container lives or not; whether there was one. Raises NodeError GH-303."""
        found = [g for g in self.grants if g.key == key]
        self.grants = tuple(g for g in self.grants if g.key != key)
        try:
            self._begin()
            _remove(self._folder, self._pages, key)
            self._write_messages(self.grants, [share.uuid for g in found for share in shared(g)])
            self._done()
        except OSError as e:
            raise unusable(self._state, e) from None
        return bool(found)

    def _judged(self) -> list[tuple[Grant, Grant | None]]:
        """(the grant as it is on disk, the grant as of now or None if its container has ended) for each."""
        names = sorted(name for name in os.listdir(self._folder) if name.endswith(".json"))
        found = (_read(self._folder, name[:-5]) for name in names)
        return [(grant, self._judge.current(grant)) for grant in found]

    def _sweep(self, judged: "list[tuple[Grant, Grant | None]]") -> None:
        living, ended = [], []
        there = messages.names(self._state)
        for name in os.listdir(self._folder):
            if name.endswith(".tmp"):
                os.unlink(f"{self._folder}/{name}")
        for old, new in judged:
            if new is None:
                ended.append(old)
                continue
            living.append(new)
            if new is not old:
                try:
                    self._save(new.key, encode(new))
                except OSError:  # disk full: the grant is kept all the same, and the next sweep saves this again
                    _unlink(f"{self._folder}/{new.key}.tmp")
        self.grants = tuple(living)
        for grant in ended:
            self._begin()
            _remove(self._folder, self._pages, grant.key)
            self.swept = (*self.swept, grant)
        by_key = {grant.key: grant for grant in living}
        for name in os.listdir(self._pages):
            if name not in by_key:
                _drop_folder(f"{self._pages}/{name}")
        messages.forget(self._state, there, set(by_key))
        if messages.UNCLEAR in there:  # an earlier transaction crashed, and which messages it wrote is not known
            self._unclear = True
            for grant in living:
                self._amend(grant)
            self._write_messages(
                self.grants, [*messages.gpus(there), *(share.uuid for grant in living for share in shared(grant))]
            )
        else:
            self._write_messages(self.grants, [share.uuid for grant in ended for share in shared(grant)])
        self._done()

    def _begin(self) -> None:
        """Before the first change: if this process is killed, the next transaction writes all messages again."""
        if not self._unclear:
            messages.set_unclear(self._state)
            self._unclear = True

    def _done(self) -> None:
        """The messages about all changes are written."""
        if self._unclear:
            messages.set_clear(self._state)
            self._unclear = False

    def _write_messages(
        self,
        grants: tuple[Grant, ...],
        uuids: list[str],
        time_scales: "dict[str, int] | None" = None,
        tiers: "dict[str, int] | None" = None,
    ) -> None:
        """Write the message for all containers of these GPUs. time_scales, tiers: as in `put`; None keeps them."""
        for uuid in dict.fromkeys(uuids):
            scale = 0 if time_scales is None else time_scales.get(uuid, 1)
            slot_files.write_message(self._state, uuid, grants, scale, (tiers or {}).get(uuid, 0))
            self._messages.append(messages.GPU + uuid)

    def hold(self, keys: "Iterable[str]", until: int) -> None:
        """Have what these grants' containers would take of device memory wait: as core/policy_page.py's `held`. Raises
        NodeError GH-303."""
        try:
            for key in keys:
                self._rewrite(key, lambda page: held(page, until))
                self._must = True
        except OSError as e:
            raise unusable(self._state, e) from None

    def _hold_beside(self, grant: Grant) -> int:
        """Until when a new container on these GPUs is held: as long as one whose memory comes back to them."""
        uuids = {share.uuid for share in grant.shares}
        coming = [g for g in self.grants if g.moving and uuids & {share.uuid for share in g.shares}]
        return max((hold_of(self._copy(g.key)) for g in coming), default=0)

    def _amend(self, grant: Grant) -> None:
        """Make the policy page what the grant says, and write the message with it."""
        self._rewrite(grant.key, lambda page: amended(page, grant))

    def _rewrite(self, key: str, change: "Callable[[bytes], bytes]") -> None:
        path = f"{self._pages}/{key}/{COPY_FILE}"
        page = change(self._copy(key))
        messages.replace(path, page, path + messages.TEMPORARY)
        messages.write(self._state, f"{key}-0", page)
        self._messages.append(f"{key}-0")

    def _copy(self, key: str) -> bytes:
        fd = os.open(f"{self._pages}/{key}/{COPY_FILE}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return os.read(fd, SIZE)
        finally:
            os.close(fd)

    def _save(self, key: str, data: bytes) -> None:
        path = f"{self._folder}/{key}"
        create(path + ".tmp", data, 0o600)
        os.rename(path + ".tmp", path + ".json")

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_ledger(state_dir: str, wait: bool = True, seconds: float = QUICK, made: str = "", new: int = 0) -> Ledger:
    """`with open_ledger(state_dir) as ledger:` holds the node's lock; grants of ended containers are swept first.

    Raises NodeError GH-303: the state directory is not safe to use, the disk fails, a grant file is damaged, or the
    lock is held for more than LOCK_SECONDS. wait=False: raises BlockingIOError at once where another process holds the
    lock (and so has just swept). seconds, made, new: as of proof.Judge.
    """
    return Ledger(state_dir, wait, seconds, made, new)


def snapshot(state_dir: str) -> tuple[Grant, ...]:
    """The grants of living containers at one instant, by key; () where there is no ledger yet. Writes nothing. Raises
    NodeError GH-303."""
    folder = f"{state_dir}/{LEDGER_DIR}"
    try:
        try:
            fd = lock_file(folder + "/lock", fcntl.LOCK_SH)
        except FileNotFoundError:
            return ()
        try:
            grants = [_read(folder, name[:-5]) for name in sorted(os.listdir(folder)) if name.endswith(".json")]
        finally:
            os.close(fd)
        return tuple(g for g in Judge(f"{state_dir}/{PAGES_DIR}").all_of(grants) if g is not None)
    except OSError as e:
        raise unusable(state_dir, e) from None


def peek(state_dir: str) -> tuple[Grant, ...]:
    """The grants of living containers, read without the lock, for a caller that may not wait for it (gpu_owner.py).

    A grant that is committed before the call and lives throughout is found: a directory scan may miss a grant file that
    is being replaced, but its page folder stays in place. Raises NodeError GH-303, FileNotFoundError if there is no
    ledger.
    """
    folder = f"{state_dir}/{LEDGER_DIR}"
    keys = {name[:-5] for name in os.listdir(folder) if name.endswith(".json")}
    try:
        try:
            keys.update(os.listdir(f"{state_dir}/{PAGES_DIR}"))
        except FileNotFoundError:
            pass  # the ledger is being made
        found = []
        for key in sorted(keys):
            try:
                found.append(_read(folder, key))
            except FileNotFoundError:
                pass  # the grant is not committed yet, or was just removed
        return tuple(g for g in Judge(f"{state_dir}/{PAGES_DIR}").all_of(found) if g is not None)
    except OSError as e:
        raise unusable(state_dir, e) from None


def forget(state_dir: str, key: str) -> bool:
    """Remove one grant without reading any, so that a damaged file can be removed, too. Raises NodeError GH-303."""
    folder = f"{state_dir}/{LEDGER_DIR}"
    try:
        fd = lock_file(folder + "/lock", fcntl.LOCK_EX)
        try:
            found = os.path.lexists(f"{folder}/{key}.json")
            if os.path.isdir(f"{state_dir}/{MESSAGES_DIR}"):
                messages.set_unclear(state_dir)  # the next transaction, which follows here, writes all messages again
            _remove(folder, f"{state_dir}/{PAGES_DIR}", key)
        finally:
            os.close(fd)
        try:
            with open_ledger(state_dir):
                pass
        except GhError:
            pass  # another grant is damaged as well, which the next transaction reports
        return found
    except FileNotFoundError:
        return False
    except OSError as e:
        raise unusable(state_dir, e) from None


def shared(grant: Grant) -> list[Share]:
    """The grant's shares of GPUs that containers share in time."""
    return [share for share in grant.shares if share.slot]


def unusable(state_dir: str, e: OSError) -> GhError:
    if isinstance(e, PermissionError) and os.geteuid():
        others = "while the agent runs, `gpu-hook ps`, `top`, `why` and `events` answer every user"
        return refuse(
            "GH-303", f"only root may read or change the ledger in {state_dir}; {others}; else run this as root"
        )
    what = f"{e.strerror} ({e.filename})" if e.filename else str(e.strerror or e)
    return refuse("GH-303", f"ledger in {state_dir}: {what}; check its file system (df, mount) and rights, then retry")


def create(path: str, data: bytes, mode: int, owner: int = 0) -> None:
    """A new file. owner: a uid, if root creates it. Raises OSError, FileExistsError as well."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        if mode & 0o077:
            os.fchmod(fd, mode)
        if owner and os.geteuid() == 0:
            os.fchown(fd, owner, owner)
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _remove(folder: str, pages: str, key: str) -> None:
    _unlink(f"{folder}/{key}.json")
    _drop_folder(f"{pages}/{key}")


def _unlink(path: str, folder: int | None = None) -> None:
    try:
        os.unlink(path, dir_fd=folder)
    except FileNotFoundError:
        pass


def _drop_folder(path: str) -> None:
    """Remove a folder of files if it is there; a link or a file in its place is removed itself. The launcher, which takes no lock,
    may write and rename its copy of the runtime's state in there meanwhile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except NotADirectoryError:  # O_DIRECTORY gives this for a link, too
        os.unlink(path)
        return
    try:
        for left in reversed(range(TRIES)):
            for name in os.listdir(fd):
                _unlink(name, fd)
            try:
                return os.rmdir(path)
            except OSError as e:
                if e.errno != ENOTEMPTY or not left:
                    raise
    finally:
        os.close(fd)
