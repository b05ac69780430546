"""What `allocate` promises, said a second time and the slow way: try every assignment, check the whole ledger."""

from itertools import permutations

FAR = 1000


def violations(inventory, grants, rules):
    """The promises that this ledger breaks; [] for a good one."""
    broken = []
    for gpu in inventory.gpus:
        on = [(g, s) for g in grants for s in g.shares if s.uuid == gpu.uuid]
        alone = [g for g, s in on if g.exclusive or (s.whole and rules.whole_gpus == "exclusive")]
        if alone and len(on) > 1:
            broken.append(f"{gpu.uuid}: {len(on)} grants beside an exclusive one")
        if len({s.whole for _, s in on}) > 1:
            broken.append(f"{gpu.uuid}: limited and unlimited containers together")
        limited = [s for _, s in on if not s.whole]
        if sum(s.memory_mib for s in limited) > gpu.memory_mib - rules.memory_reserve and limited:
            broken.append(f"{gpu.uuid}: memory overbooked")
        for offline in (True, False):  # what is left idle is shared out apart
            if sum(s.compute for g, s in on if not s.whole and is_offline(g.terms) == offline) > 100:
                broken.append(f"{gpu.uuid}: {'offline ' if offline else ''}compute overbooked")
        most = rules.max_shares_per_gpu
        if rules.memory_per_share:
            most = min(most, max(1, int(gpu.memory_mib / rules.memory_per_share + 0.5)))
        containers = [s for _, s in on if s.whole or s.memory_mib or not s.compute]
        if len(containers) > most and not alone:
            broken.append(f"{gpu.uuid}: {len(containers)} containers")
    return broken


def is_offline(terms):
    return terms.priority_class == "offline"


def needed(gpu, wish, request, rules):
    """(memory, compute, whole) of one wish on one GPU."""
    if request.exclusive or (wish.memory is wish.compute is None):
        return gpu.memory_mib - rules.memory_reserve, 0, True
    step = rules.memory_step
    kind, memory = wish.memory or ("percent", wish.compute)
    if kind == "percent":
        percent = memory
        memory = (max(0, gpu.memory_mib - rules.memory_reserve) * percent // 100) // step * step
    memory = max(memory, rules.memory_min)
    while memory % step:
        memory += 1
    compute = wish.compute or 0
    while compute % rules.compute_step:
        compute += 1
    return memory, min(compute, 100), False


def named(name, inventory):
    return [c for c in inventory.gpus if name in (c.uuid, str(c.index))]


def candidates(request, inventory):
    """Per wish the GPUs it may be served from, by the request alone."""
    allowed = list(inventory.gpus)
    if request.narrow_to is not None:
        allowed = [c for c in allowed if any(c in named(n, inventory) for n in request.narrow_to)]
    if request.every_gpu:
        return [(request.gpus[0], [c]) for c in sorted(allowed, key=lambda c: c.index)]
    out = []
    for wish in request.gpus:
        if wish.device is None:
            out.append((wish, allowed))
        elif any(c in allowed for c in named(wish.device, inventory)):
            out.append((wish, named(wish.device, inventory)))
    return out


def assignments(request, inventory, grants, rules, grant_of):
    """Every tuple of GPUs, one per wish, that leaves a good ledger."""
    wishes = candidates(request, inventory)
    for gpus in permutations(inventory.gpus, len(wishes)):
        if all(gpu in may for gpu, (_, may) in zip(gpus, wishes, strict=True)):
            needs = [needed(c, w, request, rules) for c, (w, _) in zip(gpus, wishes, strict=True)]
            if not violations(inventory, [*grants, grant_of(gpus, needs)], rules):
                yield gpus


def rank(inventory, grants, rules, placement, offline):
    """The GPUs, best first. offline: for a container of that class."""

    def free(gpu):
        on = [(g, s) for g in grants for s in g.shares if s.uuid == gpu.uuid]
        if any(g.exclusive or s.whole for g, s in on):
            return 0, 0, len(on)
        memory = gpu.memory_mib - rules.memory_reserve - sum(s.memory_mib for _, s in on)
        return max(0, memory), 100 - sum(s.compute for g, s in on if is_offline(g.terms) == offline), len(on)

    def key(gpu):
        memory, compute, containers = free(gpu)
        if placement == "binpack":
            return (containers == 0, memory, compute, gpu.index)
        return (-memory, -compute, containers, gpu.index)

    return sorted(inventory.gpus, key=key)


def preferred(request, inventory, grants, rules, grant_of, possible):
    """Of all good assignments the one that the definition picks: the nearest set of GPUs, then the best ranked.

    Wishes with fewer GPUs to choose from choose first.
    """
    placement = request.placement or rules.placement
    order = rank(inventory, grants, rules, placement, is_offline(request.terms))
    link = {frozenset((a, b)): d for a, b, d in inventory.links}

    def far(gpus):
        pairs = [(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
        apart = sum(a.numa >= 0 and b.numa >= 0 and a.numa != b.numa for a, b in pairs)
        return sum(link.get(frozenset((a.uuid, b.uuid)), FAR) for a, b in pairs), apart

    def room(wish, may):
        one = [grant_of((c,), [needed(c, wish, request, rules)]) for c in may]
        return sum(not violations(inventory, [*grants, g], rules) for g in one)

    choices = [room(wish, may) for wish, may in candidates(request, inventory)]
    turn = sorted(range(len(choices)), key=lambda w: (choices[w], w))
    return min(possible, key=lambda gpus: (far(gpus), [order.index(gpus[w]) for w in turn]))
