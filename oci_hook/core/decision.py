"""The decision of the cluster's controller about one pod, as the annotation gpu-hook.io/alloc has it.

    {"c": {CONTAINER: [[GPU's UUID, MiB, per cent, ceiling], ...]}, "gen": N, "node": NODE, "t": {CONTAINER: [policy, class]},
     "uid": POD'S UID, "v": 1, "sig": HEX}

"c" has every container that asks for a GPU; 0 MiB: the whole GPU. "t" has the terms that count in sums and priority, so
that nobody changes them after the choice. "gen" numbers the key of the node that made "sig", the HMAC-SHA256 (RFC 2104)
of `signed_text`. Names and numbers are checked before anything else, so the text has one form only and needs no escapes.
"""

from oci_hook.core.terms import CLASSES, POLICIES
from oci_hook.core.units import MAX_MEMORY_MIB
from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
MAX_TEXT = 64 << 10  # characters; 16 containers with 16 GPUs each take 20 000
MAX_CONTAINERS = 64
MAX_GPUS = 64
NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-./_")
LOWER_HEX = frozenset("0123456789abcdef")
SIG = 64  # hex digits of a SHA-256


class DecidedShare(Value):
    """One container's share of one GPU. memory_mib: 0 for the whole GPU. compute, compute_limit: per cent."""

    uuid: str
    memory_mib: int
    compute: int = 0
    compute_limit: int = 100


class DecidedTerms(Value):
    policy: str
    priority_class: str


class Decision(Value):
    """uid: the pod's. containers: (name, shares), sorted by name; no shares: driver files without a GPU. terms: (name,
    terms), for the same names. generation: of the node's key."""

    uid: str
    node: str
    generation: int
    containers: tuple[tuple[str, tuple[DecidedShare, ...]], ...]
    terms: tuple[tuple[str, DecidedTerms], ...]
    sig: str = ""

    def shares(self, container: str) -> tuple[DecidedShare, ...] | None:
        """The container's shares; None if the decision does not name it."""
        for name, shares in self.containers:
            if name == container:
                return shares
        return None

    def terms_of(self, container: str) -> DecidedTerms:
        """KeyError where the decision does not name the container."""
        return dict(self.terms)[container]


def signed_text(decision: Decision) -> str:
    """The text that is signed: the decision without its signature, keys in order, no blanks."""
    return "{" + _members(decision) + "}"


def text(decision: Decision) -> str:
    """The annotation's value."""
    return "{" + _members(decision) + f',"sig":"{decision.sig}"' + "}"


def read(value: str, decode: "Any") -> Decision:
    """The decision in an annotation. decode: text -> JSON's values, ValueError for no JSON. Raises ValueError with the words
    to put after "the decision"."""
    if len(value) > MAX_TEXT:
        raise ValueError(f"has {len(value)} characters, {MAX_TEXT} are allowed")
    try:
        data = decode(value)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(data, dict) or not _count(data.get("v"), 1 << 30):
        raise ValueError("is not an object with a version")
    if data["v"] != VERSION:
        raise ValueError(f"has version {data['v']}, this node reads {VERSION}")
    if data.keys() != {"v", "uid", "node", "gen", "c", "t", "sig"}:
        raise ValueError("does not have the keys v, uid, node, gen, c, t and sig")
    c, t, sig = data["c"], data["t"], data["sig"]
    if not (isinstance(c, dict) and isinstance(t, dict) and c.keys() == t.keys() and len(c) <= MAX_CONTAINERS):
        raise ValueError("does not have shares and terms for the same containers")
    if not (_name(data["uid"]) and _name(data["node"]) and _count(data["gen"], 1 << 30) and all(map(_name, c))):
        raise ValueError("has a name or number that is not valid")
    if not (isinstance(sig, str) and len(sig) == SIG and LOWER_HEX.issuperset(sig)):
        raise ValueError("has no valid signature")
    return Decision(
        data["uid"],
        data["node"],
        data["gen"],
        tuple((name, _shares(c[name])) for name in sorted(c)),
        tuple((name, _terms(t[name])) for name in sorted(t)),
        sig,
    )


def _members(decision: Decision) -> str:
    containers = ",".join(f'"{name}":[{",".join(map(_share_text, shares))}]' for name, shares in decision.containers)
    terms = ",".join(f'"{name}":["{terms.policy}","{terms.priority_class}"]' for name, terms in decision.terms)
    return (
        f'"c":{{{containers}}},"gen":{decision.generation},"node":"{decision.node}","t":{{{terms}}},'
        f'"uid":"{decision.uid}","v":{VERSION}'
    )


def _share_text(share: DecidedShare) -> str:
    return f'["{share.uuid}",{share.memory_mib},{share.compute},{share.compute_limit}]'


def _shares(listed: "Any") -> tuple[DecidedShare, ...]:
    if not isinstance(listed, list) or len(listed) > MAX_GPUS:
        raise ValueError("has shares that are no list, or too many")
    found = []
    for one in listed:
        if not (
            isinstance(one, list)
            and len(one) == 4
            and _name(one[0])
            and _count(one[1], MAX_MEMORY_MIB)
            and _count(one[2], 100)
            and _count(one[3], 100)
        ):
            raise ValueError("has a share that is not [UUID, MiB, per cent, ceiling]")
        found.append(DecidedShare(*one))
    return tuple(found)


def _terms(listed: "Any") -> DecidedTerms:
    if not (isinstance(listed, list) and len(listed) == 2 and listed[0] in POLICIES and listed[1] in CLASSES):
        raise ValueError("has terms that are not [policy, class]")
    return DecidedTerms(*listed)


def _name(value: "Any") -> bool:
    return isinstance(value, str) and 0 < len(value) <= 253 and NAME.issuperset(value)


def _count(value: "Any", most: int) -> bool:
    return type(value) is int and 0 <= value <= most
