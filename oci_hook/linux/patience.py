"""Calls that may never return, since a tenant's process answers them: a file system of its own (fuse(4)), or memory that it
brings in itself (userfaultfd(2))."""

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

KEPT = 60.0  # seconds from a call's end that its result waits for whoever asked for it


class Late(Exception):
    """The call has not returned yet."""


class _Call(threading.Thread):
    def __init__(self, work: "Callable[[], Any]") -> None:
        super().__init__(name="patience", daemon=True)
        self.ended = 0.0
        self.result: Any = None
        self.error: Exception | None = None
        self._work = work

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as e:
            self.error = e
        self.ended = time.monotonic()


class Patience:
    """`call` a function in a thread of its own, and wait for it, but not for ever.

    seconds: a caller waits so long. After a wait in vain the next callers wait a hundredth of that, until `rest` times as long
    has passed. most: calls that have not returned, at a time. drop: takes a result that nobody has asked for again.
    """

    def __init__(self, seconds: float, rest: float, most: int, drop: "Callable[[Any], object]" = id) -> None:
        self._seconds, self._rest, self._most, self._drop = seconds, rest, most, drop
        self._calls: dict[Hashable, _Call] = {}  # those whose callers did not wait for the end
        self._resting = 0.0  # until then

    def call(self, what: "Hashable", work: "Callable[[], Any]") -> "Any":
        """What `work` returns or raises. Raises Late where that takes longer, or cannot be begun: `work` goes on then, no
        other one is begun for the same `what`, and a later call has its result without a wait."""
        now = time.monotonic()
        for key, old in list(self._calls.items()):
            if key != what and not old.is_alive() and now - old.ended > KEPT:
                del self._calls[key]
                if old.error is None:
                    self._drop(old.result)
        call = self._calls.pop(what, None)
        if call is None:
            if sum(old.is_alive() for old in self._calls.values()) >= self._most:
                raise Late
            call = _Call(work)
            try:
                call.start()
            except RuntimeError:  # the system has no thread left
                raise Late from None
            resting = now < self._resting
            call.join(self._seconds / 100 if resting else self._seconds)
            if call.is_alive() and not resting:
                self._resting = time.monotonic() + self._rest * self._seconds
        if call.is_alive():
            self._calls[what] = call
            raise Late
        if call.error is not None:
            raise call.error
        return call.result
