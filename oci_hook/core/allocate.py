"""Chooses the GPUs of a request: pure, deterministic, integers only (MiB and percent points).

The grants on a GPU put it in one of four states: free; shared, by containers with limits; whole, by containers without
limits (possible with `whole_gpus: shared`); or exclusive to one container. Four things never happen: the limits exceed
the GPU's memory less `memory_reserve`; the guarantees of class offline, or those of the other classes, exceed 100 %; a second
container gets an exclusive GPU; containers with and without limits get the same GPU. With the setting `oversubscribe` the
first is true of what the containers request, and their limits may be so many times the memory. Class offline is booked apart since
it has only what the other classes leave idle: a guarantee of it is a share among the offline containers.

Among the GPUs that have room, the placement policy decides which comes first (core/rules.py). A container that states
the longest preemption delay it tolerates gets no GPU where a container of a lower class is known to take longer.
For several GPUs, the set with the smallest sum of link distances between its pairs is chosen, then the one with the
fewest pairs on different NUMA nodes, then the one whose GPUs the placement policy puts first.
"""

from oci_hook.core.boundary import obstacle
from oci_hook.core.gpu_page import SLOTS, free_slot, on_gpu
from oci_hook.core.grant import Grant, Identity, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.policy_page import MAX_GPUS
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules, order_of, preference
from oci_hook.core.terms import CLASS_NUMBERS, OFFLINE, GpuRequest, compute_of
from oci_hook.core.value import Value
from oci_hook.errors import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    Bounds = tuple[tuple[str, str, int], ...]

NO_BOUNDARY = "cannot have the driver's memory limit"
MOST_GIB = 80  # a number up to this, without its unit, is rather meant in GiB
TOO_SMALL = "for a program's context alone"  # the context counts against the limit, so no program could run
UNMET = "does not meet"
DISAGREES = "are not"  # a share that is said twice, in per cent and in MiB
NOBODY = Identity("", "", "")
FAR = 1000  # distance of two GPUs without a link in the inventory
PAIRS = MAX_GPUS * MAX_GPUS  # a bound: no set of GPUs has as many pairs
SEARCH_STEPS = 5_000  # sets of GPUs that are tried; after that the best one so far is taken


class Allocation(Value):
    """Room was found. shares: in the request's order. exclusive: no other container may be on the GPUs. notes: (uuid, why
    the GPU was chosen or not) per GPU, in inventory order."""

    shares: tuple[Share, ...]
    exclusive: bool
    notes: tuple[tuple[str, str], ...] = ()


class Refusal(Value):
    """No room was found. problems: GH-201 (full), GH-202 (unknown GPU, no IMEX channels), GH-203 (too few GPUs),
    GH-204 (no GPU can have the driver's limit)."""

    problems: tuple[Problem, ...]
    notes: tuple[tuple[str, str], ...] = ()


class Usage(Value):
    """The part of one GPU that the grants leave. unbooked_mib, lendable_mib: what the requests of further containers, and their
    limits, can be together. free_compute, free_offline: guarantees of the classes online and default, and of class offline, can
    still have. containers: how many grants are on it. alone: one container has it exclusively. whole: its containers have no
    limits."""

    gpu: Gpu
    unbooked_mib: int
    lendable_mib: int
    free_compute: int
    free_offline: int
    containers: int
    alone: bool
    whole: bool

    @property
    def free_mib(self) -> int:
        """Can still be granted to a container that requests all of its limit."""
        return min(self.unbooked_mib, self.lendable_mib)

    def has_memory(self, share: Share) -> bool:
        """True if there is room for its request and its limit."""
        return share.booked_mib <= self.unbooked_mib and share.memory_mib <= self.lendable_mib

    def compute_for(self, priority_class: str) -> int:
        return self.free_offline if priority_class == OFFLINE else self.free_compute


