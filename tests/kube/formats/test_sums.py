"""Sums: their amounts, and that they never refuse a pod that fits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.core.allocate import Allocation, allocate
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import Request, with_memory
from oci_hook.core.rules import Rules
from oci_hook.core.terms import CLASSES, GpuRequest, Terms
from oci_hook.kube.formats.sums import of_node, of_pod, of_request
from testbed.long import draws

AMOUNTS = st.one_of(
    st.none(), st.tuples(st.just("mib"), st.integers(1, 9000)), st.tuples(st.just("percent"), st.integers(1, 100))
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    gpu = with_memory(GpuRequest(None, draw(AMOUNTS), draw(st.one_of(st.none(), st.integers(1, 100)))))
    terms = Terms(priority_class=draw(st.sampled_from(CLASSES)))
    return Request((gpu,) * draw(st.integers(1, 3)), terms, exclusive=gpu.whole)


def request(mib: int, compute: int | None = None, count: int = 1) -> Request:
    return Request((GpuRequest(None, ("mib", mib), compute),) * count)


def test_of_a_pod() -> None:
    assert of_pod([of_request(None)]) == {}
    assert of_pod([of_request(request(100, 5)), of_request(request(10, count=2))]) == {
        "gpu-hook.io/gpus": 3,
        "gpu-hook.io/memory-mib": 120,
        "gpu-hook.io/compute": 5,
    }
    one, big = of_request(request(10)), of_request(request(100))
    assert of_pod([one], [(big, False), (one, False)])["gpu-hook.io/memory-mib"] == 100
    # a sidecar runs beside the next init container and beside the containers
    assert of_pod([one], [(big, True), (one, False)])["gpu-hook.io/memory-mib"] == 110
    assert of_pod([one, one], [(one, False), (big, True)])["gpu-hook.io/memory-mib"] == 120
    assert of_pod([one], [(big, False), (big, True)])["gpu-hook.io/memory-mib"] == 110


def test_one_gpu_may_have_two_names() -> None:
    """A GPU that is named by index and by UUID is given once, so its sums count once."""
    share = GpuRequest(None, ("mib", 10), 20)
    named = [share.replace(device=name) for name in ("0", "1", "GPU-1", "GPU-2", "GPU-3")]
    assert of_request(Request(tuple(named)))["gpu-hook.io/compute"] == 60
    migs = [share.replace(device=name) for name in ("0", "0:0", "MIG-1", "MIG-GPU-1/2/3")]
    assert of_request(Request(tuple(migs)))["gpu-hook.io/gpus"] == 1
    other = share.replace(device="2", compute=50)
    assert of_request(Request((*named, other, share)))["gpu-hook.io/compute"] == 130


@settings(max_examples=draws(300), deadline=None)
@given(
    st.lists(requests(), max_size=12),
    st.lists(st.integers(1, 16000), min_size=1, max_size=4),
    st.sampled_from((0, 500, ("percent", 10))),
    st.sampled_from((1, 1024)),
    st.sampled_from((1, 4, 64)),
)
def test_whenever_allocate_finds_room_the_sums_have_room(
    wanted: list[Request], memories: list[int], reserve: int | tuple[str, int], step: int, places: int
) -> None:
    gpus = tuple(Gpu(f"GPU-{i}", i, i, mib) for i, mib in enumerate(memories))
    inventory = Inventory("", "", "", True, gpus, (), (), "", "")
    rules = Rules(
        memory_reserve=reserve,
        memory_step=step,
        memory_min=step,
        compute_step=5 if step > 1 else 1,
        max_shares_per_gpu=places,
    )
    grants: tuple[Grant, ...] = ()
    left = of_node(inventory, rules)
    for number, one in enumerate(wanted):
        found = allocate(one, inventory, grants, rules)
        if not isinstance(found, Allocation):
            continue
        who = Identity("", str(number), "")
        grants += (Grant(str(number), who, Life(""), found.shares, one.terms, found.exclusive),)
        for name, amount in of_request(one).items():
            left[name] -= amount
            assert left[name] >= 0, (name, number)
