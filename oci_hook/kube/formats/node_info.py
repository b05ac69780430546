"""A node's report in two annotations of its Node object: the inventory, which changes with hardware and settings, and the
ledger's digest, which changes with containers. The reporter writes them, the controller reads them.

inventory: {"v": 1, "driver": VERSION, "cuda": VERSION, "simulated": bool, "gpus": [[uuid, index, minor, MiB, name,
numa, parent, instance, gi, ci, arch, brand, no_limits, context_mib, missing_mib], ...], "links": [[i, j, distance],
...], "rules": {setting: value that is not the default}, "imex": bool, "key": generation of the key that the node has,
0 for none}.
i and j are places in "gpus".

Nodes and controller may be of adjacent versions. Add a field at the end of a row, or as a new key with a default; readers ignore
unknown fields. missing_mib is left out where it is 0: the first readers take rows of just the fields before it. tests/kube/formats/
has the text of earlier versions.

ledger: {"v": 1, "pods": {POD'S UID: [container, ...]}, "local": [GRANT, ...], "refused": {POD'S UID: code}}. "pods" has the
pods whose containers hold grants of their decision. GRANT is a grant without a decision (plain docker, static pods), one of
another GPU or class than decided, or what one has beyond its decision:
[name, uid or "", [[i, MiB, compute, ceiling, whole], ...], class, exclusive].
"""

import json
from typing import Any

from oci_hook.core.decision import NAME
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.rules import BY_CLASS, ORDERS, Rules
from oci_hook.core.terms import BOUNDARIES, CLASSES, POLICIES, Terms
from oci_hook.core.value import Value

VERSION = 1
MAX_TEXT = 256 << 10  # the API server's bound of all annotations of an object
MAX_GPUS = 512  # of one node, MIG devices included
MAX_VERSION = 64  # characters, of the driver's or of CUDA's
MOST = 1 << 40  # of any number
RULE_WORDS = {
    "default_policy": POLICIES,
    "placement": (*ORDERS, BY_CLASS),
    "whole_gpus": ("exclusive", "shared"),
    "boundary": BOUNDARIES,
}
GPU_FIELDS = (
    *("uuid", "index", "minor", "memory_mib", "name", "numa", "parent"),
    *("instance", "gi", "ci", "arch", "brand", "no_limits", "context_mib", "missing_mib"),
)
FIRST_FIELDS = GPU_FIELDS.index("missing_mib")
KNOWN_RULES = frozenset(Rules().fields())


class NodeInventory(Value):
    """inventory: without driver files. key: the generation of the node's key, 0 for none."""

    inventory: Inventory
    rules: Rules
    key: int = 0


class Digest(Value):
    """pods: (pod's uid, names of the containers that hold grants). local: grants that match no decision. refused: (pod's
    uid, code)."""

    pods: tuple[tuple[str, tuple[str, ...]], ...] = ()
    local: tuple[Grant, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def inventory_text(node: NodeInventory) -> str:
    place = {gpu.uuid: i for i, gpu in enumerate(node.inventory.gpus)}
    plain = Rules().fields()
    return _json(
        {
            "v": VERSION,
            "driver": node.inventory.driver_version,
            "cuda": node.inventory.cuda_version,
            "simulated": node.inventory.simulated,
            "gpus": [_gpu_row(gpu) for gpu in node.inventory.gpus],
            "links": [[place[a], place[b], far] for a, b, far in node.inventory.links if a in place and b in place],
            "rules": {name: value for name, value in node.rules.fields().items() if value != plain[name]},
            "imex": node.inventory.imex_major >= 0,
            "key": node.key,
        }
    )


def read_inventory(text: str, known: bool = False) -> NodeInventory:
    """Raises ValueError for text that `inventory_text` would not write. Fields of newer nodes are ignored. known: this text was
    checked before."""
    data = _object(text)
    try:
        gpus = tuple(Gpu(**dict(zip(GPU_FIELDS, row, strict=False))) for row in data["gpus"])
        if not known:
            _check_gpus(gpus)
        rules: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in data["rules"].items() if name in KNOWN_RULES
        }
        _check_rules(rules)
        inventory = Inventory(
            boot_id="",
            driver_version=data["driver"],
            driver_root="",
            simulated=bool(data["simulated"]),
            gpus=gpus,
            control=(),
            files=(),
            libcuda="",
            libnvml="",
            links=tuple((gpus[a].uuid, gpus[b].uuid, int(far)) for a, b, far in data["links"]),
            imex_major=0 if data["imex"] else -1,
            cuda_version=data["cuda"],
        )
        if not (all(0 <= far <= MOST for _, _, far in inventory.links) and _is_count(data["key"])):
            raise ValueError("has a distance or a key's number that is not valid")
        if not all(isinstance(one, str) and len(one) <= MAX_VERSION for one in (data["driver"], data["cuda"])):
            raise ValueError(f"has a version that is no text of at most {MAX_VERSION} characters")
        return NodeInventory(inventory, Rules(**rules), data["key"])
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as e:
        raise ValueError(f"is not a node's inventory: {type(e).__name__} {e}") from None


