"""The loop of a node's process that watches the API server: it sleeps until work is due, a descriptor is readable, or a watcher's
thread tells of a change."""

import os
import queue
import selectors
import time
from collections.abc import Iterator

from oci_hook.kube.link.status import Status
from oci_hook.kube.link.watcher import Change, Watcher


class Loop:
    """selector: its keys' data are called without arguments."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._selector = selectors.DefaultSelector()
        self._changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake[0], selectors.EVENT_READ, self._woken)

    def run(self) -> None:
        """Does not return."""
        for watcher in self._watchers():
            watcher.start()
        while True:
            wait = self.step(time.monotonic())
            self._status.tell()
            for key, _ in self._selector.select(wait):
                key.data()

    def step(self, now: float) -> float:
        """Does the work due now; returns the seconds until the next."""
        raise NotImplementedError

    def _watchers(self) -> list[Watcher]:
        raise NotImplementedError

    def _told(self) -> Iterator[Change]:
        """The changes since the last step."""
        while not self._changes.empty():
            yield self._changes.get()

    def _tell(self, change: Change) -> None:
        """Called by the watchers' threads."""
        self._changes.put(change)
        self._wake_up()

    def _wake_up(self) -> None:
        try:
            os.write(self._wake[1], b"x")
        except BlockingIOError:
            pass  # the loop is awake already

    def _woken(self) -> None:
        try:
            os.read(self._wake[0], 4096)
        except BlockingIOError:
            pass
