"""How busy this node's containers are, as its digest says it: coarse levels that change at most once a minute. Pure.

The agent measures, and sends a line of JSON on standard input now and then: {"busy": {GRANT'S KEY: [per cent of the time, milliseconds]}}.
"""

import json
from collections.abc import Iterable
from typing import Any

from oci_hook.core.grant import Grant
from oci_hook.kube.interference import BURST, DUTY, Busy, PodsBusy, level, read

GAP = 60.0  # seconds between two changes, and until a new container's figures count
HALF = 60.0  # seconds after which a figure counts half
FORGOTTEN = 300.0  # seconds without a figure after which a container's figures are dropped


class _Mean:
    """The mean duty, and the longest burst of late."""

    def __init__(self, now: float) -> None:
        self.since = self.last = now
        self.duty = self.burst = 0.0
        self._levels: tuple[int | None, int | None] = (None, None)

    def take(self, now: float, duty: float, burst: float) -> None:
        took = max(0.0, now - self.last)
        kept = 0.5 ** (took / HALF) if self.last > self.since else 0.0
        self.duty = kept * self.duty + (1 - kept) * duty
        self.burst = max(burst, self.burst * kept)
        self.last = now

    def levels(self) -> Busy:
        duty, burst = self._levels
        found = level(self.duty, DUTY, duty), level(self.burst, BURST, burst)
        self._levels = found
        return found


class NodeBusy:
    """`take` what the agent sends, `said` for the digest. Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._means: dict[str, _Mean] = {}
        self._said: PodsBusy | None = None
        self._next = 0.0

    def take(self, line: bytes, now: float) -> None:
        """A line that is none is left out."""
        try:
            figures = json.loads(line)["busy"].items()
            for key, (duty, burst) in figures:
                if key not in self._means:
                    self._means[key] = _Mean(now)
                else:
                    self._means[key].take(now, min(100.0, max(0.0, float(duty))), max(0.0, float(burst)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        self._means = {key: mean for key, mean in self._means.items() if now - mean.last < FORGOTTEN}

    def said(self, grants: Iterable[Grant], published: str, now: float) -> PodsBusy:
        """published: the digest that the node has; what it says stays until there is something newer."""
        holding = [grant for grant in grants if grant.who.pod_uid and grant.shares]
        if self._said is None:
            self._said, self._next = _before(published), now + GAP
        if now >= self._next:
            found = self._found(holding, now)
            if found != self._said:
                self._said, self._next = found, now + GAP
        there = {(grant.who.pod_uid, grant.who.container) for grant in holding}
        kept = {u: {n: b for n, b in one.items() if (u, n) in there} for u, one in self._said.items()}
        return {uid: one for uid, one in kept.items() if one}

    def _found(self, holding: list[Grant], now: float) -> PodsBusy:
        found: PodsBusy = {}
        for grant in holding:
            mean = self._means.get(grant.key)
            if mean is not None and mean.last - mean.since >= GAP:
                found.setdefault(grant.who.pod_uid, {})[grant.who.container] = mean.levels()
            elif self._said and grant.who.container in self._said.get(grant.who.pod_uid, {}):
                before = self._said[grant.who.pod_uid][grant.who.container]
                found.setdefault(grant.who.pod_uid, {})[grant.who.container] = before
        return found


def _before(published: str) -> PodsBusy:
    try:
        data: Any = json.loads(published)
        return read(data.get("busy"))
    except (ValueError, AttributeError, RecursionError):
        return {}
