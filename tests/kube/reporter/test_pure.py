"""The reporter's pure parts: the digest, its writes, the cluster's settings, the kubelet's certificate."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.core.decided import NodeKeys
from oci_hook.core.decision import DecidedShare
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.terms import Terms
from oci_hook.errors import GhError
from oci_hook.kube.formats.names import COMPUTE, GPUS, MEMORY, OFFLINE_COMPUTE, SUMS
from oci_hook.kube.formats.node_info import MAX_TEXT, digest_text
from oci_hook.kube.link import credential
from oci_hook.kube.link.watcher import Change
from oci_hook.kube.reporter import cluster_settings, node_key, node_patches, views
from oci_hook.kube.reporter.digest import REFUSED_MAX, REFUSED_SECONDS, Refusals, digest
from oci_hook.kube.reporter.seen import CONFIG, NODE, PODS, SeenObjects
from oci_hook.kube.reporter.views import SeenNode, SeenPod
from tests.core.test_decided import inventory
from tests.decisions import KEYS, OTHER_UID, UID, decided
from tests.decisions import NODE as NAME

TERMS = Terms(policy="best-effort")
KNOWN = NodeKeys(NAME, tuple((number, bytes.fromhex(key)) for number, key in KEYS.items()))
SHARES = {"a": [DecidedShare("GPU-1", 4096)]}


def pod(alloc: str | None = None, uid: str = UID, **more: Any) -> SeenPod:
    notes = {"gpu-hook.io/alloc": alloc} if alloc is not None else {}
    return views.pod({"metadata": {"uid": uid, "annotations": notes}, **more})


def grant(container: str = "a", uid: str = UID, mib: int = 4096, key: str = "k", **more: Any) -> Grant:
    who = Identity("", "id", "", pod_uid=uid, namespace="ns", pod="p", container=container)
    return Grant(key, who, Life(""), (Share("GPU-1", mib),), **{"terms": TERMS, **more})


# --- the digest ---


def test_a_grant_is_the_pods_where_its_decision_says_so() -> None:
    said = digest([grant()], {UID: pod(decided(SHARES))}, {}, KNOWN)
    assert (said.pods, said.local) == (((UID, ("a",)),), ())


@pytest.mark.parametrize(
    ("held", "alloc"),
    [
        (grant(), None),  # placed by the node
        (grant(), "{"),
        (grant(uid=OTHER_UID), decided(SHARES)),
        (grant(), decided(SHARES, key="33" * 32)),  # setting `local`: a user wrote the decision after the start
        (grant(), decided(SHARES, uid=OTHER_UID)),
        (grant(), decided(SHARES, node="n2")),
        (grant(uid=""), decided(SHARES)),  # plain docker
        (grant("b"), decided(SHARES)),
        (grant(terms=TERMS.replace(priority_class="offline")), decided(SHARES)),
    ],
)
def test_every_other_grant_is_local(held: Grant, alloc: str | None) -> None:
    said = digest([held], {UID: pod(alloc)}, {}, KNOWN)
    assert said.pods == () and len(said.local) == 1


@pytest.mark.parametrize(
    ("mib", "compute", "more"),
    [
        (4096, 20, None),
        (8192, 20, (4096, 0)),
        (4096, 30, (0, 10)),
        (8192, 10, (4096, 0)),
        (2048, 10, None),
    ],
)
def test_of_a_changed_share_what_the_decision_lacks_is_local(
    mib: int, compute: int, more: tuple[int, int] | None
) -> None:
    """`gpu-hook set`: the controller counts the decision as long as the pod lives."""
    held = grant().replace(shares=(Share("GPU-1", mib, compute, 50, slot=3),))
    said = digest([held], {UID: pod(decided({"a": [DecidedShare("GPU-1", 4096, 20)]}))}, {}, KNOWN)
    assert said.pods == ((UID, ("a",)),)
    assert [(s.memory_mib, s.compute, s.whole) for g in said.local for s in g.shares] == (
        [(*more, False)] if more else []
    )


@pytest.mark.parametrize("shares", [(), (Share("GPU-2", 4096),), (Share("GPU-1", 0, whole=True),)])
def test_a_share_of_another_gpu_is_local(shares: tuple[Share, ...]) -> None:
    said = digest([grant().replace(shares=shares)], {UID: pod(decided(SHARES))}, {}, KNOWN)
    assert said.pods == () and [g.shares for g in said.local] == [shares] * bool(shares)


def test_without_keys_every_grant_is_local() -> None:
    assert len(digest([grant()], {UID: pod(decided(SHARES))}, {}, None).local) == 1


def test_a_container_counts_once_for_its_decision() -> None:
    said = digest([grant(key="1"), grant(key="2")], {UID: pod(decided(SHARES))}, {}, KNOWN)
    assert said.pods == ((UID, ("a",)),) and len(said.local) == 1


def test_a_container_without_a_gpu_is_not_told() -> None:
    assert digest([grant().replace(shares=())], {}, {}, KNOWN).local == ()


def test_the_digest_of_a_full_node_fits() -> None:
    """512 containers with the longest names."""
    name = "x" * 10_000
    who = Identity("", name, "", pod_uid=name, namespace=name, pod=name, container=name)
    held = [Grant(str(n), who, Life(""), (Share("GPU-1", 1),)) for n in range(512)]
    assert len(digest_text(digest(held, {}, {}, KNOWN), inventory())) < MAX_TEXT


def test_refusals_are_of_pods_that_are_here_and_of_late() -> None:
    lately = Refusals()
    for event in (
        {"event": "refused", "uid": UID, "codes": ["GH-602"]},
        {"event": "refused", "uid": UID, "codes": ["GH-201", "GH-1"]},
        {"event": "granted", "uid": "u2", "codes": ["GH-201"]},
        {"event": "refused", "codes": ["GH-201"]},
        {"event": "refused", "uid": 5, "codes": "x"},
        {"event": "refused", "uid": "u3", "codes": []},
    ):
        lately.note(event, 0.0)
    here = {UID: pod()}
    assert lately.now(here, 1.0) == {UID: "GH-201"}
    assert digest([grant()], {UID: pod(decided(SHARES))}, {UID: "GH-201"}, KNOWN).refused == ()  # it has started since
    assert lately.now({}, 2.0) == {} and lately.now(here, 3.0) == {}
    lately.note({"event": "refused", "uid": UID, "codes": ["GH-201"]}, 4.0)
    assert lately.now(here, 5.0 + REFUSED_SECONDS) == {}
    for n in range(3 * REFUSED_MAX):
        lately.note({"event": "refused", "uid": f"u{n}", "codes": ["GH-201"]}, 6.0)
    assert len(lately.now({f"u{n}": pod() for n in range(3 * REFUSED_MAX)}, 6.0)) == REFUSED_MAX


# --- sums ---


def asking(*requests: dict[str, str], init: tuple[dict[str, str], ...] = (), phase: str = "Running") -> SeenPod:
    spec = {
        "containers": [{"resources": {"requests": each}} for each in requests],
        "initContainers": [{"resources": {"requests": each}} for each in init],
    }
    return pod(spec=spec, status={"phase": phase})


def test_what_is_bound_counts_as_the_kubelet_counts_it() -> None:
    """The API server may return quantities in any of Kubernetes' forms."""
    one = asking({MEMORY: "10k", GPUS: "1", "cpu": "100m"}, {GPUS: "2"}, {}, init=({GPUS: "5"},))
    assert node_patches.bound([one]) == {GPUS: 5, MEMORY: 10_000, COMPUTE: 0, OFFLINE_COMPUTE: 0}
    assert node_patches.bound([asking({GPUS: "1"}, phase=phase) for phase in ("Succeeded", "Failed")])[GPUS] == 0
    assert node_patches.bound([asking({GPUS: "x"}), pod(), pod(spec={"containers": [{}]})])[GPUS] == 0


