"""Admission: makes a grant from a request, changes it and releases it, each in one transaction of the ledger."""

import os
import time

from oci_hook.config.settings import Settings
from oci_hook.core.allocate import Refusal, allocate, in_force
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import TIERS
from oci_hook.core.policy_page import policy_page
from oci_hook.core.request import Request
from oci_hook.core.value import Value
from oci_hook.errors import GhError, NoRoomError, refuse
from oci_hook.ledger import events, store
from oci_hook.ledger.gpu_owner import OwnGpus
from oci_hook.ledger.inventory import load_at_boot
from oci_hook.ledger.life import NO_END, valid_id
from oci_hook.ledger.proof import PATIENT, QUICK, is_being_made
from oci_hook.ledger.slot_files import preempt_bounds
from oci_hook.linux.proc import is_running

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oci_hook.core.decision import DecidedShare
    from oci_hook.errors import Problem

    Decided = tuple[DecidedShare, ...]
    Alteration = Callable[[Grant, tuple[Grant, ...]], Grant]

MIN_PREFIX = 6


class Admission(Value):
    """A committed grant, and the inventory that it was made from."""

    grant: Grant
    inventory: Inventory


def admit(
    request: Request,
    who: Identity,
    life: Life,
    settings: Settings,
    instead_of: str = "",
    tell: bool = True,
    decided: "Decided | None" = None,
    patience: float = 4.0,
) -> Admission:
    """Grant the request or raise; when it raises, nothing is booked and nothing is left behind.

    instead_of: key of the grant that podman's precreate stage made for the same container; that grant is released if it
    still waits for its container. tell: record in the node's events that there was no room; False where another stage
    of the same container records it. decided: the shares that the cluster's controller chose; these or none.
    patience: seconds to wait for the inventory soon after the machine's boot.

    GH-201..203 no room, GH-301/302 inventory, GH-303 ledger, GH-304 a GPU of another install, GH-407 a living container
    has the key, GH-604 the request is not for what was decided. A grant of the same key whose container has ended is replaced.
    """
    return admit_on(load_at_boot(settings, patience), request, who, life, settings, instead_of, tell, decided)


def admit_on(
    inventory: Inventory,
    request: Request,
    who: Identity,
    life: Life,
    settings: Settings,
    instead_of: str = "",
    tell: bool = True,
    decided: "Decided | None" = None,
) -> Admission:
    """`admit` with an inventory that is loaded already."""
    if not valid_id(who.id):
        raise refuse("GH-105", f"container id {who.id[:60]} is not valid: no runtime would take it; choose another")
    if decided is not None:
        request = _pinned(request, decided, who, inventory, settings, tell)
    key = store.grant_key(who.root, who.id)
    scales = {gpu.uuid: gpu.time_scale for gpu in inventory.gpus}
    tiers = _tiers(settings, inventory)  # before the node's lock is taken, which others wait for
    bounds = _bounds(settings) if request.terms.preempt_tolerance_us is not None else ()
    for seconds in (QUICK, PATIENT):
        new = life.init[0] if life.init else 0
        with store.open_ledger(settings.state_dir, seconds=seconds, made=key, new=new) as ledger:
            try:
                _check_free(ledger, key, who, instead_of)
            except GhError:
                if ledger.unsure and seconds == QUICK:
                    continue  # that container may have ended
                raise
            found = allocate(request, inventory, ledger.grants, settings.rules, bounds, who)
            if isinstance(found, Refusal):
                if ledger.unsure and seconds == QUICK:
                    continue  # some of the containers that need the room may have ended
                if tell:
                    _tell(who, found.problems, settings, request)
                raise NoRoomError(*found.problems)
            grant = Grant(
                key=key,
                who=who,
                life=life,
                shares=found.shares,
                terms=request.terms,
                exclusive=found.exclusive,
                driver_version=inventory.driver_version,
                created=int(time.time()),
                born=time.monotonic_ns(),
                linger=settings.rules.linger,
                online_competes=settings.rules.online_competes,
                memory_wait=settings.rules.memory_wait if in_force(settings.rules, inventory).lends else 0,
            )
            real = tuple(s.uuid for s in grant.shares if not inventory.gpu(s.uuid).simulated)
            with OwnGpus(real, settings.state_dir):
                ledger.put(grant, policy_page(grant, inventory), scales, tiers)
            break
    return Admission(grant, inventory)


def _pinned(
    request: Request, decided: "Decided", who: Identity, inventory: Inventory, settings: Settings, tell: bool
) -> Request:
    from oci_hook.core.decided import pinned  # loaded here, since only a cluster's nodes need it

    try:
        return pinned(request, decided, inventory, settings.rules)
    except NoRoomError as e:
        if tell:
            _tell(who, e.problems, settings, request)
        raise


def _tell(who: Identity, problems: "Sequence[Problem]", settings: Settings, request: Request) -> None:
    name = events.full_name(who)
    events.refused(settings.state_dir, who.id, problems, name, request, who.pod_uid, who.bundle)


def _check_free(ledger: "store.Ledger", key: str, who: Identity, instead_of: str) -> None:
    """Raises GH-407 where the key, or the bundle, belongs to a container that lives or is being made."""
    for held in ledger.grants:
        if held.key == key:
            raise refuse("GH-407", f"container {who.id[:100]} exists and {_alive(held, ledger, 'delete it first')}")
        if held.key == instead_of and is_made_ahead(held):
            ledger.remove(held.key)
        elif _same_bundle(held.who.bundle, who.bundle) and is_being_made(held):
            # Both containers would start with what the second one writes into config.json.
            raise refuse(
                "GH-407",
                f"container {events.title(held.who)} is being made from the bundle {who.bundle[:100]}; wait until it is,"
                " or give each its own bundle",
            )


