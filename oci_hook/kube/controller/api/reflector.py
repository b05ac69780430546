"""Keeps a copy of one kind of objects up to date: lists, watches, and lists again if the watch expired."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from oci_hook.core.backoff import Backoff
from oci_hook.kube.controller.api.beside import Beside
from oci_hook.kube.controller.api.client import ApiError, Client
from oci_hook.kube.controller.api.objects import BOOKMARKS, EVENTS, STATUSES, Kind, slim
from oci_hook.kube.controller.api.shallow import decode

LOG = logging.getLogger(__name__)

WATCH_SECONDS = (240, 480)  # timeout of a watch, so that a broken one is noticed within minutes


class Sink(NamedTuple):
    """Receives changes. apply: a new or changed object. remove: the UID or name of a deleted one."""

    apply: Callable[[dict[str, Any]], None]
    remove: Callable[[str], None]


class Gone(Exception):
    """410: our resourceVersion has expired."""


class Reflector:
    """synced: the copy is complete as of the last list. `relist` clears it until the new list is read."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        sink: Sink,
        query: Mapping[str, str] | None = None,
        backoff: Backoff | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.kind = kind
        self._beside = beside or Beside()
        self.synced = asyncio.Event()
        self.lists = 0
        self._client, self._sink, self._query = client, sink, dict(query or {})
        self._backoff = backoff or Backoff(0.2, 15, random.random)
        self._keys: set[str] = set()
        self._version = ""
        self._stop_watch: asyncio.Event = asyncio.Event()
        self._brought: set[str] | None = None

    def relist(self) -> None:
        """Lists again as soon as possible, then sets `synced`."""
        self.synced.clear()
        self._version = ""
        self._stop_watch.set()

    def note_versions(self, on: bool) -> None:
        """Starts recording the versions that the watch reports, for `brings`; or stops."""
        self._brought = set() if on else None

    async def brings(self, version: str) -> None:
        """Waits until the watch has reported this version since `note_versions`. Versions are compared for equality only:
        before Kubernetes 1.35 their order is undefined."""
        while self._brought is not None and version not in self._brought:
            await asyncio.sleep(0.005)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch_or_stop()
            except Gone:
                self._version = ""
                LOG.info(f"{self.kind.name}: the API server forgot our version; listing again")
            except ApiError as e:
                await asyncio.sleep(max(e.retry_after, self._failed(e)))

    def _failed(self, error: ApiError) -> float:
        wait = self._backoff.failed()
        if self._backoff.failures in (1, 4) or self._backoff.failures % 16 == 0:
            LOG.warning(f"{self.kind.name}: {error}; trying again, {self._backoff.failures} failures so far")
        return wait

    async def _list(self) -> None:
        self._stop_watch.clear()
        seen: set[str] = set()
        version, fixed = "", False
        self._keys |= self._beside.list_begins()
        try:
            async for things, listed in self._client.pages(self.kind, self._query):
                if not fixed:
                    fixed = True
                    self._beside.list_is_fixed()
                version = listed
                for thing in things:
                    self._apply(thing, seen)
        except ApiError as e:
            if e.status == 410:  # the list's continue token has expired
                raise Gone from None
            raise
        else:
            for key in self._keys - seen - self._beside.read:
                self._beside.brought(key)
                self._sink.remove(key)
            self._keys.clear()
        finally:
            self._keys |= seen  # after a partial list, the next list must confirm these
            self._beside.list_ended()
        if self._stop_watch.is_set():
            return  # `relist` was called meanwhile, so this list may be too old
        self._version = version
        self.lists += 1
        self._backoff.worked()
        self.synced.set()

    async def _watch_or_stop(self) -> None:
        if not self._version:
            return
        watch = asyncio.ensure_future(self._watch())
        stop = asyncio.ensure_future(self._stop_watch.wait())
        try:
            await asyncio.wait((watch, stop), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
        finally:
            for task in (watch, stop):
                task.cancel()
            await asyncio.gather(watch, stop, return_exceptions=True)

    async def _watch(self) -> None:
        query = {**self._query, "resourceVersion": self._version}
        events = 0
        try:
            async for line in self._client.watch(self.kind.path, query, random.randint(*WATCH_SECONDS)):
                if line:
                    self._event(line)
                    events += 1
                    self._backoff.worked()
        except ApiError as e:
            if e.status == 410:
                raise Gone from None
            raise
        if not events:  # avoids a busy loop if the server ends every watch at once
            await asyncio.sleep(self._backoff.first)

    def _event(self, line: bytes) -> None:
        try:
            event = decode(line, EVENTS)
            if event.type == "ERROR":
                status = STATUSES.decode(event.object)
                if status.code == 410:
                    raise Gone
                raise ApiError(status.code, status.reason, status.message)
            if event.type == "BOOKMARK":
                version = BOOKMARKS.decode(event.object).metadata.resourceVersion
            else:
                thing = self.kind.objects.decode(event.object)
                version = thing.get("metadata", {}).get("resourceVersion", "")
                self._change(event.type, thing)
        except msgspec.DecodeError as e:
            self._version = ""  # the event is lost, so list again
            raise ApiError(0, "", f"watch of {self.kind.path}: {e}") from None
        if not self._stop_watch.is_set():
            self._version = version
        if self._brought is not None:
            self._brought.add(version)

    def _change(self, change: str, thing: Any) -> None:
        if change == "DELETED":
            key = thing["metadata"][self.kind.key]
            self._beside.brought(key)
            self._keys.discard(key)
            self._sink.remove(key)
        else:
            self._apply(thing, self._keys)

    def _apply(self, thing: Any, keys: set[str]) -> None:
        key = thing["metadata"][self.kind.key]
        keys.add(key)
        self._beside.brought(key)
        self._sink.apply(slim(thing))
