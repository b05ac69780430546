"""The nodes that let in a pod, and a pod's total requests, compared with a second version of Kubernetes' rules."""

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.cli import explain_manifest, explain_pod, why_cluster
from oci_hook.errors import refuse
from oci_hook.kube.answers import claims
from oci_hook.kube.pod.hosts import Hosts, lets_in, requests
from oci_hook.kube.reporter import views
from tests.kube.cluster_objects import node, pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


# --- nodes that let in a pod


def go_integer(text):
    """strconv.ParseInt(text, 10, 64); None for its errors."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or any(c not in "0123456789" for c in digits):
        return None
    value = -int(digits) if text[0] == "-" else int(digits)
    return value if -(2**63) <= value <= 2**63 - 1 else None


def in_selector(labels, requirement):
    key, values = requirement["key"], requirement.get("values", [])
    match requirement["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as which:
            have, bound = go_integer(labels.get(key, "")), go_integer(values[0])
            if have is None or bound is None:
                return False
            return have > bound if which == "Gt" else have < bound
    raise AssertionError


def tolerated(taint, toleration):
    effect, key = toleration.get("effect"), toleration.get("key")
    if effect and effect != taint["effect"]:
        return False
    if key and key != taint["key"]:
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    want, have = toleration.get("value") or "", taint.get("value") or ""
    if operator == "Equal":
        return want == have
    if (a := go_integer(have)) is None or (b := go_integer(want)) is None:
        return False
    return a < b if operator == "Lt" else a > b


def filters(one, wants):
    """NodeName, NodeUnschedulable, TaintToleration and NodeAffinity, in the scheduler's order."""
    name, labels, spec = one["metadata"]["name"], one["metadata"]["labels"], one["spec"]
    tolerations = wants.get("tolerations") or []
    if wants.get("nodeName") and wants["nodeName"] != name:
        return False
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if spec.get("unschedulable") and not any(tolerated(cordon, t) for t in tolerations):
        return False
    for taint in spec.get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not any(tolerated(taint, t) for t in tolerations):
            return False
    for key, value in (wants.get("nodeSelector") or {}).items():
        if key not in labels or labels[key] != value:
            return False
    rule = ((wants.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    if rule is None:
        return True
    for term in rule["nodeSelectorTerms"]:
        expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
        if not expressions and not fields:
            continue
        by_name = [(name in f["values"]) == (f["operator"] == "In") for f in fields]
        if all(by_name) and all(in_selector(labels, e) for e in expressions):
            return True
    return False


NAMES = st.sampled_from(("a", "b"))
KEYS = st.sampled_from(("zone", "rank", "node.kubernetes.io/unschedulable"))
VALUES = st.sampled_from(("", "x", "y", "5", "+7", "1_0", "-3", "9" * 20))
EFFECTS = st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))


def maybe(**fields):
    """Any subset of these fields, some of them null."""
    return st.fixed_dictionaries({}, optional={k: st.one_of(st.none(), v) for k, v in fields.items()})


EXPRESSIONS = st.one_of(
    st.fixed_dictionaries(
        {
            "key": KEYS,
            "operator": st.sampled_from(("In", "NotIn")),
            "values": st.lists(VALUES, min_size=1, max_size=2),
        }
    ),
    st.fixed_dictionaries({"key": KEYS, "operator": st.sampled_from(("Exists", "DoesNotExist"))}),
    st.fixed_dictionaries(
        {
            "key": KEYS,
            "operator": st.sampled_from(("Gt", "Lt")),
            "values": st.lists(VALUES, min_size=1, max_size=1),
        }
    ),
)
FIELDS = st.fixed_dictionaries(
    {
        "key": st.just("metadata.name"),
        "operator": st.sampled_from(("In", "NotIn")),
        "values": st.lists(NAMES, min_size=1, max_size=1),
    }
)
TERMS = st.lists(
    maybe(matchExpressions=st.lists(EXPRESSIONS, max_size=2), matchFields=st.lists(FIELDS, max_size=1)),
    min_size=1,
    max_size=2,
)
WANTS = maybe(
    nodeName=st.one_of(st.just(""), NAMES),
    nodeSelector=st.dictionaries(KEYS, VALUES, max_size=1),
    tolerations=st.lists(
        maybe(
            key=st.one_of(st.just(""), KEYS),
            operator=st.sampled_from(("", "Equal", "Exists", "Lt", "Gt")),
            value=VALUES,
            effect=st.one_of(st.just(""), EFFECTS),
        ),
        max_size=2,
    ),
    affinity=maybe(nodeAffinity=maybe(**{REQUIRED: st.fixed_dictionaries({"nodeSelectorTerms": TERMS})})),
)
NODES = st.tuples(
    st.dictionaries(KEYS, VALUES, max_size=2),
    maybe(
        unschedulable=st.booleans(),
        taints=st.lists(
            st.fixed_dictionaries({"key": KEYS, "effect": EFFECTS}, optional={"value": VALUES}), max_size=2
        ),
    ),
)


