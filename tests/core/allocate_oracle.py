"""What `allocate` promises, said a second time and the slow way: try every assignment, check the whole ledger."""

from itertools import permutations

FAR = 1000


def violations(inventory, grants, rules):
    """The promises that this ledger breaks; [] for a good one."""
    broken = []
    for card in inventory.cards:
        on = [(g, s) for g in grants for s in g.shares if s.uuid == card.uuid]
        alone = [g for g, s in on if g.exclusive or (s.whole and rules.whole_cards == "exclusive")]
        if alone and len(on) > 1:
            broken.append(f"{card.uuid}: {len(on)} grants beside an exclusive one")
        if len({s.whole for _, s in on}) > 1:
            broken.append(f"{card.uuid}: limited and unlimited containers together")
        limited = [s for _, s in on if not s.whole]
        if sum(s.memory_mib for s in limited) > card.memory_mib - rules.memory_reserve and limited:
            broken.append(f"{card.uuid}: memory overbooked")
        if sum(s.compute for s in limited) > 100:
            broken.append(f"{card.uuid}: compute overbooked")
        most = rules.max_shares_per_card
        if rules.memory_per_share:
            most = min(most, max(1, int(card.memory_mib / rules.memory_per_share + 0.5)))
        if len(on) > most and not alone:
            broken.append(f"{card.uuid}: {len(on)} containers")
    return broken


def needed(card, wish, request, rules):
    """(memory, compute, whole) of one wish on one card."""
    if request.exclusive or (wish.memory_mib is wish.memory_percent is wish.compute is None):
        return card.memory_mib, 0, True
    step = rules.memory_step
    if wish.memory_mib is not None:
        memory = wish.memory_mib
    else:
        percent = wish.memory_percent or wish.compute
        memory = (max(0, card.memory_mib - rules.memory_reserve) * percent // 100) // step * step
    memory = max(memory, rules.memory_min)
    while memory % step:
        memory += 1
    compute = 0 if request.policy == "best-effort" else wish.compute or 0
    while compute % rules.compute_step:
        compute += 1
    return memory, min(compute, 100), False


def named(name, inventory):
    return [c for c in inventory.cards if name in (c.uuid, str(c.index))]


def candidates(request, inventory):
    """Per wish the cards it may be served from, by the request alone."""
    allowed = list(inventory.cards)
    if request.narrow_to is not None:
        allowed = [c for c in allowed if any(c in named(n, inventory) for n in request.narrow_to)]
    if request.every_card:
        return [(request.cards[0], [c]) for c in sorted(allowed, key=lambda c: c.index)]
    out = []
    for wish in request.cards:
        if wish.device is None:
            out.append((wish, allowed))
        elif any(c in allowed for c in named(wish.device, inventory)):
            out.append((wish, named(wish.device, inventory)))
    return out


def assignments(request, inventory, grants, rules, grant_of):
    """Every tuple of cards, one per wish, that leaves a good ledger."""
    wishes = candidates(request, inventory)
    for cards in permutations(inventory.cards, len(wishes)):
        if all(card in may for card, (_, may) in zip(cards, wishes, strict=True)):
            needs = [needed(c, w, request, rules) for c, (w, _) in zip(cards, wishes, strict=True)]
            if not violations(inventory, [*grants, grant_of(cards, needs)], rules):
                yield cards


def rank(inventory, grants, rules, placement):
    """The cards, best first."""

    def free(card):
        on = [(g, s) for g in grants for s in g.shares if s.uuid == card.uuid]
        if any(g.exclusive or s.whole for g, s in on):
            return 0, 0, len(on)
        memory = card.memory_mib - rules.memory_reserve - sum(s.memory_mib for _, s in on)
        return max(0, memory), 100 - sum(s.compute for _, s in on), len(on)

    def key(card):
        memory, compute, containers = free(card)
        if placement == "binpack":
            return (containers == 0, memory, compute, card.index)
        return (-memory, -compute, containers, card.index)

    return sorted(inventory.cards, key=key)


def preferred(request, inventory, grants, rules, grant_of, possible):
    """Of all good assignments the one that the definition picks: the nearest set of cards, then the best ranked.

    Wishes with fewer cards to choose from choose first.
    """
    order = rank(inventory, grants, rules, request.placement or rules.placement)
    link = {frozenset((a, b)): d for a, b, d in inventory.links}

    def far(cards):
        pairs = [(a, b) for i, a in enumerate(cards) for b in cards[i + 1 :]]
        apart = sum(a.numa >= 0 and b.numa >= 0 and a.numa != b.numa for a, b in pairs)
        return sum(link.get(frozenset((a.uuid, b.uuid)), FAR) for a, b in pairs), apart

    def room(wish, may):
        one = [grant_of((c,), [needed(c, wish, request, rules)]) for c in may]
        return sum(not violations(inventory, [*grants, g], rules) for g in one)

    choices = [room(wish, may) for wish, may in candidates(request, inventory)]
    turn = sorted(range(len(choices)), key=lambda w: (choices[w], w))
    return min(possible, key=lambda cards: (far(cards), [order.index(cards[w]) for w in turn]))
