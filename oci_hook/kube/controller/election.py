"""Which controller leads, from a Lease object. Pure: the clock's readings are passed in, and clocks of others never count:
a lease is old when *we* have seen it unchanged for long, whatever time its holder wrote into it.

A leader stops DEADLINE seconds after it began the last renewal that worked. Another takes the lease when it has seen no
change for DURATION seconds. The 5 seconds between are longer than the API server waits for a webhook (2 s), so an answer of
the old leader has arrived, or never will, before the new one lists what is decided.
"""

from oci_hook.core.value import Value

DURATION = 15  # seconds
DEADLINE = 10
RETRY = 2
MOST_DURATION = 60  # of what another holder wrote


class Seen(Value):
    """What the Lease says. version: its resourceVersion, which changes with every write."""

    holder: str = ""
    version: str = ""
    duration: int = DURATION
    transitions: int = 0


class Election:
    def __init__(self, identity: str) -> None:
        self.identity = identity
        self._seen: Seen | None = None
        self._changed_at = 0.0
        self._leads_until = float("-inf")

    @property
    def holder(self) -> str:
        return self._seen.holder if self._seen else ""

    def observe(self, seen: Seen, now: float) -> None:
        if self._seen is None or seen.version != self._seen.version:
            self._changed_at = now
        if seen.holder != self.identity:
            self.lost()
        self._seen = seen

    def may_take(self, now: float) -> bool:
        """Also to renew one's own. A lease with our name that we do not lead by is left of an earlier life: it is ours only
        after it has aged, like any other's."""
        if self._seen is None:
            return False
        if not self._seen.holder or self.leads(now):
            return True
        return now - self._changed_at >= min(max(self._seen.duration, DURATION), MOST_DURATION)

    def took(self, seen: Seen, began: float) -> None:
        """The server accepted our name. began: when we sent it."""
        self.observe(seen, began)
        self._leads_until = began + DEADLINE

    def lost(self) -> None:
        self._leads_until = float("-inf")

    def leads(self, now: float) -> bool:
        return now < self._leads_until
