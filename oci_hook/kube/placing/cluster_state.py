"""The cluster as the controller knows it: each node's GPUs, the taken shares, reservations. A restart rebuilds it.

These count as taken on a node: shares of pods with a valid decision; shares that the node granted by a decision that we cannot
verify; grants without a decision; reservations. A share is free when the node's ledger no longer has it, not already when its pod's
object is deleted.
"""

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from oci_hook.core import decision as decisions
from oci_hook.core.allocate import NOBODY
from oci_hook.core.decision import Decision
from oci_hook.core.grant import Grant, Identity
from oci_hook.core.inventory import Inventory
from oci_hook.core.rules import BY_CLASS, Rules
from oci_hook.core.terms import OFFLINE
from oci_hook.kube.formats import names
from oci_hook.kube.formats.node_info import Digest, NodeInventory, read_digest, read_inventory
from oci_hook.kube.placing.fit import Fit, as_grants
from oci_hook.kube.placing.order import Cut
from oci_hook.kube.placing.records import NodeRecord, PodRecord, Reservation, rows_of
from oci_hook.kube.placing.room import room_of
from oci_hook.kube.pod.asked import PodWords, words
from oci_hook.kube.pod.peaks import Row

RESERVED = 30.0  # seconds until a reservation without a Binding is dropped
CONFIRMED = 60.0  # seconds until the caller has to check the result of a Binding
GRACE = 5.0  # seconds for which a deleted pod still counts that its node's ledger never listed
FORCED = 40.0  # of one deleted by force, which may run: longer than a node waits that could not write (kube/link/watcher.py, MOST)
ENDS = 600.0  # seconds for which the room of a terminating pod counts as free soon, whatever its grace period
INVENTORIES = 256  # parsed ones to keep; the others are parsed again
T9K_MODES = {"xgn": "whole", "sgn": "shared"}


