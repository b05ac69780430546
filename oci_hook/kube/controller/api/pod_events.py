"""Events on pods. A repeated event updates one object's count; the rate is limited. Pure except for `Events`."""

import asyncio
import datetime
import hashlib
from collections.abc import Callable
from typing import Any

from oci_hook.core.value import Value
from oci_hook.kube.controller.api.bucket import Bucket
from oci_hook.kube.controller.api.client import ApiError, Client
from oci_hook.kube.formats.names import CONTROLLER

BURST, PER_SECOND = 50.0, 10.0
REPEAT = 60.0  # seconds between two writes of one event
MOST_KNOWN = 4096
MAX_MESSAGE = 1000


class About(Value):
    """A pod."""

    namespace: str
    name: str
    uid: str


class _Known:
    __slots__ = ("name", "count", "first", "written")

    def __init__(self, name: str, first: str, written: float) -> None:
        self.name, self.first, self.written = name, first, written
        self.count = 0


class EventBook:
    """Decides which requests write the events. dropped: events beyond the rate limit."""

    def __init__(self) -> None:
        self.dropped = 0
        self._known: dict[tuple[str, str, str], _Known] = {}
        self._bucket = Bucket(PER_SECOND, BURST)

    def add(
        self, about: About, reason: str, message: str, warning: bool, now: float, stamp: str
    ) -> tuple[str, str, dict[str, Any]] | None:
        """Returns (method, path, body), or None if nothing is to be written now."""
        message = message[:MAX_MESSAGE]
        key = (about.uid, reason, message)
        known = self._known.get(key)
        if known is None:
            text = "\0".join(key) + stamp
            start = about.name[:200].rstrip("-.")  # a part of the Event's name must end in a letter or digit
            known = _Known(f"{start}.{hashlib.sha256(text.encode()).hexdigest()[:16]}", stamp, float("-inf"))
            self._remember(key, known)
        known.count += 1
        if now - known.written < REPEAT:
            return None
        if not self._bucket.take(now):
            self.dropped += 1
            return None
        first = known.written == float("-inf")
        known.written = now
        folder = f"/api/v1/namespaces/{about.namespace}/events"
        if first:
            return "POST", folder, _event(about, known, reason, message, warning, stamp)
        return "PATCH", f"{folder}/{known.name}", {"count": known.count, "lastTimestamp": stamp}

    def _remember(self, key: tuple[str, str, str], known: _Known) -> None:
        while len(self._known) >= MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = known


def _event(about: About, known: _Known, reason: str, message: str, warning: bool, stamp: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": known.name, "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "source": {"component": CONTROLLER},
        "reportingComponent": CONTROLLER,
        "reportingInstance": CONTROLLER,
        "firstTimestamp": known.first,
        "lastTimestamp": stamp,
        "count": known.count,
    }


class Events:
    """Writes events one by one. An event that cannot be written is dropped."""

    def __init__(self, client: Client, now: Callable[[], float]) -> None:
        self.book = EventBook()
        self.written = 0
        self._client, self._now = client, now
        self._queue: asyncio.Queue[tuple[str, str, dict[str, Any]]] = asyncio.Queue(maxsize=200)

    def add(self, about: About, reason: str, message: str, warning: bool = True) -> None:
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        write = self.book.add(about, reason, message, warning, self._now(), stamp)
        if write is None:
            return
        try:
            self._queue.put_nowait(write)
        except asyncio.QueueFull:
            self.book.dropped += 1

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            method, path, body = await self._queue.get()
            try:
                if method == "POST":
                    await self._client.post(path, body)
                else:
                    await self._client.patch(path, body)
                self.written += 1
            except ApiError:
                self.book.dropped += 1