@given(st.lists(st.integers(0, 5000), max_size=8), st.integers(0, 10_000))
def test_a_sum_is_never_below_what_is_bound(bound: list[int], has: int) -> None:
    pods = [asking({MEMORY: str(amount)}) for amount in bound]
    assert node_patches.sums({MEMORY: has}, pods)[MEMORY] == max(has, sum(bound))


def test_a_sum_is_a_number_that_the_api_server_keeps() -> None:
    """Otherwise the reporter would write it repeatedly."""
    pods = [asking({GPUS: str((1 << 63) - 1)}) for _ in range(2)]
    assert node_patches.sums({GPUS: 64}, pods) == {GPUS: (1 << 63) - 1}


def node(capacity: Any = None, allocatable: Any = None, **annotations: str) -> SeenNode:
    status = {"capacity": capacity, "allocatable": allocatable}
    return views.node({"metadata": {"annotations": annotations}, "status": status})


def applied(found: SeenNode, patch: list[dict[str, Any]]) -> SeenNode:
    parts: dict[str, Any] = {"capacity": found.capacity, "allocatable": found.allocatable}
    for step in patch:
        assert step["op"] == "add"
        _, _, part, *key = step["path"].split("/")
        if key:
            parts[part] = {**parts[part], key[0].replace("~1", "/"): step["value"]}
        else:
            parts[part] = step["value"]
    return SeenNode(found.annotations, found.labels, **parts)


