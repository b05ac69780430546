"""Decides which pods their node refused, and when to evict them. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from oci_hook.core.value import Value
from oci_hook.errors import CODES
from oci_hook.kube.formats import names

CODE = re.compile(r"GH-[246][0-9][0-9]\b")
WAITING = (
    "RunContainerError",
    "CreateContainerError",
)  # the kubelet's reasons if the runtime failed to create the container
TERMINATED = ("StartError", "ContainerCannotRun")
# What every node answers to such a pod: its own words, image and rights decide.
EVERYWHERE = ("GH-402", "GH-403", "GH-406", "GH-411", "GH-412", "GH-413")
NO_OWNER = "no controller would recreate this pod"
NO_OTHER = "every node refuses it; change the pod, or its owner's template"
OWN_NODE = "it names its node itself; in place of spec.nodeName write nodeSelector kubernetes.io/hostname"
GRACE = 3.0  # seconds, since a key or a freed share may still reach the node
FIRST, MOST = 5.0, 300.0  # seconds between evictions of one owner's pods
FORGET = 900.0  # seconds without a refusal, after which an owner's interval starts at FIRST again
MAX_WORDS = 280


class RefusedPod(Value):
    """owner: namespace and uid of the controller that recreates the pod; "" for none. words: begin with the code. stays: the reason
    why an eviction would not help; "" if it may."""

    uid: str
    namespace: str
    name: str
    code: str
    words: str
    owner: str = ""
    stays: str = ""


def refusal(pod: Mapping[str, Any], reported: str = "") -> RefusedPod | None:
    """reported: the code in the node's digest. Reads only messages that the runtime wrote, never those of a container's program."""
    metadata = pod["metadata"]
    if metadata.get("deletionTimestamp") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    words = _words(pod) if _ours(pod) else ""
    if not words and reported in CODES and not_made(pod):
        words = f"{reported}: {CODES[reported]}"
    if not words:
        return None
    owners = metadata.get("ownerReferences") or ()
    owner = next((one.get("uid") or one.get("name") or "" for one in owners if one.get("controller")), "")
    if owner:  # the pod's author chooses the owner's uid, so it counts within the pod's namespace only
        owner = f"{metadata['namespace']}/{owner}"
    names_it = metadata["uid"], metadata["namespace"], metadata["name"]
    return RefusedPod(*names_it, words[:6], words, owner, _stays(pod, words[:6], owner))


def _stays(pod: Mapping[str, Any], code: str, owner: str) -> str:
    if code in EVERYWHERE:
        return NO_OTHER
    notes = pod["metadata"].get("annotations") or {}
    if code == "GH-601" and names.ASKED in notes and names.ALLOC not in notes:
        return OWN_NODE  # each Binding of a pod that the create webhook has seen has a decision
    return "" if owner else NO_OWNER


def _ours(pod: Mapping[str, Any]) -> bool:
    spec = pod.get("spec") or {}
    notes = pod["metadata"].get("annotations") or {}
    return spec.get("runtimeClassName") == names.RUNTIME_CLASS or names.ASKED in notes or names.ALLOC in notes


def not_made(pod: Mapping[str, Any]) -> list[str]:
    """The runtime's messages about containers that it failed to create."""
    status, found = pod.get("status") or {}, []
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state, last = container.get("state") or {}, container.get("lastState") or {}
        if "waiting" not in state and "terminated" not in state:
            continue  # the container runs
        for why, reasons in (
            (state.get("waiting"), WAITING),
            (state.get("terminated"), TERMINATED),
            (last.get("terminated"), TERMINATED),
        ):
            if why and why.get("reason") in reasons:
                found.append(why.get("message") or "")
    return found


def _words(pod: Mapping[str, Any]) -> str:
    for text in not_made(pod):
        if found := CODE.search(text):
            return text[found.start() :].splitlines()[0].rstrip('": ,')[:MAX_WORDS]
    return ""


class _Owner:
    __slots__ = ("evictions", "next", "last")

    def __init__(self) -> None:
        self.evictions, self.next, self.last = 0, 0.0, 0.0


class RefusedPods:
    """The open refusals. An owner's pods are evicted at growing intervals, since its next pod may be refused as well."""

    def __init__(self) -> None:
        self.waiting: dict[str, RefusedPod] = {}
        self._due: dict[str, float] = {}
        self._owners: dict[str, _Owner] = {}
        self._told: dict[str, str] = {}  # uid of a pod without an owner -> code of its last event

    def seen(self, found: RefusedPod, now: float) -> None:
        if self._told.get(found.uid) == found.code:
            return
        if found.uid not in self.waiting:
            owner = self._owners.get(found.owner)
            self._due[found.uid] = max(now + GRACE, owner.next if owner and found.owner else 0.0)
        self.waiting[found.uid] = found

    def over(self, uid: str) -> None:
        """The pod runs, or its node no longer refuses it."""
        if uid in self.waiting:
            del self.waiting[uid], self._due[uid]

    def gone(self, uid: str) -> None:
        self.over(uid)
        self._told.pop(uid, None)

    def due(self, now: float) -> list[RefusedPod]:
        """At most one pod of each owner."""
        found: dict[str, RefusedPod] = {}
        for uid, at in self._due.items():
            one = self.waiting[uid]
            owner = self._owners.get(one.owner)
            if at <= now and not (one.owner and owner and owner.next > now):
                found.setdefault(one.owner or uid, one)
        return list(found.values())

    def evicted(self, one: RefusedPod, now: float) -> None:
        owner = self._owners.setdefault(one.owner, _Owner())
        if now - owner.last > FORGET:
            owner.evictions = 0
        owner.next = now + min(MOST, FIRST * 2 ** min(owner.evictions, 20))
        owner.evictions += 1
        owner.last = now
        self.over(one.uid)

    def told(self, one: RefusedPod) -> None:
        self._told[one.uid] = one.code
        self.over(one.uid)

    def later(self, one: RefusedPod, at: float) -> None:
        if one.uid in self._due:
            self._due[one.uid] = at

    def forget(self, now: float) -> None:
        for uid in [uid for uid, owner in self._owners.items() if now - owner.last > FORGET]:
            del self._owners[uid]
