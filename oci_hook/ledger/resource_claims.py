"""Grants of Kubernetes' ResourceClaims (kube/dra/): made before any container is, and held until the claim is unprepared.

STATE/claims/UID.json    what a prepared claim gives; for root alone

A claim's grant waits without an end for its container. The createRuntime hook makes it the container's. When the container ends,
the grant waits anew, with other pages and another slot: what one container had is never another's. A tmpfs keeps all this, since
the kubelet prepares its claims again after the machine's boot.
"""

import os
from stat import S_ISREG

from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.core.layout import CLAIMS_DIR
from oci_hook.core.request import Request
from oci_hook.core.request_data import as_data, from_data
from oci_hook.core.value import Value
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import events, store
from oci_hook.ledger.admit import admit, adopt, waits
from oci_hook.ledger.life import BUNDLE_ROOT, NO_END
from oci_hook.linux.lock import own_dir
from oci_hook.linux.proc import boot_id, pid_space
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.config.settings import Settings
    from oci_hook.core.inventory import Inventory

ROOT = BUNDLE_ROOT + "claim"  # Identity.root of a grant that waits; a bundle's path is absolute
FORMAT = 1
HALF = ".tmp"  # of a record that is being written
MAX_RECORD = 64 << 10
UID_MAX = 64
UID = frozenset("0123456789abcdef-")
TRIES = 3  # each fails only if the ledger changes in between


class ClaimedDevice(Value):
    """One result of a claim's allocation. request: of the claim, without a subrequest. share: its shareID, "" for none."""

    request: str
    pool: str
    device: str
    share: str = ""


class PreparedClaim(Value):
    """uid, namespace, name: of the ResourceClaim. pod, pod_uid: of the one that it is reserved for, "" where there are several."""

    uid: str
    namespace: str
    name: str
    request: Request
    devices: tuple[ClaimedDevice, ...]
    pod: str = ""
    pod_uid: str = ""


def valid_uid(uid: str) -> bool:
    """Whether it is safe as a file's name."""
    return 0 < len(uid) <= UID_MAX and UID.issuperset(uid) and uid[0] != "-"


def grant_key(uid: str) -> str:
    return store.grant_key(ROOT, uid)


def save(claim: PreparedClaim, settings: "Settings") -> None:
    """Raises NodeError GH-303."""
    folder = f"{settings.state_dir}/{CLAIMS_DIR}"
    path = f"{folder}/{claim.uid}.json"
    fields = claim.fields()
    fields["request"] = as_data(claim.request)
    fields["devices"] = [list(device.fields().values()) for device in claim.devices]
    try:
        own_dir(settings.state_dir)
        own_dir(folder)
        _unlink(path + HALF)
        store.create(path + HALF, fastjson.dumps([FORMAT, fields]).encode(), 0o600)
        os.rename(path + HALF, path)
    except OSError as e:
        raise store.unusable(settings.state_dir, e) from None


def load(uid: str, settings: "Settings") -> PreparedClaim | None:
    """None where no such claim is prepared. Raises NodeError GH-303 for a record that is damaged or another
    version's."""
    path = f"{settings.state_dir}/{CLAIMS_DIR}/{uid}.json"
    if not valid_uid(uid):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise store.unusable(settings.state_dir, e) from None
    try:
        if not S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        found = _decoded(os.read(fd, MAX_RECORD + 1))
        if found.uid != uid:
            raise ValueError("the uid inside is another one")
        return found
    except (OSError, ValueError, TypeError, KeyError, LookupError, AttributeError) as e:
        raise refuse(
            "GH-303", f"{path} cannot be read ({str(e)[:60]}); delete it: the kubelet prepares the claim anew"
        ) from None
    finally:
        os.close(fd)


def uids(settings: "Settings") -> list[str]:
    """Of all claims that are prepared, or whose preparing was cut short."""
    try:
        names = os.listdir(f"{settings.state_dir}/{CLAIMS_DIR}")
    except FileNotFoundError:
        return []
    except OSError as e:
        raise store.unusable(settings.state_dir, e) from None
    return sorted(name[:-5] for name in names if name.endswith(".json") and valid_uid(name[:-5]))


def drop_half_written(settings: "Settings") -> None:
    """Remove what a driver that was killed has left of a record. Raises NodeError GH-303."""
    folder = f"{settings.state_dir}/{CLAIMS_DIR}"
    try:
        for name in os.listdir(folder):
            if name.endswith(HALF):
                _unlink(f"{folder}/{name}")
    except FileNotFoundError:
        pass
    except OSError as e:
        raise store.unusable(settings.state_dir, e) from None


def forget(uid: str, settings: "Settings") -> None:
    """Remove the record alone: from now on, what a container of the claim gives back is released."""
    if valid_uid(uid):
        try:
            _unlink(f"{settings.state_dir}/{CLAIMS_DIR}/{uid}.json")
        except OSError as e:
            raise store.unusable(settings.state_dir, e) from None


def held(uid: str, settings: "Settings") -> Grant | None:
    """The claim's grant, whether it waits or has its container. Raises NodeError GH-303."""
    key = grant_key(uid)
    return next((grant for grant in store.snapshot(settings.state_dir) if grant.key == key), None)


