"""Victims on one node, by GPUs: `plan`, and `victims` for the scheduler's proposals; against brute force."""

import itertools
import random

import pytest

from oci_hook.kube.answers import admission, extender
from oci_hook.kube.placing.choose import Chosen, Question, choose
from oci_hook.kube.placing.records import MOST_TRIES
from oci_hook.kube.pod.asked import words
from oci_hook.kube.preemption.disruption import Budgets, budget, violations
from oci_hook.kube.preemption.preempt import KEPT, EvictionPlan, PreemptionTerms, awaited, plan, victims, yields
from tests.kube.answers.test_extender import ask, binding, cluster, running
from tests.kube.cluster_objects import SIGNER, alloc_of, asked, bound, listing, node, pod


def labelled(obj, labels):
    obj["metadata"]["labels"] = labels
    return obj


def pdb(name, allowed, **more):
    labels = more.pop("labels", {"app": "s"})
    return budget(
        {
            "metadata": {"uid": name, "name": name, "namespace": "default", "generation": 1},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": allowed, "observedGeneration": 1, **more},
        }
    )


def sharers(*sizes, priority=0, **more):
    """One node; one pod of each size, each on its own GPU."""
    state = cluster(node("a", *([100] * len(sizes))))
    for i, size in enumerate(sizes):
        made = pod(f"s{i}", memory=size, devices=f"GPU-a-{i}", priority=priority, **more)
        running(state, labelled(made, {"app": "s"}), "a")
    return state


BIG = pod("big", gpus=1, priority=9)


def test_one_small_share_ends_where_a_whole_gpu_is_wanted_and_the_sums_have_room():
    state = sharers(10, 30, 20)
    found = plan(state, asked(BIG), "a")
    assert len(found.victims) == 1 and found.fit.rows[0].uuid == f"GPU-a-{found.victims[0][-1]}"
    assert ask(state, BIG, "a")["NodeNames"] == []  # so the pod needs a victim
    assert plan(state, asked(pod("big", gpus=4, priority=9)), "a") is None


@pytest.mark.parametrize(
    ("priority", "more", "ended"),
    [(1, {}, True), (0, {}, False), (-1, {}, False), (2**31 - 1, {}, True), (1, {"preemptionPolicy": "Never"}, False)],
)
def test_only_lower_priorities_end_and_nobody_for_who_may_not_preempt(priority, more, ended):
    obj = pod("big", gpus=1, priority=priority)
    obj["spec"] |= more
    assert (plan(sharers(10), asked(obj), "a") is not None) == ended


@pytest.mark.parametrize("owner", ["DaemonSet", "Node", "ReplicaSet", None])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(("priority", "ends"), [(8, True), (9, False), (2_000_001_000, False)])
def test_what_a_pod_says_of_its_owner_makes_it_no_more_important(owner, later, priority, ends):
    state = cluster(node("a", 100))
    made = pod("d", memory=10, owner=None if later else owner, priority=priority)
    running(state, made, "a")
    if later:
        state.apply_pod(bound(pod("d", memory=10, owner=owner, priority=priority), "a", None))
    assert (plan(state, asked(BIG), "a") is not None) == ends


def test_static_pods_and_kube_system_never_end():
    state = cluster(node("a", 100))
    state.apply_pod(pod("static", memory=10, owner="Node", node_name="a", phase="Running"))  # without a Binding
    assert plan(state, asked(BIG), "a") is None
    state = sharers(10)
    state.pods["u-s0"].namespace = "kube-system"
    assert plan(state, asked(BIG), "a") is None