@settings(max_examples=1000, deadline=None)
@given(NODES, WANTS)
def test_a_node_lets_in_whom_the_scheduler_s_filters_let_in(of_node, wants):
    labels, spec = of_node
    one = {"metadata": {"name": "a", "labels": labels}, "spec": spec}
    assert lets_in(one, {"spec": wants}) == filters(one, wants)
    assert ("a" in Hosts([one], []).allowed({"spec": wants})) == filters(one, wants)


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}},
        {"nodeName": "b"},
    ],
)
def test_who_goes_nowhere(spec):
    assert not lets_in(node("a", 40), {"spec": spec}) and lets_in(node("a", 40), {"spec": {}})


# --- total requests


def kubernetes_quantity(text):
    for suffix, factor in (("m", Fraction(1, 1000)), ("Mi", 2**20), ("k", 1000)):
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix)) * factor
    return Fraction(text)


def formula(wants, states):
    """KEP 753 and KEP 2837: for each resource max(max over i of InitContainerUse(i), all that stay), then the pod's own."""

    def of(container, name):
        asked = dict(container["resources"].get("limits", {})) | container["resources"].get("requests", {})
        amount = kubernetes_quantity(asked.get(name, "0"))
        state = states.get(container["name"])
        if state is not None:
            has = [state["resources"].get("requests", {}), state.get("allocatedResources", {})]
            amount = max(amount, *(kubernetes_quantity(each.get(name, "0")) for each in has))
        return amount

    total = {}
    init = wants["initContainers"]
    for name in ("cpu", "memory", "hugepages-2Mi", "gpu-hook.io/gpus", "gpu-hook.io/compute"):
        stay = sum(of(c, name) for c in init if c.get("restartPolicy") == "Always")
        uses = [
            of(c, name) + sum(of(other, name) for other in init[:i] if other.get("restartPolicy") == "Always")
            for i, c in enumerate(init)
        ]
        amount = max([stay + sum(of(c, name) for c in wants["containers"]), *uses])
        own = wants.get("resources", {})
        if not name.startswith("gpu-hook.io/"):
            if name in own.get("requests", {}):
                amount = kubernetes_quantity(own["requests"][name])
            elif not amount:
                amount = kubernetes_quantity(own.get("limits", {}).get(name, "0"))
        amount += kubernetes_quantity(wants.get("overhead", {}).get(name, "0"))
        total[name] = amount
    return {name: amount for name, amount in total.items() if amount}


AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(("1", "250m", "2")),
        "memory": st.sampled_from(("1Mi", "5000k", "17")),
        "hugepages-2Mi": st.sampled_from(("2Mi", "4Mi")),
        "gpu-hook.io/gpus": st.sampled_from(("1", "5", "10")),
        "gpu-hook.io/compute": st.sampled_from(("30", "1k")),
    },
)
RESOURCES = st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS})


@st.composite
def pods(draw):
    def container(name, **more):
        return {"name": name, "resources": draw(RESOURCES), **more}

    init = [
        container(f"i{n}", **({"restartPolicy": "Always"} if draw(st.booleans()) else {}))
        for n in range(draw(st.integers(0, 4)))
    ]
    spec = {"initContainers": init, "containers": [container(f"c{n}") for n in range(draw(st.integers(1, 2)))]}
    if draw(st.booleans()):
        spec["resources"] = draw(RESOURCES)
    if draw(st.booleans()):
        spec["overhead"] = draw(AMOUNTS)
    names = [c["name"] for c in (*init, *spec["containers"])]
    resized = draw(st.lists(st.sampled_from(names), unique=True, max_size=2))
    states = [
        {"name": name, "resources": {"requests": draw(AMOUNTS)}, "allocatedResources": draw(AMOUNTS)}
        for name in resized
    ]
    status = {
        "initContainerStatuses": [s for s in states if s["name"].startswith("i")],
        "containerStatuses": [s for s in states if s["name"].startswith("c")],
    }
    return {"metadata": {"uid": "u", "name": "p"}, "spec": spec, "status": status}


