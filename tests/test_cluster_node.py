"""A node of a cluster: a container gets what the controller decided about it, or does not start. With real runc."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.decision import MAX_TEXT, DecidedShare, DecidedTerms
from oci_hook.core.layout import ALLOC
from testbed.containers import Bundle, Runc
from testbed.installs import MEMORY_MIB, UUIDS, Install
from tests.decisions import CRI, KEYS, OTHER_UID, UID, decided, pod, write_keys
from tests.test_hook import hooked, nothing_is_booked
from tests.test_hook import refused as refused_by_hook
from tests.test_precreate import config, precreate
from tests.test_runtime import refused, start

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
MEMORY = {"gpu-hook.io/memory.a": "4Gi"}
SHARE = {"a": [DecidedShare(UUIDS[1], 4096)]}  # the node itself would choose the first GPU


@pytest.fixture
def node(prefix: Install) -> Install:
    prefix.set(cluster="required")
    write_keys(prefix.prefix)
    return prefix


def granted(install: Install) -> list[tuple[str, int, int]]:
    return [(share.uuid, share.memory_mib, share.compute) for grant in install.grants() for share in grant.shares]


def events(install: Install) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (install.state / "events").read_text().splitlines()]


@pytest.mark.parametrize("mode", ["required", "local"])
def test_the_decided_gpu_and_no_other(node: Install, bundle: Bundle, runc: Runc, mode: str) -> None:
    node.set(cluster=mode)
    start(runc, node, bundle(pod(decided(SHARE), MEMORY)))
    assert granted(node) == [(UUIDS[1], 4096, 0)]
    (grant,) = node.grants()
    assert (grant.who.pod_uid, grant.who.container) == (UID, "a")


def test_several_containers_of_a_pod_and_a_restart(node: Install, bundle: Bundle, runc: Runc) -> None:
    shares = {"a": [DecidedShare(UUIDS[1], 4096)], "b": [DecidedShare(UUIDS[0], 20480)]}
    asks = {**MEMORY, "gpu-hook.io/memory.b": "20Gi"}
    first = start(runc, node, bundle(pod(decided(shares), asks)))
    start(runc, node, bundle(pod(decided(shares), asks, "b")))
    assert sorted(granted(node)) == [(UUIDS[0], 20480, 0), (UUIDS[1], 4096, 0)]
    assert runc("delete", "-f", first).returncode == 0
    start(runc, node, bundle(pod(decided(shares), asks)))
    assert sorted(granted(node)) == [(UUIDS[0], 20480, 0), (UUIDS[1], 4096, 0)]


def test_a_whole_gpu(node: Install, bundle: Bundle, runc: Runc) -> None:
    alloc = decided({"a": [DecidedShare(UUIDS[1], 0)]}, terms=DecidedTerms("burst-share", "default"))
    start(runc, node, bundle(pod(alloc, {"gpu-hook.io/gpus.a": "1"})))
    assert granted(node) == [(UUIDS[1], MEMORY_MIB, 0)]


def test_decided_by_both_generations_of_the_key(node: Install, bundle: Bundle, runc: Runc) -> None:
    for generation in KEYS:
        start(runc, node, bundle(pod(decided(SHARE, generation=generation), MEMORY)))


def test_the_decided_policy_where_the_pod_names_none(node: Install, bundle: Bundle, runc: Runc) -> None:
    """The node's default may have changed after the decision; what the pod says itself may not."""
    asks = {"gpu-hook.io/compute.a": "30"}
    shares = {"a": [DecidedShare(UUIDS[0], MEMORY_MIB * 30 // 100, 30, 30)]}
    alloc = decided(shares, terms=DecidedTerms("fixed-share", "default"))
    start(runc, node, bundle(pod(alloc, asks)))
    assert [grant.terms.policy for grant in node.grants()] == ["fixed-share"]
    refused(runc, node, bundle(pod(alloc, {**asks, "gpu-hook.io/policy.a": "burst-share"})), "GH-604")
    refused(runc, node, bundle(pod(alloc, {**asks, "gpu-hook.io/class.a": "online"})), "GH-604")


BAD: dict[str, tuple[str | None, dict[str, str], str, str]] = {
    "missing": (None, MEMORY, "a", "GH-601"),
    "no JSON": ("{", MEMORY, "a", "GH-602"),
    "half a character": ('"\ud800"', MEMORY, "a", "GH-602"),
    "a key twice": (decided(SHARE)[:-1] + ',"gen":2}', MEMORY, "a", "GH-602"),
    "nested": ("[" * 60_000, MEMORY, "a", "GH-602"),
    "oversized": (decided(SHARE) + " " * MAX_TEXT, MEMORY, "a", "GH-602"),
    "another version": (decided(SHARE).replace('"v":1', '"v":2'), MEMORY, "a", "GH-602"),
    "forged": (decided(SHARE, key="ab" * 32), MEMORY, "a", "GH-602"),
    "another GPU": (decided(SHARE).replace(UUIDS[1], UUIDS[0]), MEMORY, "a", "GH-602"),
    "stale": (decided(SHARE, generation=0, key="00" * 32), MEMORY, "a", "GH-602"),
    "ahead": (decided(SHARE, generation=7, key="00" * 32), MEMORY, "a", "GH-606"),
    "of another pod": (decided(SHARE, uid=OTHER_UID), MEMORY, "a", "GH-603"),
    "of another node": (decided(SHARE, node="n2"), MEMORY, "a", "GH-603"),
    "another container": (decided(SHARE), {"gpu-hook.io/memory.b": "4Gi"}, "b", "GH-604"),
    "no container": (decided(SHARE), {"gpu-hook.io/memory": "4Gi"}, "", "GH-604"),
    "a changed annotation": (decided(SHARE), {"gpu-hook.io/memory.a": "5Gi"}, "a", "GH-604"),
    "more than the GPU has": (decided(SHARE), {"gpu-hook.io/memory.a": "500Gi"}, "a", "GH-604"),
    "a GPU that is not here": (decided({"a": [DecidedShare("GPU-9", 4096)]}), MEMORY, "a", "GH-202"),
}


@pytest.mark.parametrize("which", BAD)
def test_refused(node: Install, bundle: Bundle, runc: Runc, which: str) -> None:
    alloc, asks, container, code = BAD[which]
    node.set(near_misses="warn")
    refused(runc, node, bundle(pod(alloc, asks, container)), code)
    last = events(node)[-1]
    assert (last["event"], last["codes"], last["uid"]) == ("refused", [code], UID)


@pytest.mark.parametrize(
    "which", ["missing", "forged", "of another pod", "a changed annotation", "a GPU that is not here"]
)
def test_refused_by_hook_and_precreate(node: Install, bundle: Bundle, runc: Runc, which: str) -> None:
    alloc, asks, container, code = BAD[which]
    folder = bundle(pod(alloc, asks, container), edit=hooked(node))
    refused_by_hook(runc, folder, code, node)
    done = precreate(node, config(bundle(pod(alloc, asks, container))))
    assert (done.returncode, done.stdout) == (1, b"") and code.encode() in done.stderr
    nothing_is_booked(node)


def test_obeyed_by_hook_and_precreate(node: Install, bundle: Bundle, runc: Runc) -> None:
    assert runc.create(bundle(pod(decided(SHARE), MEMORY), edit=hooked(node))).returncode == 0
    done = precreate(node, config(bundle(pod(decided(SHARE), MEMORY))))
    assert done.returncode == 0, done.stderr
    assert granted(node) == [(UUIDS[1], 4096, 0)] * 2


def test_room_that_went_is_a_refusal(node: Install, bundle: Bundle, runc: Runc) -> None:
    """What is decided is booked there or nowhere: the other GPU has room."""
    most = {"a": [DecidedShare(UUIDS[1], 20480)]}
    asks = {"gpu-hook.io/memory.a": "20Gi"}
    start(runc, node, bundle(pod(decided(most), asks)))
    refused(runc, node, bundle(pod(decided(most, uid=OTHER_UID), asks, uid=OTHER_UID)), "GH-201")


def by_cgroup(path: str) -> Callable[[dict[str, Any]], object]:
    return lambda spec: spec["linux"].update(cgroupsPath=path)


SLICE = f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice:cri-containerd:x"


@pytest.mark.parametrize("path", [f"/kubepods/burstable/pod{UID}/x", f"/root/kubepods/pod{UID}/x", SLICE])
def test_the_uid_is_the_kubelets(node: Install, bundle: Bundle, runc: Runc, path: str) -> None:
    """containerd 1.6 has no annotation for it; where both say one, the cgroup counts, which nobody but the kubelet names."""
    node.set(runtime="/bin/true")
    annotations = pod(decided(SHARE), MEMORY)
    for uid in (None, OTHER_UID):
        annotations = {k: v for k, v in annotations.items() if k != CRI + "sandbox-uid"}
        given = {**annotations, **({CRI + "sandbox-uid": uid} if uid else {})}
        assert runc.create(bundle(given, edit=by_cgroup(path)), node).returncode == 0
    other = bundle(pod(decided(SHARE), MEMORY), edit=by_cgroup(path.replace("0f5d", "0f5e")))
    refused(runc, node, other, "GH-603")


def test_without_a_uid_nothing_is_believed(node: Install, bundle: Bundle, runc: Runc) -> None:
    refused(runc, node, bundle(pod(decided(SHARE), MEMORY, uid="")), "GH-603")
    crio = {"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.container.name": "a"}
    refused(runc, node, bundle({**pod(decided(SHARE), MEMORY), **crio}), "GH-603")  # a pod's own words there
    path = by_cgroup(f"/kubepods/pod{UID}/x")
    mixed = {**pod(decided({"big": SHARE["a"]}), {"gpu-hook.io/memory": "4Gi"}, "big"), **crio}
    start(runc, node, bundle(mixed, edit=path))  # containerd's key for the name, written by a user of CRI-O
    assert granted(node) == []


def test_a_container_that_came_after_the_decision(node: Install, bundle: Bundle, runc: Runc) -> None:
    """An ephemeral one, in a pod that asks for every container: no GPU, unless it has keys of its own."""
    wide = {"gpu-hook.io/memory": "4Gi"}
    start(runc, node, bundle(pod(decided(SHARE), wide)))
    start(runc, node, bundle(pod(decided(SHARE), wide, "debugger-x7k2p")))
    assert granted(node) == [(UUIDS[1], 4096, 0)]
    for forged in (decided(SHARE, key="ab" * 32), decided(SHARE, uid=OTHER_UID)):
        assert runc.create(bundle(pod(forged, wide, "debugger-x7k2p")), node).returncode
    refused(
        runc, node, bundle(pod(decided(SHARE), {**wide, "gpu-hook.io/compute.debugger": "5"}, "debugger")), "GH-604"
    )


@pytest.mark.parametrize("source", ["file", "http"])
def test_static_pods_are_placed_by_the_node(node: Install, bundle: Bundle, runc: Runc, source: str) -> None:
    static = {"kubernetes.io/config.source": source}
    start(runc, node, bundle({**pod(None, MEMORY), **static}))
    start(runc, node, bundle({**pod("{", MEMORY), **static}))
    assert granted(node) == [(UUIDS[0], 4096, 0)] * 2


def test_pods_of_the_api_server_are_not_static(node: Install, bundle: Bundle, runc: Runc) -> None:
    refused(runc, node, bundle({**pod(None, MEMORY), "kubernetes.io/config.source": "api"}), "GH-601")


def test_a_pod_that_named_its_node_is_told_what_to_write(node: Install, bundle: Bundle, runc: Runc) -> None:
    """The create webhook has seen it, and no Binding of it was made."""
    said = refused(runc, node, bundle({**pod(None, MEMORY), "gpu-hook.io/asked": "1"}), "GH-601")
    assert "in place of spec.nodeName write nodeSelector kubernetes.io/hostname" in said
    said = refused(runc, node, bundle(pod(None, MEMORY)), "GH-601")
    assert "label its namespace gpu-hook.io/namespace=enabled" in said


def test_a_privileged_container_that_the_pod_s_keys_are_not_for_starts(
    node: Install, bundle: Bundle, runc: Runc
) -> None:
    """The create webhook writes `containers` where a container of the pod is privileged."""

    def privileged(spec: dict[str, Any]) -> None:
        spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm"})

    asks = {"gpu-hook.io/memory": "4Gi", "gpu-hook.io/containers": "a"}
    start(runc, node, bundle(pod(decided(SHARE), asks, "dind"), edit=privileged))
    assert granted(node) == []
    start(runc, node, bundle(pod(decided(SHARE), asks)))
    assert granted(node) == [(UUIDS[1], 4096, 0)]
    asks.pop("gpu-hook.io/containers")
    decision = decided({**SHARE, "dind": SHARE["a"]})
    assert "every GPU" in refused(runc, node, bundle(pod(decision, asks, "dind"), edit=privileged), "GH-403")


def test_a_container_without_a_gpu_needs_nothing(node: Install, bundle: Bundle, runc: Runc) -> None:
    (node.prefix / "etc/cluster.json").unlink()
    start(runc, node, bundle(pod(None, {})))
    start(runc, node, bundle(pod("{", {"gpu-hook.io/memory.b": "4Gi"})))
    start(runc, node, bundle(pod(None, {"NVIDIA_VISIBLE_DEVICES": "none"})))
    assert granted(node) == []


def test_off_ignores_what_a_client_wrote(node: Install, bundle: Bundle, runc: Runc) -> None:
    node.set(cluster="off")
    write_keys(node.prefix, data="{")
    for alloc in (None, "{", decided(SHARE, key="ab" * 32)):
        start(runc, node, bundle(pod(alloc, MEMORY)))
    assert {uuid for uuid, _, _ in granted(node)} == {UUIDS[0]}


def test_local_places_what_nobody_decided(node: Install, bundle: Bundle, runc: Runc) -> None:
    node.set(cluster="local")
    start(runc, node, bundle(pod(None, MEMORY)))
    refused(runc, node, bundle(pod(decided(SHARE, uid=OTHER_UID), MEMORY)), "GH-603")
    (node.prefix / "etc/cluster.json").unlink()
    start(runc, node, bundle(pod(decided(SHARE, uid=OTHER_UID), MEMORY)))  # nothing to verify it with: the node decides
    assert granted(node) == [(UUIDS[0], 4096, 0)] * 2


@pytest.mark.parametrize(
    "data",
    [
        *(
            "",
            "{",
            "[]",
            "null",
            '{"node":"n1"}',
            '{"node":"n1","keys":{}}',
            '{"node":"","keys":{"1":"%s"}}' % ("1" * 64),
        ),
        {"node": "n1", "keys": {"1": "1" * 63}},
        {"node": "n1", "keys": {"1": "G" * 64}},
        {"node": "n1", "keys": {"x": "1" * 64}},
        {"node": "n1", "keys": {"": "1" * 64}},
        {"node": 1, "keys": {"1": "1" * 64}},
        {"node": "n1", "keys": {"1": "1" * 64}, "more": 1},
        " " * 20_000,
    ],
)
def test_damaged_keys_verify_nothing(node: Install, bundle: Bundle, runc: Runc, data: Any) -> None:
    node.set(cluster="local" if data == "{" else "required")
    write_keys(node.prefix, data=data)
    refused(runc, node, bundle(pod(decided(SHARE), MEMORY)), "GH-606")


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o622])
def test_keys_that_others_can_read_or_change_verify_nothing(
    node: Install, bundle: Bundle, runc: Runc, mode: int
) -> None:
    write_keys(node.prefix, mode)
    refused(runc, node, bundle(pod(decided(SHARE), MEMORY)), "GH-606")


def test_keys_of_another_user_a_link_or_none(node: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    file = node.prefix / "etc/cluster.json"
    os.chown(file, 1000, 1000)
    refused(runc, node, bundle(pod(decided(SHARE), MEMORY)), "GH-606")
    file.rename(tmp_path / "elsewhere")
    refused(runc, node, bundle(pod(decided(SHARE), MEMORY)), "GH-606")
    file.symlink_to(tmp_path / "elsewhere")
    refused(runc, node, bundle(pod(decided(SHARE), MEMORY)), "GH-606")


def test_the_cluster_says_how_a_nodes_gpus_are_shared(node: Install, bundle: Bundle, runc: Runc) -> None:
    """The reporter's file counts before settings.yaml; what it may not say, and damage, refuses a start."""
    file = node.prefix / "etc/cluster.yaml"
    node.set(cluster="local", placement="binpack")
    file.write_text("placement: spread\nmemory_step: 1Gi\n")
    for _ in range(2):
        start(runc, node, bundle(pod(None, {"gpu-hook.io/memory.a": "1025"})))
    assert sorted(granted(node)) == [(UUIDS[0], 2048, 0), (UUIDS[1], 2048, 0)]
    for bad in ("cluster: off\n", "trust_env: true\n", "runtime: /bin/true\n", "memory_step: x\n", "{\n", "\xff\n"):
        file.write_bytes(bad.encode("latin-1"))
        refused(runc, node, bundle(pod(None, MEMORY)), "GH-501")
    file.write_text("placement: spread\n")
    file.chmod(0o666)
    refused(runc, node, bundle(pod(None, MEMORY)), "GH-501")
    node.set(cluster="off")  # nobody looks at it then
    start(runc, node, bundle(pod(None, MEMORY)))


def test_the_annotation_is_kept_for_people(node: Install, bundle: Bundle, runc: Runc) -> None:
    folder = bundle(pod(decided(SHARE), MEMORY))
    start(runc, node, folder)
    assert json.loads((folder / "config.json").read_text())["annotations"][ALLOC] == decided(SHARE)