class ClusterState:
    """placement: the order of nodes for pods that ask for none: a name in NODE_ORDERS, or by-class. verify: whether the controller
    signed this decision. Other decisions count if the pod's node granted them: it has its own keys, while ours may be lost or
    removed."""

    def __init__(self, placement: str = BY_CLASS, verify: Callable[[Decision], bool] = lambda decision: True) -> None:
        self.placement = placement
        self.nodes: dict[str, NodeRecord] = {}
        self.pods: dict[str, PodRecord] = {}
        self.reservations: dict[str, Reservation] = {}
        self.cut = Cut()
        self._verify = verify
        self._pending: dict[tuple[str, str], str] = {}  # (namespace, name) -> UID, of pods without a node
        self._changed: set[str] = set()
        self._ghosts: dict[str, PodRecord] = {}  # the object is gone, the containers may run
        self._tries: dict[str, int] = {}  # UID of a pod without a node -> number of its reservations
        self._ending: dict[str, float | None] = {}  # UID of a terminating pod -> the time of the first tick that saw it
        self._strays: dict[tuple[str, str], float] = {}  # (node, UID of a stray) -> the first tick that saw it
        self._rules: dict[Rules, Rules] = {}
        self._inventories: dict[str, tuple[str, Inventory]] = {}

    # --- objects from the API server

    def apply_node(self, obj: dict[str, Any]) -> None:
        """Adds or updates a node. Unreadable annotations set its `problem`; such a node is not chosen."""
        meta = obj["metadata"]
        annotations, labels = meta.get("annotations") or {}, meta.get("labels") or {}
        node = self._node(meta["name"])
        node.present, node.problem = True, ""
        node.mode = labels.get(names.MODE_LABEL) or T9K_MODES.get(labels.get(names.T9K_MODE, ""), "")
        node.ours = any(labels.get(key) == value for key, value in names.ENABLING.items())
        node.taints = tuple(
            (t["key"], t.get("value") or "", t.get("effect") or "") for t in (obj.get("spec") or {}).get("taints") or ()
        )
        try:
            self._read_inventory(node, annotations.get(names.INVENTORY, ""))
        except ValueError as e:
            node.text, node.problem = "", f"its inventory {e}"
        try:
            self._read_ledger(node, annotations.get(names.LEDGER, ""))
        except ValueError as e:
            node.ledger, node.problem = "", node.problem or f"its ledger's digest {e}"
        self._changed.add(node.name)

    def remove_node(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is not None:
            node.present, node.text, node.ledger, node.listed, node.local = False, "", "", {}, ()
            self._inventories.pop(name, None)
            self._changed.add(name)

    def apply_pod(self, obj: dict[str, Any]) -> None:
        """Adds or updates a pod. A node name ends the pod's reservation, even one on another node."""
        said = words(obj)
        pod = PodRecord(obj, said)
        old = self.pods.get(pod.uid)
        if not pod.node:
            if old is None or not old.node:  # an event without the node's name is stale: it never goes away
                self.pods[pod.uid] = pod
                self._pending[pod.namespace, pod.name] = pod.uid
            return
        due, before = pod.node in self._changed or pod.node not in self.nodes, self._held(pod.uid, pod.node)
        if old is not None and old.node:
            self._forget(old)
            pod.was_listed, pod.overdue, pod.keeps = old.was_listed, old.overdue, old.keeps
        if pod.deleting and not pod.may_be_hurried:  # its time starts when its grace period is shortened
            self._ending.setdefault(pod.uid, None)
        self.release(pod.uid)
        self._tries.pop(pod.uid, None)
        self._drop_pending(pod)
        node = self._node(pod.node)
        self._decide_rows(pod, obj, said, old if old is not None and old.node == pod.node else None)
        pod.was_listed |= pod.uid in node.listed
        self.pods[pod.uid] = node.pods[pod.uid] = pod
        self._changed.add(pod.node)
        if not due and self._held(pod.uid, pod.node) == before:
            self._changed.discard(pod.node)  # true for most events: a new status, or a reservation's pod

    def remove_pod(self, uid: str, now: float) -> None:
        """The object was deleted. now: seconds of any steady clock, the same in all calls."""
        self.release(uid)
        self._tries.pop(uid, None)
        pod = self.pods.get(uid)
        if pod is None:
            return
        pod.gone = now
        self._ending.setdefault(uid, now)
        if pod.node and pod.rows and not pod.ended and self._counts(pod):
            self._ghosts[uid] = pod
            self._changed.add(pod.node)
        elif pod.node and pod.rows and uid in self._node(pod.node).listed:
            self._ghosts[uid] = pod
        else:
            self._forget(pod)

    def forget(self, uid: str) -> None:
        """Removes the pod and its share, to ask for the answer without it, or because it was only tried."""
        self.release(uid)
        self._tries.pop(uid, None)
        pod = self.pods.get(uid)
        if pod is not None:
            self._forget(pod)

    def tick(self, now: float) -> tuple[PodWords, ...]:
        """Drops expired entries. Returns the pods whose Binding was answered long ago and which still have no node here: the caller
        gets them from the API server, and calls apply_pod, remove_pod or release."""
        unknown = []
        for uid, one in list(self.reservations.items()):
            if one.deadline <= now:
                if one.bound:
                    unknown.append(one.pod)
                else:
                    self.release(uid)
        for pod in list(self._ghosts.values()):
            seconds = (
                GRACE if pod.deleting else FORCED
            )  # the kubelet deletes the former, when its containers have ended
            if pod.gone is not None and pod.gone + seconds <= now and pod.uid not in self._node(pod.node).listed:
                self._forget(pod)
        self._mark_overdue(now)
        self._look_for_strays(now)
        return tuple(unknown)

    # --- reservations

    def reserve(self, pod: PodWords, node: str, found: Fit, now: float, bound: bool = False) -> None:
        """Reserves room for the pod, in place of its earlier reservation."""
        deadline = now + (CONFIRMED if bound else RESERVED)
        held = self.reservations.get(pod.uid)
        if held is not None and held.node == node and held.fit is found:
            held.deadline, held.bound, held.victims = deadline, bound, ()
            return
        self.release(pod.uid)
        one = Reservation(pod, node, found, deadline, bound)
        one.tries = self._tries[pod.uid] = self._tries.get(pod.uid, 0) + 1
        self.reservations[pod.uid] = self._node(node).reserved[pod.uid] = one
        self._changed.add(node)

    def hold(self, pod: PodWords, node: str, found: Fit, victims: tuple[str, ...], deadline: float) -> None:
        """Reserves the room of evicted pods, so that no other pod gets it when they end."""
        self.release(pod.uid)
        one = Reservation(pod, node, found, deadline, bound=False)
        one.victims = victims
        self.restore(one)

    def release(self, uid: str) -> None:
        """Drops the pod's reservation, if it has one."""
        one = self.reservations.pop(uid, None)
        if one is not None:
            del self.nodes[one.node].reserved[uid]
            self._changed.add(one.node)

    def restore(self, one: Reservation) -> None:
        """Puts back a reservation that was released to look at the node without it."""
        self.release(one.pod.uid)
        self.reservations[one.pod.uid] = self._node(one.node).reserved[one.pod.uid] = one
        self._changed.add(one.node)

    @contextlib.contextmanager
    def without(self, *uids: str) -> Iterator[None]:
        """Takes these pods' reservations away for the block, and puts them back after it."""
        held = [self.reservations[uid] for uid in uids if uid in self.reservations]
        for one in held:
            self.release(one.pod.uid)
        try:
            yield
        finally:
            for one in held:
                self.restore(one)

    # --- questions of the code that chooses

    def pending(self, namespace: str, name: str) -> PodWords | None:
        """The pod of this name, if it has no node."""
        pod = self.pods.get(self._pending.get((namespace, name), ""))
        return pod.words if pod is not None else None

    def waiting(self) -> tuple[PodWords, ...]:
        """The pods without a node that the scheduler tries."""
        return tuple(pod.words for pod in self.without_node() if pod.words is not None and pod.tried)

    def inventory(self, node: NodeRecord) -> Inventory:
        """Raises KeyError if the node has none."""
        text, inventory = self._inventories.get(node.name, ("", None))
        if inventory is None or text != node.text:
            if not node.text:
                raise KeyError(node.name)
            inventory = read_inventory(node.text, known=True).inventory
            self._keep(node.name, node.text, inventory)
        return inventory

    def grants(self, node: NodeRecord, without: str = "", named: bool = False) -> tuple[Grant, ...]:
        """All grants on the node. without: the UID of a pod to leave out. named: with the pods' names."""
        found = list(node.local)
        for uid, pod in node.pods.items():
            if pod.rows and uid != without and self._counts(pod):
                found += as_grants(uid, pod.rows, identity(pod) if named else NOBODY)
        for uid, one in node.reserved.items():
            if uid != without:
                found += as_grants(uid, one.fit.rows, identity(one.pod) if named else NOBODY)
        return tuple(found)

    def holdings(self, node: NodeRecord) -> Iterator[tuple[str, str, tuple[Row, ...]]]:
        """(UID, namespace, rows) of each grant that `grants` counts; "" and "" for one without a decision."""
        for grant in node.local:
            offline = grant.terms.priority_class == OFFLINE
            shares = grant.shares
            yield "", "", tuple(Row(s.uuid, s.memory_mib, s.compute, s.whole, grant.exclusive, offline) for s in shares)
        for uid, pod in node.pods.items():
            if pod.rows and self._counts(pod):
                yield uid, pod.namespace, pod.rows
        for uid, one in node.reserved.items():
            yield uid, one.pod.namespace, one.fit.rows

    def without_node(self) -> list[PodRecord]:
        """The pods that wait for a node."""
        return [pod for uid in self._pending.values() if (pod := self.pods.get(uid)) is not None]

    def others(self, node: NodeRecord, uid: str) -> bool:
        """True if the node has other pods or grants than this pod's and DaemonSets'."""
        known = {uid, *(pod.uid for pod in node.pods.values() if pod.daemon)}
        if any(pod.uid not in known and (not pod.ended or self._counts(pod)) for pod in node.pods.values()):
            return True
        local = any(grant.who.pod_uid not in known for grant in node.local)
        return local or not known.issuperset(node.listed) or not known.issuperset(node.reserved)

    def owner(self, node: NodeRecord, uid: str) -> "PodRecord | PodWords | None":
        """Another pod that has the node to itself."""
        for pod in node.pods.values():
            if pod.whole_node and pod.uid != uid and self._counts(pod) and (pod.keeps or self._has_all(pod, node)):
                return pod
        for one in node.reserved.values():
            if one.pod.whole_node and one.pod.uid != uid:
                return one.pod
        return None

    def unsure(self, node: NodeRecord) -> bool:
        """True if containers run on the node whose share nobody here knows: their pod's object was deleted before this process began.
        The node soon reports them as grants without a decision, with their shares."""
        return any(uid in node.listed and uid not in node.pods and uid not in node.reserved for uid in node.strays)

    def refresh(self, most: int | None = None) -> bool:
        """Updates the cut for changed nodes, at most `most` of them. Returns whether none is left."""
        for name in list(itertools.islice(self._changed, most)):
            self._changed.discard(name)
            node = self.nodes[name]
            if node.present and node.text and not node.problem and not self.unsure(node):
                self.cut.put(name, room_of(self.inventory(node), self.grants(node), node.rules))
            else:
                self.cut.drop(name)
                if not (node.present or node.pods or node.reserved):
                    del self.nodes[name]
        return not self._changed

    # --- inside

    def _mark_overdue(self, now: float) -> None:
        for uid, since in list(self._ending.items()):
            pod = self.pods.get(uid)
            if pod is None or pod.overdue:
                del self._ending[uid]
            elif since is None:
                self._ending[uid] = now
            elif since + ENDS <= now:
                pod.overdue = True

    def _look_for_strays(self, now: float) -> None:
        """Each counts for FORCED at most: a node that cannot write must not be closed for ever."""
        found: dict[tuple[str, str], float] = {}
        for node in self.nodes.values():
            unknown = node.listed.keys() - node.pods.keys() - node.reserved.keys()
            found |= {(node.name, uid): self._strays.get((node.name, uid), now) for uid in unknown}
            young = frozenset(uid for uid in unknown if found[node.name, uid] + FORCED > now)
            if young != node.strays:
                node.strays = young
                self._changed.add(node.name)
        self._strays = found

    def _held(self, uid: str, name: str) -> tuple[Row, ...]:
        """The pod's rows on this node, by its decision and its reservation."""
        node = self.nodes.get(name)
        pod, one = (node.pods.get(uid), node.reserved.get(uid)) if node is not None else (None, None)
        rows = pod.rows if pod is not None and pod.rows and self._counts(pod) else ()
        return (*rows, *one.fit.rows) if one is not None else rows

    def _node(self, name: str) -> NodeRecord:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = NodeRecord(sys.intern(name))
            self._changed.add(name)
        return node

    def _counts(self, pod: PodRecord) -> bool:
        return pod.counts(pod.uid in self._node(pod.node).listed)

    def _has_all(self, pod: PodRecord, node: NodeRecord) -> bool:
        """True if it was given all GPUs of the node. Its annotation is no proof: it can be written later."""
        whole = {row.uuid for row in pod.rows if row.whole}
        try:
            return bool(whole) and whole.issuperset(gpu.uuid for gpu in self.inventory(node).gpus)
        except KeyError:
            return bool(whole)

    def _decide_rows(self, pod: PodRecord, obj: dict[str, Any], said: PodWords, old: PodRecord | None) -> None:
        """Sets the pod's rows, and never changes known ones: writing to the pod must not alter its share."""
        if old is not None and old.rows and old.unproven is None:
            pod.rows, pod.whole_node = old.rows, old.whole_node
            return
        decision = _decision(pod, obj)
        if decision is not None and self._verify(decision):
            pod.rows = rows_of(decision, said)
            return
        if old is not None and old.unproven is not None:
            pod.unproven, pod.whole_node = old.unproven, old.whole_node
        elif decision is not None:
            pod.unproven = decision, said
        _count_unproven(pod, self._node(pod.node))

    def _forget(self, pod: PodRecord) -> None:
        self.pods.pop(pod.uid, None)
        self._ghosts.pop(pod.uid, None)
        self._drop_pending(pod)
        if pod.node:
            self._node(pod.node).pods.pop(pod.uid, None)
            self._changed.add(pod.node)

    def _drop_pending(self, pod: PodRecord) -> None:
        if self._pending.get((pod.namespace, pod.name)) == pod.uid:
            del self._pending[pod.namespace, pod.name]

    def _read_inventory(self, node: NodeRecord, text: str) -> None:
        if text == node.text:
            return
        if node.text and isinstance(owner := self.owner(node, ""), PodRecord):
            owner.keeps = True  # also beside a GPU that was lost and is back
        said = read_inventory(text) if text else NodeInventory(EMPTY, Rules())
        if len(self._rules) >= INVENTORIES:  # a node may keep sending new ones
            self._rules.clear()
        node.rules = self._rules.setdefault(said.rules, said.rules)
        node.key, node.text = said.key, text
        node.ledger = ""  # refers to GPUs by their place in the inventory, so read it again
        if text:
            self._keep(node.name, text, said.inventory)

    def _read_ledger(self, node: NodeRecord, text: str) -> None:
        if text == node.ledger:
            return
        digest = read_digest(text, self.inventory(node) if node.text else EMPTY) if text else Digest()
        node.ledger, node.local, node.refused = text, digest.local, dict(digest.refused)
        node.listed = {sys.intern(uid): containers for uid, containers in digest.pods}
        for uid in node.listed:
            if uid in node.pods:
                node.pods[uid].was_listed = True
        for pod in node.pods.values():
            _count_unproven(pod, node)
        for pod in [self._ghosts[uid] for uid in self._ghosts if uid in node.pods]:
            if pod.was_listed and pod.uid not in node.listed:
                self._forget(pod)

    def _keep(self, name: str, text: str, inventory: Inventory) -> None:
        self._inventories.pop(name, None)
        self._inventories[name] = text, inventory
        if len(self._inventories) > INVENTORIES:
            del self._inventories[next(iter(self._inventories))]


def _decision(pod: PodRecord, obj: dict[str, Any]) -> Decision | None:
    """The decision in the pod's annotation, if it is for this pod on this node. Its signature is not verified yet."""
    text = (obj["metadata"].get("annotations") or {}).get(names.ALLOC)
    if text is None:
        return None
    try:
        decision = decisions.read(text, json.loads)
    except ValueError:
        return None
    return decision if (decision.uid, decision.node) == (pod.uid, pod.node) else None


def _count_unproven(pod: PodRecord, node: NodeRecord) -> None:
    """Counts a decision that we cannot verify for the containers that hold grants on the node."""
    if pod.unproven is not None:
        decision, said = pod.unproven
        granted = node.listed.get(pod.uid, ())
        pod.rows = rows_of(decision.replace(containers=tuple(c for c in decision.containers if c[0] in granted)), said)


EMPTY = Inventory("", "", "", False, (), (), (), "", "")


def identity(pod: PodRecord | PodWords) -> Identity:
    return Identity("", pod.name, "", pod_uid=pod.uid, namespace=pod.namespace, pod=pod.name)