QUANTITY = st.sampled_from(["0", "10k", "10000", "7", "x", "1Ki"])
PART = st.none() | st.dictionaries(st.sampled_from([*SUMS, "cpu"]), QUANTITY)


@given(PART, PART, st.dictionaries(st.sampled_from(SUMS), st.sampled_from([0, 7, 1024, 10_000])))
def test_one_patch_makes_it_so_and_then_nothing_is_written(
    capacity: Any, allocatable: Any, want: dict[str, int]
) -> None:
    found = applied(node(capacity, allocatable), node_patches.status(node(capacity, allocatable), want))
    assert node_patches.status(found, want) == []
    for part in (found.capacity, found.allocatable):
        there = {name: node_patches._now(part, name) for name in want if name in (part or {})}
        assert there == {name: amount for name, amount in want.items() if name in there}
        assert all(name in there for name, amount in want.items() if amount)
    for before, after in ((capacity, found.capacity), (allocatable, found.allocatable)):
        assert {k: v for k, v in (before or {}).items() if k not in want} == {
            k: v for k, v in (after or {}).items() if k not in want
        }


def test_zero_is_not_published_first() -> None:
    """A sum of 0 refuses pods; a missing sum admits them."""
    assert node_patches.status(node({}, {}), {GPUS: 0}) == []
    assert len(node_patches.status(node({GPUS: "3"}, {GPUS: "3"}), {GPUS: 0})) == 2


def test_sums_that_a_kubelet_set_to_zero_are_written_again() -> None:
    found = node({GPUS: "0", "cpu": "2"}, {GPUS: "0"})
    assert {step["value"] for step in node_patches.status(found, {GPUS: 64})} == {"64"}
    assert not node_patches.lowers(found, {GPUS: 64}) and node_patches.lowers(node({GPUS: "65"}, {}), {GPUS: 64})