@settings(max_examples=500, deadline=None)
@given(pods())
def test_a_pod_requests_what_kubernetes_counts(one):
    states = {s["name"]: s for part in one["status"].values() for s in part}
    wanted = formula(one["spec"], states)
    others = {name: amount * 1000 for name, amount in wanted.items() if not name.startswith("gpu-hook.io/")}
    assert {name: amount for name, amount in requests(one).items() if amount} == {"pods": 1000, **others}
    ours = {name: amount for name, amount in wanted.items() if name.startswith("gpu-hook.io/")}
    assert dict(views.pod(one).sums) == ours


@pytest.mark.parametrize(
    ("init", "counts"),
    [([("10", ""), ("1", "Always")], 10), ([("5", "Always"), ("10", "")], 15), ([("1", "Always"), ("1", "Always")], 2)],
)
def test_the_order_of_init_containers_counts(init, counts):
    made = [
        {"name": f"i{n}", "resources": {"requests": {"gpu-hook.io/gpus": amount}}, "restartPolicy": policy}
        for n, (amount, policy) in enumerate(init)
    ]
    one = {"metadata": {"uid": "u", "name": "p"}, "spec": {"initContainers": made, "containers": [{"name": "c"}]}}
    assert dict(views.pod(one).sums) == {"gpu-hook.io/gpus": counts}


def test_a_resize_that_is_refused_does_not_count():
    state = {"name": "c", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}
    one = {
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "9"}}}]},
        "status": {"containerStatuses": [state], "conditions": []},
    }
    assert requests(one) == {"pods": 1000, "cpu": 9000}
    one["status"]["conditions"] = [{"type": "PodResizePending", "reason": "Infeasible"}]
    assert requests(one) == {"pods": 1000, "cpu": 1000}


def test_a_resize_of_the_pod_as_a_whole_counts():
    """While it lasts, the larger amount counts (Kubernetes 1.36, component-helpers: effectivePodLevelResources)."""
    one = {
        "spec": {"resources": {"requests": {"cpu": "2"}}, "containers": [{"name": "c"}]},
        "status": {"resources": {"requests": {"cpu": "5"}}, "allocatedResources": {"cpu": "4"}, "conditions": []},
    }
    assert requests(one) == {"pods": 1000, "cpu": 5000}
    one["status"]["resources"] = {}
    assert requests(one) == {"pods": 1000, "cpu": 4000}
    one["spec"]["resources"]["requests"]["cpu"] = "9"
    assert requests(one) == {"pods": 1000, "cpu": 9000}
    one["status"]["conditions"] = [{"type": "PodResizePending", "reason": "Infeasible"}]
    assert requests(one) == {"pods": 1000, "cpu": 4000}


# --- the commands agree


@settings(max_examples=150, deadline=None)
@given(st.lists(NODES, min_size=1, max_size=3), WANTS, st.lists(st.integers(0, 3), min_size=3, max_size=3), pods())
def test_explain_and_why_say_the_same_of_a_pod(of_nodes, wants, cpus, other):
    nodes = []
    for i, (labels, spec) in enumerate(of_nodes):
        one = node("abc"[i], 40, labels=labels)
        nodes.append({**one, "spec": spec, "status": {"allocatable": {"cpu": str(cpus[i]), "pods": "1"}}})
    waits = pod("waits", memory=10)
    waits["spec"] |= {**wants, "nodeName": ""}
    waits["spec"]["containers"][0]["resources"] = other["spec"]["containers"][0]["resources"]
    runs = pod("runs", node_name="a", phase="Running")
    told = json.loads(json.dumps((nodes, [waits, runs])))
    there = explain_pod.report("waits", tuple(told), []).data
    moves = why_cluster.report("waits", 0, tuple(told), []).data
    assert moves["reached"] == (there["node"] is not None), (there, moves)
    if there["node"]:
        hosts = Hosts(*told)
        assert not hosts.keeps_off(told[1][0], there["node"]) and not hosts.keeps_off(
            told[1][0], moves["place"]["node"]
        )


