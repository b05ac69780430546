"""Waits for what others do in their own time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 240.0  # seconds, which only a fault takes


def until(true: Callable[[], T], what: str | Callable[[], object] = "waited in vain", seconds: float = PATIENCE) -> T:
    """The first true answer. what: a word on what is awaited, or a function that is asked for one at the end.

    Raises AssertionError when the time is over. A question that takes long is asked less often.
    """
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if answer := true():
            return answer
        now = time.monotonic()
        assert now < end, what if isinstance(what, str) else what()
        time.sleep(max(0.005, now - began))
