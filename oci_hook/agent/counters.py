"""Counts since the agent started."""

from collections import Counter

from oci_hook.boundary.start import FALLBACK
from oci_hook.errors import CODES
from oci_hook.observe.event_log import Follower

SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # upper bounds of a grant's time


class Counters:
    """Refusals and grants are read from the node's event log."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        self.granted = 0
        self.fallbacks = 0
        self.ended = 0
        self.seconds = [0] * (len(SECONDS) + 1)
        self.seconds_sum = 0.0
        self._log: Follower | None = None
        self._state_dir = ""

    def finding(self, kind: str) -> None:
        self.findings[kind] += 1

    def findings_total(self) -> int:
        return sum(self.findings.values())

    def follow(self, state_dir: str) -> None:
        if self._log is None or state_dir != self._state_dir:
            self._log, self._state_dir = Follower(state_dir, old=False), state_dir
        for event in self._log.read():
            if event["event"] == "refused":
                codes = event.get("codes")
                self.refused.update(c for c in (codes if isinstance(codes, list) else ()) if c in CODES)
            elif event["event"] == FALLBACK:
                self.fallbacks += 1
            elif event["event"] == "granted":
                self.granted += 1
                took = event.get("seconds")
                if isinstance(took, float | int):
                    self.seconds_sum += took
                    self.seconds[next((i for i, le in enumerate(SECONDS) if took <= le), len(SECONDS))] += 1
