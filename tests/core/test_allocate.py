"""Placement: against a brute-force oracle on small nodes, and what each rule and refusal says."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oci_hook.core import change
from oci_hook.core.allocate import Allocation, Refusal, allocate, usage
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.request import GpuRequest, Request, parse
from oci_hook.core.rules import Rules
from oci_hook.core.terms import Terms
from oci_hook.errors import NoRoomError, RequestError
from testbed.long import draws
from tests.core import allocate_oracle as oracle
from tests.terms import changed, made

UUID = "GPU-{:08d}-aaaa-bbbb-cccc-dddddddddddd"


def node(*sizes, links=(), numa=(-1,) * 32):
    gpus = tuple(Gpu(UUID.format(i), i, i, size, numa=numa[i]) for i, size in enumerate(sizes))
    near = tuple((UUID.format(a), UUID.format(b), d) for a, b, d in links)
    return Inventory("boot", "1", "/", False, gpus, (), (), "", "", near)


def grant(n, shares, exclusive=False):
    return Grant(f"{n:032x}", Identity("/run/runc", f"c{n}", "/b"), Life("boot"), tuple(shares), exclusive=exclusive)


def ask(**kw):
    """A request for one GPU, or `count` equal ones. memory_mib, memory_percent, and the fields of GpuRequest, Request and
    Terms."""
    count = kw.pop("count", 1)
    for unit in ("mib", "percent"):
        if f"memory_{unit}" in kw:
            kw["memory"] = (unit, kw.pop(f"memory_{unit}"))
    wish = GpuRequest(**{k: kw.pop(k) for k in list(kw) if k in GpuRequest.FIELDS})
    return made(Request, (wish,) * count, **kw)


def place(request, inventory, grants=(), **rules):
    return allocate(request, inventory, tuple(grants), Rules(**rules))


def indices(found, inventory):
    assert isinstance(found, Allocation), found
    return [inventory.gpu(s.uuid).index for s in found.shares]


# --- the oracle -------------------------------------------------------------------------------------------------------

wish = st.one_of(
    st.builds(GpuRequest, memory=st.tuples(st.just("mib"), st.integers(1, 40))),
    st.builds(GpuRequest, memory=st.tuples(st.just("mib"), st.integers(1, 12)), compute=st.sampled_from([10, 50])),
    st.builds(GpuRequest, memory=st.tuples(st.just("percent"), st.integers(1, 100))),
    st.builds(GpuRequest, compute=st.integers(1, 100)),
    st.builds(GpuRequest, memory=st.tuples(st.just("mib"), st.integers(1, 40)), compute=st.integers(1, 100)),
    st.builds(GpuRequest, memory=st.tuples(st.just("percent"), st.integers(1, 60)), compute=st.integers(1, 60)),
    st.just(GpuRequest()),
)


@st.composite
def wishes(draw, gpus):
    kind = draw(st.sampled_from(["equal", "unequal", "named", "every"]))
    if kind == "equal":
        return {"gpus": (draw(wish),) * draw(st.integers(1, gpus))}
    if kind == "unequal":
        return {"gpus": tuple(draw(st.lists(wish, min_size=1, max_size=gpus)))}
    if kind == "every":
        return {"gpus": (draw(wish),), "every_gpu": True}
    which = draw(st.lists(st.integers(0, gpus - 1), min_size=1, max_size=gpus, unique=True))
    names = [draw(st.sampled_from([str(i), UUID.format(i)])) for i in which]
    return {"gpus": tuple(draw(wish).replace(device=n) for n in names)}


@st.composite
def requests(draw, gpus):
    everyone = [*range(gpus)]
    return made(
        Request,
        **draw(wishes(gpus)),
        policy=draw(st.sampled_from(["burst-share", "burst-share", "fixed-share", "best-effort"])),
        priority_class=draw(st.sampled_from(["online", "default", "offline", "offline"])),
        exclusive=draw(st.sampled_from([False, False, False, True])),
        placement=draw(st.sampled_from([None, "binpack", "spread"])),
        narrow_to=draw(st.none() | st.lists(st.sampled_from(everyone), min_size=1).map(lambda x: tuple(map(str, x)))),
    )


@st.composite
def stories(draw):
    gpus = draw(st.integers(1, 4))
    links = [(a, b, draw(st.integers(1, 3))) for a in range(gpus) for b in range(a) if draw(st.booleans()) or gpus == 4]
    numa = draw(st.lists(st.integers(-1, 1), min_size=gpus, max_size=gpus))
    inventory = node(*(draw(st.sampled_from([12, 24, 24, 40])) for _ in range(gpus)), links=links, numa=numa)
    rules = Rules(
        placement=draw(st.sampled_from(["binpack", "spread"])),
        whole_gpus=draw(st.sampled_from(["exclusive", "shared"])),
        memory_reserve=draw(st.sampled_from([0, 0, 3])),
        memory_step=draw(st.sampled_from([1, 1, 4])),
        memory_min=draw(st.sampled_from([1, 1, 5])),
        compute_step=draw(st.sampled_from([1, 1, 5, 30])),
        max_shares_per_gpu=draw(st.sampled_from([64, 2])),
        memory_per_share=draw(st.sampled_from([0, 0, 16])),
    )
    # Each step is a request, or the number of a grant to give back.
    steps = draw(st.lists(st.one_of(requests(gpus), requests(gpus), st.integers(0, 5)), min_size=1, max_size=8))
    return inventory, rules, steps


@settings(max_examples=draws(400), deadline=None)
@given(stories())
def test_succeeds_iff_an_assignment_exists_and_picks_the_defined_one(story):
    inventory, rules, steps = story
    grants = []
    for n, step in enumerate(steps):
        if isinstance(step, int):
            del grants[step : step + 1]
            continue

        def grant_of(gpus, needs, n=n, step=step):
            shares = [
                Share(c.uuid, memory, compute, whole=whole)
                for c, (memory, compute, whole) in zip(gpus, needs, strict=True)
            ]
            return grant(n, shares, step.exclusive).replace(terms=step.terms)

        possible = list(oracle.assignments(step, inventory, grants, rules, grant_of))
        found = allocate(step, inventory, tuple(grants), rules)
        assert found == allocate(step, inventory, tuple(grants), rules)
        wanted = oracle.candidates(step, inventory)
        if not possible or not wanted:
            assert isinstance(found, Refusal), (step, found, possible[:1])
            assert all(len(str(p)) < 300 and p.code in ("GH-201", "GH-202", "GH-203") for p in found.problems)
            continue
        assert isinstance(found, Allocation), (step, found, possible[:1])
        chosen = tuple(inventory.gpu(s.uuid) for s in found.shares)
        needs = [oracle.needed(c, w, step, rules) for c, (w, _) in zip(chosen, wanted, strict=True)]
        assert needs == [(s.memory_mib, s.compute, s.whole) for s in found.shares]
        best = oracle.preferred(step, inventory, grants, rules, grant_of, possible)
        assert chosen == best, possible
        grants.append(grant(n, found.shares, found.exclusive).replace(terms=step.terms))
        assert not oracle.violations(inventory, grants, rules)
        assert [u for u, _ in found.notes] == [c.uuid for c in inventory.gpus]


# --- what each rule says ----------------------------------------------------------------------------------------------


def test_binpack_fills_a_used_gpu_before_a_free_one_even_if_that_is_smaller():
    n = node(8000, 24000)
    assert indices(place(ask(memory_mib=1000), n, [grant(1, [Share(UUID.format(1), 1000)])]), n) == [1]


def test_spread_takes_the_emptiest_gpu_then_the_one_with_fewer_containers():
    n = node(8000, 8000, 8000)
    held = [
        grant(1, [Share(UUID.format(0), 500)]),
        grant(2, [Share(UUID.format(0), 500)]),
        grant(3, [Share(UUID.format(1), 1000)]),
        grant(4, [Share(UUID.format(2), 2000)]),
    ]
    assert indices(place(ask(memory_mib=1000, placement="spread"), n, held), n) == [1]


def test_the_setting_decides_where_the_request_does_not():
    n = node(8000, 8000)
    held = [grant(1, [Share(UUID.format(0), 500)])]
    assert indices(place(ask(memory_mib=1), n, held, placement="spread"), n) == [1]
    assert indices(place(ask(memory_mib=1, placement="binpack"), n, held, placement="spread"), n) == [0]


def test_by_class_spreads_online_and_packs_the_rest():
    n = node(8000, 8000)
    held = [grant(1, [Share(UUID.format(0), 500)])]
    for class_, gpu in (("online", 1), ("default", 0), ("offline", 0)):
        assert indices(place(ask(memory_mib=1, priority_class=class_), n, held), n) == [gpu]
    online = ask(memory_mib=1, priority_class="online")
    assert indices(place(online.replace(placement="binpack"), n, held), n) == [0]
    assert indices(place(online, n, held, placement="binpack"), n) == [0]


def test_a_tolerance_keeps_off_gpus_that_are_known_to_be_slow():
    n = node(8000, 8000)
    offline = [
        grant(i, [Share(UUID.format(0), 1, slot=i)]).replace(terms=Terms(priority_class="offline")) for i in (1, 2)
    ]
    wish = ask(memory_mib=1, priority_class="online", placement="binpack", preempt_tolerance_us=1000)
    at = UUID.format(0)

    def tried(request, *bounds):
        return allocate(request, n, tuple(offline), Rules(), tuple((offline[i].key, at, us) for i, us in bounds))

    assert indices(tried(wish), n) == indices(tried(wish, (0, 1000), (1, 7)), n) == [0]
    assert "; of 2 of a lower class it is not known yet how soon they let go" in tried(wish).notes[0][1]
    assert "not known" not in tried(wish, (0, 1), (1, 1)).notes[0][1]
    slow = tried(wish, (0, 1001))
    assert indices(slow, n) == [1]
    assert slow.notes[0][1] == f"GPU 0 {at} has a lower class that lets go after 1001 us, 1000 are tolerated"
    assert indices(tried(changed(wish, preempt_tolerance_us=None), (0, 1001)), n) == [0]
    named = wish.replace(gpus=(GpuRequest("0", ("mib", 1)),))
    refused = tried(named, (1, 5000))
    assert isinstance(refused, Refusal) and "lets go after 5000 us, 1000 are tolerated" in str(refused.problems[0])
    away = tuple(g.replace(suspended=1) for g in offline)  # a person's: nothing of theirs runs or comes back by itself
    beside = (*away, grant(3, [Share(at, 1, slot=3)]).replace(terms=Terms(priority_class="online")))
    assert indices(allocate(wish, n, beside, Rules(), ((away[0].key, at, 5000),)), n) == [0]
    peers = [changed(g, priority_class="online") for g in offline]  # who is not lower makes nobody wait
    assert indices(allocate(wish, n, tuple(peers), Rules(), ((peers[0].key, at, 9999),)), n) == [0]


@pytest.mark.parametrize(
    ("request_", "memory", "compute", "limit"),
    [
        (ask(memory_mib=4096), 4096, 0, 100),
        (ask(memory_percent=30), 7372, 0, 100),
        (ask(compute=30), 7372, 30, 100),
        (ask(compute=30, policy="fixed-share"), 7372, 30, 30),
        (ask(compute=30, compute_limit=80), 7372, 30, 80),
        (ask(compute=30, policy="best-effort"), 7372, 30, 100),
        (ask(compute=30, policy="fixed-share", priority_class="online"), 7372, 30, 100),
        (ask(compute=30, policy="fixed-share", priority_class="online", compute_limit=60), 7372, 30, 60),
        (ask(compute=30, policy="fixed-share", priority_class="offline"), 7372, 30, 30),
        (ask(memory_mib=100, compute=30, policy="best-effort"), 100, 30, 100),
    ],
)
def test_what_a_share_means(request_, memory, compute, limit):
    found = place(request_, node(24576))
    assert found.shares == (Share(UUID.format(0), memory, compute, limit, slot=1),)
    assert not found.exclusive


@pytest.mark.parametrize(
    ("percent", "mib", "agree"),
    [(30, 9830, True), (50, 16384, True), (30, 9831, True), (30, 10157, True), (31, 9831, True), (30, 9503, True)]
    + [(30, 9502, False), (30, 10159, False), (30, 16384, False), (100, 32768, True), (1, 327, True)],
)
def test_t9ks_pair_is_compared_on_the_gpu(percent: int, mib: int, agree: bool) -> None:
    """The same by any rounding: less than a per cent of the GPU apart."""
    found = place(ask(memory_mib=mib).replace(same_percent=percent), node(32768))
    if agree:
        assert found.shares[0].memory_mib == mib
    else:
        assert [p.code for p in found.problems] == ["GH-103"]
        assert f"has 32768 MiB, of which {percent} % are not {mib} MiB; give one of them" in str(found.problems[0])


def test_t9ks_pair_finds_the_gpu_of_which_it_is_true() -> None:
    found = place(ask(memory_mib=4096).replace(same_percent=25), node(32768, 16384, 8192))
    assert found.shares[0].uuid == UUID.format(1)


def test_compute_is_booked_whatever_the_policy() -> None:
    """40 % four times is 160 %: also where best-effort guarantees none of it."""
    n, taken = node(24576), []
    for number in range(2):
        found = place(ask(memory_mib=1024, compute=40, policy="best-effort"), n, taken)
        taken.append(grant(number, found.shares))
    refused = place(ask(memory_mib=1024, compute=40, policy="best-effort"), n, taken)
    assert "has 20 of 100 % compute free, 40 % asked" in str(refused.problems[0])


def test_containers_apart_from_each_other_get_different_gpus() -> None:
    """By pod and namespace; outside Kubernetes both are empty."""
    there = node(100, 100)

    def on(gpu: int, pod: str, space: str, word: str = "web") -> Grant:
        who = Identity("/run/runc", f"c{gpu}", "/b", pod_uid=pod, namespace=space)
        return grant(gpu, [Share(UUID.format(gpu), 10)]).replace(who=who, terms=Terms(apart_from=word))

    asks = ask(memory_mib=10, apart_from="web", placement="binpack")

    def place_of(*grants: Grant, pod: str = "p", space: str = "s") -> list[int] | str:
        who = Identity("/run/runc", "new", "/b", pod_uid=pod, namespace=space)
        found = allocate(asks, there, grants, Rules(), who=who)
        return found.problems[0].message if isinstance(found, Refusal) else indices(found, there)

    assert place_of(on(0, "q", "s")) == [1]
    assert place_of(on(0, "q", "s", "other")) == [0]
    assert place_of(on(0, "q", "t")) == [0]
    assert place_of(on(0, "p", "s")) == [0]
    assert place_of(on(0, "", ""), pod="", space="") == [1]
    refused = place_of(on(0, "q", "s"), on(1, "r", "s"))
    assert "GPU 1 " in refused and "has another container with apart-from=web" in refused


def test_what_is_reserved_is_kept_from_whole_gpus_too() -> None:
    for reserve in (4096, ("percent", 25)):
        [share] = place(ask(), node(16384), memory_reserve=reserve).shares
        assert share.whole and share.memory_mib == 12288
        [half] = place(ask(memory_percent=50), node(16384), memory_reserve=reserve).shares
        assert half.memory_mib == 6144
    [share] = place(ask(memory_percent=100), node(1000), memory_reserve=("percent", 33)).shares
    assert share.memory_mib == 670
    assert Rules(memory_reserve=99999).reserve(1000) == 1000


def test_a_split_gpu_by_its_index_and_old_names() -> None:
    mig = [Gpu(f"MIG-{i}", 0, 0, 4864, parent="GPU-x", instance=i, gi=7 + i, ci=0) for i in range(3)]
    n = Inventory("b", "1", "/", False, (*mig, Gpu("GPU-y", 1, 1, 24576)), (), (), "", "")

    def shares(*devices: str) -> list[str]:
        found = place(Request(tuple(GpuRequest(d, ("mib", 100)) for d in devices)), n)
        return [share.uuid for share in found.shares] if isinstance(found, Allocation) else []

    assert shares("0") == shares("GPU-x") == ["MIG-0", "MIG-1", "MIG-2"]
    assert shares("0:1") == shares("MIG-GPU-x/8/0") == ["MIG-1"]
    assert shares("0", "0:1", "1") == ["MIG-0", "MIG-1", "MIG-2", "GPU-y"]
    assert shares("MIG-GPU-x/3/0") == []
    narrowed = Request((GpuRequest(None, ("mib", 100)),), narrow_to=("0",))
    assert place(narrowed, n).shares[0].uuid.startswith("MIG-")


def test_where_the_node_says_so_an_online_share_is_a_share_as_any():
    wish = ask(compute=30, policy="fixed-share", priority_class="online")
    assert place(wish, node(24576), online_compute="share").shares[0].compute_limit == 30


def test_percent_is_of_what_can_be_granted_so_two_halves_fit():
    n = node(24577)
    half = ask(memory_percent=50, compute=50)
    first = place(half, n, memory_reserve=512, memory_step=256)
    assert first.shares[0].memory_mib == 12032 - 12032 % 256
    assert isinstance(place(half, n, [grant(1, first.shares)], memory_reserve=512, memory_step=256), Allocation)


def test_steps_and_floor_round_up():
    found = place(ask(memory_mib=1000, compute=7), node(24576), memory_step=256, compute_step=5)
    assert (found.shares[0].memory_mib, found.shares[0].compute) == (1024, 10)
    assert place(ask(memory_mib=1), node(24576), memory_min=300, memory_step=256).shares[0].memory_mib == 512


def test_whole_gpus_are_held_alone_unless_the_setting_shares_them():
    n = node(24576)
    found = place(ask(), n)
    assert found.exclusive and found.shares == (Share(UUID.format(0), 24576, whole=True),)
    held = [grant(1, found.shares, exclusive=True)]
    for other in (ask(), ask(memory_mib=1), ask(exclusive=True)):
        assert place(other, n, held).problems[0].code == "GH-201"
        # The setting speaks of new grants, it frees nobody's GPU.
        assert place(other, n, held, whole_gpus="shared").problems[0].code == "GH-201"
    found = place(ask(), n, whole_gpus="shared")
    assert not found.exclusive and found.shares[0].whole
    held = [grant(1, found.shares)]
    assert isinstance(place(ask(), n, held, whole_gpus="shared"), Allocation)
    assert "1 container without limits" in str(place(ask(memory_mib=1), n, held, whole_gpus="shared").problems[0])
    assert place(ask(exclusive=True), n, held, whole_gpus="shared").problems[0].code == "GH-201"
    assert place(ask(memory_mib=1), n, held).problems[0].code == "GH-201"


def test_a_whole_gpu_beside_a_share_is_held_alone_after_the_setting_changes():
    n = node(24576, 24576)
    found = place(Request((GpuRequest(), GpuRequest("0", ("mib", 4096)))), n)
    assert isinstance(found, Allocation) and not found.exclusive and found.shares[0].whole
    held = [grant(1, found.shares)]
    for other in (ask(device="1"), ask(device="1", memory_mib=1)):
        refused = place(other, n, held, whole_gpus="shared")
        assert isinstance(refused, Refusal) and "is exclusive to one container" in str(refused.problems[0])


def test_who_holds_a_gpu_alone_needs_no_slot_of_its_page():
    n = node(24576)
    held = [grant(i, [Share(UUID.format(0), 1, slot=i)]).replace(suspended=1) for i in range(1, 65)]
    for alone in (ask(), ask(exclusive=True)):
        found = place(alone, n, held)
        assert isinstance(found, Allocation) and found.shares[0].slot == 0
    assert "has 64 containers, suspended ones included" in str(place(ask(memory_mib=1), n, held).problems[0])
    assert isinstance(place(ask(), n, held, whole_gpus="shared"), Refusal)


def test_a_limited_grant_keeps_exclusive_and_unlimited_ones_away():
    n = node(24576)
    held = [grant(1, [Share(UUID.format(0), 1)])]
    assert "asked for alone and has 1 container" in str(place(ask(), n, held).problems[0])
    assert "asked for alone" in str(place(ask(exclusive=True), n, held, whole_gpus="shared").problems[0])
    assert "without limits and has 1 limited" in str(place(ask(), n, held, whole_gpus="shared").problems[0])


def test_no_gpu_is_a_grant_without_gpus():
    for none in (Request(()), ask(memory_mib=1, narrow_to=())):
        assert place(none, node(100)).shares == ()
        assert place(none, node()).shares == ()


def test_every_gpu_is_all_or_nothing_in_the_order_of_the_index():
    n = node(100, 100, 100)
    every = ask(memory_mib=60, every_gpu=True)
    assert indices(place(every, n), n) == [0, 1, 2]
    assert indices(place(every.replace(narrow_to=("2", UUID.format(0), "7")), n), n) == [0, 2]
    refused = place(every, n, [grant(1, [Share(UUID.format(1), 50)])])
    assert str(refused.problems[0]).startswith("GH-201: no room on 3 GPUs at once: GPU 1 ")
    assert dict(refused.notes)[UUID.format(0)] == "has room, but not enough GPUs have"
    assert place(every, node()).problems[0].code == "GH-203"


def test_named_gpus_by_index_or_uuid_once_each():
    n = node(100, 100, 100)
    one, two = GpuRequest("1", ("mib", 10)), GpuRequest(UUID.format(2), ("mib", 20))
    assert indices(place(Request((two, one)), n), n) == [2, 1]
    assert indices(place(Request((one, one.replace(device=UUID.format(1)))), n), n) == [1]
    twice = place(Request((one, one.replace(device=UUID.format(1), memory=("mib", 11)))), n)
    assert "asked for twice with different shares" in str(twice.problems[0])


def test_unknown_gpus_are_told_each():
    refused = place(Request((GpuRequest("5"), GpuRequest("0"), GpuRequest("GPU-no"))), node(100, 100))
    assert [p.code for p in refused.problems] == ["GH-202", "GH-202"]
    assert str(refused.problems[0]) == (
        "GH-202: GPU 5 names no GPU of this node, which has 0, 1; choose among them (`gpu-hook gpus` lists the UUIDs)"
    )
    assert place(ask(memory_mib=1, narrow_to=("9",)), node(100)).problems[0].code == "GH-202"


def test_the_own_env_narrows_named_and_free_wishes():
    n = node(100, 100, 100)
    named = Request((GpuRequest("0"), GpuRequest("1")), narrow_to=("1", "2"))
    assert indices(place(named, n), n) == [1]
    assert indices(place(ask(memory_mib=1, narrow_to=("2",)), n), n) == [2]
    assert place(named.replace(narrow_to=("2",)), n).problems[0].code == "GH-202"
    few = place(ask(count=2, memory_mib=1, narrow_to=("2",)), n)
    assert str(few.problems[0]).startswith("GH-203: 2 GPUs are asked for, the container's own env leaves 1;")


def test_imex_channels_need_a_driver_that_has_them():
    wish, n = ask(imex_channels=(0,)), node(100)
    (problem,) = place(wish, n).problems
    assert problem.code == "GH-202" and "IMEX" in problem.message
    assert indices(place(wish, n.replace(imex_major=237)), n) == [0]


def test_more_gpus_than_there_are():
    assert str(place(ask(count=3, memory_mib=1), node(100, 100)).problems[0]) == (
        "GH-203: 3 GPUs are asked for, the node has 2; ask for at most 2"
    )
    assert str(place(ask(count=17, memory_mib=1), node(*[100] * 20)).problems[0]) == (  # the page's table
        "GH-203: 17 GPUs are asked for, the node has 20, and one container can have 16; ask for at most 16"
    )


def test_memory_that_the_agent_misses_is_not_granted():
    n = node(24576)
    n = n.replace(gpus=(n.gpus[0].replace(missing_mib=20000),))
    said = str(place(ask(memory_mib=8192), n).problems[0])
    assert "has 4576 of 24576 MiB free (20000 MiB are in use by nobody who can be told), 8192 MiB asked" in said
    assert place(ask(memory_mib=4096), n).shares[0].memory_mib == 4096


def test_a_refusal_says_per_gpu_why_with_numbers_and_what_to_do():
    n = node(24576)
    held = [grant(1, [Share(UUID.format(0), 22528, 90)])]
    assert str(place(ask(memory_mib=4096), n, held).problems[0]) == (
        f"GH-201: no room: GPU 0 {UUID.format(0)} has 2048 of 24576 MiB free, 4096 MiB asked;"
        " ask for less, or wait until a container ends (`gpu-hook ps`)"
    )
    why = "12288 MiB asked (50 %, as for compute; memory can be asked for by itself)"
    assert why in str(place(ask(memory_percent=50, compute=50), n, held).problems[0])
    assert "has 10 of 100 % compute free, 11 % asked" in str(place(ask(memory_mib=1, compute=11), n, held).problems[0])
    full = place(ask(memory_mib=1), n, held, max_shares_per_gpu=1)
    assert "has 1 container, at most 1 may share it" in str(full.problems[0])


@pytest.mark.parametrize(("mib", "places"), [(15109, 4), (16384, 4), (32510, 8), (24576, 6), (81559, 20), (1000, 1)])
def test_places_on_a_gpu_by_its_memory(mib, places):
    n = node(mib)
    held = [grant(i, [Share(UUID.format(0), 1)]) for i in range(places - 1)]
    assert isinstance(place(ask(memory_mib=1), n, held, memory_per_share=4096), Allocation)
    full = place(ask(memory_mib=1), n, [*held, grant(99, [Share(UUID.format(0), 1)])], memory_per_share=4096)
    assert f"at most {places} may share it" in str(full.problems[0])
    least = place(ask(memory_mib=1), n, held[:1], memory_per_share=4096, max_shares_per_gpu=1)
    assert places == 1 or "at most 1 may share it" in str(least.problems[0])


@pytest.mark.parametrize("gpus", [2, 8, 16])
def test_a_refusal_is_one_bounded_line_with_the_advice_at_its_end(gpus):
    refused = place(ask(memory_mib=10**9), node(*[10**6] * gpus))
    assert len(refused.problems) == 1 and len(str(refused.problems[0])) < 300
    assert str(refused.problems[0]).endswith("; ask for less")  # waiting would not help
    assert len(refused.notes) == gpus and all("has 1000000 of 1000000 MiB free" in why for _, why in refused.notes)


def test_waiting_is_advised_only_where_it_helps():
    n, held = node(8192, 8192), [grant(1, [Share(UUID.format(0), 8000)]), grant(2, [Share(UUID.format(1), 8000)])]
    wait = "or wait until a container ends (`gpu-hook ps`)"
    assert wait in str(place(ask(memory_mib=8192), n, held).problems[0])
    for never in (ask(memory_mib=8193), ask(memory_mib=1, required=("NVIDIA_REQUIRE_X=cuda>=99",))):
        assert "wait" not in str(place(never, n.replace(cuda_version="12.4"), held).problems[0])
    assert wait in str(place(ask(), n, held).problems[0])


def test_a_gpu_is_named_as_it_was_asked_for():
    n = node(8192)
    for key, text in (("NVIDIA_VISIBLE_DEVICES", "7"), ("gpu-hook.io/devices", "GPU-no")):
        request = parse({key: text, "gpu-hook.io/memory": "1Gi"}, {}, "", Rules())
        assert str(place(request, n).problems[0]).startswith(f"GH-202: {key}={text} names no GPU of this node")
    listed = parse({"gpu-hook.io/request": "x"}, {}, "", Rules(), decode=lambda text: [{"device": "3"}])
    assert "GH-202: gpu-hook.io/request: device 3 names" in str(place(listed, n).problems[0])


def test_a_limit_below_a_context_is_refused_and_told_to_ask_for_more():
    gpus = tuple(Gpu(UUID.format(i), i, i, 8192, context_mib=c) for i, c in enumerate((300, 500)))
    n = node().replace(gpus=gpus)
    assert indices(place(ask(memory_mib=500), n), n) == [0]
    assert indices(place(ask(memory_mib=300), n), n) == [0]
    assert indices(place(ask(memory_mib=500, every_gpu=True), n), n) == [0, 1]
    small = str(place(ask(memory_mib=299), n).problems[0])
    assert small.startswith("GH-201: too little memory: GPU 0 GPU-") and small.endswith("; ask for more")
    assert "takes 300 MiB for a program's context alone, 299 MiB asked" in small and "takes 500 MiB" in small
    bare = str(place(ask(memory_mib=4), n).problems[0])
    assert "4 MiB asked (did you mean 4Gi?)" in bare and "did you mean" not in small
    mixed = str(place(ask(memory_mib=400), n, [grant(1, [Share(UUID.format(0), 8000)])]).problems[0])
    assert mixed.startswith("GH-201: no room: GPU 0") and "takes 500 MiB" in mixed and "ask for less" in mixed


def test_what_never_fits_is_not_told_to_wait():
    assert "it has 24064 MiB to grant" in str(place(ask(memory_mib=30000), node(24576), memory_reserve=512).problems[0])


def test_notes_say_why_each_gpu_was_or_was_not_chosen():
    n = node(100, 100, 50, 100)
    held = [grant(1, [Share(UUID.format(1), 10)])]
    notes = place(ask(memory_mib=80, narrow_to=("0", "1", "2")), n, held).notes
    assert [why for _, why in notes] == [
        "has room, another GPU comes first (binpack)",
        "chosen (binpack)",
        f"GPU 2 {UUID.format(2)} has 50 of 50 MiB free, 80 MiB asked; it has 50 MiB to grant",
        "not asked for",
    ]


def test_several_gpus_are_the_nearest_ones():
    pairs = [(0, 3, 1), (1, 2, 1)]
    n = node(100, 100, 100, 100, links=pairs)
    assert indices(place(ask(count=2, memory_mib=10), n), n) == [0, 3]
    assert indices(place(ask(count=2, memory_mib=95), n, [grant(1, [Share(UUID.format(3), 10)])]), n) == [1, 2]
    mixed = Request((GpuRequest("2", ("mib", 1)), GpuRequest(memory=("mib", 1))))
    assert indices(place(mixed, n), n) == [2, 1]


def test_equally_near_gpus_are_of_one_numa_node():
    n = node(100, 100, 100, 100, numa=(0, 1, 0, 1))
    assert indices(place(ask(count=2, memory_mib=10), n), n) == [0, 2]
    assert indices(place(ask(count=2, memory_mib=10), n, [grant(1, [Share(UUID.format(0), 99)])]), n) == [1, 3]
    linked = node(100, 100, 100, 100, links=[(0, 1, 1)], numa=(0, 1, 0, 1))
    assert indices(place(ask(count=2, memory_mib=10), linked), linked) == [0, 1]  # a link is worth more
    unknown = node(100, 100, 100, numa=(0, -1, 0))
    assert indices(place(ask(count=2, memory_mib=10), unknown), unknown) == [0, 1]


def test_unequal_wishes_find_the_only_assignment():
    n = node(30, 20, 10)
    wishes = Request(tuple(GpuRequest(memory=("mib", m)) for m in (10, 20, 30)))
    assert indices(place(wishes, n), n) == [2, 1, 0]
    assert (
        place(wishes.replace(gpus=(*wishes.gpus[:2], GpuRequest(memory=("mib", 31)))), n).problems[0].code == "GH-201"
    )


def test_the_search_for_the_nearest_gpus_is_bounded():
    links = [(a, b, (a * 7 + b * 13) % 5 + 1) for a in range(16) for b in range(a)]
    n = node(*[100] * 16, links=links)
    assert len(set(indices(place(ask(count=8, memory_mib=1), n), n))) == 8
    unequal = Request(tuple(GpuRequest(memory=("mib", m)) for m in range(1, 17)))
    assert sorted(indices(place(unequal, n), n)) == list(range(16))


def test_grants_on_gpus_that_are_gone_do_not_count():
    n = node(100)
    assert isinstance(place(ask(memory_mib=100), n, [grant(1, [Share("GPU-gone", 100)])]), Allocation)


def test_usage_is_what_is_left():
    n = node(100, 100)
    left = usage(n, (grant(1, [Share(UUID.format(0), 30, 20)]),), Rules(memory_reserve=5))
    assert [(u.free_mib, u.free_compute, u.containers) for u in left] == [(65, 80, 1), (95, 100, 0)]


def test_offline_work_is_booked_apart_from_the_other_classes():
    """It has what these leave idle, so its guarantees are shares among the offline containers."""
    there = node(100)
    grants = []
    for n, (class_, compute) in enumerate([("online", 60), ("default", 40), ("offline", 60)]):
        found = place(ask(memory_mib=10, compute=compute, priority_class=class_), there, grants)
        assert isinstance(found, Allocation), found
        grants.append(grant(n, found.shares).replace(terms=Terms(priority_class=class_)))
    (use,) = usage(there, tuple(grants), Rules())
    assert (use.free_mib, use.free_compute, use.free_offline) == (70, 0, 40)
    said = place(ask(memory_mib=10, compute=41, priority_class="offline"), there, grants)
    assert "has 40 of 100 % offline compute free, 41 % asked" in said.problems[0].message
    for class_ in ("online", "default"):
        said = place(ask(memory_mib=10, compute=1, priority_class=class_), there, grants)
        assert "has 0 of 100 % compute free, 1 % asked" in said.problems[0].message
    # Memory is one sum, and a whole GPU has neither.
    assert isinstance(place(ask(memory_mib=71, priority_class="offline"), there, grants), Refusal)
    whole = grant(9, [Share(UUID.format(0), 100, whole=True)], exclusive=True)
    (use,) = usage(there, (whole,), Rules())
    assert (use.free_compute, use.free_offline) == (0, 0)


@given(
    st.lists(st.tuples(st.integers(1, 12000), st.integers(1, 12000)), max_size=30),
    st.integers(100, 1000),
    st.integers(0, 2000),
    st.sampled_from(["569.99.1", "570.0.0", "615"]),
)
def test_lending_books_each_request_once(wishes, over, reserve, version):
    inventory = node(8192).replace(driver_version=version)
    most, grants = 8192 - reserve, []
    for n, (limit, request) in enumerate(wishes):
        wish = ask(memory_mib=limit, memory_request=("mib", min(limit, request)))
        found = place(wish, inventory, grants, oversubscribe=over, memory_reserve=reserve)
        if isinstance(found, Allocation):
            grants.append(grant(n, found.shares))
        else:
            assert found.problems[0].code == "GH-201" and len(str(found.problems[0])) <= 300
    shares = [share for g in grants for share in g.shares]
    booked, limits = sum(s.booked_mib for s in shares), sum(s.memory_mib for s in shares)
    assert booked <= most and limits <= most * over // 100 and all(s.memory_mib <= most for s in shares)
    if version.startswith("569"):
        assert limits <= most and not any(s.request_mib for s in shares)
    (left,) = usage(inventory, tuple(grants), Rules(oversubscribe=over, memory_reserve=reserve))
    assert left.free_mib == min(left.unbooked_mib, left.lendable_mib) and left.unbooked_mib == most - booked


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12000), st.none() | st.integers(1, 12000)), max_size=30),
    st.integers(101, 1000),
    st.integers(0, 2000),
)
@example([(0, 4096, 2048), (0, 8192, None)], 300, 2000)
def test_changes_keep_what_lending_books(wishes, over, reserve):
    """A change never gives more than a start, and a refused one nothing."""
    inventory, most = node(8192).replace(driver_version="570"), 8192 - reserve
    rules = Rules(oversubscribe=over, memory_reserve=reserve)
    grants: dict[int, Grant] = {}
    for n, limit, request in wishes:
        if n not in grants:
            wish = ask(memory_mib=limit, memory_request=("mib", min(limit, request or limit)))
            found = allocate(wish, inventory, tuple(grants.values()), rules)
            if isinstance(found, Allocation):
                grants[n] = grant(n, found.shares)
            continue
        others = tuple(g for m, g in grants.items() if m != n)
        wish = change.GrantChange(memory=("mib", limit), memory_request=request and ("mib", request))
        try:
            grants[n] = change.changed(grants[n], wish, inventory, others, rules)
        except RequestError:
            assert request > limit
        except NoRoomError as e:
            assert e.problems[0].code == "GH-201"
        else:
            (share,) = grants[n].shares
            assert share.memory_mib == limit and share.booked_mib == (request or share.booked_mib)
        shares = [share for g in grants.values() for share in g.shares]
        assert sum(s.booked_mib for s in shares) <= most and sum(s.memory_mib for s in shares) <= most * over // 100
        assert all(s.memory_mib <= most for s in shares)


def test_a_context_is_always_part_of_a_request():
    inventory = node(8192).replace(driver_version="570")
    inventory = inventory.replace(gpus=tuple(gpu.replace(context_mib=300) for gpu in inventory.gpus))
    for limit, request, booked in ((4096, 1, 300), (4096, 301, 301), (300, 1, 300), (4096, 4095, 4095)):
        found = place(ask(memory_mib=limit, memory_request=("mib", request)), inventory, oversubscribe=200)
        assert isinstance(found, Allocation) and found.shares[0].booked_mib == booked
