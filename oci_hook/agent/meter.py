"""Turns the gate's totals into shares of a card."""

import time


class Meter:
    """Turns totals into shares of a card: per cent of the time between two looks. `add` gives None where nothing was
    counted meanwhile."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def add(self, charged: float, now: float | None = None) -> float | None:
        now = time.monotonic() if now is None else now
        last, self._last = self._last, (now, charged)
        if last is None or now <= last[0] or charged <= last[1]:
            return None
        return min(100.0, 100 * (charged - last[1]) / (now - last[0]))
