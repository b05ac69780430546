"""Moves that make room: each is valid in its turn, the goal is reached, and brute force seldom finds fewer."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.kube.answers import admission
from oci_hook.kube.moves import defrag
from oci_hook.kube.moves.movable import movers
from oci_hook.kube.placing.choose import Chosen, Question, choose
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import words
from oci_hook.kube.pod.hosts import Hosts, requests, rules_about_others
from oci_hook.kube.preemption.disruption import budget, in_the_way
from testbed.long import draws
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, node, pod
from tests.kube.placing.test_choose import check_capacity


def owned(name, kind="ReplicaSet", **more):
    obj = pod(name, **more)
    obj["metadata"]["ownerReferences"] = [{"kind": kind, "name": "set", "controller": True}]
    return obj


def never():
    return False


class Looks:
    """Stops the search after this many calls."""

    def __init__(self, most):
        self._left = most

    def __call__(self):
        self._left -= 1
        return self._left < 0


class Cluster:
    """Nodes, and pods bound to exact GPUs."""

    def __init__(self, *nodes):
        self.nodes, self.pods, self.state = list(nodes), [], ClusterState()
        for one in nodes:
            self.state.apply_node(one)

    def put(self, obj, name, *gpus):
        """gpus: numbers on that node; none: `allocate` chooses."""
        asked = dict(obj["metadata"]["annotations"])
        if gpus:
            obj["metadata"]["annotations"]["gpu-hook.io/devices"] = ",".join(map(str, gpus))
        self.state.apply_pod(obj)
        alloc = alloc_of(admission.bind(binding(obj, name), self.state, 0.0, SIGNER.sign))
        obj["metadata"]["annotations"] = asked
        done = bound(obj, name, alloc)
        self.state.apply_pod(done)
        self.pods.append(done)
        return done

    def fresh(self):
        state = ClusterState()
        for obj in self.nodes:
            state.apply_node(obj)
        for obj in self.pods:
            state.apply_pod(obj)
        return state

    def movers(self, budgets=()):
        hosts = Hosts(self.nodes, self.pods)
        return *movers(self.state, self.pods, hosts, budgets), hosts

    def for_pod(self, obj, most=6, stop=never, budgets=()):
        found, _, hosts = self.movers(budgets)
        question, needs = Question(words(obj)), requests(obj)
        return defrag.for_pod(self.fresh(), found, hosts.free, question, hosts.allowed(obj), needs, stop, most)

    def for_free_gpus(self, most=6, stop=never):
        found, _, hosts = self.movers()
        return defrag.for_free_gpus(self.fresh(), found, hosts.free, stop, most)


# --- brute force on plain numbers: pods with MiB and per cent on one GPU each


def sizes(state):
    return {gpu.uuid: gpu.memory_mib for name in state.nodes for gpu in state.inventory(state.nodes[name]).gpus}


def layout(cluster):
    """({pod: GPU}, {pod: (MiB, per cent)}) of the cluster's pods."""
    rows = {uid: one.rows[0] for uid, one in cluster.state.pods.items() if one.rows}
    return {u: r.uuid for u, r in rows.items()}, {u: (r.memory_mib, r.compute) for u, r in rows.items()}


def fits(at, size, gpus, need, gpu):
    on = [size[uid] for uid, where in at.items() if where == gpu]
    return sum(m for m, _ in on) + need[0] <= gpus[gpu] and sum(c for _, c in on) + need[1] <= 100


def layers(at, size, gpus, may, most):
    """The layouts after 0, 1, 2, ... moves. A pod's new place has room beside its old one."""
    known = {tuple(sorted(at.items()))}
    layer = list(known)
    for _ in range(most + 1):
        yield [dict(one) for one in layer]
        found = []
        for one in layer:
            now = dict(one)
            for uid, gpu in itertools.product(may, gpus):
                if now[uid] != gpu and fits(now, size, gpus, size[uid], gpu):
                    then = tuple(sorted({**now, uid: gpu}.items()))
                    if then not in known:
                        known.add(then)
                        found.append(then)
        layer = found


