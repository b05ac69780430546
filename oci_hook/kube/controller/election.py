"""Which controller leads, from a Lease object. Pure: the clock's readings are passed in, and clocks of others never count:
a lease is old when *we* have seen it unchanged for long, whatever time its holder wrote into it.

A leader decides for DEADLINE seconds after it began the last renewal that worked. Another takes the lease when it has seen no
change for DURATION seconds. Between the two lies the time in which an answer of the old leader may still arrive: the API
server waits ANSWER seconds for a webhook, and then writes the Binding. tests/kube/controller/test_election.py plays thousands
of schedules with pauses, slow calls, lost answers and clocks of different speed; with a smaller DURATION it fails.
"""

from oci_hook.core.value import Value

DEADLINE = 1.7  # seconds; with calls of 1 s it is renewed in time
ANSWER = 2.0  # timeoutSeconds in packaging/kubernetes/webhooks.yaml
WRITE = 0.3  # from an answer's arrival to the Binding in etcd; and what clocks differ in speed
SETTLE = ANSWER + WRITE  # from our last answer until another may decide
DURATION = DEADLINE + SETTLE
WRITTEN = int(DURATION)  # leaseDurationSeconds is a whole number; who reads it waits DURATION at least
RENEW = 1.0  # from the begin of one renewal to the next: one write a second
LOOK = 0.2  # between two looks of who waits for the lease
MOST_DURATION = 60.0  # of what another holder wrote


class Seen(Value):
    """What the Lease says. version: its resourceVersion, which changes with every write. address, pod: where its holder
    listens, and in which pod it runs; "" where it does not say so, as before version 0.1."""

    holder: str = ""
    version: str = ""
    duration: int = WRITTEN
    transitions: int = 0
    address: str = ""
    pod: str = ""


class Election:
    """identity: no other process ever has it. term: the number of holders until us, which the Lease counts."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.seen: Seen | None = None
        self.term = -1
        self.takes = 0  # how often we tried to become the holder
        self._not_before = float("-inf")
        self._changed_at = 0.0
        self._wrote_at = float("-inf")
        self._looked_at = float("-inf")
        self._sure = False  # whether `seen` was the newest when we looked last
        self._leads_until = float("-inf")
        self._resigned = False

    def leads(self, now: float) -> bool:
        return now < self._leads_until

    def silent(self, now: float) -> float:
        """For how many seconds nobody has written the lease."""
        return now - self._changed_at if self.seen is not None else 0.0

    def next(self, now: float) -> tuple[bool, float]:
        """(whether to write our name into the lease, else to look at it; in how many seconds)"""
        look = max(0.0, self._looked_at + LOOK - now)
        if self.seen is None or not self._sure or self._resigned:
            return False, look
        if self._ours(self.seen):
            return True, max(0.0, self._wrote_at + RENEW - now)
        free = self._free_at() - now
        return (True, max(0.0, free)) if free <= look else (False, look)

    def looked(self, seen: Seen, now: float) -> None:
        """now: when the answer was here."""
        self._looked_at = now
        self._sure = True
        self._observe(seen, now)

    def failed(self, now: float) -> None:
        """A call failed, so nobody knows whether it was carried out; or another was quicker."""
        self._looked_at = now
        self._sure = False

    def writes(self, now: float) -> int:
        """We are about to write our name. Returns the lease's new number of holders."""
        assert self.seen is not None
        self._wrote_at = now
        self._sure = False
        if not self._ours(self.seen):
            self.term = self.seen.transitions + 1
            self.takes += 1
        return self.term

    def wrote(self, seen: Seen, began: float, now: float) -> None:
        """The server accepted it. began: when we sent it."""
        self._sure = True
        self._observe(seen, now)
        if self._ours(seen) and not self._resigned:
            self._leads_until = began + DEADLINE

    def resign(self) -> None:
        """We decide nothing any more. SETTLE seconds after our last answer the lease may be given back."""
        self._resigned = True
        self._leads_until = float("-inf")

    def _observe(self, seen: Seen, now: float) -> None:
        if self.seen is None or seen.version != self.seen.version:
            self._changed_at = now
        if self.seen is not None and seen.transitions < self.seen.transitions:
            self._not_before = now + DURATION  # somebody deleted the lease; its holder may not know yet
        if not self._ours(seen):
            self._leads_until = float("-inf")
        self.seen = seen

    def _ours(self, seen: Seen) -> bool:
        """Nobody else has held it since we took it: each one who takes it counts its transitions up."""
        return seen.holder == self.identity and seen.transitions == self.term

    def _free_at(self) -> float:
        assert self.seen is not None
        if not self.seen.holder:
            return self._not_before
        return self._changed_at + min(max(self.seen.duration, DURATION), MOST_DURATION)
