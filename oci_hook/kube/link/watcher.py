"""Lists and watches one kind of object in its own thread, and puts changes into a queue."""

import random
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from oci_hook.core.backoff import Backoff
from oci_hook.kube.link.api import WATCH_SECONDS, Api, ApiError
from oci_hook.kube.link.kubeconfig import Credential

FIRST, MOST = 0.5, 30.0  # seconds to wait after a failure
GONE = 410
NOT_FOUND = 404


class Change:
    """A change of `what`. how: "all" objects, one "put" or "gone", or a "failure", with its text as the value."""

    __slots__ = ("what", "how", "value")

    def __init__(self, what: str, how: str, value: Any) -> None:
        self.what, self.how, self.value = what, how, value


class Watcher(threading.Thread):
    """what: its name in changes. path: of the collection. selector: a fieldSelector. read: object -> the value to keep."""

    def __init__(
        self,
        credential: Credential,
        what: str,
        path: str,
        selector: str,
        read: Callable[[Any], Any],
        tell: Callable[[Change], None],
    ) -> None:
        super().__init__(daemon=True, name=f"watch {what}")
        self._credential = credential
        self._what = what
        self._path, self._selector = path, selector
        self._read, self._tell = read, tell
        self._backoff = Backoff(FIRST, MOST, random.random)
        self._ending = threading.Event()

    def stop(self) -> None:
        self._ending.set()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self._once(Api(self._credential))
            except Exception as e:  # no answer of the server may stop the thread
                if isinstance(e, ApiError) and e.status == GONE:  # the server no longer has our version: list again
                    wait = jitter(0.1)
                else:
                    self._tell(Change(self._what, "failure", words(e)))
                    wait = self._backoff.failed()
                self._ending.wait(wait)

    def _once(self, api: Api) -> None:
        """Lists once, then watches until a call fails; raises its error."""
        found = []
        try:
            for page in api.pages(self._path, {"fieldSelector": self._selector}):
                version = str(page["metadata"]["resourceVersion"])
                found += [self._read(item) for item in page.get("items") or ()]
        finally:
            api.close()
        self._tell(Change(self._what, "all", found))
        while not self._ending.is_set():
            query = {
                **{"fieldSelector": self._selector, "watch": "1", "allowWatchBookmarks": "true"},
                **{"resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)},
            }
            for event in api.watch(f"{self._path}?{urlencode(query)}"):
                kind, item = event.get("type"), event.get("object") or {}
                if kind == "ERROR":
                    raise ApiError(int(item.get("code") or 500), str(item.get("message"))[:200])
                version = str(item["metadata"]["resourceVersion"])
                if kind in ("ADDED", "MODIFIED"):
                    self._tell(Change(self._what, "put", self._read(item)))
                elif kind == "DELETED":
                    self._tell(Change(self._what, "gone", self._read(item)))
            self._backoff.worked()
            self._ending.wait(jitter(0.2))  # do not spin if the server ends each watch at once


def jitter(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)


def words(e: BaseException) -> str:
    return str(getattr(e, "strerror", None) or e or type(e).__name__)[:200]