def free(at, gpus):
    return sum(gpu not in at.values() for gpu in gpus)


def replayed(cluster, plan):
    """The layout after the moves; each has room when it is made."""
    (at, size), gpus = layout(cluster), sizes(cluster.state)
    for move in plan.moves:
        (gpu,) = move.to_uuids
        assert (at[move.uid],) == move.uuids and gpu != at[move.uid]
        assert fits(at, size, gpus, size[move.uid], gpu), move
        at[move.uid] = gpu
    return at, size, gpus


@st.composite
def clusters(draw):
    found = Cluster(*(node(name, *[40] * draw(st.integers(1, 2))) for name in ("a", "b")[: draw(st.integers(1, 2))]))
    gpus = sizes(found.state)
    for n in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["ReplicaSet", "StatefulSet", "Job", ""]))
        said = {"memory": draw(st.integers(5, 30)), "compute": draw(st.sampled_from([0, 20, 60])) or 1}
        obj = owned(f"p{n}", kind, **said) if kind else pod(f"p{n}", **said)
        at, size = layout(found)
        room = [g for g in gpus if fits(at, size, gpus, (said["memory"], said["compute"]), g)]
        if room:
            gpu = draw(st.sampled_from(room))
            found.put(obj, gpu.split("-")[1], gpu.split("-")[2])
    return found


def check_pod(cluster, mib, percent):
    plan = cluster.for_pod(pod("new", memory=mib, compute=percent), most=4)
    (at, size), gpus = layout(cluster), sizes(cluster.state)
    best = None
    for moves, layer in enumerate(layers(at, size, gpus, may_move(cluster), 4)):
        if any(fits(one, size, gpus, (mib, percent), gpu) for one in layer for gpu in gpus):
            best = moves
            break
    same = plan.reached == (best is not None) and len(plan.moves) == (best or 0)
    assert best is not None or not plan.reached
    if plan.reached:
        at, size, gpus = replayed(cluster, plan)
        assert fits(at, size, gpus, (mib, percent), plan.place.rows[0].uuid) and len(plan.moves) >= best
    return best, same


def check_free(cluster, most):
    plan = cluster.for_free_gpus(most=most)
    (at, size), gpus = layout(cluster), sizes(cluster.state)
    found = layers(at, size, gpus, may_move(cluster), most)
    counts = [max((free(one, gpus) for one in layer), default=0) for layer in found]
    same = plan.free == (counts[0], max(counts)) and len(plan.moves) == counts.index(max(counts))
    assert plan.free == (counts[0], free(replayed(cluster, plan)[0], gpus)) and plan.free[1] <= max(counts)
    return counts.index(max(counts)), same


def may_move(cluster):
    return [one["metadata"]["uid"] for one in cluster.pods if one["metadata"]["ownerReferences"]]


@settings(max_examples=draws(60), deadline=None)
@given(clusters(), st.integers(1, 40), st.sampled_from([1, 30, 90]))
def test_room_for_a_pod(cluster, mib, percent):
    check_pod(cluster, mib, percent)


@settings(max_examples=draws(60), deadline=None)
@given(clusters(), st.integers(0, 3))
def test_free_gpus(cluster, most):
    check_free(cluster, most)


