"""Single GETs beside list and watch. The answer is dropped if list or watch reported the object meanwhile. An object that only a
GET reported is removed by the next list without it."""

from collections.abc import Iterator
from contextlib import contextmanager


class Beside:
    """For one kind of objects. The Reflector reports its lists and events; a GET asks whether its answer still counts."""

    def __init__(self) -> None:
        self.lists = 0  # lists whose first page has arrived, which fixes their version
        self.asks = False  # a list has begun, and its version is not fixed yet
        self.read: set[str] = set()  # keys known from a GET only
        self._under_way: dict[int, set[str]] = {}
        self._last = 0

    def list_begins(self) -> set[str]:
        """Returns the keys known from a GET only: they are gone if this list does not have them."""
        self.asks = True
        read, self.read = self.read, set()
        return read

    def list_is_fixed(self) -> None:
        self.asks = False
        self.lists += 1

    def list_ended(self) -> None:
        self.asks = False

    def brought(self, key: str) -> None:
        """The list or the watch reports this object, or its deletion."""
        self.read.discard(key)
        for keys in self._under_way.values():
            keys.add(key)

    @contextmanager
    def reading(self) -> "Iterator[PodReading]":
        self._last = number = self._last + 1
        keys: set[str] = set()
        self._under_way[number] = keys
        try:
            yield PodReading(self, keys, self.lists)
        finally:
            del self._under_way[number]


class PodReading:
    def __init__(self, beside: Beside, brought: set[str], lists: int) -> None:
        self._beside, self._brought, self._lists = beside, brought, lists

    def crossed(self) -> bool:
        """True if a list overlaps the GET. Its version may be older or newer than the answer, so it cannot prove either."""
        return self._beside.asks or self._beside.lists != self._lists

    def counts(self, key: str) -> bool:
        """Records the key and returns True if the answer may be used; False if list or watch may have newer data."""
        if self.crossed() or key in self._brought:
            return False
        self._beside.read.add(key)
        return True
