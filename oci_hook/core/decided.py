"""The node's check of a decision (core/decision.py): for whom it was made, by whom, and whether it is what the container
asks for. Pure; oci_hook/config/cluster.py reads what it needs.
"""

from oci_hook.core import decision, hmac_sha256
from oci_hook.core.allocate import share_of, wishes_of
from oci_hook.core.decision import DecidedShare, Decision
from oci_hook.core.layout import ALLOC, PREFIX_KEY
from oci_hook.core.terms import GpuRequest
from oci_hook.core.units import show
from oci_hook.core.value import Value
from oci_hook.errors import NoRoomError, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from oci_hook.core.grant import Share
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.request import Request
    from oci_hook.core.rules import Rules

ANEW = "delete the pod, so that its owner makes it anew"


class NodeKeys(Value):
    """A node's knowledge of its cluster: its name there, and its keys as (generation, key), the newest last."""

    node: str
    keys: tuple[tuple[int, bytes], ...]


def verify(found: Decision, uid: str, known: NodeKeys) -> None:
    """Raises ClusterError: GH-603 for another pod's or node's decision, GH-602 and GH-606 for one that no key of this node
    signed. uid: the pod's, "" where nothing that the pod's owner cannot write names it."""
    if not uid:
        raise refuse("GH-603", f"{ALLOC}: the engine does not say which pod this is; start it by Kubernetes")
    if found.uid != uid:
        raise refuse("GH-603", f"{ALLOC} was decided for the pod {found.uid[:60]}, this is {uid[:60]}; {ANEW}")
    if found.node != known.node:
        raise refuse("GH-603", f"{ALLOC} was decided for node {found.node[:60]}, this is {known.node[:60]}; {ANEW}")
    key = dict(known.keys).get(found.generation)
    if key is None:
        newest = max((number for number, _ in known.keys), default=0)
        if found.generation > newest:
            what = f"key {found.generation} signed {ALLOC}, the node has none newer than {newest}"
            raise refuse("GH-606", f"{what}; look why the agent's reporter does not get it (`gpu-hook doctor`)")
        raise refuse("GH-602", f"{ALLOC} was signed with key {found.generation}, which is no longer valid; {ANEW}")
    if not hmac_sha256.same(hmac_sha256.hexdigest(key, decision.signed_text(found).encode()), found.sig):
        raise refuse("GH-602", f"{ALLOC} has a signature that is not the controller's; {ANEW}")


def came_later(found: Decision, container: str, annotations: "Mapping[str, str]") -> bool:
    """True for a container that a verified decision lacks, and that only the whole pod's keys ask for. All others of a pod are
    decided at once, so it is an ephemeral one (Kubernetes, `pods/ephemeralcontainers`)."""
    own = any(key.startswith(PREFIX_KEY) and key.endswith(f".{container}") for key in annotations)
    return bool(container) and found.shares(container) is None and not own


def shares_of(found: Decision, container: str) -> tuple[DecidedShare, ...]:
    """The container's part of the decision. Raises ClusterError GH-604."""
    shares = found.shares(container)
    if shares is None:
        names = ", ".join(name[:40] for name, _ in found.containers[:3]) or "no container"
        raise refuse("GH-604", f"container {show(container)} asks for a GPU, and {ALLOC} names {names}; {ANEW}")
    return shares


def pinned(request: "Request", shares: tuple[DecidedShare, ...], inventory: "Inventory", rules: "Rules") -> "Request":
    """The request for exactly the GPUs that were decided. Raises NoRoomError where this node does not have what was
    decided or is asked for (GH-202, GH-203), ClusterError GH-604 where what is asked for is not what was decided."""
    number = {gpu.uuid: i for i, gpu in enumerate(inventory.gpus)}
    for share in shares:
        if share.uuid not in number:
            have = ", ".join(number) or "none"
            raise refuse("GH-202", f"{ALLOC} names GPU {share.uuid[:60]}, this node has {have[:120]}; {ANEW}")
    wishes, allowed, problems = wishes_of(request, inventory)
    if problems:
        raise NoRoomError(*problems)
    if len(wishes) != len(shares) or len({share.uuid for share in shares}) != len(shares):
        raise refuse("GH-604", f"{len(wishes)} GPUs are asked for, {ALLOC} has {len(shares)}; {ANEW}")
    pins: list[GpuRequest] = []
    for (wish, only), share in zip(wishes, shares, strict=True):
        at = number[share.uuid]
        if at not in allowed or only not in (None, at):
            raise refuse("GH-604", f"{ALLOC} has GPU {share.uuid[:60]}, which is not what is asked for; {ANEW}")
        asked = decided_share(share_of(inventory.gpus[at], wish, request, rules))
        if asked != share:
            raise refuse("GH-604", f"{_words(asked)} of a GPU are asked for, {ALLOC} has {_words(share)}; {ANEW}")
        pins.append(wish.replace(device=share.uuid))
    return request.replace(gpus=tuple(pins), every_gpu=False, narrow_to=None)


def decided_share(share: "Share") -> DecidedShare:
    """A share of a grant as a decision states it."""
    if share.whole:
        return DecidedShare(share.uuid, 0)
    return DecidedShare(share.uuid, share.memory_mib, share.compute, share.compute_limit)


def _words(share: DecidedShare) -> str:
    if not share.memory_mib:
        return "all"
    return f"{share.memory_mib} MiB, {share.compute} to {share.compute_limit} %"
