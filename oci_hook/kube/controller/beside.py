"""Objects that are read on their own, beside a list and a watch: an answer may be older than what these brought meanwhile, and
what was read is known to the next list, which takes it out again where it is gone."""

from collections.abc import Iterator
from contextlib import contextmanager


class Beside:
    """Of one kind. The Reflector tells it what it does; who reads an object asks it whether the answer still counts."""

    def __init__(self) -> None:
        self.lists = 0  # of which a first page came: from then on their version is fixed
        self.asks = False  # for a list whose version is not fixed yet
        self.read: set[str] = set()  # keys that were taken from an answer, and that no list and no watch has brought
        self._under_way: dict[int, set[str]] = {}
        self._last = 0

    def list_begins(self) -> set[str]:
        """The keys that this list has to bring, else they are gone."""
        self.asks = True
        read, self.read = self.read, set()
        return read

    def list_is_fixed(self) -> None:
        self.asks = False
        self.lists += 1

    def list_ended(self) -> None:
        self.asks = False

    def brought(self, key: str) -> None:
        """The list or the watch says something of this object, perhaps that it is gone."""
        self.read.discard(key)
        for keys in self._under_way.values():
            keys.add(key)

    @contextmanager
    def reading(self) -> "Iterator[Reading]":
        self._last = number = self._last + 1
        keys: set[str] = set()
        self._under_way[number] = keys
        try:
            yield Reading(self, keys, self.lists)
        finally:
            del self._under_way[number]


class Reading:
    def __init__(self, beside: Beside, brought: set[str], lists: int) -> None:
        self._beside, self._brought, self._lists = beside, brought, lists

    def crossed(self) -> bool:
        """A list may be of a version before or after the answer: nobody could say later whether the object is still there."""
        return self._beside.asks or self._beside.lists != self._lists

    def counts(self, key: str) -> bool:
        """May the answer be taken? It is, then. Else the watch knows better already."""
        if self.crossed() or key in self._brought:
            return False
        self._beside.read.add(key)
        return True
