"""What the controller remembers of a node, a pod and a reservation: few fields, since there are many."""

import functools
import heapq
import sys
from typing import Any

from oci_hook.core.decision import Decision
from oci_hook.core.grant import Grant
from oci_hook.core.rules import Rules
from oci_hook.core.terms import OFFLINE
from oci_hook.errors import RequestError
from oci_hook.kube.fit import Fit
from oci_hook.kube.interference import Busy
from oci_hook.kube.peaks import Row, together
from oci_hook.kube.pods import ENDED, PodWords, asked

MOST_TRIES = 4  # reservations of one pod without a Binding, until its room is no longer kept from more important ones
MOST_LABELS = 64  # of a pod are kept; the API server, which is asked before anybody ends, knows all
MOST_GRACE = 540  # seconds that a pod may take to end for another; a hold lasts 600


class Node:
    """text: the annotation with its inventory; "" before it has one. rules: its settings, with the policy of its label.
    mode: "whole", "shared" or "". key: the generation of its key. problem: why it cannot be chosen. listed: pods that hold
    grants, as its ledger says. refused: pods that it refused, with the code. ours: its labels say that gpu-hook is to run there.
    busy: levels by pod, where it measures them."""

    __slots__ = (
        *("name", "present", "text", "policy", "ledger", "rules", "mode", "key", "problem", "listed", "local"),
        *("refused", "pods", "reserved", "taints", "ours", "busy"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.present = False
        self.text = ""
        self.policy = ""
        self.ledger = ""
        self.rules = Rules()
        self.mode = ""
        self.ours = False
        self.key = 0
        self.problem = ""
        self.listed: dict[str, tuple[str, ...]] = {}
        self.local: tuple[Grant, ...] = ()
        self.refused: dict[str, str] = {}
        self.pods: dict[str, Pod] = {}
        self.reserved: dict[str, Reservation] = {}
        self.taints: tuple[tuple[str, str, str], ...] = ()
        self.busy: dict[str, Busy] = {}


class Pod:
    """words, created: only while it has no node. rows: what it was given. was_listed: its node's ledger had it once. gone: when the
    object went away while its containers may still run; None while the object exists. claim: its decision, where we cannot verify
    that, and the pod's words: counts as far as its node's ledger has it. labels: of a pod with
    words of ours. overdue: was told to end long ago, and has not; see `ends`. grace: seconds that it has to end."""

    __slots__ = (
        *("uid", "namespace", "name", "node", "words", "rows", "ended", "deleting", "daemon", "whole_node", "priority"),
        *("was_listed", "gone", "claim", "labels", "created", "overdue", "grace"),
    )

    def __init__(self, obj: dict[str, Any], said: PodWords) -> None:
        """Of an API object, and its words."""
        self.uid = said.uid
        self.namespace = sys.intern(said.namespace)
        self.name = said.name
        self.node = sys.intern((obj.get("spec") or {}).get("nodeName") or "")
        self.words: PodWords | None = None if self.node else said
        self.created: str = "" if self.node else obj["metadata"].get("creationTimestamp") or ""
        self.rows: tuple[Row, ...] = ()
        self.ended = (obj.get("status") or {}).get("phase") in ENDED
        self.deleting = bool(obj["metadata"].get("deletionTimestamp"))
        spec, meta = obj.get("spec") or {}, obj["metadata"]
        given = meta.get("deletionGracePeriodSeconds") if self.deleting else spec.get("terminationGracePeriodSeconds")
        self.grace: int = 30 if given is None else given
        self.daemon = said.daemon
        self.whole_node = said.whole_node
        self.priority = said.priority
        self.was_listed = False
        self.overdue = False
        self.gone: float | None = None
        self.claim: tuple[Decision, PodWords] | None = None
        self.labels = _shared(obj["metadata"].get("labels") or {}) if said.annotations else ()

    @property
    def offline(self) -> bool:
        """Whether all that it holds was decided to be of class offline."""
        return bool(self.rows) and all(row.offline for row in self.rows)

    @property
    def told_to_end(self) -> bool:
        return self.deleting or self.gone is not None

    @property
    def ends(self) -> bool:
        """Whether its room will be free soon. Its owner chooses how long it may take to end, which may be years."""
        return self.told_to_end and not self.overdue and (self.gone is not None or self.grace <= MOST_GRACE)

    @property
    def may_be_hurried(self) -> bool:
        """Whether it was told to end in a time that is too long, however long ago: an eviction with a shorter one shortens it."""
        return self.deleting and self.gone is None and self.grace > MOST_GRACE

    def counts(self, listed: bool) -> bool:
        """Whether its share is taken. listed: its node's ledger has it now. A container that waits for its next start holds
        no grant, so only a pod that ends or was deleted is free when the ledger no longer has it."""
        if listed:
            return True
        if self.gone is not None:
            return not self.was_listed
        return not (self.ended or (self.deleting and self.was_listed))


class Reservation:
    """Room for a pod that has no node yet. bound: the Binding was answered, so the pod may have its node already, and the
    room stays taken until that is known. victims: UIDs of pods that were told to end for it; the room is theirs and its own
    until they did (a hold). tries: how often the pod got a reservation by now."""

    __slots__ = ("pod", "node", "fit", "deadline", "bound", "victims", "tries")

    def __init__(self, pod: PodWords, node: str, fit: Fit, deadline: float, bound: bool) -> None:
        self.pod = pod
        self.node = node
        self.fit = fit
        self.deadline = deadline
        self.bound = bound
        self.victims: tuple[str, ...] = ()
        self.tries = 0

    def yields_to(self, other: PodWords) -> bool:
        """Whether a more important pod may have the room: it was reserved again and again, and no Binding ever succeeded."""
        return self.tries > MOST_TRIES and not self.bound and self.pod.priority < other.priority


@functools.lru_cache(4096)
def _same(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return labels


def _shared(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """In order; one tuple for all pods of one owner."""
    few = len(labels) <= MOST_LABELS
    return _same(tuple(sorted(labels.items()) if few else heapq.nsmallest(MOST_LABELS, labels.items())))


def rows_of(decision: Decision, pod: PodWords) -> tuple[Row, ...]:
    """What the decision gives the pod, as it counts."""
    alone: set[str] = set()
    if any(not share.memory_mib for _, shares in decision.containers for share in shares):
        try:
            alone = {name for name, _, request in asked(pod, Rules()) if request.exclusive}
        except RequestError:
            alone = {name for name, _ in pod.containers}
    parts = []
    terms = dict(decision.terms)
    for name, kind in pod.containers:
        offline = name in terms and terms[name].priority_class == OFFLINE
        rows = tuple(
            Row(sys.intern(s.uuid), s.memory_mib, s.compute, w := not s.memory_mib, w and name in alone, offline)
            for s in decision.shares(name) or ()
        )
        parts.append((kind, rows))
    return together(parts)
