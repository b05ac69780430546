"""Changes the limits in a living grant: `gpu-hook set`. Pure; a change that does not fit raises and changes nothing."""

from oci_hook.core.allocate import TOO_SMALL, Usage, in_force, meant, memory_of, request_mib, round_up, usage
from oci_hook.core.grant import Grant, Share
from oci_hook.core.inventory import MOVES_SINCE, Gpu, Inventory
from oci_hook.core.rules import Rules
from oci_hook.core.terms import Terms, compute_of
from oci_hook.core.value import Value
from oci_hook.errors import NoRoomError, Problem, RequestError, refuse


class GrantChange(Value):
    """The changes to make; None keeps a value. memory, memory_request: ("mib", n) or ("percent", n), of each GPU."""

    memory: tuple[str, int] | None = None
    memory_request: tuple[str, int] | None = None
    compute: int | None = None
    compute_limit: int | None = None
    policy: str | None = None
    priority_class: str | None = None


def changed(
    grant: Grant, wish: GrantChange, inventory: Inventory, others: tuple[Grant, ...], rules: Rules, whom: str = ""
) -> Grant:
    """The changed grant. others: the other living grants, beside which it must fit. whom: the container of Grant.lent_to in
    words for people.

    Raises RequestError GH-103, NoRoomError GH-201, GH-202 (a GPU that is no longer there), ApplyError GH-411.
    """
    if grant.off_gpu:
        by_itself = f" for {whom or grant.lent_to[:64]}, and an agent that runs brings it back; try again then"
        then = by_itself if grant.lent_to else "; `gpu-hook resume` it first"
        raise refuse("GH-411", f"container {grant.who.id[:64]} is suspended{then}")
    unlent = lends_nothing(rules, inventory)
    rules = in_force(rules, inventory)
    there = {use.gpu.uuid: use for use in usage(inventory, others, rules)}
    if wish.replace(priority_class=None) == GrantChange():
        return _of_class(grant, wish, there)
    if not grant.shares or any(share.whole for share in grant.shares):
        what = "has its GPUs whole, without limits" if grant.shares else "has no GPU"
        raise refuse("GH-411", f"container {grant.who.id[:64]} {what}; only its class can be set")
    policy = _policy(grant, wish, rules)
    after = grant.replace(terms=_terms(grant, policy, wish))
    if wish.memory_request:
        if unlent:
            raise _contradiction(f"--memory-request says what of the limit is booked, and {unlent}")
        after = after.replace(memory_wait=grant.memory_wait or rules.memory_wait)
    shares, problems = [], []
    for share in grant.shares:
        if share.uuid not in there:
            raise NoRoomError(Problem("GH-202", f"GPU {share.uuid} is no longer there (`gpu-hook gpus`)"))
        use = there[share.uuid]
        new = _compute(_memory(share, use.gpu, wish, rules), share, grant, after, wish, rules)
        shares.append(new)
        problems += (
            _too_little(use.gpu, new, wish) + _full(share, new, use, rules) + _short(grant, after, share, new, use)
        )
    if problems:
        raise NoRoomError(*problems)
    return after.replace(shares=tuple(shares))


def lends_nothing(rules: Rules, inventory: Inventory) -> str:
    """Why containers of this node book all of their limits, whatever they request; "" where it lends the rest."""
    if not inventory.moves_memory:
        return f"driver {inventory.driver_version} cannot move memory, so none is lent; {MOVES_SINCE} and newer can"
    if not in_force(rules, inventory).lends:
        return "this node lends nothing; `gpu-hook settings set oversubscribe=2.0` has it lend"
    return ""


def _memory(share: Share, gpu: Gpu, wish: GrantChange, rules: Rules) -> Share:
    limit = memory_of(gpu, wish.memory, rules) if wish.memory else share.memory_mib
    if wish.memory_request is None:
        return share.replace(memory_mib=limit, request_mib=share.request_mib if share.request_mib < limit else 0)
    asked = memory_of(gpu, wish.memory_request, rules)
    if asked > limit:
        fix = "ask for less" if wish.memory else "give --memory too"
        raise _contradiction(f"the request of {asked} MiB is above the limit of {limit}; {fix}")
    return share.replace(memory_mib=limit, request_mib=request_mib(gpu, limit, wish.memory_request, rules))


def _too_little(gpu: Gpu, new: Share, wish: GrantChange) -> list[Problem]:
    if not wish.memory or new.memory_mib >= gpu.context_mib:
        return []
    name = f"GPU {gpu.index} {gpu.uuid}"
    why = f"too little memory: {name} takes {gpu.context_mib} MiB {TOO_SMALL}, {new.memory_mib} asked"
    fix = f"did you mean {likely}?" if (likely := meant(new.memory_mib, gpu)) else "ask for more"
    return [Problem("GH-201", f"{why}; {fix}")]


