"""Calls that may never return."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from oci_hook.linux import patience
from oci_hook.linux.patience import Late, Patience


def finish(calls: Patience) -> None:
    for call in calls._calls.values():
        call.join(60)


def test_a_call_in_time_returns_or_raises() -> None:
    calls = Patience(60, 0, 1)
    assert calls.call("a", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls.call("a", lambda: 1 / 0)


def test_a_late_call_goes_on_alone_and_a_later_one_has_its_result() -> None:
    calls, go = Patience(0.1, 0, 2), threading.Event()
    begun: list[int] = []
    for _ in range(3):
        with pytest.raises(Late):
            calls.call("a", lambda: begun.append(1) or go.wait(60) and 7)
    assert len(begun) == 1
    assert calls.call("b", lambda: 8) == 8
    with pytest.raises(Late):
        calls.call("c", lambda: go.wait(60) and 9)
    with pytest.raises(Late):
        calls.call("d", lambda: 9)  # two have not returned
    go.set()
    finish(calls)
    assert calls.call("a", lambda: 10) == 7 and calls.call("a", lambda: 10) == 10


def test_after_a_wait_in_vain_others_are_not_waited_for() -> None:
    calls, go = Patience(2, 1000, 100), threading.Event()
    began = time.monotonic()
    for what in range(20):
        with pytest.raises(Late):
            calls.call(what, lambda: go.wait(60))
    assert 2 <= time.monotonic() - began < 20
    go.set()


def test_a_result_that_nobody_asks_for_again_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[Any] = []
    calls, go = Patience(0.01, 0, 9, dropped.append), threading.Event()
    work: tuple[Callable[[], Any], ...] = (lambda: go.wait(60) and 7, lambda: go.wait(60) and 1 / 0)
    for what in range(2):
        with pytest.raises(Late):
            calls.call(what, work[what])
    go.set()
    finish(calls)
    assert calls.call("a", lambda: 1) == 1 and not dropped
    monkeypatch.setattr(patience, "KEPT", 0)
    assert calls.call("a", lambda: 1) == 1 and dropped == [7]


def test_a_result_is_there_however_long_the_call_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after others have called meanwhile; for who asks for it however late, if nobody else has."""
    now = [0.0]
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: now[0]))
    calls, go = Patience(0.01, 0, 2), threading.Event()
    for what in "ab":
        with pytest.raises(Late):
            calls.call(what, lambda: go.wait(60) and 7)
    now[0] += 9 * patience.KEPT
    go.set()
    finish(calls)
    assert calls.call("a", lambda: 8) == 7
    now[0] += 9 * patience.KEPT
    assert calls.call("b", lambda: 8) == 7
