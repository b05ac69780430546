"""What would have to change for a refused request to fit: found by `allocate` itself, so every answer is true."""

from oci_hook.core.allocate import Allocation, allocate
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.request import CardRequest, Request
from oci_hook.core.rules import Rules
from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Change(Value):
    """One way to make room. kind: memory | compute | both | policy | channels | cards | devices | share |
    wait. text: for people.

    request: what to ask instead ("wait": the same). gone: keys of the grants that must end first.
    """

    __slots__ = ("kind", "text", "request", "gone")

    def __init__(self, kind: str, text: str, request: Request, gone: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.text = text
        self.request = request
        self.gone = gone


def changes(request: Request, inventory: Inventory, grants: tuple[Grant, ...], rules: Rules) -> tuple[Change, ...]:
    """The smallest changes, one of each kind that helps, what asks least of the user first; empty: it fits as it is."""

    # Less than a context takes is refused as well: what fits is an interval from there up.
    least = max(rules.memory_min, 1, *(card.context_mib for card in inventory.cards))

    def fits(asked: Request, beside: tuple[Grant, ...] = grants) -> bool:
        if asked.imex_channels and not all(card.whole for card in asked.cards):
            return False  # core/validate.py
        return isinstance(allocate(asked, inventory, beside, rules), Allocation)

    if fits(request) or not request.cards:
        return ()
    found = []
    if memory := _most(lambda n: fits(_limited(request, memory=n)), _memory(request, inventory), least):
        asked = _limited(request, memory=memory)
        found.append(Change("memory", f"ask for at most {memory} MiB of memory", asked))
    computes = [card.compute for card in request.cards if card.compute is not None]
    if computes and request.policy != "best-effort":
        if compute := _most(lambda n: fits(_limited(request, compute=n)), max(computes)):
            found.append(Change("compute", f"ask for at most {compute} % compute", _limited(request, compute=compute)))
        best_effort = request.replace(policy="best-effort")
        if fits(best_effort):
            found.append(Change("policy", "use policy best-effort, which guarantees no compute", best_effort))
    if not found and computes:
        compute = _most(lambda n: fits(_limited(request, least, n)), max(computes))
        memory = _most(lambda n: fits(_limited(request, n, compute)), _memory(request, inventory), least)
        if compute and memory:
            text = f"ask for at most {memory} MiB of memory and {compute} % compute"
            found.append(Change("both", text, _limited(request, memory, compute)))
    if request.imex_channels and fits(request.replace(imex_channels=())):
        found.append(Change("channels", "ask for no IMEX channels", request.replace(imex_channels=())))
    anywhere = request.replace(cards=tuple(c.replace(device=None) for c in request.cards), narrow_to=None)
    if anywhere != request and not request.every_card and fits(anywhere):
        found.append(Change("devices", "name no cards: others have room", anywhere))
    fewer = _most(lambda n: fits(request.replace(cards=request.cards[:n])), len(request.cards) - 1)
    if fewer:
        found.append(Change("cards", f"ask for {fewer} instead of {len(request.cards)} cards", _first(request, fewer)))
    if request.exclusive or all(card.whole for card in request.cards):
        share = request.replace(exclusive=False, cards=tuple(CardRequest(c.device, 1) for c in request.cards))
        if memory := _most(lambda n: fits(_limited(share, memory=n, raise_to=True)), _total(inventory), least):
            asked = _limited(share, memory=memory, raise_to=True)
            found.append(Change("share", f"ask for a share of at most {memory} MiB instead of whole cards", asked))
    gone = _in_the_way(lambda beside: fits(request, beside), grants)
    if gone:
        names = ", ".join(grant.who.id[:40] for grant in gone)
        what = f"wait until {names} ends" if len(gone) == 1 else f"wait until these end: {names}"
        found.append(Change("wait", what, request, tuple(grant.key for grant in gone)))
    return tuple(found)


def _first(request: Request, n: int) -> Request:
    return request.replace(cards=request.cards[:n])


def _total(inventory: Inventory) -> int:
    return max((card.memory_mib for card in inventory.cards), default=0)


def _memory(request: Request, inventory: Inventory) -> int:
    """The most that any card's wish can mean in MiB; 0 where no memory is asked for."""
    total = _total(inventory)
    return max(
        (
            card.memory_mib
            if card.memory_mib is not None
            else total * (card.memory_percent or card.compute or 0) // 100
            for card in request.cards
            if not card.whole
        ),
        default=0,
    )


def _limited(
    request: Request, memory: int | None = None, compute: int | None = None, raise_to: bool = False
) -> Request:
    """The request with at most so much on each card; memory that followed from compute is said by itself then."""

    def limited(card: CardRequest) -> CardRequest:
        if memory is not None:
            asked = memory if raise_to or card.memory_mib is None else min(memory, card.memory_mib)
            card = card.replace(memory_mib=asked, memory_percent=None)
        elif compute is not None and card.memory_mib is None and card.memory_percent is None:
            card = card.replace(memory_percent=card.compute)
        if compute is not None and card.compute is not None:
            card = card.replace(compute=min(compute, card.compute))
        return card

    return request.replace(cards=tuple(limited(card) for card in request.cards))


def _most(good: "Callable[[int], bool]", top: int, least: int = 1) -> int:
    """The largest n in least..top that is good, where a smaller one is as good; 0: none is."""
    if top < least or not good(least):
        return 0
    low, high = least, top
    while low < high:
        middle = (low + high + 1) // 2
        if good(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _in_the_way(fits: "Callable[[tuple[Grant, ...]], bool]", grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """The fewest grants, by size, without which it fits; () where even an empty node is too small."""
    by_size = sorted(
        grants, key=lambda g: (sum(s.memory_mib for s in g.shares), sum(s.compute for s in g.shares), g.key)
    )
    for grant in by_size:
        if fits(tuple(g for g in grants if g is not grant)):
            return (grant,)
    if not fits(()):
        return ()
    kept = list(grants)
    for grant in reversed(by_size):  # the largest first, until it fits, then give back those that were not needed
        kept.remove(grant)
        if fits(tuple(kept)):
            break
    for grant in by_size:
        if grant not in kept and fits((*kept, grant)):
            kept.append(grant)
    return tuple(g for g in grants if g not in kept)