def test_most_plans_are_as_short_as_brute_force_finds():
    """Three nodes and more pods than hypothesis draws: some need two or more moves."""
    pods, gpus = Counter(), Counter()
    for seed in range(120):
        rng = random.Random(seed)
        cluster = Cluster(*(node(name, *[40] * rng.randint(1, 2)) for name in "abc"[: rng.randint(1, 3)]))
        there = sizes(cluster.state)
        for n in range(rng.randint(2, 6)):
            said = {"memory": rng.randint(5, 28), "compute": rng.choice((1, 20, 50))}
            obj = owned(f"p{n}", **said) if rng.random() < 0.85 else pod(f"p{n}", **said)
            at, size = layout(cluster)
            room = [g for g in there if fits(at, size, there, (said["memory"], said["compute"]), g)]
            if room:
                gpu = rng.choice(room)
                cluster.put(obj, gpu.split("-")[1], gpu.split("-")[2])
        pods[check_pod(cluster, rng.randint(15, 40), 10)] += 1
        gpus[check_free(cluster, rng.randint(0, 3))] += 1
    for found in (pods, gpus):
        same = sum(count for (_, same), count in found.items() if same)
        assert sum(count for (best, _), count in found.items() if best == 2) and same >= 115, found


# --- pods of several GPUs and containers


def test_several_gpus_and_containers_end_as_promised():
    """The controller's own code simulates the moves: `choose` may give each place, and the pod then has room."""
    rng = random.Random(3)
    reached = 0
    for _ in range(40):
        cluster = Cluster(*(node(name, 40, 40, 40, 40) for name in "abc"))
        for n in range(rng.randint(10, 16)):
            said = {"memory": rng.randint(8, 30), "gpus": rng.choice((1, 1, 2))}
            containers = ("main",)
            if rng.random() < 0.3:
                containers, said = ("main", "b"), {"memory__main": rng.randint(5, 25), "memory__b": rng.randint(5, 25)}
            obj = owned(f"p{n}", containers=containers, **said)
            found = choose(cluster.state, Question(words(obj)))
            if isinstance(found, Chosen):
                cluster.put(obj, found.node)
        wanted = pod("new", memory=rng.randint(25, 40), gpus=rng.choice((1, 2, 3)))
        found, _, hosts = cluster.movers()
        state = cluster.fresh()
        plan = defrag.for_pod(
            state, found, hosts.free, Question(words(wanted)), hosts.allowed(wanted), {}, Looks(300), 6
        )
        assert all(set(move.uuids) != set(move.to_uuids) for move in plan.moves)
        if plan.reached:
            reached += bool(plan.moves)
            last = choose(state, Question(words(wanted)), [plan.place.node])
            assert isinstance(last, Chosen), plan
            check_capacity(state)
    assert reached > 3, "the clusters are too empty"


def test_the_smallest_pod_goes_and_nothing_where_none_has_a_place():
    cluster = Cluster(node("a", 40), node("b", 40), node("c", 40))
    cluster.put(owned("big", memory=25), "a", 0)
    cluster.put(owned("small", memory=20), "b", 0)
    cluster.put(owned("tiny", memory=18), "c", 0)
    plan = cluster.for_pod(pod("new", memory=40))
    assert [(m.pod, m.to_node) for m in plan.moves] == [("small", "c")] and plan.reached
    cluster = Cluster(node("a", 40), node("b", 40))
    cluster.put(owned("one", memory=25), "a", 0)
    cluster.put(owned("other", memory=25), "b", 0)
    plan = cluster.for_pod(pod("new", memory=30))
    assert not plan.reached and not plan.moves
    plan = cluster.for_pod(pod("new", memory=50))
    assert not plan.reached, "no GPU is so large"


def test_no_place_is_the_old_one_twice():
    """A successor may start before the old pod has ended: both shares count."""
    cluster = Cluster(node("a", 40, 40))
    cluster.put(owned("x", memory=30), "a", 0)
    cluster.put(owned("y", memory=30), "a", 1)
    assert not cluster.for_pod(pod("new", memory=20)).reached


@pytest.mark.parametrize("kind", ["", "DaemonSet", "Node"])
def test_pods_that_nobody_makes_anew_stay(kind):
    cluster = Cluster(node("a", 40), node("b", 40))
    obj = pod("x", memory=30)
    if kind:
        version = "v1" if kind == "Node" else "apps/v1"
        owner = {"apiVersion": version, "kind": kind, "name": "n", "controller": True}
        obj["metadata"]["ownerReferences"] = [owner]
    cluster.put(obj, "a", 0)
    cluster.put(owned("y", memory=5), "b", 0)
    assert [m.pod for m in cluster.for_pod(pod("new", memory=40)).moves] == ["y"]
    found, fixed, _ = cluster.movers()
    assert [one.name for one in found.values()] == ["y"] and sum(fixed.values()) == 1