def digest_text(digest: Digest, inventory: Inventory) -> str:
    place = {gpu.uuid: i for i, gpu in enumerate(inventory.gpus)}
    return _json(
        {
            "v": VERSION,
            "pods": {uid: list(names) for uid, names in digest.pods},
            "local": [_grant_row(grant, place) for grant in digest.local],
            "refused": dict(digest.refused),
        }
    )


def read_digest(text: str, inventory: Inventory) -> Digest:
    """Raises ValueError for anything that `digest_text` does not write."""
    data = _object(text)
    try:
        return Digest(
            tuple((str(uid), tuple(map(str, names))) for uid, names in data["pods"].items()),
            tuple(_grant(row, n, inventory) for n, row in enumerate(data["local"])),
            tuple((str(uid), str(code)) for uid, code in data["refused"].items()),
        )
    except (KeyError, TypeError, IndexError, AttributeError) as e:
        raise ValueError(f"is not a ledger's digest: {type(e).__name__} {e}") from None


def _gpu_row(gpu: Gpu) -> list[Any]:
    fields = GPU_FIELDS if gpu.missing_mib else GPU_FIELDS[:FIRST_FIELDS]
    return [getattr(gpu, name) for name in fields]


def _grant_row(grant: Grant, place: dict[str, int]) -> list[Any]:
    who = grant.who
    name = "/".join(filter(None, (who.namespace, who.pod, who.container))) or who.id[:64]
    shares = [
        [place[s.uuid], s.memory_mib, s.compute, s.compute_limit, s.whole] for s in grant.shares if s.uuid in place
    ]
    return [name, who.pod_uid, shares, grant.terms.priority_class, grant.exclusive]


def _grant(row: Any, number: int, inventory: Inventory) -> Grant:
    name, uid, shares, priority, exclusive = row[:5]
    if priority not in CLASSES:
        raise ValueError("has a grant of an unknown class")
    return Grant(
        key=f"local-{number}",
        who=Identity("", str(name), "", pod_uid=str(uid)),
        life=Life(""),
        shares=tuple(_share(inventory, bool(exclusive), *share[:5]) for share in shares),
        terms=Terms(priority_class=str(priority)),
        exclusive=bool(exclusive),
    )


def _share(inventory: Inventory, exclusive: bool, i: int, mib: int, compute: int, limit: int, whole: bool) -> Share:
    if not (all(map(_is_count, (i, mib, compute, limit))) and isinstance(whole, bool)):
        raise ValueError("has a share that is not [GPU, MiB, per cent, ceiling, whole]")
    # Slots are not in the digest; a whole GPU without one would be held alone whatever the setting says.
    return Share(inventory.gpus[i].uuid, mib, compute, limit, whole, int(whole and not exclusive))


def _check_gpus(gpus: tuple[Gpu, ...]) -> None:
    """Checks the type and bounds of each field, so that no node's text can crash the controller."""
    plain = Gpu("", 0, 0, 0).fields()
    if len(gpus) > MAX_GPUS:
        raise ValueError(f"has {len(gpus)} GPUs, {MAX_GPUS} are allowed")
    for gpu in gpus:
        for name in GPU_FIELDS:
            value = getattr(gpu, name)
            if type(value) is not type(plain[name]) or (isinstance(value, int) and not -1 <= value <= MOST):
                raise ValueError(f"has a GPU whose {name} is not valid")
        if not gpu.uuid or not NAME.issuperset(gpu.uuid) or min(gpu.memory_mib, gpu.context_mib, gpu.missing_mib) < 0:
            raise ValueError("has a GPU without a valid UUID, or of a size below 0")
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise ValueError("has a GPU twice")


def _check_rules(rules: dict[str, Any]) -> None:
    plain = Rules().fields()
    for name, value in rules.items():
        good = type(value) is type(plain[name]) and (type(value) is not int or _is_count(value))
        if name == "memory_reserve" and isinstance(value, tuple):
            good = len(value) == 2 and value[0] == "percent" and _is_count(value[1]) and value[1] <= 100
        elif name in ("memory_step", "memory_min", "compute_step", "max_shares_per_gpu"):
            good = good and value >= 1
        elif name in RULE_WORDS:
            good = good and value in RULE_WORDS[name]
        elif isinstance(value, tuple):
            good = good and all(isinstance(word, str) for word in value)
        if not good:
            raise ValueError(f"has the rule {name} with a value that no setting allows")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def _object(text: str) -> dict[str, Any]:
    if len(text) > MAX_TEXT:
        raise ValueError(f"has {len(text)} characters, {MAX_TEXT} are allowed")
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(data, dict) or data.get("v") != VERSION:
        raise ValueError(f"is not an object of version {VERSION}")
    return data