def test_offline_ends_first_and_for_online_of_the_same_priority_too():
    state = cluster(node("a", 100, 100))
    running(state, pod("off", memory=90, devices="GPU-a-0", priority=5, **{"class": "offline"}), "a")
    running(state, pod("on", memory=10, devices="GPU-a-1", priority=1), "a")
    assert plan(state, asked(BIG), "a").victims == ("u-off",)
    online = {"memory": 50, "devices": "GPU-a-0", "class": "online"}
    assert plan(state, asked(pod("p", priority=5, **online)), "a").victims == ("u-off",)
    assert plan(state, asked(pod("p", priority=5, **online)), "a", terms=PreemptionTerms(equal_offline=False)) is None
    assert plan(state, asked(pod("p", priority=4, **online)), "a") is None  # a higher priority stays
    assert plan(state, asked(pod("p", memory=50, devices="GPU-a-0", priority=5)), "a") is None  # not online


def test_the_class_is_the_decided_one_whatever_the_pod_says_now():
    state = cluster(node("a", 100))
    obj = pod("on", memory=90)
    running(state, obj, "a")
    again = bound(obj, "a", None)
    again["metadata"]["annotations"]["gpu-hook.io/class"] = "offline"
    state.apply_pod(again)
    assert not yields(state.pods["u-on"], asked(pod("p", memory=50, **{"class": "online"})))


def test_budgets_are_counted_over_all_victims_together():
    state = cluster(node("a", 100))
    for i in range(2):
        running(state, labelled(pod(f"s{i}", memory=40), {"app": "s"}), "a")
    for allowed, possible in ((0, False), (1, False), (2, True), (3, True)):
        found = plan(state, asked(BIG), "a", Budgets([pdb("b", allowed)]))
        assert isinstance(found, EvictionPlan) if possible else found is KEPT
    one = asked(pod("p", memory=50, priority=9))
    assert len(plan(state, one, "a", Budgets([pdb("b", 1)])).victims) == 1
    assert plan(state, one, "a", Budgets([pdb("b", 5), pdb("c", 5)])) is KEPT  # two budgets: it cannot be evicted
    assert plan(state, one, "a", Budgets([pdb("b", 0, disruptedPods={"s0": "t"})])).victims == ("u-s0",)


def test_the_protected_are_spared_where_others_will_do():
    state = sharers(10, 50)
    running(state, pod("free", memory=20, devices="GPU-a-1", priority=8), "a")
    protected = Budgets([pdb("b", 0, labels={"app": "s"})])
    assert plan(state, asked(BIG), "a", protected) is KEPT
    assert plan(state, asked(pod("p", memory=60, devices="GPU-a-1", priority=9)), "a", protected) is KEPT
    assert plan(state, asked(pod("p", memory=60, devices="GPU-a-1", priority=0)), "a", protected) is None
    assert plan(state, asked(pod("p", memory=101, devices="GPU-a-1", priority=9)), "a", protected) is None
    assert plan(state, asked(pod("p", memory=45, devices="GPU-a-1", priority=9)), "a", protected).victims == ("u-free",)


def test_barred_pods_are_left_alone():
    state = sharers(10, 20)
    first = plan(state, asked(BIG), "a").victims
    second = plan(state, asked(BIG), "a", barred=first).victims
    assert {*first, *second} == {"u-s0", "u-s1"} and plan(state, asked(BIG), "a", barred={"u-s0", "u-s1"}) is KEPT