def hold(claim: PreparedClaim, settings: "Settings", tell: bool = True) -> Grant:
    """The claim's grant; makes it where there is none. Raises as `admit`. tell: record in the node's events that there was no
    room."""
    return held(claim.uid, settings) or _admit(claim, settings, tell)


def take(uid: str, who: Identity, life: Life, inventory: "Inventory", settings: "Settings") -> Grant:
    """Make this container the owner of the claim's grant. Raises ClusterError GH-610 for a claim that is not prepared
    here, is another namespace's, or of a GPU that is gone, GH-611 where another container has its share or this one has
    another share; and as `admit`, if the grant has ended and there is no room any more."""
    claim = load(uid, settings)
    if claim is None:
        raise refuse(
            "GH-610", f"ResourceClaim {uid[:40]} is not prepared on this node; delete the pod, so that it is made anew"
        )
    if who.namespace and who.namespace != claim.namespace:
        raise refuse(
            "GH-610",
            f"ResourceClaim {_name(claim)} is not in the pod's namespace, {who.namespace[:60]}; make one there",
        )
    key = grant_key(uid)
    for _ in range(TRIES):
        for grant in store.snapshot(settings.state_dir):
            if grant.key == key:
                _check_gpus(grant, claim, inventory)
            mine = grant.who.id == who.id and grant.who.bundle == who.bundle
            if grant.key == key and mine:
                return grant
            if grant.key == key and not waits(grant):
                other = "/".join(filter(None, (grant.who.pod, grant.who.container))) or grant.who.id[:12]
                raise refuse(
                    "GH-611",
                    f"container {other[:100]} has the share of ResourceClaim {_name(claim)}; one container at a time has it:"
                    " give each a claim of its own (resourceClaimTemplateName), not gpu-hook.io/gpu in several containers",
                )
            if mine:
                raise refuse(
                    "GH-611",
                    f"the container has a share already; put the GPUs of {_name(claim)} into one claim with it",
                )
        taken = adopt(key, who, life, settings, waits)
        if taken is not None:
            return taken
        hold(claim, settings)
    raise refuse(
        "GH-407", f"ResourceClaim {_name(claim)}: other containers take its share at the same time; start it again"
    )


def _check_gpus(grant: Grant, claim: PreparedClaim, inventory: "Inventory") -> None:
    there = {gpu.uuid for gpu in inventory.gpus}
    for share in grant.shares:
        if share.uuid not in there:
            raise refuse(
                "GH-610",
                f"ResourceClaim {_name(claim)} has a share of GPU {share.uuid[:60]}, which is not on this node any more; delete"
                " the pod, and the claim if no template made it, so that another GPU is allocated",
            )


def put_back(grant: Grant, uid: str, settings: "Settings") -> None:
    """Let the grant wait again, since its container was not started. Raises NodeError GH-303."""
    claim = load(uid, settings)
    with store.open_ledger(settings.state_dir) as ledger:
        for now in ledger.grants:
            if now.key == grant.key and now.who == grant.who:
                if claim is None:
                    ledger.remove(now.key)
                else:
                    ledger.update(now.replace(who=_who(claim), life=_waiting()))


def give_back(uid: str, settings: "Settings") -> None:
    """The claim's container has ended: in one transaction its grant goes and the claim's waits anew. Nothing where the claim is
    unprepared, another container has its share, or it waits already. Raises NodeError GH-303."""
    claim = load(uid, settings)
    if claim is None:
        return
    try:
        _admit(claim, settings, tell=False)
    except GhError as e:
        if e.problems[0].code != "GH-407":
            raise


def release(uid: str, settings: "Settings") -> None:
    """End the claim's grant. Raises ApplyError GH-407 while a container has it, NodeError GH-303."""
    key = grant_key(uid)
    with store.open_ledger(settings.state_dir) as ledger:
        for grant in ledger.grants:
            if grant.key == key and waits(grant):
                ledger.remove(key)
            elif grant.key == key:
                raise refuse(
                    "GH-407", f"container {events.title(grant.who)} of ResourceClaim {uid[:40]} still lives; stop it"
                )


def waiting(settings: "Settings") -> list[str]:
    """The uids of claims whose grants wait for a container. Raises NodeError GH-303."""
    return [grant.who.id for grant in store.snapshot(settings.state_dir) if grant.who.root == ROOT and waits(grant)]


def _admit(claim: PreparedClaim, settings: "Settings", tell: bool) -> Grant:
    return admit(claim.request, _who(claim), _waiting(), settings, tell=tell).grant


def _who(claim: PreparedClaim) -> Identity:
    return Identity(ROOT, claim.uid, "", "", claim.pod_uid, claim.namespace, claim.pod)


def _waiting() -> Life:
    return Life(boot_id(), deadline=NO_END, space=pid_space())


def _name(claim: PreparedClaim) -> str:
    return f"{claim.namespace[:60]}/{claim.name[:60]}"


def _decoded(data: bytes) -> PreparedClaim:
    version, fields = fastjson.loads(data)
    if version != FORMAT:
        raise ValueError("made by another version")
    devices = tuple(ClaimedDevice(*device) for device in fields.pop("devices"))
    request = from_data(fields.pop("request"))
    "".join(fields.values())  # TypeError unless all are text
    return PreparedClaim(request=request, devices=devices, **_typed(fields))


def _typed(fields: "dict[str, Any]") -> "dict[str, str]":
    return {str(name): value for name, value in fields.items()}


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
