"""An allocated ResourceClaim -> what its container asks for here, in the words of annotations, so that one parser judges both."""

from typing import Any

from oci_hook.core import request
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.layout import PREFIX_KEY
from oci_hook.core.nearest import nearest
from oci_hook.core.rules import Rules
from oci_hook.core.units import show
from oci_hook.errors import GhError, Problem, RequestError, refuse
from oci_hook.kube.dra.kubelet_messages import ClaimName
from oci_hook.kube.formats import quantity, slices
from oci_hook.kube.formats.claim_words import API, BY_CLAIM, COMPUTE, DRIVER, KIND, MEMORY, NO_ADMIN, UNPLACED, WORDS
from oci_hook.ledger.resource_claims import ClaimedDevice, PreparedClaim
from oci_hook.oci.request_mounts import decode

REQUEST = PREFIX_KEY + "request"
ANEW = "delete the pod, so that its owner makes it anew"


def asked(claim: Any, name: ClaimName, node: str, inventory: Inventory, rules: Rules) -> PreparedClaim:
    """claim: the API server's object. Raises ClusterError GH-610, RequestError, NoRoomError GH-202."""
    label = f"{name.namespace[:60]}/{name.name[:60]}"
    meta, status = _object(_object(claim).get("metadata")), _object(_object(claim).get("status"))
    if meta.get("uid") != name.uid:
        raise refuse(
            "GH-610", f"ResourceClaim {label} is not {name.uid[:40]} any more, which the kubelet named; {ANEW}"
        )
    allocation = _object(_object(status.get("allocation")).get("devices"))
    results = [r for r in map(_object, _list(allocation.get("results"))) if r.get("driver") == DRIVER]
    if not results:
        raise refuse("GH-610", f"ResourceClaim {label} is allocated no device of {DRIVER}; {ANEW}")
    gpus = {slices.device_name(gpu.uuid): gpu for gpu in inventory.gpus}
    amounts, devices, words = [], [], []
    for result in results:
        gpu = _gpu(result, label, node, gpus)
        amounts.append(_amount(result, gpu, rules, label))
        devices.append(ClaimedDevice(_base(result), node, str(result["device"]), _text(result.get("shareID"))))
        words.append(_words(allocation, result, label))
    if any(other != words[0] for other in words):
        raise refuse(
            "GH-103",
            f"ResourceClaim {label}: its requests have different configurations, and one container has one; use a claim each",
        )
    if len({amount["device"] for amount in amounts}) < len(amounts):
        raise refuse(
            "GH-103",
            f"ResourceClaim {label} has two parts of one GPU; ask for one part, or constrain it with distinctAttribute",
        )
    annotations = {REQUEST: _json(amounts), **words[0]}
    try:
        found = request.parse(annotations, {}, "", rules, decode=decode)
    except RequestError as e:
        raise RequestError(
            *(Problem(one.code, _in_the_claims_words(one.message, annotations)) for one in e.problems)
        ) from None
    if found is None:  # not reached: an amount is asked for
        raise refuse("GH-610", f"ResourceClaim {label} asks for nothing; ask for memory or compute")
    pod, pod_uid = _pod(status)
    return PreparedClaim(name.uid, name.namespace, name.name, found, tuple(devices), pod, pod_uid)


def is_current(claim: Any, uid: str, node: str) -> bool:
    """Whether this claim is still allocated to the node."""
    meta, status = _object(_object(claim).get("metadata")), _object(_object(claim).get("status"))
    results = _list(_object(_object(status.get("allocation")).get("devices")).get("results"))
    ours = [r for r in map(_object, results) if r.get("driver") == DRIVER and r.get("pool") == node]
    return meta.get("uid") == uid and bool(ours)


def _gpu(result: dict[str, Any], label: str, node: str, gpus: dict[str, Gpu]) -> Gpu:
    pool, device = _text(result.get("pool")), _text(result.get("device"))
    if pool != node:
        raise refuse("GH-610", f"ResourceClaim {label} is allocated to node {show(pool)}, this is {node[:60]}; {ANEW}")
    if result.get("adminAccess"):
        raise refuse("GH-102", f"ResourceClaim {label}: {NO_ADMIN}")
    if device not in gpus:
        have = ", ".join(list(gpus)[:3]) or "none"
        raise refuse("GH-202", f"ResourceClaim {label} is allocated {show(device)}, this node has {have}; {ANEW}")
    return gpus[device]