def test_those_that_end_already_are_waited_for_and_their_room_is_held():
    state = sharers(10, 20)
    objs = [labelled(pod(f"s{i}", memory=size, devices=f"GPU-a-{i}"), {"app": "s"}) for i, size in enumerate((10, 20))]
    assert awaited(state, asked(BIG), "a") is None
    state.apply_pod(bound(objs[0], "a", None, deleting=True))
    found = awaited(state, asked(BIG), "a")
    assert found is not None and plan(state, asked(BIG), "a") is None
    state.apply_pod(BIG)
    state.hold(words(BIG), "a", found, ("u-s0",), 100.0)
    other = pod("other", gpus=1, priority=9)
    state.apply_pod(other)
    assert awaited(state, asked(other), "a") is None and plan(state, asked(other), "a").victims == ("u-s1",)
    assert ask(state, BIG, "a")["NodeNames"] == [] and "u-big" in state.reservations  # the hold outlives a refusal
    preempt = {"Pod": BIG, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u-s1"}], "NumPDBViolations": 0}}}
    assert extender.preempt(preempt, state) == {"NodeNameToMetaVictims": {}}
    state.remove_pod("u-s0", 0.0)
    state.tick(10.0)
    small = pod("small", memory=50)
    state.apply_pod(small)
    assert choose(state, asked(pod("thief", gpus=1, priority=9)), ["a"]).keys() == {"a"}
    assert ask(state, BIG, "a")["NodeNames"] == ["a"] and not state.reservations["u-big"].victims


def test_a_hold_gives_way_to_a_more_important_pod_and_to_nobody_else():
    state = cluster(node("a", 100))
    state.apply_pod(BIG)
    found = choose(state, asked(BIG), ["a"])
    assert isinstance(found, Chosen)
    state.hold(words(BIG), "a", found.fit, ("u-x",), 100.0)
    for priority, gets in ((8, []), (9, []), (10, ["a"])):
        assert ask(state, pod(f"p{priority}", gpus=1, priority=priority), "a")["NodeNames"] == gets
    assert "u-big" not in state.reservations


def test_a_hold_ends_with_its_time_and_with_its_pod():
    for over in (lambda s: s.tick(100.0), lambda s: s.remove_pod("u-big", 1.0)):
        state = cluster(node("a", 100))
        state.apply_pod(BIG)
        state.hold(words(BIG), "a", choose(state, asked(BIG), ["a"]).fit, ("u-x",), 100.0)
        state.tick(99.0)
        assert ask(state, pod("p", gpus=1), "a")["NodeNames"] == []
        over(state)
        assert ask(state, pod("p", gpus=1), "a")["NodeNames"] == ["a"]


def test_many_small_pods_hide_no_large_one():
    state = cluster(node("a", *[1000] * 4))
    running(state, pod("zz-large", memory=800, devices="GPU-a-0"), "a")
    for i in range(180):
        running(state, pod(f"tiny{i}", memory=1, devices=f"GPU-a-{1 + i % 3}", **{"class": "offline"}), "a")
    big = pod("p", memory=900, devices="GPU-a-0", priority=9)
    assert plan(state, asked(big), "a").victims == ("u-zz-large",)
    assert victims(state, asked(big), "a", []).uids == ("u-zz-large",)


def test_a_gpu_of_many_pods_becomes_whole_beside_others_of_many():
    state = cluster(node("a", *[1000] * 4))
    for i in range(240):
        running(state, pod(f"s{i}", memory=1, devices=f"GPU-a-{i % 4}", priority=0 if i % 4 == 2 else 8), "a")
    assert set(plan(state, asked(BIG), "a").victims) == {f"u-s{i}" for i in range(2, 240, 4)}


def test_sixty_four_victims_and_no_more_are_looked_at():
    state = cluster(node("a", 64, 65))
    for i in range(64):
        running(state, pod(f"s{i:02}", memory=1, devices="GPU-a-0"), "a")
    found = plan(state, asked(pod("p", gpus=1, priority=9, devices="GPU-a-0")), "a")
    assert len(found.victims) == 64


# --- against brute force


def rank(one):
    return not one.offline, one.priority


def brute(state, question, budgets):
    """The cheapest set by trying all: (highest rank, number of victims)."""
    pods = [one for one in state.nodes["a"].pods.values() if yields(one, question)]
    best = None
    for count in range(1, len(pods) + 1):
        for some in itertools.combinations(pods, count):
            if violations(budgets, some):
                continue
            rest = cluster(state.node_object)
            for uid, obj, text in state.made:
                if uid not in {one.uid for one in some}:
                    rest.apply_pod(bound(obj, "a", text))
            if isinstance(choose(rest, Question(question.pod), ["a"]), Chosen):
                cost = max(map(rank, some)), count
                best = cost if best is None else min(best, cost)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_is_found_where_there_is_one_and_ends_nobody_more_important(seed):
    chance = random.Random(seed)
    made = node("a", *[100] * chance.choice((1, 2, 3)))
    state = cluster(made)
    state.node_object, state.made = made, []
    for i in range(chance.randint(1, 7)):
        more = {"class": chance.choice(("offline", "default"))}
        obj = pod(f"s{i}", memory=chance.choice((10, 25, 40, 60)), priority=chance.choice((0, 1, 5)), **more)
        labelled(obj, {"app": chance.choice("st")})
        state.apply_pod(obj)
        answer = admission.bind(binding(obj, "a"), state, 0.0, SIGNER.sign)
        if answer["response"]["allowed"]:
            state.made.append((obj["metadata"]["uid"], obj, alloc_of(answer)))
            state.apply_pod(bound(obj, "a", alloc_of(answer)))
    budgets = Budgets([pdb("b", chance.choice((0, 1)))]) if chance.random() < 0.4 else Budgets()
    wish = chance.choice(({"gpus": 1}, {"memory": 50}, {"memory": 90}, {"memory": 30, "compute": 60}))
    obj = pod("p", priority=chance.choice((1, 3, 9)), **{"class": chance.choice(("online", "default"))}, **wish)
    question = asked(obj)
    if isinstance(choose(state, question, ["a"]), Chosen):
        return
    found, best = plan(state, asked(obj), "a", budgets), brute(state, question, budgets)
    if best is None:
        assert (found is KEPT) == (brute(state, question, Budgets()) is not None) and not isinstance(
            found, EvictionPlan
        )
        return
    if found is KEPT:
        assert violations(budgets, [state.pods[u] for u, _, _ in state.made]) > 0
        return
    pods = [state.pods[uid] for uid in found.victims]
    assert all(yields(one, question) for one in pods) and violations(budgets, pods) == 0
    if violations(budgets, [state.pods[u] for u, _, _ in state.made]) == 0:
        assert max(map(rank, pods)) == best[0]
        assert len(pods) <= best[1] + 1
    for spared in found.victims:  # every victim is needed
        rest = cluster(made)
        for uid, each, text in state.made:
            if uid not in found.victims or uid == spared:
                rest.apply_pod(bound(each, "a", text))
        assert not isinstance(choose(rest, asked(obj), ["a"]), Chosen)


# --- the scheduler's proposals


def test_nobody_whom_a_budget_protects_is_added_and_violations_are_counted():
    state = cluster(node("a", 100, 100))
    for name, gpu in (("a0", 0), ("b0", 0), ("a1", 1), ("b1", 1)):
        running(state, labelled(pod(name, memory=50, devices=f"GPU-a-{gpu}"), {"app": name}), "a")
    question = asked(pod("p", gpus=1, priority=9))
    proposed = ["u-a0", "u-a1"]
    free = victims(state, question, "a", proposed)
    assert free.violations == 0
    b0 = Budgets([pdb("x", 0, labels={"app": "b0"})])
    assert victims(state, question, "a", proposed, 0, b0).uids == ("u-a1", "u-b1")
    both = Budgets([pdb("x", 0, labels={"app": "b0"}), pdb("y", 0, labels={"app": "b1"})])
    assert victims(state, question, "a", proposed, 0, both) is None
    a1 = Budgets([pdb("x", 0, labels={"app": "b0"}), pdb("y", 0, labels={"app": "a1"})])
    assert victims(state, question, "a", proposed, 1, a1).violations == 1
    spared = Budgets([pdb("y", 0, labels={"app": "a1"})])
    assert victims(state, question, "a", proposed, 1, spared).uids == ("u-a0", "u-b0")
    assert victims(state, question, "a", proposed, 1, spared).violations == 0
    assert victims(state, question, "a", proposed, terms=PreemptionTerms(add=False)) is None
    assert victims(state, question, "a", proposed, 0, Budgets(known=False)) is None


def test_a_node_without_proposed_victims_gets_some_from_us():
    """Kubernetes 1.20 asks about it; 1.22 and newer do not."""
    state = sharers(10, 20)
    given = {"a": {"Pods": [], "NumPDBViolations": 0}}
    answer = extender.preempt({"Pod": BIG, "NodeNameToMetaVictims": given}, state)["NodeNameToMetaVictims"]
    assert len(answer["a"]["Pods"]) == 1
    none = extender.preempt({"Pod": pod("p", memory=50), "NodeNameToMetaVictims": given}, state)
    assert none == {"NodeNameToMetaVictims": {}}  # it fits without victims


def test_a_ghost_is_waited_for():
    state = sharers(10)
    state.apply_node(node("a", 100, digest=listing("u-s0")))
    state.remove_pod("u-s0", 0.0)
    assert awaited(state, asked(BIG), "a") is not None and plan(state, asked(BIG), "a") is None


# --- pods whose Binding never succeeds


@pytest.mark.parametrize(("priority", "gets"), [(0, False), (1, True)])
def test_a_reservation_that_never_becomes_a_binding_keeps_no_room_from_more_important_pods(priority, gets):
    state = cluster(node("a", 100, 100))
    vain, other, low = (
        pod("vain", memory=60),
        pod("other", gpus=2, priority=priority),
        pod("low", memory=50, priority=-1),
    )
    running(state, low, "a")
    got, planned = [], []
    for n in range(8):
        state.tick(20.0 * n)
        assert extender.filter({"Pod": vain, "NodeNames": ["a"]}, state, 20.0 * n)["NodeNames"] == ["a"]
        planned.append(isinstance(plan(state, asked(other), "a"), EvictionPlan))
        if n == 7:
            state.remove_pod("u-low", 0.0)
            state.tick(150.0)
        got.append(bool(extender.filter({"Pod": other, "NodeNames": ["a"]}, state, 20.0 * n)["NodeNames"]))
    assert planned == [gets and n >= MOST_TRIES for n in range(8)]
    assert got == [False] * 7 + [gets]
    state.remove_pod("u-vain", 200.0)
    assert "u-vain" not in state._tries


def test_a_bound_reservation_stays_however_often_it_was_tried():
    state = cluster(node("a", 100))
    vain = pod("vain", memory=60)
    state.apply_pod(vain)
    for _ in range(8):
        ask(state, vain, "a")
    assert admission.bind(binding(vain, "a"), state, 0.0, SIGNER.sign)["response"]["allowed"]
    assert ask(state, BIG, "a")["NodeNames"] == []


@pytest.mark.parametrize(
    "made",
    [
        pod("p", containers=[f"c{i}" for i in range(65)], memory=1, priority=9),
        pod(
            "p", containers=["c"], init=[f"{'i' * 50}{n}" for n in range(63)], gpus=16, priority=9
        ),  # the text is too long
    ],
)
def test_what_no_binding_could_have_reserves_nothing_and_ends_nobody(made):
    state = cluster(node("a", *[100] * 16, gpus="a" * 40))
    running(state, pod("low", memory=90), "a")
    assert ask(state, made, "a")["NodeNames"] == []
    assert plan(state, asked(made), "a") is None and not state.reservations
    state.remove_pod("u-low", 0.0)
    state.tick(100.0)
    answer = ask(state, made, "a")
    assert answer["FailedAndUnresolvableNodes"]["a"].startswith("GH-602") and not state.reservations
    assert admission.bind(binding(made, "a"), cluster(node("a", *[100] * 16, gpus="a" * 40), made), 0.0, SIGNER.sign)[
        "response"
    ]["status"]["message"].startswith("GH-602")
