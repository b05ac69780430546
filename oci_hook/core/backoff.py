"""Waits after failures, each twice as long as the one before."""

from collections.abc import Callable


class Backoff:
    """Waits of first, 2 x first, 4 x first, ... seconds, most at most. chance: says a number from 0 to 1, on which half of each
    wait depends, so that many programs do not come back at once."""

    def __init__(self, first: float, most: float, chance: Callable[[], float] = lambda: 1.0) -> None:
        self.first, self.most = first, most
        self.failures = 0
        self._chance = chance

    def failed(self) -> float:
        """Seconds to wait now."""
        wait: float = min(self.most, self.first * 2 ** min(self.failures, 30))
        self.failures += 1
        return wait * (0.5 + 0.5 * self._chance())

    def worked(self) -> None:
        self.failures = 0
