"""A node of a cluster: what its controller decided about a container is what the container gets, or it does not start.

Loaded only where the setting `cluster` is not off. The keys that decisions are signed with are in PREFIX/etc/cluster.json,
which the agent's reporter writes: {"node": NAME, "keys": {GENERATION: 64 hex digits}}.
"""

import os

from oci_hook.config.settings import DRA, read_own
from oci_hook.core import decided, decision
from oci_hook.core.decided import NodeKeys
from oci_hook.core.layout import ALLOC, ASKED, CLUSTER_KEYS, PREFIX_KEY
from oci_hook.core.request import without_gpu
from oci_hook.errors import refuse
from oci_hook.oci import annotations as oci_annotations
from oci_hook.oci import fastjson, request_mounts
from oci_hook.oci.spec import cgroups_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.config.settings import Settings
    from oci_hook.core.decision import DecidedShare, Decision
    from oci_hook.core.request import Request
    from oci_hook.oci.spec_types import Spec

REQUIRED = "required"
MAX_KEYS = 16 << 10  # bytes of cluster.json
KEY = 64  # hex digits
GENERATION_MAX = 10  # digits


def obeyed(
    request: "Request", spec: "Spec", annotations: dict[str, str], settings: "Settings"
) -> "tuple[Request, tuple[DecidedShare, ...] | None]":
    """The request under the decision's terms, and the decided shares; None where this node chooses by itself: no GPU is
    asked for, the pod is from a static manifest, or the setting is `local` and there is no decision or no key. A container
    that came after the decision (`kubectl debug`) gets no GPU.

    spec: as it was before gpu-hook edited it. annotations: the spec's, or the state document's.
    Raises ClusterError GH-601 to GH-604, GH-606, GH-612.
    """
    if settings.cluster == DRA:
        check_no_request(request)
        return request, None
    if not request.gpus or request.narrow_to == () or oci_annotations.is_static(annotations):
        return request, None
    text = annotations.get(ALLOC)
    known = keys(settings.prefix) if text is not None or settings.cluster == REQUIRED else None
    if text is None or known is None:
        if settings.cluster != REQUIRED:
            return request, None
        if known is None:
            raise refuse(
                "GH-606", f"{settings.prefix}/{CLUSTER_KEYS} is missing; start the agent, and see its reporter"
            )
        if ASKED in annotations:  # the controller has seen the pod, but no Binding of it
            why = f"and the pod has no {ALLOC}, since it names its node itself"
            instead = "in place of spec.nodeName write nodeSelector kubernetes.io/hostname"
        else:
            why, instead = (
                f"and the pod has no {ALLOC}",
                f"label its namespace {PREFIX_KEY}namespace=enabled, make it anew",
            )
        raise refuse("GH-601", f"the setting cluster is {REQUIRED}, {why}; {instead}")
    found = read(text)
    decided.verify(found, oci_annotations.pod_uid(annotations, cgroups_path(spec)), known)
    name = oci_annotations.container_name(annotations)
    if decided.came_later(found, name, annotations):
        return without_gpu(request.terms, narrow_to=()), None
    shares = decided.shares_of(found, name)
    return under_terms(request, found, name, spec, annotations, settings), shares


def check_no_request(request: "Request") -> None:
    """Raises ClusterError GH-612 for a container that asks for a GPU beside the ResourceClaims of its node."""
    if request.gpus and request.narrow_to != ():
        raise refuse(
            "GH-612",
            "this node gives its GPUs to ResourceClaims alone (setting cluster: dra), and the container asks by annotations"
            " or mounts; use a claim, or another node",
        )


def read(text: str) -> "Decision":
    try:
        return decision.read(text, lambda value: fastjson.loads_unique(value.encode()))
    except ValueError as e:
        raise refuse("GH-602", f"{ALLOC} {e}; {decided.ANEW}") from None


def under_terms(
    request: "Request", found: "Decision", name: str, spec: "Spec", annotations: dict[str, str], settings: "Settings"
) -> "Request":
    """The request with the decided policy where the container names none: the node's default may have changed since."""
    terms = found.terms_of(name)
    if request.terms.policy != terms.policy:
        again = request_mounts.request(spec, annotations, settings.rules.replace(default_policy=terms.policy))
        request = again or request
    for what, asked, was in (
        ("policy", request.terms.policy, terms.policy),
        ("class", request.terms.priority_class, terms.priority_class),
    ):
        if asked != was:
            raise refuse("GH-604", f"{what} {asked} is asked for, {ALLOC} has {was}; {decided.ANEW}")
    return request


def keys(prefix: str) -> "NodeKeys | None":
    """The node's name and keys; None where it has none yet. Raises ClusterError GH-606."""
    path = os.path.join(prefix, CLUSTER_KEYS)
    try:
        return parsed(read_own(path, MAX_KEYS + 1, secret=True))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else e
        raise refuse("GH-606", f"{path}: {why}; remove it, the agent's reporter writes it anew") from None


def parsed(data: bytes) -> NodeKeys:
    """Raises ValueError for anything but a cluster.json."""
    if len(data) > MAX_KEYS:
        raise ValueError(f"more than {MAX_KEYS} bytes")
    said = fastjson.loads_unique(data)
    if not isinstance(said, dict) or not said.keys() >= {"node", "keys"} or not isinstance(said["keys"], dict):
        raise ValueError("not an object with node and keys")
    if not isinstance(said["node"], str) or not said["node"] or not decision.NAME.issuperset(said["node"]):
        raise ValueError("node is no name")
    found = []
    for number, key in said["keys"].items():
        if not (0 < len(number) <= GENERATION_MAX and number.isascii() and number.isdecimal()):
            raise ValueError("a key's generation is no number")
        if not (isinstance(key, str) and len(key) == KEY and decision.LOWER_HEX.issuperset(key)):
            raise ValueError(f"a key is not {KEY} hex digits")
        found.append((int(number), bytes.fromhex(key)))
    if not found:
        raise ValueError("has no key")
    return NodeKeys(said["node"], tuple(sorted(found)))