def test_exclusive_pods_and_those_with_rules_about_others_stay():
    cluster = Cluster(node("a", 40), node("b", 40), node("c", 40, 40))
    cluster.put(owned("whole", exclusive="true"), "a", 0)
    spread = owned("spread", memory=30)
    spread["spec"]["topologySpreadConstraints"] = [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    cluster.put(spread, "b", 0)
    apart = owned("apart", memory=30)
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
    apart["spec"]["affinity"] = {"podAntiAffinity": rule}
    cluster.put(apart, "c", 0)
    ending = owned("ending", memory=30)
    cluster.put(ending, "c", 1)
    cluster.pods[-1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.state.apply_pod(cluster.pods[-1])
    found, fixed, _ = cluster.movers()
    assert not found and sum(fixed.values()) == 4


@pytest.mark.parametrize(
    "spec",
    [
        {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]},
        {"containers": [{"name": "main", "ports": [{"hostPort": 80}]}]},
        {"volumes": [{"name": "v", "emptyDir": {}}]},
    ],
)
def test_pods_with_requirements_that_are_not_judged_stay(spec):
    cluster = Cluster(node("n1", 16_000), node("n2", 16_000))
    one = owned("x", memory="1Gi")
    one["spec"] |= spec
    cluster.put(one, "n1", 0)
    found, fixed, _ = cluster.movers()
    free = "emptyDir" in str(spec)
    assert len(found) == free and fixed == (
        {} if free else {"with ResourceClaims, host ports, or volumes that may be bound to nodes": 1}
    )
    assert not rules_about_others({"spec": {"affinity": {"podAffinity": {"preferredDuringScheduling": []}}}})
    assert rules_about_others({"spec": {"topologySpreadConstraints": [{"maxSkew": 1}]}}), "the API server's default"


# --- budgets


def a_budget(allowed, selector, version="policy/v1", namespace="default"):
    meta = {"namespace": namespace, "name": f"b{allowed}"}
    status = {} if allowed is None else {"disruptionsAllowed": allowed}
    return budget({"apiVersion": version, "metadata": meta, "spec": {"selector": selector}, "status": status})


@pytest.mark.parametrize(
    "budgets, kept",
    [
        ([a_budget(1, {"matchLabels": {"app": "x"}})], False),
        ([a_budget(0, {"matchLabels": {"app": "x"}})], True),
        ([a_budget(None, {"matchLabels": {"app": "x"}})], True),
        ([a_budget(0, {"matchLabels": {"app": "y"}})], False),
        ([a_budget(0, {"matchLabels": {"app": "x"}}, namespace="other")], False),
        ([a_budget(0, {})], True),
        ([a_budget(0, {}, "policy/v1beta1")], False),
        ([a_budget(0, None)], False),
        ([a_budget(2, {"matchLabels": {"app": "x"}}), a_budget(3, {})], True),
        ([a_budget(0, {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "z"]}]})], True),
        ([a_budget(0, {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]})], False),
        ([a_budget(0, {"matchExpressions": [{"key": "app", "operator": "Exists"}]})], True),
        ([a_budget(0, {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]})], True),
        ([a_budget(0, {"matchExpressions": [{"key": "app", "operator": "Nonsense"}]})], False),
    ],
)
def test_disruption_budgets(budgets, kept):
    assert bool(in_the_way(budgets, "default", {"app": "x"})) == kept
    cluster = Cluster(node("a", 40), node("b", 40))
    obj = owned("x", memory=20)
    obj["metadata"]["labels"] = {"app": "x"}
    cluster.put(obj, "a", 0)
    cluster.put(pod("bare", memory=10), "b", 0)
    assert cluster.for_pod(pod("new", memory=40), budgets=budgets).reached != kept


