"""What `why` proposes: each proposal fits, and nothing a little larger does."""

from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core.allocate import Allocation, allocate
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import GpuRequest, Request
from oci_hook.core.rules import Rules
from oci_hook.core.suggest import changes
from oci_hook.core.terms import Terms

GPUS = tuple(Gpu(f"GPU-{i}", i, i, 1000, context_mib=50) for i in range(2))
NODE = Inventory("", "", "/", True, GPUS, (), (), "", "")
RULES = Rules()


def grant(key: str, *shares: Share, exclusive: bool = False) -> Grant:
    return Grant(key, Identity("/", key, "/"), Life(""), shares, exclusive=exclusive)


def fits(request: Request, grants: tuple[Grant, ...]) -> bool:
    return isinstance(allocate(request, NODE, grants, RULES), Allocation)


def told(request: Request, *grants: Grant) -> list[str]:
    return [c.text for c in changes(request, NODE, grants, RULES)]


A, B = grant("a", Share("GPU-0", 700, 60)), grant("b", Share("GPU-1", 400, 90))


def test_words() -> None:
    one = GpuRequest(memory=("mib", 300), compute=10)
    assert told(Request((one,)), A, B) == []
    assert told(Request((one.replace(memory=("mib", 700)),)), A, B) == [
        "ask for at most 600 MiB of memory",
        "wait until b ends",
    ]
    assert told(Request((one.replace(compute=80),)), A, B) == [
        "ask for at most 40 % compute",
        "ask for memory alone, which books no compute (best-effort)",
        "wait until b ends",
    ]
    assert told(Request((GpuRequest("0", ("mib", 800), 80),)), A, B) == [
        "ask for at most 300 MiB of memory and 40 % compute",
        "wait until a ends",
    ]
    assert told(Request((GpuRequest("0", ("mib", 500)),)), A, B) == [
        "ask for at most 300 MiB of memory",
        "name no GPUs: others have room",
        "wait until a ends",
    ]
    assert told(Request((GpuRequest(memory=("mib", 500)),) * 2), A, B) == [
        "ask for at most 300 MiB of memory",
        "ask for 1 instead of 2 GPUs",
        "wait until a ends",
    ]
    assert told(Request((GpuRequest(),), exclusive=True), A, B) == [
        "ask for a share of at most 600 MiB instead of whole GPUs",
        "wait until b ends",
    ]
    assert told(Request((GpuRequest(),) * 2), A, B)[-1] == "wait until these end: a, b"
    assert told(Request((GpuRequest(memory=("mib", 2000)),)), A, B) == ["ask for at most 600 MiB of memory"]
    assert told(Request((GpuRequest("7", ("mib", 100)),)), A) == ["name no GPUs: others have room"]
    assert told(Request((GpuRequest(memory=("mib", 10)),)), A) == []  # less than a context: no smaller share helps


WISH = st.builds(
    GpuRequest,
    st.sampled_from([None, None, "0", "1"]),
    st.one_of(st.none(), st.tuples(st.just("mib"), st.integers(1, 1200))),
    st.one_of(st.none(), st.integers(1, 100)),
)
REQUEST = st.builds(
    lambda wish, n, policy, exclusive: Request(
        (wish,) * (1 if wish.device else n), terms=Terms(policy=policy), exclusive=exclusive
    ),
    WISH,
    st.integers(1, 3),
    st.sampled_from(["best-effort", "fixed-share", "burst-share"]),
    st.booleans(),
)
SHARE = st.builds(Share, st.sampled_from(["GPU-0", "GPU-1"]), st.integers(1, 500), st.integers(0, 50))
GRANTS = st.lists(SHARE, max_size=4).map(lambda shares: tuple(grant(f"g{i}", s) for i, s in enumerate(shares)))


@given(REQUEST, GRANTS)
def test_every_proposal_fits_and_is_the_smallest(request: Request, grants: tuple[Grant, ...]) -> None:
    found = changes(request, NODE, grants, RULES)
    assert not (fits(request, grants) and found)
    for change in found:
        beside = tuple(g for g in grants if g.key not in change.gone)
        assert fits(change.request, beside), change
        if change.gone:  # each of them must go
            for key in change.gone:
                assert not fits(request, tuple(g for g in grants if g.key not in change.gone or g.key == key))
        if change.kind in ("memory", "share", "both"):
            more = tuple(c.replace(memory=("mib", c.memory[1] + 1 if c.memory else 1)) for c in change.request.gpus)
            assert not fits(change.request.replace(gpus=more), grants)
        if change.kind == "compute":
            more = tuple(c.replace(compute=min(100, (c.compute or 0) + 1)) for c in change.request.gpus)
            assert not fits(change.request.replace(gpus=more), grants)


def test_imex_channels_are_for_whole_gpus() -> None:
    """Where the node has none, to do without them; where it has, a share is no way out."""
    wish = Request((GpuRequest(),), terms=Terms(imex_channels=(0,)), exclusive=True)
    (way,) = [c for c in changes(wish, NODE, (), RULES) if c.kind == "channels"]
    assert way.text == "ask for no IMEX channels" and fits(way.request, ())
    ways = changes(wish, NODE.replace(imex_major=237), (A, B), RULES)
    assert ways and not any("share" in c.text or "memory" in c.text for c in ways), ways
