"""Finds the GPUs that a container's own device rules let it open (linux.resources.devices of the OCI runtime spec).

Rules are read as the kernel's device controller and runc read them (Documentation/admin-guide/cgroup-v1/devices.rst:
a rule for all devices replaces all rules before it; a denial removes only a permission with exactly its numbers). In
doubt a GPU counts as reachable: cgroup v2 applies a denial with other wildcards, v1 ignores it. Nor is crun on cgroup v2 like
them: its program asks each rule by itself, so there a rule for all devices that has numbers or part of the access is for those
alone, and a denial of reading alone lets who opens for both reading and writing pass.
"""

from oci_hook.core.layout import NVIDIA_MAJOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory

ANY = -1
CONTROL_MINOR = 254  # 195:254 is nvidia-modeset, 195:255 nvidiactl; GPUs are below


def _number(rule: "Mapping[str, object]", key: str) -> int:
    value = rule.get(key)
    return value if isinstance(value, int) and value >= 0 else ANY


def _access(rule: "Mapping[str, object]") -> "set[str]":
    value = rule.get("access")
    return set(value) if isinstance(value, str) and value else set("rwm")


def allowed(rules: "Iterable[Mapping[str, object]]") -> list[tuple[int, int, set[str]]]:
    """The character devices that the whole list permits: (major or ANY, minor or ANY, access)."""
    open_: list[tuple[int, int, set[str]]] = []
    for rule in rules:
        kind = rule.get("type") or "a"
        if kind not in ("a", "c", "u"):
            continue
        major, minor, access = _number(rule, "major"), _number(rule, "minor"), _access(rule)
        permit = rule.get("allow") is True
        if kind == "a" and permit:
            open_ = [(ANY, ANY, set("rwm"))]
        elif permit:
            open_.append((major, minor, access))
        elif access >= {"r", "w"}:
            every = kind == "a" and major == minor == ANY
            open_ = [(a, b, has - access if every or (major, minor) == (a, b) else has) for a, b, has in open_]
    return [entry for entry in open_ if entry[2]]


def bounds(grant: "Grant", inventory: "Inventory") -> tuple[set[int], set[tuple[int, int]]]:
    """(the minors of the GPUs that the grant gives, the numbers of the other device nodes of GPUs that it does not
    give). The one is for reachable_gpus, the other for reachable_nodes."""
    granted = {share.uuid: inventory.gpu(share.uuid).minor for share in grant.shares}
    others = {(n.major, n.minor) for n in inventory.nodes if n.uuid and n.uuid not in granted}
    # MIG devices of one GPU instance have a node in common, which is granted with any of them.
    others -= {(n.major, n.minor) for n in inventory.nodes if n.uuid in granted}
    return set(granted.values()), others


def starts_closed(rules: "Sequence[Mapping[str, object]]") -> bool:
    """True if some rule denies all devices. Without one, it depends on the runtime whether unnamed devices are open."""
    return any((rule.get("type") or "a") == "a" and rule.get("allow") is not True for rule in rules)


def reachable_nodes(rules: "Iterable[Mapping[str, object]]", numbers: "Iterable[tuple[int, int]]") -> list[str]:
    """Those of these character devices that may be opened for reading or writing."""
    open_ = [(major, minor) for major, minor, access in allowed(rules) if access & {"r", "w"}]
    return [f"{a}:{b}" for a, b in numbers if any(major in (ANY, a) and minor in (ANY, b) for major, minor in open_)]


def reachable_gpus(rules: "Iterable[Mapping[str, object]]", granted: "Iterable[int]") -> list[str]:
    """The GPUs ("195:N", or "every GPU") that may be opened for reading or writing although their minor is not granted."""
    granted = set(granted)
    found: list[str] = []
    for major, minor, access in allowed(rules):
        if major not in (ANY, NVIDIA_MAJOR) or not access & {"r", "w"}:
            continue
        if minor == ANY:
            return ["every GPU"]
        if minor < CONTROL_MINOR and minor not in granted:
            found.append(f"{NVIDIA_MAJOR}:{minor}")
    return found
