"""Limits the rate of token reviews: each one is a call to the API server under our account. Only refused tokens count, so honest
nodes are never slowed down, even all at once or behind one address. Pure."""

import hashlib

from oci_hook.kube.controller.api.bucket import Bucket

REMEMBERED = 10.0  # seconds for which a refused token is refused again without a review
OF_ONE, BURST_OF_ONE = 2.0, 8.0  # refusals of one address per second, and burst
OF_ALL, BURST_OF_ALL = 20.0, 40.0
MOST_ADDRESSES = 4096


class Reviews:
    def __init__(self) -> None:
        self._refused: dict[bytes, float] = {}  # hash of a token -> expiry; oldest first
        self._all = Bucket(OF_ALL, BURST_OF_ALL)
        self._of: dict[str, Bucket] = {}  # by address

    def refused(self, token: str, now: float) -> bool:
        while self._refused and next(iter(self._refused.values())) <= now:
            del self._refused[next(iter(self._refused))]
        return _hash(token) in self._refused

    def begin(self, address: str, now: float) -> bool:
        """Returns whether a token from this address may be reviewed, and counts it as refused until `passed`. address: "" if another
        controller has counted it."""
        mine = self._of.setdefault(address, Bucket(OF_ONE, BURST_OF_ONE, now)) if address else self._all
        if len(self._of) > MOST_ADDRESSES:
            del self._of[next(iter(self._of))]
        if mine.left(now) < 1 or self._all.left(now) < 1:
            return False
        for bucket in {mine, self._all}:
            bucket.add(-1)
        return True

    def passed(self, address: str) -> None:
        for bucket in {self._of.get(address, self._all), self._all}:
            bucket.add(1)

    def failed(self, token: str, now: float) -> None:
        self._refused[_hash(token)] = now + REMEMBERED


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
