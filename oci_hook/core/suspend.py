"""Suspends a living grant and resumes it: which grants may be, and what they are booked meanwhile. Pure.

suspended and moving of a grant say where its memory is:

    running --begun--> moving --arrived--> suspended --returning--> moving --returned--> running

While it moves, GPU and host memory are both booked, so whoever finds it so after a crash can bring it back to its GPUs,
whichever way it was going. A suspended grant has only host memory booked.
"""

from oci_hook.core.allocate import places, usage
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.rules import Rules
from oci_hook.core.terms import compute_of
from oci_hook.errors import NoRoomError, Problem, refuse

PERCENT_KEPT = 5  # of the node's memory, which suspended containers leave to its other programs


def begun(
    grant: Grant,
    others: tuple[Grant, ...],
    need_mib: int,
    free_mib: int,
    total_mib: int,
    now: int,
    lent_to: str = "",
) -> Grant:
    """The grant with its memory on the way to the host's. need_mib: what it takes there; free_mib: what the node has
    available now; total_mib: all of its memory; now: seconds since 1970; lent_to: as in Grant.

    Raises ApplyError GH-411 (nothing to suspend), GH-416 (the node has too little memory).
    """
    check_suspendable(grant)
    coming = sum(other.host_mib for other in others if other.moving)
    left = free_mib - coming - total_mib * PERCENT_KEPT // 100
    if need_mib > left:
        raise refuse(
            "GH-416",
            f"container {grant.who.id[:64]} is not suspended: it has {need_mib} MiB on its GPUs, and the node can take"
            f" {max(0, left)} of its own {total_mib} MiB for them; suspend a smaller one",
        )
    return grant.replace(moving=now, host_mib=max(1, need_mib), lent_to=lent_to)


def check_suspendable(grant: Grant) -> None:
    """Raises ApplyError GH-411."""
    id = grant.who.id[:64]
    if not grant.shares:
        raise refuse("GH-411", f"container {id} has no GPU: there is nothing to suspend")
    if grant.life.init is None:
        raise refuse("GH-411", f"container {id} has not been made yet; wait until it runs (`gpu-hook ps`)")
    if grant.moving:
        raise refuse("GH-411", f"container {id} is being suspended or resumed; `gpu-hook resume` ends what was cut off")


def arrived(grant: Grant, now: int) -> Grant:
    """Its memory is in the host's."""
    return grant.replace(suspended=now, moving=0)


def returned(grant: Grant) -> Grant:
    """Its memory is on its GPUs."""
    return grant.replace(suspended=0, moving=0, host_mib=0, lent_to="")


def returning(grant: Grant, others: tuple[Grant, ...], inventory: Inventory, rules: Rules, now: int) -> Grant:
    """The suspended grant with its GPUs' memory and compute booked again beside the others. What is booked still needs no
    room in the ledger: the driver says whether there is room on the GPUs.

    Raises NoRoomError GH-201 (with every GPU that has no room), GH-202 (a GPU that is no longer there).
    """
    if grant.booked:
        return grant.replace(suspended=0, moving=now)
    there = {use.gpu.uuid: use for use in usage(inventory, others, rules)}
    problems = []
    for share in grant.shares:
        use = there.get(share.uuid)
        if use is None:
            raise NoRoomError(Problem("GH-202", f"GPU {share.uuid} is no longer there (`gpu-hook gpus`)"))
        alone = grant.exclusive or (share.whole and rules.whole_gpus == "exclusive")
        kind = compute_of(grant.terms.priority_class)
        free = use.compute_for(grant.terms.priority_class)
        why = ""
        if use.alone or (alone and use.containers):
            why = f"{use.containers} container{'s have' if use.containers != 1 else ' has'} it, and only one may"
        elif use.containers and share.whole != use.whole:
            why = f"it has {use.containers} {'limited ones' if share.whole else 'without limits'} by now"
        elif use.containers >= places(use.gpu, rules):
            why = f"it has {use.containers} containers, and no more may share it"
        elif not share.whole and not use.has_memory(share):
            why = f"{use.free_mib} of {use.gpu.memory_mib} MiB are free, {share.booked_mib} needed"
        elif share.compute > free:
            why = f"{free} of 100 % {kind} are free, {share.compute} % needed"
        if why:
            fix = "wait until a container there ends, or suspend one (`gpu-hook ps`)"
            problems.append(Problem("GH-201", f"no room to resume on GPU {use.gpu.address} {share.uuid}: {why}; {fix}"))
    if problems:
        raise NoRoomError(*problems)
    return grant.replace(suspended=0, moving=now)