def test_only_changed_annotations_are_written_and_all_are_taken_back() -> None:
    found = node({GPUS: "1", "cpu": "2"}, {GPUS: "1"}, a="1", b="2", c="3")
    assert node_patches.annotations(found, {"a": "1", "b": "2"}) == {}
    assert node_patches.annotations(found, {"a": "1", "b": "9"}) == {"metadata": {"annotations": {"b": "9"}}}
    notes, patch = node_patches.withdrawal(found, ("a", "x"), ("room",))
    assert notes == {"metadata": {"annotations": {"a": None}}}
    assert [step["path"] for step in patch] == [
        "/status/capacity/gpu-hook.io~1gpus",
        "/status/allocatable/gpu-hook.io~1gpus",
    ]
    assert node_patches.withdrawal(node({}, {}), ("a",), ("room",)) == ({}, [])
    labelled = node({}, {}).replace(labels={"room": "1", "theirs": "2"})
    assert node_patches.withdrawal(labelled, ("a",), ("room",)) == ({"metadata": {"labels": {"room": None}}}, [])


# --- the cluster's settings for a node ---


@pytest.mark.parametrize(
    ("labels", "config", "expected"),
    [
        ({}, {}, {}),
        ({"gpu-hook.io/policy": "fs"}, {}, {"default_policy": "fs"}),
        ({"qgpu-schedule-policy": "burst-share"}, {}, {"default_policy": "burst-share"}),
        ({"tke.cloud.tencent.com/qgpu-schedule-policy": "be"}, {}, {"default_policy": "be"}),
        (
            {"tke.cloud.tencent.com/qgpu-schedule-policy": "be", "gpu-hook.io/policy": "fixed-share"},
            {},
            {"default_policy": "fixed-share"},
        ),
        (
            {"gpu-hook.io/policy": "fs"},
            {"n1": "default_policy: be\nplacement: spread"},
            {"default_policy": "be", "placement": "spread"},
        ),
        (
            {"a": "1", "b": "2"},
            {"x": "nodes: a=1,b=2\nmemory_step: 2", "y": "nodes: a=2\nmemory_step: 3"},
            {"memory_step": "2"},
        ),
        ({"a": "1"}, {"x": "nodes: a=1\nmemory_step: 2", "n1": "memory_step: 4"}, {"memory_step": "4"}),
        ({"a": ""}, {"x": "nodes: a=\nmemory_step: 2"}, {"memory_step": "2"}),
        ({}, {"n2": "memory_step: 2", "x": "# nothing"}, {}),
    ],
)
def test_settings_of_the_cluster(labels: dict[str, str], config: dict[str, str], expected: dict[str, str]) -> None:
    assert cluster_settings.wanted("n1", labels, config) == (expected, [])


@pytest.mark.parametrize(
    "text",
    [
        *("trust_env: true", "cluster: off", "runtime: /bin/sh", "dialects: [qgpu]", "memory_step: x", "state_dir: /x"),
        *("a: {", "nodes: a", "nodes: =1", "nodes: [a]", "nodes: a=1\nnodes: b=1", "memory_step: 1\nmemory_step: 2"),
        *("\x00", "\tmemory_step: 1", "memory_step: 1\udc80", "x" * 70_000),
    ],
)
def test_an_entry_with_anything_wrong_counts_for_nothing(text: str) -> None:
    """Other entries still count."""
    lines, problems = cluster_settings.wanted(
        "n1", {}, {"n1": f"memory_min: 7\n{text}", "x": "nodes: q=1\nmemory_step: 9"}
    )
    assert lines == {} and len(problems) == 1 and "gpu-hook-nodes, n1" in problems[0]
    assert cluster_settings.wanted("n1", {"q": "1"}, {"n1": text, "x": "nodes: q=1\nmemory_step: 9"})[0] == {
        "memory_step": "9"
    }


def test_a_label_that_is_no_policy_is_a_problem() -> None:
    lines, problems = cluster_settings.wanted("n1", {"gpu-hook.io/policy": "best"}, {})
    assert lines == {} and "label gpu-hook.io/policy" in problems[0]


def test_problems_are_few() -> None:
    assert (
        len(cluster_settings.wanted("n1", {}, {f"k{n}": "{" for n in range(100)})[1]) == cluster_settings.MAX_PROBLEMS
    )


# --- the watchers' changes ---