def _amount(result: dict[str, Any], gpu: Gpu, rules: Rules, label: str) -> dict[str, Any]:
    """An entry of the annotation `request`. All of the memory is the whole GPU, unless a part of its compute is asked for."""
    consumed = _object(result.get("consumedCapacity"))
    try:
        memory = slices.mib(consumed[MEMORY]) if MEMORY in consumed else slices.most(gpu, rules)
        compute = quantity.whole(str(consumed.get(COMPUTE, "0")))
    except ValueError as e:
        raise refuse(
            "GH-101", f"ResourceClaim {label}: consumedCapacity {show(str(consumed))} {e}; ask for whole amounts"
        ) from None
    for amount, step, unit in ((memory, rules.memory_step, "MiB"), (compute, rules.compute_step, "%")):
        if amount % step:
            less = amount - amount % step
            more = f"{less} or {less + step}" if less else str(step)
            raise refuse(
                "GH-101",
                f"ResourceClaim {label}: {amount} {unit} is no multiple of this node's step; ask for {more} {unit}",
            )
    if memory >= slices.most(gpu, rules) and compute in (0, 100):
        return {"device": gpu.uuid}
    return {"device": gpu.uuid, "memory": f"{memory}Mi", **({"compute": str(compute)} if compute else {})}


def _words(allocation: dict[str, Any], result: dict[str, Any], label: str) -> dict[str, str]:
    """The words that apply to this result: of the class first, then of the claim, which replaces them."""
    found: dict[str, str] = {}
    for entry in map(_object, _list(allocation.get("config"))):
        opaque = _object(entry.get("opaque"))
        only = _list(entry.get("requests"))
        if opaque.get("driver") == DRIVER and (
            not only or _text(result.get("request")) in only or _base(result) in only
        ):
            found.update(_read(opaque.get("parameters"), label))
    return found


def _read(parameters: Any, label: str) -> dict[str, str]:
    head = f"ResourceClaim {label}: the configuration for {DRIVER}"
    said = _object(parameters)
    if said.get("apiVersion") != API or said.get("kind") != KIND:
        raise refuse("GH-101", f"{head} is not apiVersion: {API}, kind: {KIND}; write these")
    found = {}
    for key, value in said.items():
        if key in ("apiVersion", "kind"):
            continue
        if key in BY_CLAIM:
            raise refuse("GH-102", f"{head} has {key}, which the claim's requests say; drop it")
        if key in UNPLACED:
            raise refuse("GH-102", f"{head} has {key}, by which Kubernetes' scheduler places no claim; drop it")
        if key not in WORDS:
            near = nearest(key, WORDS) if len(key) < 60 else ""
            raise refuse(
                "GH-102",
                f"{head} has {show(key)}; {f'did you mean {near}?' if near else 'the words are ' + ', '.join(WORDS)}",
            )
        found[PREFIX_KEY + key] = _word(value, f"{head}: {key}")
    return found


def _word(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) or type(value) is int:
        return str(value)
    raise refuse("GH-101", f"{where} is neither text nor a whole number nor true or false")


def _in_the_claims_words(message: str, annotations: dict[str, str]) -> str:
    """What annotations are called in the claim that they come from."""
    amounts = f"{REQUEST}={show(annotations[REQUEST])}"
    for key in annotations:
        message = message.replace(amounts, "capacity.requests").replace(f"{key}=", f"{key.removeprefix(PREFIX_KEY)}=")
    return message


def _pod(status: dict[str, Any]) -> tuple[str, str]:
    users = [user for user in map(_object, _list(status.get("reservedFor"))) if user.get("resource") == "pods"]
    return (_text(users[0].get("name")), _text(users[0].get("uid"))) if len(users) == 1 else ("", "")


def _base(result: dict[str, Any]) -> str:
    """The request's name; of REQUEST/SUBREQUEST (firstAvailable) the first, by which the kubelet knows it."""
    return _text(result.get("request")).partition("/")[0]


def _json(amounts: list[dict[str, Any]]) -> str:
    """What is in it are names and numbers of our own making."""
    entries = [", ".join(f'"{key}": "{value}"' for key, value in amount.items()) for amount in amounts]
    return "[" + ", ".join(f"{{{entry}}}" for entry in entries) + "]"


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def in_one_line(e: GhError) -> str:
    return "; ".join(map(str, e.problems))