def test_where_the_two_said_otherwise():
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    there = node("n", 40, labels={"zone": "a"})
    far = pod("far", memory=10)
    far["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [zone]}}}
    said = explain_pod.report("far", ([there], [far]), [])
    assert said.data["node"] is None and "affinity keeps it off" in str(said.lines)
    assert not why_cluster.report("far", 0, ([there], [far]), []).data["reached"]
    cordoned = {**node("n", 40), "spec": {"unschedulable": True}}
    brave = pod("brave", memory=10)
    brave["spec"]["tolerations"] = [{"operator": "Exists"}]
    assert explain_pod.report("brave", ([cordoned], [brave]), []).data["node"] == "n"
    assert why_cluster.report("brave", 0, ([cordoned], [brave]), []).data["reached"]


# --- what no node lists


@pytest.mark.parametrize("resource", ["nvidia.com/vgpu", "rdma/hca", "example.com/dongle", "hugepages-2Mi"])
@pytest.mark.parametrize("listed", [None, "0", "1"])
def test_a_node_has_none_of_what_it_does_not_list(resource, listed):
    """Kubernetes' documentation, Extended Resources: the scheduler places a pod where enough of each is allocatable."""
    has = {"cpu": "8", "pods": "9", **({resource: listed} if listed else {})}
    nodes = [{**node(name, 40), "status": {"allocatable": {**has, **more}}} for name, more in (("a", {}), ("b", {}))]
    wants = pod("wants", memory=10)
    wants["spec"]["containers"][0]["resources"] = {"limits": {resource: "1", "ephemeral-storage": "1"}}
    fits = listed == "1"
    assert bool(Hosts(nodes, []).allowed(wants)) == fits and bool(Hosts(nodes, []).shut(wants)) != fits
    told = explain_pod.report("wants", (nodes, [wants]), [])
    assert (told.data["node"] is not None) == fits == (told.exit_status == 0)
    assert fits or f"the node has no {resource}" in str(told.lines)
    assert why_cluster.report("wants", 3, (nodes, [wants]), []).data["reached"] == fits
    nodes[1]["status"]["allocatable"][resource] = "2"
    assert explain_pod.report("wants", (nodes, [wants]), []).data["node"] == ("a" if fits else "b")


def test_a_pod_waits_for_no_resource_that_it_wants_none_of():
    nodes = [{**node("a", 40), "status": {"allocatable": {"cpu": "8", "pods": "9"}}}]
    wants = pod("wants", memory=10)
    wants["spec"]["containers"][0]["resources"] = {"limits": {"rdma/hca": "0", "gpu-hook.io/gpus": "1"}}
    assert Hosts(nodes, []).allowed(wants) == {"a"}


def test_a_device_class_gives_what_no_node_lists():
    """KEP 5004: the scheduler makes a claim for it; only where no device plugin has any."""
    nodes = [{**node("a", 40), "status": {"allocatable": {"cpu": "8", "pods": "9", "example.com/dongle": "0"}}}]
    wants = pod("wants", memory=10)
    wants["spec"]["containers"][0]["resources"] = {"limits": {"example.com/dongle": "1"}}
    objects = claims.ClaimObjects(
        classes=({"metadata": {"name": "dongles"}, "spec": {"extendedResourceName": "example.com/dongle"}},)
    )

    def none():
        raise refuse("GH-608", "the API server does not list deviceclasses: 403 Forbidden")

    for read_claims, fits in ((lambda: objects, True), (claims.ClaimObjects, False), (none, False)):
        assert (explain_pod.report("wants", (nodes, [wants]), [], read_claims).data["node"] == "a") == fits
        assert why_cluster.report("wants", 0, (nodes, [wants]), [], read_claims).data["reached"] == fits


def test_a_manifest_has_room_only_where_its_resources_are(tmp_path):
    nodes = [{**node(name, 40), "status": {"allocatable": {"cpu": "8", "pods": "9"}}} for name in "ab"]
    nodes[1]["status"]["allocatable"]["rdma/hca"] = "1"
    container = {"name": "c", "image": "x", "resources": {"limits": {"rdma/hca": "1"}}}
    template = {"metadata": {"annotations": {"gpu-hook.io/memory": "5Mi"}}, "spec": {"containers": [container]}}
    workload = {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 2, "template": template}}
    (tmp_path / "d.yaml").write_text(json.dumps(workload))
    told = explain_manifest.report(str(tmp_path / "d.yaml"), (nodes, []))
    assert told.exit_status == 1 and "1 of 2 have room" in str(told.lines)
