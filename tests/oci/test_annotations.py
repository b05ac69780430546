"""Whose container it is, by its engine's annotations, and that no pod on CRI-O passes for another one."""

import pytest

from oci_hook.oci.annotations import container_name, identity, pod_uid

UID = "6c3f0f5d-0a55-4bd4-8f0a-0a4b33a92d70"
CRIO = {
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.Name": f"k8s_main_web-0_team-a_{UID}_0",
}
CONTAINERD = {  # as a user of CRI-O writes them, too, since CRI-O passes them on
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.container-name": "other",
    "io.kubernetes.cri.sandbox-name": "other-pod",
    "io.kubernetes.cri.sandbox-namespace": "kube-system",
    "io.kubernetes.cri.sandbox-uid": "other-uid",
}


def names(annotations: dict[str, str]) -> tuple[str, ...]:
    who = identity("/run/runc", "x", "/b", annotations)
    return who.engine, who.namespace, who.pod, who.container, who.pod_uid


@pytest.mark.parametrize("more", ({}, CONTAINERD, {"io.kubernetes.container.name": "other"}))
def test_crio(more: dict[str, str]) -> None:
    assert names({**more, **CRIO}) == ("crio", "team-a", "web-0", "main", UID)


def test_containerd() -> None:
    assert names(CONTAINERD) == ("containerd", "kube-system", "other-pod", "other", "other-uid")


@pytest.mark.parametrize("name", ("", "k8s", "k8s_a_b_c_d", "k8s_a_b_c_d_0_1", "_" * 4096))
def test_a_name_of_crio_that_is_not_understood(name: str) -> None:
    """`crictl` takes any name, with _ too."""
    odd = {**CONTAINERD, **CRIO, "io.kubernetes.cri-o.Name": name}
    assert names(odd) == ("crio", "", "", "", "")
    assert container_name({**odd, "io.kubernetes.container.name": "main"}) == "main"  # the kubelet's label


def test_the_cgroup_counts_before_the_name() -> None:
    other = UID.replace("6c3f", "0000")
    assert pod_uid(CRIO, f"/kubepods/pod{other}/crio-1") == other
