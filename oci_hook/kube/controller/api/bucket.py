"""A token bucket: a rate and a burst. Pure."""


class Bucket:
    """rate: tokens per second. burst: most tokens at once; a new bucket is full. now: seconds of one monotonic clock."""

    def __init__(self, rate: float, burst: float, now: float = 0.0) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, burst, now

    def left(self, now: float) -> float:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left

    def add(self, count: float) -> None:
        self._left += count

    def take(self, now: float) -> bool:
        """Takes a token; False if there is none."""
        if self.left(now) < 1:
            return False
        self.add(-1)
        return True
