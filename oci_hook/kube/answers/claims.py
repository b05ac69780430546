"""The cluster's ResourceClaims for people: who holds what, and where a waiting pod's claims have room. Pure.

The figures are those by which Kubernetes' scheduler places claims: a device's capacity less what allocated claims consume of it.
"""

import re
from typing import Any

from oci_hook.core.terms import CLASSES
from oci_hook.core.value import Value
from oci_hook.errors import Problem
from oci_hook.kube.answers.explain import Explanation, GpuView, Held, NodeView
from oci_hook.kube.formats import quantity, slices
from oci_hook.kube.formats.claim_words import COMPUTE, DRIVER, GPU_CLASS, MEMORY, NO_ADMIN, SHARE_CLASS, SHARES
from oci_hook.kube.formats.names import PREFIX_KEY, SUMS
from oci_hook.kube.formats.sums import of_object
from oci_hook.kube.pod.asked import PodWords
from oci_hook.kube.pod.hosts import KEEPS_OFF, tolerated

ANY = 1 << 30  # of shares
OURS = re.compile(rf"""device\.driver\s*==\s*(["']){re.escape(DRIVER)}\1""")  # in CEL
BY_CLASS = "deviceclass.resource.kubernetes.io/"  # and a class's name: each is an extended resource (KEP-5004)
NOT_JUDGED = "selectors and constraints of claims are not judged here"


class ClaimObjects(Value):
    """The API server's ResourceClaims, ResourceSlices and DeviceClasses."""

    claims: tuple[Any, ...] = ()
    slices: tuple[Any, ...] = ()
    classes: tuple[Any, ...] = ()


class Device(Value):
    """A GPU or MIG device of ours. mib, compute: its capacity. shares: how many claims may have a part of it, as an older driver did
    not say. taints: those that keep off claims which do not tolerate them."""

    node: str
    name: str
    uuid: str
    index: int
    model: str
    mib: int
    compute: int
    shares: int
    taints: tuple[Any, ...]


class Taken(Value):
    """What claims have of a device."""

    mib: int = 0
    compute: int = 0
    claims: int = 0


class Wanted(Value):
    """One request of a claim, or one of those in its firstAvailable list. mib, compute: of each device; mib None: all of its memory.
    count: of devices, 0 for all of a node. admin: it has adminAccess."""

    claim: str
    mib: int | None
    compute: int
    count: int
    tolerations: tuple[Any, ...]
    admin: bool = False

    def __str__(self) -> str:
        size = "all memory" if self.mib is None else f"{self.mib} MiB"
        compute = f", {self.compute} %" if self.compute else ""
        return f"{self.claim}: {size}{compute}"


def holders(objects: ClaimObjects) -> tuple[Held, ...]:
    """A row for each device of each allocated claim, node by node. Raises LookupError, TypeError, ValueError, AttributeError for
    objects of an unexpected form."""
    known = devices(objects)
    found = []
    for claim in objects.claims:
        meta = claim["metadata"]
        for result in _results(claim):
            device = known.get((result["pool"], result["device"]))
            mib, compute = _consumed(result, device)
            found.append(
                Held(
                    namespace=meta.get("namespace") or "",
                    pod=", ".join(_pods(claim)),
                    node=result["pool"],
                    address=str(device.index) if device else "",
                    uuid=device.uuid if device else result["device"],
                    memory_mib=mib,
                    whole=device is not None and mib == device.mib and compute in (0, 100),
                    compute=compute,
                    priority_class=_class(claim),
                    ledger=f"claim {meta['name']}",
                )
            )
    return tuple(sorted(found, key=lambda one: (one.node, one.namespace, one.pod, one.ledger)))


