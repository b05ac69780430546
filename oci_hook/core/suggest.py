"""Finds the changes with which a refused request would fit. It asks `allocate` about each, so every suggestion is true."""

from oci_hook.core.allocate import NOBODY, Allocation, allocate
from oci_hook.core.grant import Grant, Identity
from oci_hook.core.inventory import Inventory
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import GpuRequest, compute_of
from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_hook.core.allocate import Bounds


class Suggestion(Value):
    """One change that makes the request fit. kind: memory | compute | both | policy | channels | gpus | devices | share |
    wait. text: the change in words.

    request: what to ask for instead; for the kind wait, the same request. gone: keys of the grants that must end first.
    """

    kind: str
    text: str
    request: Request
    gone: tuple[str, ...] = ()


def changes(
    request: Request,
    inventory: Inventory,
    grants: tuple[Grant, ...],
    rules: Rules,
    bounds: "Bounds" = (),
    who: Identity = NOBODY,
) -> tuple[Suggestion, ...]:
    """The smallest change of each kind that helps, the easiest for the user first; empty if the request fits as it is.
    bounds, who: as in `allocate`."""

    # Less memory than a context takes is refused as well, so the amounts that fit are an interval that begins here.
    least = max(rules.memory_min, 1, *(gpu.context_mib for gpu in inventory.gpus))

    def fits(asked: Request, beside: tuple[Grant, ...] = grants) -> bool:
        if asked.terms.imex_channels and not all(gpu.whole for gpu in asked.gpus):
            return False  # core/validate.py
        return isinstance(allocate(asked, inventory, beside, rules, bounds, who), Allocation)

    if fits(request) or not request.gpus:
        return ()
    found = []
    if memory := _most(lambda n: fits(_limited(request, memory=n)), _memory(request, inventory), least):
        asked = _limited(request, memory=memory)
        found.append(Suggestion("memory", f"ask for at most {memory} MiB of memory", asked))
    computes = [gpu.compute for gpu in request.gpus if gpu.compute is not None]
    if computes and (compute := _most(lambda n: fits(_limited(request, compute=n)), max(computes))):
        text = f"ask for at most {compute} % {compute_of(request.terms.priority_class)}"
        found.append(Suggestion("compute", text, _limited(request, compute=compute)))
    if computes and fits(unbooked := _unbooked(request)):
        found.append(Suggestion("policy", "ask for memory alone, which books no compute (best-effort)", unbooked))
    if not found and computes:
        compute = _most(lambda n: fits(_limited(request, least, n)), max(computes))
        memory = _most(lambda n: fits(_limited(request, n, compute)), _memory(request, inventory), least)
        if compute and memory:
            what = compute_of(request.terms.priority_class)
            text = f"ask for at most {memory} MiB of memory and {compute} % {what}"
            found.append(Suggestion("both", text, _limited(request, memory, compute)))
    without_channels = request.replace(terms=request.terms.replace(imex_channels=()))
    if without_channels != request and fits(without_channels):
        found.append(Suggestion("channels", "ask for no IMEX channels", without_channels))
    anywhere = request.replace(gpus=tuple(c.replace(device=None) for c in request.gpus), narrow_to=None)
    if anywhere != request and not request.every_gpu and fits(anywhere):
        found.append(Suggestion("devices", "name no GPUs: others have room", anywhere))
    fewer = _most(lambda n: fits(request.replace(gpus=request.gpus[:n])), len(request.gpus) - 1)
    if fewer:
        found.append(Suggestion("gpus", f"ask for {fewer} instead of {len(request.gpus)} GPUs", _first(request, fewer)))
    if request.exclusive or all(gpu.whole for gpu in request.gpus):
        share = request.replace(exclusive=False, gpus=tuple(GpuRequest(c.device, ("mib", 1)) for c in request.gpus))
        if memory := _most(lambda n: fits(_limited(share, memory=n, raise_to=True)), _total(inventory), least):
            asked = _limited(share, memory=memory, raise_to=True)
            found.append(Suggestion("share", f"ask for a share of at most {memory} MiB instead of whole GPUs", asked))
    gone = _in_the_way(lambda beside: fits(request, beside), grants)
    if gone:
        names = ", ".join(_name(grant.who) for grant in gone)
        what = f"wait until {names} ends" if len(gone) == 1 else f"wait until these end: {names}"
        found.append(Suggestion("wait", what, request, tuple(grant.key for grant in gone)))
    return tuple(found)


def _name(who: Identity) -> str:
    return "/".join(filter(None, (who.pod, who.container)))[:80] or who.id[:40]


def _unbooked(request: Request) -> Request:
    """The request without its compute. Memory that followed from it becomes explicit."""
    gpus = tuple(
        gpu if gpu.compute is None else gpu.replace(memory=gpu.memory or ("percent", gpu.compute), compute=None)
        for gpu in request.gpus
    )
    terms = request.terms.replace(policy="best-effort")
    return request.replace(gpus=gpus, terms=terms, compute_limit=None)


def _first(request: Request, n: int) -> Request:
    return request.replace(gpus=request.gpus[:n])


def _total(inventory: Inventory) -> int:
    return max((gpu.memory_mib for gpu in inventory.gpus), default=0)


def _memory(request: Request, inventory: Inventory) -> int:
    """The most memory in MiB that any entry of the request can mean; 0 if all ask for whole GPUs."""
    total = _total(inventory)
    return max(
        (
            amount if kind == "mib" else total * amount // 100
            for gpu in request.gpus
            if not gpu.whole
            for kind, amount in [gpu.memory or ("percent", gpu.compute or 0)]
        ),
        default=0,
    )


def _limited(
    request: Request, memory: int | None = None, compute: int | None = None, raise_to: bool = False
) -> Request:
    """The request with at most so much of each GPU. Memory that followed from compute becomes explicit."""

    def limited(gpu: GpuRequest) -> GpuRequest:
        if memory is not None:
            kind, amount = gpu.memory or ("percent", 0)
            gpu = gpu.replace(memory=("mib", memory if raise_to or kind == "percent" else min(memory, amount)))
        elif compute is not None and gpu.memory is None and gpu.compute is not None:
            gpu = gpu.replace(memory=("percent", gpu.compute))
        if compute is not None and gpu.compute is not None:
            gpu = gpu.replace(compute=min(compute, gpu.compute))
        return gpu

    return request.replace(gpus=tuple(limited(gpu) for gpu in request.gpus))


def _most(good: "Callable[[int], bool]", top: int, least: int = 1) -> int:
    """The largest n in least..top that is good, if every smaller one is good as well; 0: none is."""
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
    """A smallest set of grants without which the request fits; () if even an empty node is too small."""
    by_size = sorted(
        grants, key=lambda g: (sum(s.memory_mib for s in g.shares), sum(s.compute for s in g.shares), g.key)
    )
    for grant in by_size:
        if fits(tuple(g for g in grants if g is not grant)):
            return (grant,)
    if not fits(()):
        return ()
    kept = list(grants)
    for grant in reversed(by_size):  # drop the largest first until it fits; then put back those that need not end
        kept.remove(grant)
        if fits(tuple(kept)):
            break
    for grant in by_size:
        if grant not in kept and fits((*kept, grant)):
            kept.append(grant)
    return tuple(g for g in grants if g not in kept)