def test_what_was_seen_last_counts() -> None:
    seen = SeenObjects()
    assert seen.pods is None and seen.config is None
    seen.take(Change(PODS, "put", pod(uid="early")))  # ignored before the first list
    assert seen.pods is None
    seen.take(Change(PODS, "failure", "refused"))
    assert seen.failures == {PODS: "refused"}
    seen.take(Change(PODS, "all", [pod(uid="1"), pod(uid="2")]))
    seen.take(Change(PODS, "gone", pod(uid="1")))
    seen.take(Change(PODS, "gone", pod(uid="9")))
    assert set(seen.pods or {}) == {"2"} and seen.failures == {}
    seen.take(Change(CONFIG, "all", []))
    assert seen.config == {}
    seen.take(Change(CONFIG, "put", {"n1": "x"}))
    seen.take(Change(CONFIG, "gone", {"n1": "x"}))
    assert seen.config == {}
    seen.take(Change(NODE, "all", [node()]))
    seen.take(Change(NODE, "gone", node()))
    assert seen.node is None


# --- credentials and keys ---


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubelet's certificate, made by openssl."""
    folder = tmp_path_factory.mktemp("pki")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /O=system:nodes/CN=system:node:n-7.example"
    subprocess.run(
        [*command.split(), "-keyout", folder / "key", "-out", folder / "crt"], check=True, capture_output=True
    )
    return folder


def kubeconfig(user: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }


CLUSTER = {"server": "https://10.0.0.1:6443", "certificate-authority": "crt"}


def test_a_kubelets_kubeconfig(kubelet: Path) -> None:
    file = kubelet / "kubelet.conf"
    file.write_text(json.dumps(kubeconfig({"client-certificate": "crt", "client-key": "key"}, CLUSTER)))
    found = credential.load(str(file))
    assert found.server == "https://10.0.0.1:6443" and credential.node(found) == "n-7.example" and found.bearer() == ""
    context = found.context()
    assert context and context.get_ca_certs()
    (kubelet / "token").write_text("one\n")
    file.write_text(
        "# YAML\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
        "clusters: [{name: k, cluster: {server: 'https://[::1]:1/', certificate-authority: crt}}]\n"
        "users: [{name: u, user: {tokenFile: token}}]\n"
    )
    found = credential.load(str(file))
    assert (found.server, found.bearer(), credential.node(found)) == ("https://[::1]:1", "one", "")
    (kubelet / "token").write_text("two\n")
    assert found.bearer() == "two"


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({}, CLUSTER),
        ({"exec": {"command": "/bin/sh"}}, CLUSTER),
        ({"token": "x"}, {**CLUSTER, "server": "http://10.0.0.1"}),
        ({"token": "x"}, {**CLUSTER, "insecure-skip-tls-verify": True}),
        ({"token": "x"}, {}),
        ({"client-certificate-data": "?"}, CLUSTER),
    ],
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any]) -> None:
    file = tmp_path / "conf"
    for text in (json.dumps(kubeconfig(user, cluster)), "", "[]", "a: [", json.dumps({"current-context": "x"})):
        file.write_text(text)
        with pytest.raises(GhError, match="GH-608"):
            credential.load(str(file))
    with pytest.raises(GhError, match="GH-608"):
        credential.load(str(tmp_path / "none"))


@given(st.binary(max_size=300))
def test_any_bytes_name_no_node_or_one(data: bytes) -> None:
    assert credential.node_of(data) == "" and isinstance(credential.node_of(credential.COMMON_NAME + data), str)


def test_only_keys_of_this_node_are_accepted() -> None:
    said = {"node": "n1", "keys": {str(number): key for number, key in KEYS.items()}}
    assert json.loads(node_key.accept(json.dumps(said).encode(), "n1")) == said
    for data, name in ((said, "n2"), ({**said, "keys": {}}, "n1"), ([], "n1"), ({**said, "keys": {"1": "x"}}, "n1")):
        with pytest.raises(ValueError):
            node_key.accept(json.dumps(data).encode(), name)