def explain(pod: PodWords, obj: Any, objects: ClaimObjects) -> Explanation | None:
    """obj: the pod's API object. None where it has no claim of ours. Raises as `holders`."""
    wanted, missing = wants(obj, objects), _missing(obj, objects)
    if not wanted and (pod.annotations or not missing):  # what is not there yet may be another driver's
        return None
    node = (obj.get("spec") or {}).get("nodeName") or ""
    if refused := [one.claim for choices in wanted for one in choices if one.admin]:
        label = f"{pod.namespace}/{refused[0]}"
        problem = Problem("GH-102", f"ResourceClaim {label}: {NO_ADMIN}")  # whatever the scheduler makes of it
        return Explanation(pod, True, node, bool(node), (), (), problem)
    if node:
        return Explanation(pod, True, node, True, (), ())
    if missing:
        text = ", ".join(f"its claim {name} is not there yet" for name in missing)
        return Explanation(pod, True, "", False, (), (), Problem("GH-607", text))
    known = devices(objects)
    taken = _taken(objects, known)
    by_node: dict[str, list[Device]] = {}
    for device in known.values():
        by_node.setdefault(device.node, []).append(device)
    has = {one["metadata"]["name"]: result["pool"] for one in _claims(obj, objects) for result in _results(one)}
    rest, at = [choices for choices in wanted if choices[0].claim not in has], set(has.values())
    views = tuple(_node_view(name, by_node[name], taken, rest) for name in sorted(by_node) if at <= {name})
    fits = sum(view.fits for view in views)
    why = [f"its claim {claim} is allocated on node {node}; only that node can have it" for claim, node in has.items()]
    if rest:
        said = f"{fits} of {len(views)} nodes have room for its claims"
        why.append(f"{said}; Kubernetes' scheduler chooses ({NOT_JUDGED})" if fits else said)
    changes = () if fits else _suggestions(views, rest)
    return Explanation(pod, True, "", False, views, changes, Problem("GH-607", "; ".join(why)))