def usage(inventory: Inventory, grants: tuple[Grant, ...], rules: Rules) -> tuple[Usage, ...]:
    """The part of each GPU that these grants leave, in inventory order. A container that a person suspended leaves all of it."""
    taken: dict[str, list[tuple[Share, Grant]]] = {}
    for grant in grants:
        for share in grant.shares if grant.booked else ():
            taken.setdefault(share.uuid, []).append((share, grant))
    return tuple(_usage(gpu, taken.get(gpu.uuid, []), rules) for gpu in inventory.gpus)


def in_force(rules: Rules, inventory: Inventory) -> Rules:
    """The rules of a node with this driver: what is lent could not be had back from one that moves no memory."""
    return rules if inventory.moves_memory else rules.replace(oversubscribe=100)


def placement_of(request: Request, rules: Rules) -> str:
    """The name of the placement policy that applies: the container's, or else the node's."""
    return order_of(request.placement or rules.placement, request.terms.priority_class)


def allocate(
    request: Request,
    inventory: Inventory,
    grants: tuple[Grant, ...],
    rules: Rules,
    bounds: "Bounds" = (),
    who: Identity = NOBODY,
) -> "Allocation | Refusal":
    """Finds GPUs with room for the request beside the grants of living containers.

    who: whose request it is, for apart-from.

    bounds: (grant's key, GPU's UUID, microseconds) where it is known how long that container keeps the GPU at most after
    a container of a higher class has work.
    """
    if not request.gpus or request.narrow_to == ():
        return Allocation((), False, tuple((c.uuid, "no GPU is asked for") for c in inventory.gpus))
    if request.terms.imex_channels and inventory.imex_major < 0:
        why = "this node's driver had none when its GPUs were listed (`gpu-hook gpus --refresh`); drop imex-channels"
        return Refusal((Problem("GH-202", f"IMEX channels are asked for, and {why}"),))
    rules = in_force(rules, inventory)
    uses = usage(inventory, grants, rules)
    wishes, allowed, problems = wishes_of(request, inventory)
    if problems:
        return Refusal(problems)
    placement = placement_of(request, rules)
    order = sorted(range(len(uses)), key=lambda i: preference(placement, uses[i], request.terms.priority_class))
    # For each GPU that is asked for: the GPUs that it may be and that have room, the preferred one first.
    barred = _apart_from(request, who, grants)
    late = [_late(use, request, grants, bounds) for use in uses]
    unmet = [_unmet(request, inventory, use.gpu) for use in uses]
    blocked = [
        [
            unmet[i]
            or _barred(use, request, barred)
            or _obstacle(use, wish, request, rules)
            or _no_slot(use, wish, request, rules, grants)
            or late[i][0]
            for i, use in enumerate(uses)
        ]
        for wish, _ in wishes
    ]
    options = [
        [i for i in order if not blocked[w][i] and (i == only if only is not None else i in allowed)]
        for w, (_, only) in enumerate(wishes)
    ]
    chosen = _choose(options, [w for w, _ in wishes], inventory)
    if chosen is None:
        return _refusal(
            request, uses, wishes, allowed, blocked, _fits_empty(request, inventory, wishes, allowed, rules)
        )
    alone = request.exclusive or (rules.whole_gpus == "exclusive" and all(w.whole for w, _ in wishes))
    shares = tuple(
        share_of(uses[i].gpu, wish, request, rules).replace(slot=_slot(uses[i].gpu, wish, request, rules, grants))
        for i, (wish, _) in zip(chosen, wishes, strict=True)
    )
    notes = []
    for i, use in enumerate(uses):
        reasons = [blocked[w][i] for w, (_, only) in enumerate(wishes) if only in (None, i)]
        if i in chosen:
            note = f"chosen ({placement})" if wishes[chosen.index(i)][1] is None else "chosen (asked for by name)"
            note += late[i][1]
        elif not reasons or (i not in allowed):
            note = "not asked for"
        elif all(reasons):
            note = reasons[0]
        else:
            note = f"has room, another GPU comes first ({placement})"
        notes.append((use.gpu.uuid, note))
    return Allocation(shares, alone, tuple(notes))


