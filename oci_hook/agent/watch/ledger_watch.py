"""Follows the ledger: takes over new grants, and notices at once when a container ends (pidfd_open(2), inotify(7))."""

import os
import selectors
import time
from collections.abc import Callable
from functools import partial

from oci_hook.agent import journal
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watched import Watched
from oci_hook.core.grant import Grant
from oci_hook.core.layout import LEDGER_DIR
from oci_hook.errors import GhError
from oci_hook.ledger import events, store
from oci_hook.linux import inotify
from oci_hook.linux.proc import is_running, start_time
from oci_hook.observe.engine_names import Names

DELAY = 0.02  # seconds from a sign that something ended to the look at the ledger: other processes end with it
BUSY_GAP = 0.2  # and at least this between two looks, when containers come and go by the thousand
LINGER = (
    0.05,
    0.1,
    0.2,
    0.4,
    0.8,
)  # seconds to the next looks at a container whose init ended before its cgroup is empty
SWEEP_SECONDS = 60.0  # a sweep under the lock even if nothing seems to have changed


class LedgerWatch:
    """Keeps `node.grants` equal to the ledger. changed: called with the keys of grants that ended, after each reading.

    due: when the ledger is to be read again (monotonic seconds), 0: only at the next tick. read_at: Unix time of the
    last reading, None: never.
    """

    def __init__(self, node: NodeState, selector: selectors.BaseSelector, changed: Callable[[set[str]], None]) -> None:
        self.due = 0.0
        self.read_at: float | None = None
        self._node = node
        self._selector = selector
        self._changed = changed
        self._pidfds: dict[str, tuple[tuple[int, int], int]] = {}  # by key: the process, its descriptor
        self._lingering: dict[str, int] = {}  # by key: looks since its process ended
        self._names = Names()
        self._inotify = -1
        self._read_at = -BUSY_GAP
        self._swept_at = -SWEEP_SECONDS

    def close(self) -> None:
        for fd in [fd for _, fd in self._pidfds.values()] + [self._inotify]:
            if fd >= 0:
                os.close(fd)

    def tick(self, now: float) -> None:
        self._watch_folder()
        self.read(now, sweep=now - self._swept_at >= SWEEP_SECONDS)

    def soon(self, when: float) -> None:
        """Read the ledger at this time, or earlier if that is already due."""
        self.due = min(self.due or when, when)

    def read(self, now: float, sweep: bool = False) -> None:
        """Take over the ledger's state. Only if something changed, its lock is taken and ended containers are swept."""
        if now - self._read_at < BUSY_GAP and self.due:
            self.due = self._read_at + BUSY_GAP
            if now < self.due:
                return
        was_due, self.due = bool(self.due), 0.0
        self._read_at = now
        if was_due and not sweep and not os.path.isdir(f"{self._node.state_dir}/{LEDGER_DIR}"):
            return  # the state directory was moved: the next tick knows where to
        try:
            living = None
            if not (sweep or was_due):
                living = self._peek()
            if living is None:
                with store.open_ledger(self._node.state_dir, wait=False) as ledger:
                    living = ledger.grants
                self._swept_at = now
                self._watch_folder()
        except BlockingIOError:  # the lock's holder sweeps as well; the agent never makes a container's start wait
            self.due = now + DELAY
            return
        except GhError as e:
            self._node.problem("ledger", str(e))
            return
        self._node.problem("ledger", "")
        self.read_at = time.time()
        self.take(living, now)

    def take(self, living: tuple[Grant, ...], now: float) -> None:
        """Make these the node's grants."""
        node = self._node
        living = self._names.named(living)
        new = {grant.key: grant for grant in living}
        old = node.grants
        # A new container may have had the same id, and so the key, since the last reading.
        ended = {key for key, grant in old.items() if key not in new or new[key].born != grant.born}
        for key in ended:
            self._record_end(old[key])
        for key in set(new) - (set(old) - ended):
            node.watched[key] = Watched()
        for key, grant in new.items():
            if grant.moving or grant.suspended != node.grants.get(key, grant).suspended:
                node.watched[key].moved = now
        node.grants, node.shown = new, False
        self._changed(ended)
        for grant in living:
            self._follow(grant, now)

    def _peek(self) -> tuple[Grant, ...] | None:
        """The grants, read without the lock; None if a container has ended, since only a sweep removes its grant. Raises
        NodeError GH-303."""
        try:
            living = store.peek(self._node.state_dir)
            files = [n for n in os.listdir(f"{self._node.state_dir}/{LEDGER_DIR}") if n.endswith(".json")]
        except FileNotFoundError:
            return None
        except OSError as e:
            raise store.unusable(self._node.state_dir, e) from None
        return living if len(files) == len(living) else None

    def _follow(self, grant: Grant, now: float) -> None:
        """Have the kernel report when the process that keeps the grant alive ends."""
        process = grant.life.init or grant.life.creator
        known = self._pidfds.get(grant.key)
        if known and known[0] == process and known[1] >= 0:
            return
        self._unfollow(grant.key)
        if process is None:
            return
        try:
            fd = os.pidfd_open(process[0])
            if start_time(process[0]) != process[1]:
                os.close(fd)
                raise ProcessLookupError
        except OSError:
            # The process ended, but another one of its cgroup still runs; or no descriptors are left.
            n = self._lingering.setdefault(grant.key, 0)
            if n < len(LINGER):
                self._lingering[grant.key] = n + 1
                self.soon(now + LINGER[n])
            return
        self._lingering.pop(grant.key, None)
        self._pidfds[grant.key] = (process, fd)
        self._selector.register(fd, selectors.EVENT_READ, partial(self._ended, grant.key))

    def _unfollow(self, key: str) -> None:
        known = self._pidfds.pop(key, None)
        if known:
            self._selector.unregister(known[1])
            os.close(known[1])

    def _ended(self, key: str, now: float) -> None:
        self._unfollow(key)
        self._lingering[key] = 0
        self.soon(now + DELAY)

    def _record_end(self, grant: Grant) -> None:
        self._unfollow(grant.key)
        self._lingering.pop(grant.key, None)
        watched = self._node.watched.pop(grant.key, Watched())
        self._node.counters.ended += 1
        if is_running(grant.life.init):  # `release --force` has recorded it
            journal.write(f"container {events.title(grant.who)} runs on without its share", container=grant.who.id)
            return
        events.record(
            self._node.state_dir,
            "ended",
            id=grant.who.id[:256],
            name=events.full_name(grant.who),
            key=grant.key,
            peak_mib=max(watched.peaks.values(), default=None),
        )
        journal.write(f"container {events.title(grant.who)} ended; its share is free", container=grant.who.id)

    def _watch_folder(self) -> None:
        """Have the kernel report new grants; once more when the folder was made anew."""
        if self._inotify >= 0:
            return
        folder = f"{self._node.state_dir}/{LEDGER_DIR}"
        try:
            self._inotify = inotify.watch(folder, inotify.IN_MOVED_TO | inotify.IN_DELETE | inotify.IN_DELETE_SELF)
        except OSError:  # the folder is not there yet, or this node has too many watches: the tick finds changes
            return
        self._selector.register(self._inotify, selectors.EVENT_READ, self._folder_changed)

    def _folder_changed(self, now: float) -> None:
        inotify.drain(self._inotify)
        if not os.path.isdir(f"{self._node.state_dir}/{LEDGER_DIR}"):
            self._selector.unregister(self._inotify)
            os.close(self._inotify)
            self._inotify = -1
        if now - self._read_at > DELAY:  # an earlier event is from our own sweep
            self.soon(now + DELAY)
