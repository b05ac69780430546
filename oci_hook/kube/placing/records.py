"""The controller's records of nodes, pods and reservations: few fields, since there are many."""

import functools
import heapq
import sys
from typing import Any

from oci_hook.core.decision import Decision
from oci_hook.core.grant import Grant
from oci_hook.core.rules import Rules
from oci_hook.core.terms import OFFLINE
from oci_hook.errors import RequestError
from oci_hook.kube.placing.fit import Fit
from oci_hook.kube.pod.asked import ENDED, PodWords, apart_word, asked, is_tried
from oci_hook.kube.pod.peaks import Row, together

MOST_TRIES = 4  # reservations of one pod without a Binding; after more, higher priorities may take its room
MOST_LABELS = 64  # kept of a pod; the API server knows all, and each eviction asks it
MOST_GRACE = 540  # seconds: the longest grace period of a victim; a hold lasts 600

NO_DEFAULT = Rules(whole_gpus="shared")  # reads what the pod says; what its node's own rule adds, `allocate` knows


class NodeRecord:
    """text: its inventory annotation; "" before it has one. rules: its settings, with the policy of its label. mode: "whole",
    "shared" or "". key: the generation of its key. problem: the reason why it cannot be chosen. listed: pods with grants in its
    ledger. refused: pods that it refused, with the code. ours: its labels ask for gpu-hook. strays: listed pods that nobody here knows,
    and not for long; see ClusterState.unsure."""

    __slots__ = (
        *("name", "present", "text", "ledger", "rules", "mode", "key", "problem", "listed", "local"),
        *("refused", "pods", "reserved", "taints", "ours", "strays"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.present = False
        self.text = ""
        self.ledger = ""
        self.rules = Rules()
        self.mode = ""
        self.ours = False
        self.key = 0
        self.problem = ""
        self.listed: dict[str, tuple[str, ...]] = {}
        self.strays: frozenset[str] = frozenset()
        self.local: tuple[Grant, ...] = ()
        self.refused: dict[str, str] = {}
        self.pods: dict[str, PodRecord] = {}
        self.reserved: dict[str, Reservation] = {}
        self.taints: tuple[tuple[str, str, str], ...] = ()


class PodRecord:
    """words, created: only while it has no node. rows: its share of GPUs. was_listed: its node's ledger listed it once. gone: the time
    of its object's deletion, after which its containers may still run; None while the object exists. unproven: a decision that we
    cannot verify, and the pod's words; only the containers in its node's ledger count. labels: only of a pod with our annotations.
    overdue: terminating for too long; see `ends`. grace: its grace period in seconds. tried: see `is_tried`. keeps: it had the
    whole node when its GPUs changed, so it keeps it until it ends."""

    __slots__ = (
        *("uid", "namespace", "name", "node", "words", "rows", "ended", "deleting", "daemon", "whole_node", "priority"),
        *("was_listed", "gone", "unproven", "labels", "created", "tried", "overdue", "grace", "keeps"),
    )

    def __init__(self, obj: dict[str, Any], said: PodWords) -> None:
        """obj: the API object. said: read from it."""
        self.uid = said.uid
        self.namespace = sys.intern(said.namespace)
        self.name = said.name
        self.node = sys.intern((obj.get("spec") or {}).get("nodeName") or "")
        self.words: PodWords | None = None if self.node else said
        self.created: str = "" if self.node else obj["metadata"].get("creationTimestamp") or ""
        self.tried = is_tried(obj)
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
        self.keeps = False
        self.gone: float | None = None
        self.unproven: tuple[Decision, PodWords] | None = None
        self.labels = _shared(obj["metadata"].get("labels") or {}) if said.annotations else ()

    @property
    def offline(self) -> bool:
        """True if its decision gives it shares of class offline only."""
        return bool(self.rows) and all(row.offline for row in self.rows)

    @property
    def told_to_end(self) -> bool:
        return self.deleting or self.gone is not None

    @property
    def ends(self) -> bool:
        """True if its room will be free soon. A longer grace period, chosen by its owner, may last years."""
        return self.told_to_end and not self.overdue and (self.gone is not None or self.grace <= MOST_GRACE)

    @property
    def may_be_hurried(self) -> bool:
        """True if it is terminating with too long a grace period. An eviction with a shorter one shortens it."""
        return self.deleting and self.gone is None and self.grace > MOST_GRACE

    def counts(self, listed: bool) -> bool:
        """True if its share is taken. listed: its node's ledger lists it now. A container between two starts holds no grant, so an
        unlisted share is free only if the pod has ended, terminates or was deleted."""
        if listed:
            return True
        if self.gone is not None:
            return not self.was_listed
        return not (self.ended or (self.deleting and self.was_listed))


class Reservation:
    """Room for a pod without a node. bound: its Binding was answered, so the pod may already have its node; the room stays taken
    until that is known. victims: UIDs of pods evicted for it. With victims it is a hold: no other pod gets the room that they
    free. tries: the number of the pod's reservations so far."""

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
        """True if `other` may take the room: it has a higher priority, and repeated reservations led to no Binding."""
        return self.tries > MOST_TRIES and not self.bound and self.pod.priority < other.priority


@functools.lru_cache(512)  # of pods that are gone, too
def _same(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return labels


def _shared(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Sorted; pods with the same labels share one tuple."""
    few = len(labels) <= MOST_LABELS
    return _same(tuple(sorted(labels.items()) if few else heapq.nsmallest(MOST_LABELS, labels.items())))


def rows_of(decision: Decision, pod: PodWords) -> tuple[Row, ...]:
    """The decision's shares, as rows that count for the pod."""
    alone: set[str] = set()
    if any(not share.memory_mib for _, shares in decision.containers for share in shares):
        try:
            alone = {name for name, _, request in asked(pod, NO_DEFAULT) if request.exclusive}
        except RequestError:
            alone = {name for name, _ in pod.containers}
    parts = []
    terms = dict(decision.terms)
    for name, kind in pod.containers:
        apart = apart_word(pod, name)
        offline = name in terms and terms[name].priority_class == OFFLINE
        rows = tuple(
            Row(sys.intern(s.uuid), s.memory_mib, s.compute, w := not s.memory_mib, w and name in alone, offline, apart)
            for s in decision.shares(name) or ()
        )
        parts.append((kind, rows))
    return together(parts)