def _apart_from(request: Request, who: Identity, grants: tuple[Grant, ...]) -> frozenset[str]:
    """The UUIDs of the GPUs on which a container of another pod of this namespace says the same word in apart-from. In the
    cluster's controller the word begins with the namespace and a slash."""
    word = request.terms.apart_from
    if not word:
        return frozenset()
    return frozenset(
        share.uuid
        for grant in grants
        if grant.terms.apart_from == word
        and ("/" in word or grant.who.namespace == who.namespace)
        and not (who.pod_uid and grant.who.pod_uid == who.pod_uid)
        for share in grant.shares
    )


def _barred(use: Usage, request: Request, barred: frozenset[str]) -> str:
    if use.gpu.uuid not in barred:
        return ""
    return f"GPU {use.gpu.index} {use.gpu.uuid} has another container with apart-from={request.terms.apart_from[-40:]}"


def _usage(gpu: Gpu, taken: list[tuple[Share, Grant]], rules: Rules) -> Usage:
    """taken: the shares of this GPU with their grants."""
    memory = limits = compute = offline = containers = 0
    alone = whole = False
    for share, grant in taken:
        # Compute alone belongs to another container, which runs at another time than one of its pod's of another class.
        containers += bool(share.whole or share.memory_mib or not share.compute)
        if grant.exclusive or (share.whole and (rules.whole_gpus == "exclusive" or not share.slot)):
            alone = True
        elif share.whole:
            whole = True
        else:
            memory += share.booked_mib
            limits += share.memory_mib
            if grant.terms.priority_class == OFFLINE:
                offline += share.compute
            else:
                compute += share.compute
    if alone or whole:
        return Usage(gpu, 0, 0, 0, 0, containers, alone, whole)
    most = rules.grantable(gpu.memory_mib) - gpu.missing_mib
    unbooked, lendable = max(0, most - memory), max(0, most * rules.oversubscribe // 100 - limits)
    return Usage(gpu, unbooked, lendable, max(0, 100 - compute), max(0, 100 - offline), containers, alone, whole)


def wishes_of(
    request: Request, inventory: Inventory
) -> "tuple[list[tuple[GpuRequest, int | None]], frozenset[int], tuple[Problem, ...]]":
    """(what is asked of a GPU, the GPU's number or None for any) in the request's order; the numbers of the GPUs that may be
    chosen; problems."""
    gpus = inventory.gpus
    every = frozenset(range(len(gpus)))
    allowed = every
    if request.narrow_to is not None:
        allowed = frozenset(i for name in request.narrow_to for i in _find(name, gpus))
        if not allowed:
            asked = ",".join(request.narrow_to)
            return (
                [],
                allowed,
                (Problem("GH-202", _unknown(f"the container's env NVIDIA_VISIBLE_DEVICES={asked[:60]}", gpus)),),
            )
    wishes: list[tuple[GpuRequest, int | None]] = []
    named: dict[int, GpuRequest] = {}
    problems = []
    for wish in request.gpus:
        if request.every_gpu:
            wishes += [(wish, i) for i in sorted(allowed, key=lambda i: (gpus[i].index, gpus[i].instance))]
        elif wish.device is None:
            wishes.append((wish, None))
        elif not (found := _find(wish.device, gpus)):
            problems.append(Problem("GH-202", _unknown(getattr(wish.device, "key", "GPU ") + wish.device[:60], gpus)))
        for i in found if wish.device is not None and not request.every_gpu else ():
            if named.setdefault(i, wish.replace(device=None)) != wish.replace(device=None):
                what = f"GPU {str(wish.device)[:60]} is asked for twice with different shares; name each GPU once"
                problems.append(Problem("GH-202", what))
            elif i in allowed and (wish, i) not in wishes and all(i != other for _, other in wishes):
                wishes.append((wish, i))
    if not gpus:
        return [], allowed, (Problem("GH-203", "a GPU is asked for, this node has none (`gpu-hook gpus`)"),)
    if not wishes and not problems:
        left = ",".join(gpus[i].address for i in sorted(allowed))
        what = f"none of the asked GPUs is among those that the container's own NVIDIA_VISIBLE_DEVICES names ({left}); change one of both"
        problems.append(Problem("GH-202", what))
    room = min(len(allowed), MAX_GPUS)
    if len(wishes) > room and not problems:
        where = "the node has" if allowed == every else "the container's own env leaves"
        where += f" {len(allowed)}" + (f", and one container can have {MAX_GPUS}" if len(allowed) > MAX_GPUS else "")
        count = "1 GPU is" if len(wishes) == 1 else f"{len(wishes)} GPUs are"
        what = f"{count} asked for, {where}; ask for at most {room}"
        problems.append(Problem("GH-203", what))
    return wishes, allowed, tuple(problems)


def _find(name: str, gpus: tuple[Gpu, ...]) -> tuple[int, ...]:
    """The GPU of this name; of a GPU that is split by MIG, all its MIG devices, as the NVIDIA runtime takes it. () for none."""
    for i, gpu in enumerate(gpus):
        if name in (gpu.uuid, gpu.address, gpu.old_name):
            return (i,)
    return tuple(i for i, gpu in enumerate(gpus) if gpu.parent and name in (gpu.parent, str(gpu.index)))


def _unknown(what: str, gpus: tuple[Gpu, ...]) -> str:
    have = ", ".join(c.address for c in gpus[:MAX_GPUS]) or "none"
    return f"{what} names no GPU of this node, which has {have}; choose among them (`gpu-hook gpus` lists the UUIDs)"


def share_of(gpu: Gpu, wish: GpuRequest, request: Request, rules: Rules) -> Share:
    """The share of this GPU that is asked for."""
    if request.exclusive or wish.whole:
        return Share(gpu.uuid, rules.grantable(gpu.memory_mib), whole=True)
    memory = memory_of(gpu, wish.memory or ("percent", wish.compute or 0), rules)
    compute = 0
    if wish.compute is not None:  # best-effort books it too: the policy says only how it is held
        compute = min(100, round_up(wish.compute, rules.compute_step))
    limit = 100 if request.compute_limit is None else max(compute, request.compute_limit)
    if request.terms.policy == "fixed-share" and compute and not rules.competes(request.terms.priority_class):
        limit = compute
    return Share(gpu.uuid, memory, compute, limit, request_mib=request_mib(gpu, memory, wish.memory_request, rules))


def request_mib(gpu: Gpu, memory_mib: int, wish: tuple[str, int] | None, rules: Rules) -> int:
    """Share.request_mib. A program's context is always a part of it, since no program runs without."""
    if not rules.lends or wish is None:
        return 0
    request = max(memory_of(gpu, wish, rules), gpu.context_mib)
    return request if request < memory_mib else 0


def _late(use: Usage, request: Request, grants: tuple[Grant, ...], bounds: "Bounds") -> tuple[str, str]:
    """(why this GPU exceeds the tolerated preemption delay, or ""; a remark on containers whose delay is unknown, or "")."""
    tolerance = request.terms.preempt_tolerance_us
    if tolerance is None or not use.containers:
        return "", ""
    known = {(key, uuid): bound for key, uuid, bound in bounds}
    own = CLASS_NUMBERS[request.terms.priority_class]
    there = (grant for grant, _ in on_gpu(use.gpu.uuid, grants) if grant.booked)
    lower = [grant for grant in there if CLASS_NUMBERS[grant.terms.priority_class] < own]
    found = [known[g.key, use.gpu.uuid] for g in lower if (g.key, use.gpu.uuid) in known]
    if found and max(found) > tolerance:
        name = f"GPU {use.gpu.index} {use.gpu.uuid}"
        return f"{name} has a lower class that lets go after {max(found)} us, {tolerance} are tolerated", ""
    unknown = len(lower) - len(found)
    return "", f"; of {unknown} of a lower class it is not known yet how soon they let go" if unknown else ""


def memory_of(gpu: Gpu, asked: tuple[str, int], rules: Rules) -> int:
    """("mib", n) or ("percent", n) of this GPU in MiB, rounded as the node's rules say. 100 percent is the memory that can
    be granted, so that two halves fit."""
    kind, memory = asked
    if kind == "percent":
        memory = rules.grantable(gpu.memory_mib) * memory // 100
        memory -= memory % rules.memory_step  # down, so that shares that fit in percent still fit when rounded to steps
    return round_up(max(memory, rules.memory_min), rules.memory_step)


def _unmet(request: Request, inventory: Inventory, gpu: Gpu) -> str:
    """Which of the container's requirements the driver or this GPU does not meet; "" when it meets them all."""
    if not request.required:
        return ""
    from oci_hook.core import requirements  # few containers have any that count

    known = requirements.facts(inventory, gpu)
    for said in request.required:
        key, _, text = said.partition("=")
        if why := requirements.unmet(text, known):
            return f"GPU {gpu.address} {gpu.uuid} {UNMET} {key}: {why}"
    return ""


def _agrees(gpu: Gpu, wish: GpuRequest, percent: int, rules: Rules) -> bool:
    """True if so many MiB are so many per cent of the GPU, by any rounding, or of what can be granted of it."""
    asked = wish.memory[1] if wish.memory else 0
    totals = (gpu.memory_mib, rules.grantable(gpu.memory_mib))
    return any(abs(asked * 100 - percent * total) < total for total in totals)


def meant(number: int, gpu: Gpu) -> str:
    """A size for a number without its unit that is too little in MiB: GiB if the GPU has so many, else per cent; or ""."""
    if number <= MOST_GIB and number << 10 <= gpu.memory_mib:
        return f"{number}Gi"
    return f"{number}%" if 0 < number <= 100 else ""


def _held_alone(wish: GpuRequest, request: Request, rules: Rules) -> bool:
    """True if no other container may be on the GPU beside it."""
    return request.exclusive or (wish.whole and rules.whole_gpus == "exclusive")


def _slot(gpu: Gpu, wish: GpuRequest, request: Request, rules: Rules, grants: tuple[Grant, ...]) -> int:
    """The container's slot on the GPU page; 0 where the container has the GPU for itself."""
    return 0 if _held_alone(wish, request, rules) else free_slot(gpu.uuid, grants)


def _no_slot(use: Usage, wish: GpuRequest, request: Request, rules: Rules, grants: tuple[Grant, ...]) -> str:
    """Suspended containers leave their memory, and keep their slots."""
    if len(grants) < SLOTS or _held_alone(wish, request, rules) or free_slot(use.gpu.uuid, grants):
        return ""
    return f"GPU {use.gpu.address} {use.gpu.uuid} has {SLOTS} containers, suspended ones included"


def places(gpu: Gpu, rules: Rules) -> int:
    """The number of containers that may share the GPU. A GPU has a little less memory than its name says, so 15109 MiB count as four
    times 4 GiB."""
    if not rules.memory_per_share:
        return rules.max_shares_per_gpu
    fit = (gpu.memory_mib + rules.memory_per_share // 2) // rules.memory_per_share
    return max(1, min(fit, rules.max_shares_per_gpu))


def round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def _obstacle(use: Usage, wish: GpuRequest, request: Request, rules: Rules) -> str:
    """Why this GPU has no room for what is asked of it, with numbers; "" when it has."""
    need = share_of(use.gpu, wish, request, rules)
    name = f"GPU {use.gpu.address} {use.gpu.uuid}"
    containers = f"{use.containers} container" + ("s" if use.containers != 1 else "")
    if why := obstacle(use.gpu, need.whole, request.terms.boundary):
        return f"{name} {NO_BOUNDARY}: {why}"
    if use.alone:
        return f"{name} is exclusive to one container"
    if _held_alone(wish, request, rules):
        return f"{name} is asked for alone and has {containers}" if use.containers else ""
    if need.whole and use.containers and not use.whole:
        return f"{name} is asked for without limits and has {use.containers} limited ones"
    if use.containers >= (most := places(use.gpu, rules)):
        return f"{name} has {containers}, at most {most} may share it"
    if need.whole:
        return ""
    if request.same_percent is not None and not _agrees(use.gpu, wish, request.same_percent, rules):
        asked = wish.memory[1] if wish.memory else 0
        return f"{name} has {use.gpu.memory_mib} MiB, of which {request.same_percent} % {DISAGREES} {asked} MiB"
    if need.memory_mib < use.gpu.context_mib:
        unit = f" (did you mean {likely}?)" if (likely := meant(need.memory_mib, use.gpu)) else ""
        return f"{name} takes {use.gpu.context_mib} MiB {TOO_SMALL}, {need.memory_mib} MiB asked{unit}"
    if use.whole:
        return f"{name} has {containers} without limits"
    most = rules.grantable(use.gpu.memory_mib)
    if need.memory_mib > most or not use.has_memory(need):
        if need.request_mib:
            lent = f"limits of {use.lendable_mib} MiB more (oversubscribe) and requests of {use.unbooked_mib} MiB"
            what = f"{need.memory_mib} MiB with a request of {need.request_mib} asked"
            return f"{name} has {most} MiB to grant; it has room for {lent}; {what}"
        never = f"; it has {most} MiB to grant" if need.memory_mib > most else ""
        lost = f" ({use.gpu.missing_mib} MiB are in use by nobody who can be told)" if use.gpu.missing_mib else ""
        like = wish.compute and wish.memory == ("percent", wish.compute)
        by_itself = f" ({wish.compute} %, as for compute; memory can be asked for by itself)" if like else ""
        asked_mib = f"{need.memory_mib} MiB asked{by_itself}"
        return f"{name} has {use.free_mib} of {use.gpu.memory_mib} MiB free{lost}, {asked_mib}{never}"
    free, what = use.compute_for(request.terms.priority_class), compute_of(request.terms.priority_class)
    if need.compute > free:
        return f"{name} has {free} of 100 % {what} free, {need.compute} % asked"
    return ""


def _fits_empty(
    request: Request,
    inventory: Inventory,
    wishes: "list[tuple[GpuRequest, int | None]]",
    allowed: frozenset[int],
    rules: Rules,
) -> bool:
    """True if the request has room on the node without any container: else waiting does not help."""
    uses = usage(inventory, (), rules)
    options = [
        [
            i
            for i, use in enumerate(uses)
            if (i == only if only is not None else i in allowed)
            and not (_unmet(request, inventory, use.gpu) or _obstacle(use, wish, request, rules))
        ]
        for wish, only in wishes
    ]
    return _match(options) is not None


def _refusal(
    request: Request,
    uses: tuple[Usage, ...],
    wishes: "list[tuple[GpuRequest, int | None]]",
    allowed: frozenset[int],
    blocked: list[list[str]],
    later: bool,
) -> Refusal:
    """later: whether there is room once other containers have ended."""
    notes = []
    full = []
    for i, use in enumerate(uses):
        reasons = [blocked[w][i] for w, (_, only) in enumerate(wishes) if only == i or (only is None and i in allowed)]
        if not reasons:
            notes.append((use.gpu.uuid, "not asked for"))
        elif any(reasons):
            reason = next(r for r in reasons if r)
            notes.append((use.gpu.uuid, reason))
            full.append(reason)
        else:
            notes.append((use.gpu.uuid, "has room, but not enough GPUs have"))
    advice = "ask for a share" if (request.exclusive or wishes[0][0].whole) and later else "ask for less"
    advice += ", or wait until a container ends (`gpu-hook ps`)" if later else ""
    head = "no room" if len(wishes) == 1 else f"no room on {len(wishes)} GPUs at once"
    code = "GH-201"
    if full and all(TOO_SMALL in reason for reason in full):
        head, advice = "too little memory", "ask for more"
    if full and all(UNMET in reason for reason in full):
        code, head, advice = "GH-205", "the image's requirement is not met", "use another node, image or driver"
    if full and all(DISAGREES in reason for reason in full):
        code, head, advice = "GH-103", "T9K_GPU_PERCENT and T9K_GPU_MEMORY disagree", "give one of them"
    if full and all(NO_BOUNDARY in reason for reason in full):
        code, head = "GH-204", "boundary: driver is asked for"
        advice = "drop gpu-hook.io/boundary, or set `boundary: auto`"
    text = ""
    for n, reason in enumerate(full):
        left = len(full) - n
        more = f"; {left} more GPU{'s' if left > 1 else ''}" if text else ""
        if text and len(head) + len(text) + len(reason) + len(advice) > 260:
            text += more
            break
        text += ("; " if text else "") + reason
    return Refusal((Problem(code, f"{head}: {text}; {advice}"),), tuple(notes))


def _distances(inventory: Inventory) -> list[list[int]]:
    """For each pair of GPUs: the distance of its link times PAIRS, plus 1 if they are on different NUMA nodes."""
    gpus = inventory.gpus
    number = {gpu.uuid: i for i, gpu in enumerate(gpus)}
    table = [[FAR * PAIRS + _apart(a, b) for b in gpus] for a in gpus]
    for a, b, distance in inventory.links:
        if a in number and b in number:
            i, j = number[a], number[b]
            table[i][j] = table[j][i] = distance * PAIRS + _apart(gpus[i], gpus[j])
    return table


def _apart(a: Gpu, b: Gpu) -> int:
    return int(a.numa != b.numa and -1 not in (a.numa, b.numa))


def _choose(options: list[list[int]], wishes: list[GpuRequest], inventory: Inventory) -> "list[int] | None":
    """A different GPU for each entry of `options`: the set with the shortest links, the preferred one among equals; None if
    there is none."""
    if len(options) == 1:
        return options[0][:1] or None
    best = _match(options)
    if best is None:
        return None
    distance = _distances(inventory)
    # Entries with few options come first, so that a search without a result ends early; equal entries take GPUs in
    # order of preference.
    turn = sorted(range(len(options)), key=lambda w: (len(options[w]), w))
    # True where the entry at this turn and the next one are alike: then the next one takes a later GPU, since swapping the two
    # makes no difference.
    equal = [_same(wishes[a], wishes[b]) and options[a] == options[b] for a, b in zip(turn, turn[1:], strict=False)]
    nearest = min(d for i, row in enumerate(distance) for j, d in enumerate(row) if i != j)
    pairs = len(options) * (len(options) - 1) // 2
    best_sum: int | None = None
    steps = 0

    def extend(depth: int, taken: list[int], total: int) -> None:
        nonlocal best, best_sum, steps
        left = pairs - depth * (depth - 1) // 2
        if steps >= SEARCH_STEPS or (best_sum is not None and total + left * nearest >= best_sum):
            return
        if depth == len(turn):
            best_sum = total
            best = [taken[turn.index(w)] for w in range(len(turn))]
            return
        choices = options[turn[depth]]
        first = choices.index(taken[-1]) + 1 if depth and equal[depth - 1] else 0
        behind = 0
        while depth + behind < len(equal) and equal[depth + behind]:
            behind += 1
        for gpu in choices[first : len(choices) - behind]:
            if gpu not in taken:
                steps += 1
                extend(depth + 1, [*taken, gpu], total + sum(distance[gpu][t] for t in taken))

    extend(0, [], 0)
    return best


def _same(a: GpuRequest, b: GpuRequest) -> bool:
    return a.replace(device=None) == b.replace(device=None)


def _match(options: list[list[int]]) -> "list[int] | None":
    """A different GPU for each entry, by augmenting paths; None if no assignment exists."""
    holder: dict[int, int] = {}

    def place(wish: int, tried: set[int]) -> bool:
        for gpu in options[wish]:
            if gpu not in tried:
                tried.add(gpu)
                if gpu not in holder or place(holder[gpu], tried):
                    holder[gpu] = wish
                    return True
        return False

    for wish in range(len(options)):
        if not place(wish, set()):
            return None
    return [next(c for c, w in holder.items() if w == wish) for wish in range(len(options))]
