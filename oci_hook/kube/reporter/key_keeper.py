"""Gets the node's keys at the start, when the controller's certificates or generation change, when the node refuses a decision's
signature, and once an hour."""

import random

from oci_hook.core.backoff import Backoff
from oci_hook.errors import GhError
from oci_hook.kube.formats.names import CA_CONFIG_MAP
from oci_hook.kube.link.api import FAILURES, Api, ApiError
from oci_hook.kube.link.node_settings import NONE, NodeSettings
from oci_hook.kube.link.watcher import jitter, words
from oci_hook.kube.reporter import node_key

EVERY = 3600.0  # seconds
FIRST, MOST = 2.0, 60.0  # after a failure
SUSPECT = 30.0  # seconds at least between requests because of refused decisions
DOUBTFUL = ("GH-602", "GH-606")


class KeyKeeper:
    """problem: the last failure, "" for none. Times are monotonic seconds."""

    def __init__(self, prefix: str, node: str, options: NodeSettings) -> None:
        self.problem = ""
        self._prefix, self._node = prefix, node
        self._namespace = options.namespace
        self._token = node_key.TOKEN if options.controller_token == NONE else options.controller_token
        self._due = 0.0
        self._asked = -SUSPECT
        self._backoff = Backoff(FIRST, MOST, random.random)
        self._changes = -1
        self._refused: frozenset[str] = frozenset()

    def look(self, api: Api, ca: dict[str, str] | None, changes: int, refused: dict[str, str], now: float) -> None:
        """changes: the number of changes of the controller's ConfigMap. refused: code by pod."""
        doubtful = frozenset(uid for uid, code in refused.items() if code in DOUBTFUL)
        if changes != self._changes:
            self._changes, self._due = changes, now
        elif doubtful - self._refused:
            self._due = min(self._due, max(now, self._asked + SUSPECT))
        self._refused = doubtful
        if ca is not None and now >= self._due:
            self._ask(api, ca, now)

    def until(self, now: float) -> float:
        return max(0.0, self._due - now)

    def _ask(self, api: Api, ca: dict[str, str], now: float) -> None:
        self._asked = now
        try:
            if "ca.crt" not in ca:
                raise ValueError(f"ConfigMap {CA_CONFIG_MAP} has no ca.crt yet")
            with open(self._token, encoding="ascii") as f:
                token = f.read(64 << 10).strip()
            where = node_key.address(api, self._namespace)
            answer = node_key.fetch(where, self._namespace, ca["ca.crt"], token)
            node_key.keep(self._prefix, node_key.accept(answer, self._node))
        except (ApiError, GhError, *FAILURES, LookupError, TypeError, AttributeError) as e:
            self.problem = f"no keys from the controller: {words(e)}"
            self._due = now + self._backoff.failed()
        else:
            self.problem = ""
            self._due = now + jitter(EVERY)
            self._backoff.worked()
