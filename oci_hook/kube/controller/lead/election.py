"""Leader election by a Lease object. Pure: callers pass in the clock's readings. Clocks of others never count: a lease is old when
*we* have seen it unchanged for long, whatever time its holder wrote into it.

A leader may decide for DEADLINE seconds after it began its last successful renewal. Another controller takes the lease after it
has seen no change for DURATION seconds. In the time between, an answer of the old leader may still take effect: the API server
waits ANSWER seconds for a webhook, and then writes the Binding. tests/kube/controller/lead/test_election.py simulates thousands of
schedules with pauses, slow calls, lost answers and clocks of different speed; it fails with a smaller DURATION.
"""

from oci_hook.core.value import Value

DEADLINE = 1.7  # seconds; renewal is in time if calls take up to 1 s
ANSWER = 2.0  # timeoutSeconds in packaging/kubernetes/webhooks.yaml
WRITE = 0.3  # seconds from an answer's arrival to the Binding in etcd, plus the clocks' difference in speed
SETTLE = ANSWER + WRITE  # seconds from our last answer until another controller may decide
DURATION = DEADLINE + SETTLE
WRITTEN = int(DURATION)  # leaseDurationSeconds is a whole number; readers wait at least DURATION
RENEW = 1.0  # seconds between the starts of two renewals
LOOK = 0.2  # seconds between two reads of a controller that waits for the lease
MOST_DURATION = 60.0  # seconds; upper bound for another holder's leaseDurationSeconds


class SeenLease(Value):
    """The Lease as read. version: its resourceVersion, which changes with every write. address, pod: where its holder listens,
    and the holder's pod; "" if the Lease does not have them, as before version 0.1."""

    holder: str = ""
    version: str = ""
    duration: int = WRITTEN
    transitions: int = 0
    address: str = ""
    pod: str = ""


class Election:
    """identity: unique to this process. term: the Lease's count of holders when we took it."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.seen: SeenLease | None = None
        self.term = -1
        self.takes = 0  # number of our attempts to become the holder
        self._not_before = float("-inf")
        self._changed_at = 0.0
        self._wrote_at = float("-inf")
        self._looked_at = float("-inf")
        self._sure = False  # `seen` was current at the last call
        self._leads_until = float("-inf")
        self._resigned = False

    def leads(self, now: float) -> bool:
        return now < self._leads_until

    def silent(self, now: float) -> float:
        """Seconds since the last write of the lease that we saw."""
        return now - self._changed_at if self.seen is not None else 0.0

    def next(self, now: float) -> tuple[bool, float]:
        """Returns (True to write our name into the lease, False to read it; the seconds to wait before)."""
        look = max(0.0, self._looked_at + LOOK - now)
        if self.seen is None or not self._sure or self._resigned:
            return False, look
        if self._ours(self.seen):
            return True, max(0.0, self._wrote_at + RENEW - now)
        free = self._free_at() - now
        return (True, max(0.0, free)) if free <= look else (False, look)

    def looked(self, seen: SeenLease, now: float) -> None:
        """We have read the lease. now: when the answer arrived."""
        self._looked_at = now
        self._sure = True
        self._observe(seen, now)

    def failed(self, now: float) -> None:
        """A call failed: it may have been carried out, or another write came first."""
        self._looked_at = now
        self._sure = False

    def writes(self, now: float) -> int:
        """Called before we write our name. Returns the lease's new count of holders."""
        assert self.seen is not None
        self._wrote_at = now
        self._sure = False
        if not self._ours(self.seen):
            self.term = self.seen.transitions + 1
            self.takes += 1
        return self.term

    def wrote(self, seen: SeenLease, began: float, now: float) -> None:
        """The server accepted our write. began: when we sent it."""
        self._sure = True
        self._observe(seen, now)
        if self._ours(seen) and not self._resigned:
            self._leads_until = began + DEADLINE

    def resign(self) -> None:
        """Ends our leadership. The lease may be released SETTLE seconds after our last answer."""
        self._resigned = True
        self._leads_until = float("-inf")

    def _observe(self, seen: SeenLease, now: float) -> None:
        if self.seen is None or seen.version != self.seen.version:
            self._changed_at = now
        if self.seen is not None and seen.transitions < self.seen.transitions:
            self._not_before = now + DURATION  # the lease was deleted, and its holder may not know yet
        if not self._ours(seen):
            self._leads_until = float("-inf")
        self.seen = seen

    def _ours(self, seen: SeenLease) -> bool:
        """True if we hold the lease and nobody held it since we took it: each new holder increments its transitions."""
        return seen.holder == self.identity and seen.transitions == self.term

    def _free_at(self) -> float:
        assert self.seen is not None
        if not self.seen.holder:
            return self._not_before
        return self._changed_at + min(max(self.seen.duration, DURATION), MOST_DURATION)