def wants(obj: Any, objects: ClaimObjects) -> list[list[Wanted]]:
    """The requests of a pod's claims of ours, in their order; of each what would do, the best first. The scheduler makes a claim of
    the extended resources of DeviceClasses only when it has found a place. Raises as `holders`."""
    classes = {
        one["metadata"]["name"]: one["spec"].get("extendedResourceName") for one in objects.classes if _is_ours(one)
    }
    ours = {SHARE_CLASS, GPU_CLASS, *classes}  # a dump may have no classes
    found = []
    for claim in _claims(obj, objects):
        for request in claim["spec"].get("devices", {}).get("requests") or ():
            each = [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ()
            name = claim["metadata"]["name"]
            choices = [_wanted(name, one) for one in each if one.get("deviceClassName") in ours]
            if choices:
                found.append(choices)
    if not (obj.get("status") or {}).get("extendedResourceClaimStatus"):
        names = {*classes.values(), *(f"{BY_CLASS}{name}" for name in classes)}
        asked = {name: amount // 1000 for name, amount in of_object(obj).items() if name in names}
        found += [[Wanted(name, None, 0, count, ())] for name, count in asked.items() if count]
    return found


def by_class(objects: ClaimObjects) -> frozenset[str]:
    """The extended resources that DeviceClasses give, of any driver (KEP 5004)."""
    named = (str((one.get("spec") or {}).get("extendedResourceName") or "") for one in objects.classes)
    return frozenset(name for name in named if name)


def may_ask(obj: Any) -> bool:
    """Whether the cluster's claims and classes say what the pod asks for: it has claims, or resources of which one may be made."""
    spec, annotations = obj.get("spec") or {}, obj["metadata"].get("annotations") or {}
    resources = [name for name in of_object(obj) if "/" in name and name not in SUMS]
    other = not any(key.startswith(PREFIX_KEY) for key in annotations)
    return bool(spec.get("resourceClaims")) or any(other or name.startswith(PREFIX_KEY) for name in resources)


def _missing(obj: Any, objects: ClaimObjects) -> list[str]:
    there = [one["metadata"]["name"] for one in _claims(obj, objects)]
    return [name or word for word, name in claim_names(obj).items() if name not in there]


def _claims(obj: Any, objects: ClaimObjects) -> list[Any]:
    """A pod's, in its order, as far as they are there."""
    space = obj["metadata"].get("namespace")
    there = {one["metadata"]["name"]: one for one in objects.claims if one["metadata"].get("namespace") == space}
    return [there[name] for name in claim_names(obj).values() if name in there]


def _is_ours(one: Any) -> bool:
    """Whether a DeviceClass has a name of ours, selects our driver's devices, or configures them."""
    if one["metadata"]["name"] in (SHARE_CLASS, GPU_CLASS):
        return True
    spec = one.get("spec") or {}
    selects = any(OURS.search((each.get("cel") or {}).get("expression") or "") for each in spec.get("selectors") or ())
    return selects or any((each.get("opaque") or {}).get("driver") == DRIVER for each in spec.get("config") or ())


def _wanted(claim: str, exactly: Any) -> Wanted:
    amounts = (exactly.get("capacity") or {}).get("requests") or {}
    mib = slices.mib(amounts[MEMORY]) if MEMORY in amounts else None
    count = 0 if exactly.get("allocationMode") == "All" else int(exactly.get("count") or 1)
    compute = slices.per_cent(amounts.get(COMPUTE, "0"))
    return Wanted(claim, mib, compute, count, tuple(exactly.get("tolerations") or ()), bool(exactly.get("adminAccess")))


def claim_names(obj: Any) -> dict[str, str]:
    """The names of a pod's claims, by what the pod calls them. One that is made from a template has its name in the pod's status, ""
    until then."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    made = {one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()}
    names = {
        one["name"]: one.get("resourceClaimName") or made.get(one["name"], "")
        for one in spec.get("resourceClaims") or ()
    }
    names[""] = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    return {word: name for word, name in names.items() if name is not None}  # None: that there is no need of it


def devices(objects: ClaimObjects) -> dict[tuple[str, str], Device]:
    """By node and name, of each pool's newest generation. Raises as `holders`."""
    ours = [one["spec"] for one in objects.slices if one["spec"].get("driver") == DRIVER]
    newest: dict[str, int] = {}
    for spec in ours:
        newest[spec["pool"]["name"]] = max(newest.get(spec["pool"]["name"], 0), spec["pool"]["generation"])
    found = {}
    for spec in ours:
        pool = spec["pool"]["name"]
        for one in spec.get("devices") or () if spec["pool"]["generation"] == newest[pool] else ():
            said, capacity = one.get("attributes") or {}, one["capacity"]
            found[pool, one["name"]] = Device(
                node=pool,
                name=one["name"],
                uuid=_attribute(said, "uuid", one["name"]),
                index=_attribute(said, "index", 0),
                model=_attribute(said, "productName", ""),
                mib=slices.mib(capacity[MEMORY]["value"]),
                compute=slices.per_cent(capacity[COMPUTE]["value"]),
                shares=_shares(capacity),
                taints=tuple(taint for taint in one.get("taints") or () if taint["effect"] in KEEPS_OFF),
            )
    return found


def _node_view(
    name: str, there: list[Device], taken: dict[tuple[str, str], Taken], wanted: list[list[Wanted]]
) -> NodeView:
    """The requests one after another, each on the first devices that have room, as the scheduler does it."""
    used = {device.name: taken.get((name, device.name), Taken()) for device in there}
    given: dict[str, tuple[str, ...]] = {}
    why = None
    for choices in wanted:
        rooms = [[device for device in there if _fits(one, device, used[device.name])] for one in choices]
        counts = [one.count or len(there) for one in choices]
        each = zip(choices, rooms, counts, strict=True)
        found = [(one, room[:count]) for one, room, count in each if len(room) >= count]
        if not found:
            room = f"{len(rooms[-1])} of its GPUs have room for {choices[-1]}"
            why = Problem("GH-201", f"{room}, and {counts[-1]} asked for")
            break
        one, fitting = found[0]
        for device in fitting:
            before = used[device.name]
            mib = device.mib if one.mib is None else one.mib
            used[device.name] = Taken(before.mib + mib, before.compute + one.compute, before.claims + 1)
            given[device.name] = (*given.get(device.name, ()), str(one))
    return NodeView(
        name, why is None, why, tuple(_gpu_view(device, taken, given if why is None else {}) for device in there)
    )


def _gpu_view(device: Device, taken: dict[tuple[str, str], Taken], given: dict[str, tuple[str, ...]]) -> GpuView:
    has = taken.get((device.node, device.name), Taken())
    free, compute = device.mib - has.mib, device.compute - has.compute
    note = "as many claims as may share it have parts of it" if has.claims >= device.shares else ""
    if device.taints:
        key = device.taints[0]["key"]
        note = f"it has the taint {key}" if key != slices.OTHERS else "a container without a claim has a part of it"
    head = (device.index, str(device.index), device.uuid, device.model, device.mib)
    return GpuView(*head, free, compute, compute, has.claims, note, given.get(device.name, ()))


def _fits(one: Wanted, device: Device, has: Taken) -> bool:
    mib = device.mib if one.mib is None else one.mib
    if has.claims >= device.shares or not tolerated(device.taints, one.tolerations):
        return False
    return has.mib + mib <= device.mib and has.compute + one.compute <= device.compute


def _shares(capacity: Any) -> int:
    return quantity.whole(capacity[SHARES]["value"]) if SHARES in capacity else ANY


def _suggestions(views: tuple[NodeView, ...], wanted: list[list[Wanted]]) -> tuple[str, ...]:
    """For a pod with one request of one GPU alone: the most memory that is free."""
    if len(wanted) != 1 or len(wanted[0]) != 1 or wanted[0][0].count != 1:
        return ()
    (asked,) = wanted[0]
    most = max(((gpu.free_mib, view.name) for view in views for gpu in view.gpus if not gpu.note), default=(0, ""))
    less = asked.mib is None or most[0] < asked.mib
    return (f"ask for at most {most[0]} MiB of memory (node {most[1]})",) if most[0] and less else ()


def _taken(objects: ClaimObjects, known: dict[tuple[str, str], Device]) -> dict[tuple[str, str], Taken]:
    found: dict[tuple[str, str], Taken] = {}
    for claim in objects.claims:
        for result in _results(claim):
            at = (result["pool"], result["device"])
            mib, compute = _consumed(result, known.get(at))
            before = found.get(at, Taken())
            found[at] = Taken(before.mib + mib, before.compute + compute, before.claims + 1)
    return found


def _results(claim: Any) -> list[Any]:
    """Without those of adminAccess, which consume nothing."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [result for result in results if result.get("driver") == DRIVER and not result.get("adminAccess")]


def _consumed(result: Any, device: Device | None) -> tuple[int, int]:
    """(MiB, per cent). Without an amount: the whole device."""
    amounts = result.get("consumedCapacity") or {}
    mib = slices.mib(amounts[MEMORY]) if MEMORY in amounts else device.mib if device else 0
    return mib, slices.per_cent(amounts.get(COMPUTE, "0"))


def _pods(claim: Any) -> list[str]:
    users = (claim.get("status") or {}).get("reservedFor") or ()
    return [user["name"] for user in users if user.get("resource") == "pods"]


def _class(claim: Any) -> str:
    """Of the last configuration that says one: the claim's replaces its DeviceClass's."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    said = "default"
    for entry in (allocation.get("devices") or {}).get("config") or ():
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") == DRIVER:
            said = (opaque.get("parameters") or {}).get("class", said)
    return said if said in CLASSES else "default"


def _attribute(attributes: Any, name: str, default: Any) -> Any:
    return next(iter((attributes.get(name) or {}).values()), default)