def test_a_budget_whose_status_is_of_an_older_spec_allows_nothing():
    for generation, seen, kept in ((1, 1, False), (2, 1, True), (2, 2, False), (None, None, False), (1, None, True)):
        meta = {"namespace": "default", "name": "b", **({"generation": generation} if generation else {})}
        status = {"disruptionsAllowed": 1, **({"observedGeneration": seen} if seen else {})}
        spec = {"selector": {"matchLabels": {"app": "x"}}}
        one = budget({"metadata": meta, "spec": spec, "status": status}, "policy/v1")
        assert bool(in_the_way([one], "default", {"app": "x"})) == kept


# --- a node's other resources and rules


def test_cordons_taints_selectors_and_what_else_pods_request():
    a, b, c = (node(name, 40) for name in "abc")
    cluster = Cluster(a, b, c)
    cluster.put(owned("x", memory=20), "a", 0)
    cluster.put(pod("bare", memory=10), "b", 0)
    cluster.put(pod("bare2", memory=10), "c", 0)
    new = pod("new", memory=40)
    assert cluster.for_pod(new).moves[0].to_node in ("b", "c")
    b["spec"]["unschedulable"] = True
    assert cluster.for_pod(new).moves[0].to_node == "c"
    c["spec"]["taints"] = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    assert not cluster.for_pod(new).reached
    cluster.pods[0]["spec"]["tolerations"] = [{"key": "k", "operator": "Exists"}]
    assert cluster.for_pod(new).moves[0].to_node == "c"
    c["status"]["allocatable"] = {"cpu": "2", "memory": "1Gi", "pods": "110"}
    cluster.pods[0]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1500m"}}
    assert cluster.for_pod(new).reached
    cluster.pods[2]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "501m"}}
    assert not cluster.for_pod(new).reached
    cluster.pods[2]["spec"]["containers"][0]["resources"] = {}
    cluster.pods[0]["spec"]["nodeSelector"] = {"zone": "1"}
    assert not cluster.for_pod(new).reached
    c["metadata"]["labels"]["zone"] = "1"
    assert cluster.for_pod(new).reached


# --- large


def test_a_large_cluster_is_answered_by_a_part_of_it():
    cluster = Cluster(*(node(f"n{i:03}", 40, 40) for i in range(60)))
    for i in range(60):
        cluster.put(owned(f"x{i}", memory=25), f"n{i:03}", 0)
        cluster.put(owned(f"y{i}", memory=10 if i % 7 else 15), f"n{i:03}", 1)
    plan = cluster.for_pod(pod("new", memory=40, gpus=2))
    assert plan.reached and len(plan.moves) == 2, "as few as stand in the way"
    plan = cluster.for_free_gpus(most=10)
    assert plan.free == (0, 10) and len(plan.moves) == 10
    assert free(replayed(cluster, plan)[0], sizes(cluster.state)) == 10


def test_the_time_is_kept():
    cluster = Cluster(*(node(f"n{i}", 40, 40) for i in range(4)))
    for i in range(4):
        cluster.put(owned(f"x{i}", memory=21), f"n{i}", 0)
        cluster.put(owned(f"y{i}", memory=21), f"n{i}", 1)
    plan = cluster.for_pod(pod("new", memory=40), stop=lambda: True)
    assert not plan.moves and not plan.reached
    assert not cluster.for_free_gpus(stop=lambda: True).moves


def test_what_the_controller_would_choose_without_help_is_said():
    cluster = Cluster(node("a", 40), node("b", 40), node("c", 100))
    cluster.put(owned("x", memory=20, node_placement="spread"), "a", 0)
    cluster.put(pod("bare", memory=15), "b", 0)
    (move,) = cluster.for_pod(pod("new", memory=40, devices="GPU-a-0")).moves
    assert move.instead in ("", "c") and (move.instead == "") == (move.to_node == "c")
