"""What would have to change for a refused request to fit: found by `allocate` itself, so every answer is true."""

from oci_hook.core.allocate import Allocation, allocate
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import GpuRequest
from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Change(Value):
    """One way to make room. kind: memory | compute | both | policy | channels | GPUs | devices | share |
    wait. text: for people.

    request: what to ask instead ("wait": the same). gone: keys of the grants that must end first.
    """

    kind: str
    text: str
    request: Request
    gone: tuple[str, ...] = ()


def changes(request: Request, inventory: Inventory, grants: tuple[Grant, ...], rules: Rules) -> tuple[Change, ...]:
    """The smallest changes, one of each kind that helps, what asks least of the user first; empty: it fits as it is."""

    # Less than a context takes is refused as well: what fits is an interval from there up.
    least = max(rules.memory_min, 1, *(gpu.context_mib for gpu in inventory.gpus))

    def fits(asked: Request, beside: tuple[Grant, ...] = grants) -> bool:
        if asked.terms.imex_channels and not all(gpu.whole for gpu in asked.gpus):
            return False  # core/validate.py
        return isinstance(allocate(asked, inventory, beside, rules), Allocation)

    if fits(request) or not request.gpus:
        return ()
    found = []
    if memory := _most(lambda n: fits(_limited(request, memory=n)), _memory(request, inventory), least):
        asked = _limited(request, memory=memory)
        found.append(Change("memory", f"ask for at most {memory} MiB of memory", asked))
    computes = [gpu.compute for gpu in request.gpus if gpu.compute is not None]
    if computes and request.terms.policy != "best-effort":
        if compute := _most(lambda n: fits(_limited(request, compute=n)), max(computes)):
            found.append(Change("compute", f"ask for at most {compute} % compute", _limited(request, compute=compute)))
        best_effort = request.replace(terms=request.terms.replace(policy="best-effort"))
        if fits(best_effort):
            found.append(Change("policy", "use policy best-effort, which guarantees no compute", best_effort))
    if not found and computes:
        compute = _most(lambda n: fits(_limited(request, least, n)), max(computes))
        memory = _most(lambda n: fits(_limited(request, n, compute)), _memory(request, inventory), least)
        if compute and memory:
            text = f"ask for at most {memory} MiB of memory and {compute} % compute"
            found.append(Change("both", text, _limited(request, memory, compute)))
    without_channels = request.replace(terms=request.terms.replace(imex_channels=()))
    if without_channels != request and fits(without_channels):
        found.append(Change("channels", "ask for no IMEX channels", without_channels))
    anywhere = request.replace(gpus=tuple(c.replace(device=None) for c in request.gpus), narrow_to=None)
    if anywhere != request and not request.every_gpu and fits(anywhere):
        found.append(Change("devices", "name no GPUs: others have room", anywhere))
    fewer = _most(lambda n: fits(request.replace(gpus=request.gpus[:n])), len(request.gpus) - 1)
    if fewer:
        found.append(Change("gpus", f"ask for {fewer} instead of {len(request.gpus)} GPUs", _first(request, fewer)))
    if request.exclusive or all(gpu.whole for gpu in request.gpus):
        share = request.replace(exclusive=False, gpus=tuple(GpuRequest(c.device, ("mib", 1)) for c in request.gpus))
        if memory := _most(lambda n: fits(_limited(share, memory=n, raise_to=True)), _total(inventory), least):
            asked = _limited(share, memory=memory, raise_to=True)
            found.append(Change("share", f"ask for a share of at most {memory} MiB instead of whole GPUs", asked))
    gone = _in_the_way(lambda beside: fits(request, beside), grants)
    if gone:
        names = ", ".join(grant.who.id[:40] for grant in gone)
        what = f"wait until {names} ends" if len(gone) == 1 else f"wait until these end: {names}"
        found.append(Change("wait", what, request, tuple(grant.key for grant in gone)))
    return tuple(found)


def _first(request: Request, n: int) -> Request:
    return request.replace(gpus=request.gpus[:n])


def _total(inventory: Inventory) -> int:
    return max((gpu.memory_mib for gpu in inventory.gpus), default=0)


def _memory(request: Request, inventory: Inventory) -> int:
    """The most that any GPU's wish can mean in MiB; 0 where no memory is asked for."""
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
    """The request with at most so much on each GPU; memory that followed from compute is said by itself then."""

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
