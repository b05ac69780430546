"""How many tokens of strangers are reviewed: each review is a call to the API server under our account. Only refused ones count, so
that nodes that ask honestly are not slowed down, also all at once or behind one address. Pure."""

import hashlib

REMEMBERED = 10.0  # seconds for which a refused token is refused without a review
OF_ONE, BURST_OF_ONE = 2.0, 8.0  # refusals of one address a second, and at once
OF_ALL, BURST_OF_ALL = 20.0, 40.0
MOST_ADDRESSES = 4096


class Allowance:
    """So many a second, and so many at once."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, burst, now

    def left(self, now: float) -> float:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left

    def add(self, count: float) -> None:
        self._left += count


class Reviews:
    def __init__(self) -> None:
        self._refused: dict[bytes, float] = {}  # hash of a token -> until when; oldest first
        self._all = Allowance(OF_ALL, BURST_OF_ALL, 0.0)
        self._of: dict[str, Allowance] = {}  # by address

    def refused(self, token: str, now: float) -> bool:
        while self._refused and next(iter(self._refused.values())) <= now:
            del self._refused[next(iter(self._refused))]
        return _hash(token) in self._refused

    def begin(self, address: str, now: float) -> bool:
        """May a token of this address be reviewed? It counts as refused until `passed`. "": of another controller, which has
        counted it."""
        mine = self._of.setdefault(address, Allowance(OF_ONE, BURST_OF_ONE, now)) if address else self._all
        if len(self._of) > MOST_ADDRESSES:
            del self._of[next(iter(self._of))]
        if mine.left(now) < 1 or self._all.left(now) < 1:
            return False
        for allowance in {mine, self._all}:
            allowance.add(-1)
        return True

    def passed(self, address: str) -> None:
        for allowance in {self._of.get(address, self._all), self._all}:
            allowance.add(1)

    def failed(self, token: str, now: float) -> None:
        self._refused[_hash(token)] = now + REMEMBERED


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
