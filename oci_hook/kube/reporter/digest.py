"""The digest of this node's grants: those that match their pod's decision, and all others. Pure."""

from collections.abc import Iterable, Mapping

from oci_hook.core.decided import NodeKeys, verify
from oci_hook.core.grant import Grant, Identity, Share
from oci_hook.errors import ClusterError
from oci_hook.kube.formats.node_info import Digest
from oci_hook.kube.reporter.views import SeenPod

NAME = 64  # characters of a name to report
REFUSED_MAX = 64
REFUSED_SECONDS = 600.0  # the kubelet tries again after 5 minutes at the latest


def digest(
    grants: Iterable[Grant], pods: Mapping[str, SeenPod], refused: Mapping[str, str], known: NodeKeys | None
) -> Digest:
    """pods: this node's, by uid. refused: pod's uid -> code. known: the keys to verify decisions."""
    held: dict[str, set[str]] = {}
    local = []
    for grant in sorted(grants, key=lambda g: g.key):
        names = held.get(grant.who.pod_uid, set())
        more = beyond(grant, pods.get(grant.who.pod_uid), known) if grant.who.container not in names else None
        if more is not None:
            held.setdefault(grant.who.pod_uid, set()).add(grant.who.container)
        shares = grant.shares if more is None else more
        if shares:
            local.append(grant.replace(who=_cut(grant.who), shares=shares))
    return Digest(
        tuple((uid, tuple(sorted(names))) for uid, names in sorted(held.items())),
        tuple(local),
        tuple(sorted((uid, code) for uid, code in refused.items() if uid not in held)),
    )


def beyond(grant: Grant, pod: SeenPod | None, known: NodeKeys | None) -> tuple[Share, ...] | None:
    """The part of the grant that its pod's decision does not have, as after `gpu-hook set`; the controller counts the decision as long
    as the pod lives. None where no decision is for this grant, for example with a changed or forged annotation."""
    if pod is None or pod.decision is None or known is None:
        return None
    try:
        verify(pod.decision, grant.who.pod_uid, known)
    except ClusterError:
        return None
    decided = pod.decision.shares(grant.who.container) or ()
    if [(s.uuid, not s.memory_mib) for s in decided] != [(s.uuid, s.whole) for s in grant.shares]:
        return None
    if pod.decision.terms_of(grant.who.container).priority_class != grant.terms.priority_class:
        return None
    more = (
        held.replace(memory_mib=max(0, held.memory_mib - had.memory_mib), compute=max(0, held.compute - had.compute))
        for held, had in zip(grant.shares, decided, strict=True)
    )
    return tuple(share for share in more if not share.whole and (share.memory_mib or share.compute))


def _cut(who: Identity) -> Identity:
    """Shortens names, which tenants choose, so that the digest of a full node fits into an annotation."""
    return who.replace(
        namespace=who.namespace[:NAME], pod=who.pod[:NAME], container=who.container[:NAME], pod_uid=who.pod_uid[:NAME]
    )


class Refusals:
    """The pods that this node refused lately, with the code, from the node's events."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, float]] = {}

    def note(self, event: Mapping[str, object], now: float) -> None:
        """now: seconds of the caller's clock."""
        uid, codes = event.get("uid"), event.get("codes")
        if event.get("event") == "refused" and isinstance(uid, str) and uid and isinstance(codes, list) and codes:
            self._found.pop(uid[:NAME], None)
            self._found[uid[:NAME]] = (str(codes[0])[:8], now)
            while len(self._found) > REFUSED_MAX:
                del self._found[next(iter(self._found))]

    def now(self, pods: Mapping[str, SeenPod], now: float) -> dict[str, str]:
        """Uid -> code of refused pods that are still on the node."""
        self._found = {
            uid: (code, at)
            for uid, (code, at) in self._found.items()
            if uid in pods and not pods[uid].ended and now - at < REFUSED_SECONDS
        }
        return {uid: code for uid, (code, _) in self._found.items()}