def _full(share: Share, new: Share, use: Usage, rules: Rules) -> list[Problem]:
    """The memory that the changed share asks for and does not get. It keeps what it has already."""
    room = min(use.lendable_mib, rules.grantable(use.gpu.memory_mib)) if new.request_mib else use.free_mib
    asked, what = new.memory_mib, "it"
    if asked <= max(room, share.memory_mib):
        room, asked, what = use.unbooked_mib, new.booked_mib, "requests"
        if asked <= max(room, share.booked_mib):
            return []
    why = f"no room: GPU {use.gpu.index} {use.gpu.uuid} has {room} of {use.gpu.memory_mib} MiB for {what} beside the others"
    return [Problem("GH-201", f"{why}, {asked} asked; ask for at most {room}")]


def _terms(grant: Grant, policy: str, wish: GrantChange) -> Terms:
    return grant.terms.replace(policy=policy, priority_class=wish.priority_class or grant.terms.priority_class)


def _short(grant: Grant, after: Grant, share: Share, new: Share, use: Usage) -> list[Problem]:
    """The compute that the changed share asks for its class and does not get. It keeps what it has already."""
    before, then = compute_of(grant.terms.priority_class), compute_of(after.terms.priority_class)
    free = use.compute_for(after.terms.priority_class)
    if new.compute <= max(free, share.compute if before == then else 0):
        return []
    why = f"no room: GPU {use.gpu.index} {use.gpu.uuid} has {free} of 100 % {then} for it beside the others"
    return [Problem("GH-201", f"{why}, {new.compute} asked; ask for at most {free}")]


def _of_class(grant: Grant, wish: GrantChange, there: dict[str, Usage]) -> Grant:
    """The grant with another class alone. The ceiling that fixed-share implies comes or goes with it."""
    after = grant.replace(terms=_terms(grant, grant.terms.policy, wish))
    limited = [share for share in grant.shares if not share.whole and share.uuid in there]
    problems = [problem for share in limited for problem in _short(grant, after, share, share, there[share.uuid])]
    if problems:
        raise NoRoomError(*problems)
    if after.competes == grant.competes or after.terms.policy != "fixed-share":
        return after
    shares = [s.replace(compute_limit=100 if after.competes else s.compute or 100) for s in grant.shares]
    return after.replace(shares=tuple(shares))


def _policy(grant: Grant, wish: GrantChange, rules: Rules) -> str:
    """The new policy. As in a request, compute without a policy means the node's default policy, if none was asked before."""
    guaranteed = any(share.compute for share in grant.shares)
    if wish.policy is not None:
        policy = wish.policy
    else:
        policy = rules.default_policy if wish.compute is not None and not guaranteed else grant.terms.policy
    if policy != "best-effort" and wish.compute is None and not guaranteed and wish.policy is not None:
        raise _contradiction(f"the policy {policy} divides compute, and the container has none; give --compute too")
    competes = policy == "fixed-share" and grant.replace(terms=_terms(grant, policy, wish)).competes
    if policy != "burst-share" and not competes and wish.compute_limit is not None:
        raise _contradiction(f"--compute-limit is for the policy burst-share, here it is {policy}; give --policy too")
    return policy


def _compute(share: Share, old: Share, before: Grant, after: Grant, wish: GrantChange, rules: Rules) -> Share:
    compute = old.compute if wish.compute is None else min(100, round_up(wish.compute, rules.compute_step))
    if after.terms.policy == "best-effort":
        return share.replace(compute=compute, compute_limit=100)
    if _implies_ceiling(after):
        return share.replace(compute=compute, compute_limit=compute if compute else 100)
    limit = wish.compute_limit
    if limit is None:
        limit = 100 if _implies_ceiling(before) else old.compute_limit
    if limit < compute:
        fix = "give --compute-limit too" if wish.compute_limit is None else f"give --compute-limit {compute} or more"
        raise _contradiction(f"the ceiling of {limit} % is below the guarantee of {compute} %; {fix}")
    if wish.compute_limit is not None and not compute:
        raise _contradiction("--compute-limit is a ceiling above a guarantee, and there is none; give --compute too")
    return share.replace(compute=compute, compute_limit=limit)


def _implies_ceiling(grant: Grant) -> bool:
    """Its compute is its ceiling, too."""
    return grant.terms.policy == "fixed-share" and not grant.competes


def _contradiction(what: str) -> RequestError:
    return RequestError(Problem("GH-103", what))
