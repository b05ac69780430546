"""Keeps a copy of one kind of objects up to date: lists them, watches them, and lists again where the watch lost its place."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from oci_hook.kube.controller.backoff import Backoff
from oci_hook.kube.controller.beside import Beside
from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.objects import BOOKMARKS, EVENTS, STATUSES, Kind, slim
from oci_hook.kube.controller.shallow import decode

WATCH_SECONDS = (240, 480)  # each watch ends after some minutes, so that a lost one is never noticed late


class Sink(Protocol):
    def apply(self, thing: Any) -> None: ...

    def remove(self, key: str) -> None: ...


class Gone(Exception):
    """The server no longer has the versions after ours: 410."""


class Reflector:
    """synced: the copy is whole, as of the last list; unset from `relist` until then."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        sink: Sink,
        log: Callable[[str], None],
        query: Mapping[str, str] | None = None,
        backoff: Backoff | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.kind = kind
        self._beside = beside or Beside()
        self.synced = asyncio.Event()
        self.lists = 0
        self._client, self._sink, self._log, self._query = client, sink, log, dict(query or {})
        self._backoff = backoff or Backoff(0.2, 15)
        self._keys: set[str] = set()
        self._version = ""
        self._stop_watch: asyncio.Event = asyncio.Event()
        self._brought: set[str] | None = None

    def relist(self) -> None:
        """List again as soon as possible; `synced` is set when that is done."""
        self.synced.clear()
        self._version = ""
        self._stop_watch.set()

    def note_versions(self, on: bool) -> None:
        """From now on, keep the versions that the watch brings, for `brings`; or forget them."""
        self._brought = set() if on else None

    async def brings(self, version: str) -> None:
        """Until the watch has brought this version of an object since `note_versions`. Versions are only compared for equality:
        before Kubernetes 1.35 nothing is said about their order."""
        while self._brought is not None and version not in self._brought:
            await asyncio.sleep(0.005)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch_or_stop()
            except Gone:
                self._version = ""
                self._log(f"{self.kind.name}: the API server forgot our version; listing again")
            except ApiError as e:
                await asyncio.sleep(max(e.retry_after, self._failed(e)))

    def _failed(self, error: ApiError) -> float:
        wait = self._backoff.failed()
        if self._backoff.failures in (1, 4) or self._backoff.failures % 16 == 0:
            self._log(f"{self.kind.name}: {error}; trying again, {self._backoff.failures} failures so far")
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
            if e.status == 410:  # the list's own pages are too old
                raise Gone from None
            raise
        else:
            for key in self._keys - seen - self._beside.read:
                self._beside.brought(key)
                self._sink.remove(key)
            self._keys.clear()
        finally:
            self._keys |= seen  # what half a list brought has to be in the next one too
            self._beside.list_ended()
        if self._stop_watch.is_set():
            return  # asked again meanwhile: what was listed may be older than the question
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
        if not events:  # a server that ends every watch at once must not keep us busy
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
            self._version = ""  # an event was lost: only a list tells what it said
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