def _bounds(settings: Settings) -> "tuple[tuple[str, str, int], ...]":
    try:
        return preempt_bounds(settings.state_dir, store.peek(settings.state_dir))
    except FileNotFoundError:
        return ()


def _same_bundle(one: str, other: str) -> bool:
    return bool(one) and (one == other or os.path.realpath(one) == os.path.realpath(other))


def _tiers(settings: Settings, inventory: Inventory) -> "dict[str, int] | None":
    if not os.path.exists(f"{settings.state_dir}/{TIERS}"):
        return None
    from oci_hook.ledger.tier_file import usable

    return usable(settings, inventory)


def waits(grant: Grant) -> bool:
    """Whether its container is still to be made. The container that shows the key becomes its owner."""
    return grant.life.deadline > 0


def is_made_ahead(grant: Grant) -> bool:
    """Whether our precreate stage made it, for a container that shows its random key. A ResourceClaim's, which waits without an end,
    has a key that anybody can compute."""
    return waits(grant) and grant.life.deadline < NO_END


def adopt(
    key: str, who: Identity, life: Life, settings: Settings, may: "Callable[[Grant], bool]" = is_made_ahead
) -> Grant | None:
    """Make this container the owner of the grant with this key, if the grant waits for such a one (may); the grant, else None.

    Raises NodeError GH-303.
    """
    with store.open_ledger(settings.state_dir) as ledger:
        for held in ledger.grants:
            if held.key == key and may(held):
                mine = held.replace(who=who, life=life)
                ledger.update(mine)
                return mine
    return None


def release(key: str, settings: Settings, force: bool = False) -> bool:
    """Release the grant with this key; whether there was one.

    Raises GH-407, and changes nothing, while its container lives, unless force is set. The runtime and the hook set it
    for a grant of their own whose container could not be made. A damaged grant file (GH-303) needs it, too.
    """
    if not store.valid_key(key):
        raise refuse("GH-407", f"{key[:60]} is no grant's key (32 hex digits); `gpu-hook ps` lists them")
    if force:
        return store.forget(settings.state_dir, key)
    with store.open_ledger(settings.state_dir) as ledger:
        for held in ledger.grants:
            if held.key == key:
                raise refuse(
                    "GH-407",
                    f"container {events.title(held.who)} holds this grant and {_alive(held, ledger, 'stop it')}",
                )
        return any(ended.key == key for ended in ledger.swept)


def alter(settings: Settings, container: str, change: "Alteration") -> tuple[Grant, Grant, bool]:
    """Change one living container's grant in one transaction: (the old grant, the new one, whether the message
    about it has been delivered).

    container: see find(). change: takes the grant and all other grants, and returns the new grant, or raises; then
    nothing is changed. The container sees its new pages at once, unless it holds a lease on them: then as soon as it
    releases that. Raises also GH-303, GH-410.
    """
    with store.open_ledger(settings.state_dir) as ledger:
        old = find(ledger.grants, container)
        new = change(old, tuple(g for g in ledger.grants if g is not old))
        if new != old:
            ledger.change(new)
    return old, new, new.key not in ledger.late


def find(grants: tuple[Grant, ...], name: str) -> Grant:
    """The grant of a container, given its id or its grant's key, else NAMESPACE/POD/CONTAINER, POD/CONTAINER, CONTAINER,
    POD, or the beginning of its id (MIN_PREFIX characters or more).

    Raises ApplyError GH-410 for none, and for more than one.
    """

    found = going_by(grants, name)
    if len(found) == 1:
        return found[0]
    if not found:
        raise refuse(
            "GH-410",
            too_short(grants, name)
            or f"no living container goes by {name[:100] or 'an empty name'}; `gpu-hook ps` lists those with a share",
        )
    ids = ", ".join("/".join(filter(None, (g.who.pod[:40], g.who.container[:40], g.who.id[:12]))) for g in found[:3])
    raise refuse("GH-410", f"{len(found)} containers go by {name[:60]} ({ids}); name one by its id")


def going_by(grants: tuple[Grant, ...], name: str) -> list[Grant]:
    """The grants of the containers that `find` takes a name for."""

    def paths(who: Identity) -> tuple[str, ...]:
        return f"{who.namespace}/{who.pod}/{who.container}", f"{who.pod}/{who.container}", who.container, who.pod

    def goes_by(who: Identity) -> bool:
        return name in paths(who) or (len(name) >= MIN_PREFIX and who.id.startswith(name))

    if not name:
        return []
    return [g for g in grants if name in (g.who.id, g.key)] or [g for g in grants if goes_by(g.who)]


def too_short(grants: tuple[Grant, ...], name: str) -> str:
    """What to say of a name that no container goes by, and that is too short a beginning of an id; else ""."""
    if not 0 < len(name) < MIN_PREFIX or not any(grant.who.id.startswith(name) for grant in grants):
        return ""
    return f"{name} begins a container's id, but has fewer than six characters: give six or more, or a name"


def _alive(grant: Grant, ledger: "store.Ledger", fix: str) -> str:
    """How the container lives and what to do, or that it is not known whether it does."""
    if grant.key in ledger.unsure:
        return (
            "may live: the node has more processes and mounts than could be looked at in time; try again, or, if it has"
            f" ended, run `gpu-hook release --force --key {grant.key}`"
        )
    life = grant.life
    process = next((p for p in (life.init, life.creator) if is_running(p)), None)
    return f"lives ({f'process {process[0]}' if process else 'in its cgroup, or it waits to be made'}); {fix}"
