"""The first look never rejects a node on which `allocate` finds room."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from oci_hook.core.allocate import Allocation, allocate
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import CLASSES, GpuRequest, Terms
from oci_hook.kube.placing.room import fits_each, may_fit, need_of, room_of
from oci_hook.kube.pod.asked import RUN
from testbed.long import draws

UUIDS = ("GPU-0", "GPU-1", "GPU-2")
share = st.builds(Share, st.sampled_from(UUIDS), st.integers(0, 30), st.integers(0, 60), st.just(100), st.booleans())
grants = st.lists(
    st.builds(
        lambda shares, exclusive, of: Grant("k", Identity("", "", ""), Life(""), tuple(shares), of, exclusive),
        st.lists(share, min_size=1, max_size=2),
        st.sampled_from([False, False, False, True]),
        st.builds(Terms, priority_class=st.sampled_from(CLASSES)),
    ),
    max_size=5,
).map(tuple)
memory = st.one_of(
    st.none(), st.tuples(st.just("mib"), st.integers(1, 45)), st.tuples(st.just("percent"), st.integers(1, 100))
)
wish = st.builds(
    GpuRequest, st.sampled_from([None, None, None, "0", "GPU-1", "GPU-9"]), memory, st.none() | st.integers(1, 100)
)
requests = st.builds(
    Request,
    st.lists(wish, max_size=4).map(tuple) | st.builds(lambda w, n: (w,) * n, wish, st.integers(1, 4)),
    st.builds(Terms, boundary=st.sampled_from(["auto", "auto", "driver"]), priority_class=st.sampled_from(CLASSES)),
    exclusive=st.booleans(),
)
every = st.builds(lambda w: Request((w.replace(device=None),), every_gpu=True), wish)
rules = st.builds(
    Rules,
    whole_gpus=st.sampled_from(["exclusive", "shared"]),
    memory_reserve=st.sampled_from([0, 3, ("percent", 10), 40]),
    memory_step=st.sampled_from([1, 4, 7]),
    memory_min=st.sampled_from([1, 5]),
    compute_step=st.sampled_from([1, 30]),
    max_shares_per_gpu=st.sampled_from([64, 2, 1]),
    memory_per_share=st.sampled_from([0, 16]),
)
gpus = st.lists(
    st.tuples(st.sampled_from([12, 24, 40]), st.sampled_from([0, 4]), st.sampled_from(["", "no"])), max_size=3
)


def one_share(mib):
    return (Grant("k", Identity("", "", ""), Life(""), (Share("GPU-0", mib),)),)


@settings(max_examples=draws(500), deadline=None)
@given(gpus, grants, requests | every, rules)
@example([(24, 0, "")], one_share(19), Request((GpuRequest(memory=("percent", 24)),)), Rules())  # 5.76 MiB are 5
@example(
    [(24, 0, "")], one_share(20), Request((GpuRequest(memory=("percent", 30)),)), Rules(memory_step=4)
)  # 7.2 are 4
@example([(24, 0, "")], (), Request((GpuRequest("0"), GpuRequest("GPU-0"))), Rules())  # one GPU, named twice
def test_where_allocate_has_room_the_first_look_says_so(sizes, given_before, request, said):
    found = tuple(
        Gpu(UUIDS[i], i, i, size, context_mib=context, no_limits=why) for i, (size, context, why) in enumerate(sizes)
    )
    inventory = Inventory("", "1", "", True, found, (), (), "", "")
    room = room_of(inventory, given_before, said)
    asked = (("main", RUN, request),)
    if isinstance(allocate(request, inventory, given_before, said), Allocation):
        assert may_fit(room, need_of(asked, said)) and fits_each(room, asked, said)
    elif len(request.gpus) == 1 and request.gpus[0].device is None and not request.every_gpu:
        # For one GPU the second look is exact, so `allocate` rarely refuses after it.
        assert not fits_each(room, asked, said)
