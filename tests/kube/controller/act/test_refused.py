"""Refused pods: how they are recognized, and when they are evicted."""

import asyncio
import json
from typing import Any

import pytest

from oci_hook.kube.controller.act.evictor import Evictor
from oci_hook.kube.controller.act.refused import FIRST, FORGET, GRACE, MOST, RefusedPods, refusal
from oci_hook.kube.controller.context import Context
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.placing.cluster_state import ClusterState
from tests.kube.cluster_objects import node

TEXT = "failed to create containerd task: OCI runtime create failed: GH-201: no GPU has room for 9000 MiB: unknown"


def pod(uid: str = "u", owner: str = "rs", **status: Any) -> dict[str, Any]:
    owners = [{"kind": "ReplicaSet", "name": "rs", "uid": owner, "controller": True}] if owner else []
    return {
        "metadata": {"uid": uid, "namespace": "ns", "name": f"pod-{uid}", "ownerReferences": owners},
        "spec": {"runtimeClassName": "gpu-hook", "nodeName": "n1"},
        "status": {"phase": "Pending", **status},
    }


def state(text: str = TEXT, key: str = "waiting", reason: str = "RunContainerError") -> list[dict[str, Any]]:
    return [{"name": "main", "state": {key: {"reason": reason, "message": text}}}]


def test_the_words_of_the_code_are_found_wherever_the_kubelet_puts_them() -> None:
    looping = [
        {
            "name": "main",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"reason": "StartError", "message": TEXT}},
        }
    ]
    for status in (
        {"containerStatuses": state()},
        {"containerStatuses": state(key="terminated", reason="StartError")},
        {"initContainerStatuses": state()},
        {"containerStatuses": looping},
    ):
        found = refusal(pod(**status))
        assert found and found.code == "GH-201" and found.owner == "ns/rs"
        assert found.words == "GH-201: no GPU has room for 9000 MiB: unknown"


@pytest.mark.parametrize(
    "changed",
    [
        {"containerStatuses": state(reason="ImagePullBackOff")},
        {"containerStatuses": state("GH-101: a wrong word")},  # another node would refuse it as well
        {"containerStatuses": state("GH-2011 GH-20")},
        {"containerStatuses": state("GH-2\u0660\u0967")},  # digits of other scripts
        {"containerStatuses": state(key="terminated", reason="Error")},  # the program's own message
        {
            "containerStatuses": [
                {"name": "main", "state": {"running": {}}, "lastState": state(key="terminated")[0]["state"]}
            ]
        },
        {"phase": "Failed", "containerStatuses": state()},
        {},
    ],
)
def test_what_is_no_refusal(changed: dict[str, Any]) -> None:
    assert refusal(pod(**changed)) is None


def test_a_pod_that_is_not_ours_or_goes_already_is_left() -> None:
    foreign, going = pod(containerStatuses=state()), pod(containerStatuses=state())
    foreign["spec"].pop("runtimeClassName")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert refusal(foreign) is None and refusal(going) is None


def test_a_report_of_the_node_counts_only_while_the_runtime_makes_no_container() -> None:
    assert refusal(pod(containerStatuses=state("no words")), "GH-603").code == "GH-603"  # type: ignore[union-attr]
    assert refusal(pod(containerStatuses=[{"name": "main", "state": {"running": {}}}]), "GH-603") is None
    assert refusal(pod(containerStatuses=state("no words")), "GH-999") is None


@pytest.mark.parametrize("first", ["status", "digest"])
def test_a_report_of_the_node_before_or_after_the_pod_s_status(first: str) -> None:
    """The digest of a ledger comes up to some seconds after the status, which then does not change any more."""
    evictor = Evictor(Context(None, None, set(), lambda: True, lambda: True, lambda: 0.0), None, str)  # type: ignore[arg-type]
    copy = Copy(ClusterState(), lambda: 0.0, evictor)
    refused, told = pod(containerStatuses=state("no words")), node("n1", 100)
    ledger = {"v": 1, "pods": {}, "local": [], "refused": {"u": "GH-201"}}
    told["metadata"]["annotations"]["gpu-hook.io/ledger"] = json.dumps(ledger)
    if first == "digest":
        copy.node(told)
    copy.pod(refused)
    copy.node(told)
    assert [one.code for one in evictor.refusals.waiting.values()] == ["GH-201"]
    copy.no_pod("u")
    copy.node(told)
    assert not evictor.refusals.waiting


def seen(refusals: RefusedPods, uid: str, now: float, owner: str = "rs") -> None:
    found = refusal(pod(uid, owner, containerStatuses=state()))
    assert found
    refusals.seen(found, now)


def test_a_refusal_that_passes_within_the_grace_is_forgiven() -> None:
    refusals = RefusedPods()
    seen(refusals, "u", 0)
    assert refusals.due(GRACE - 0.1) == []
    refusals.over("u")
    assert refusals.due(GRACE + 1) == [] and not refusals.waiting


def test_an_owner_s_pods_are_evicted_at_growing_intervals() -> None:
    refusals, now, waits = RefusedPods(), 0.0, []
    for n in range(12):
        seen(refusals, f"u{n}", now)
        begun = now
        while not refusals.due(now):
            now += 0.5
        waits.append(now - begun)
        refusals.evicted(refusals.due(now)[0], now)
    assert waits[0] == GRACE and waits[1] == FIRST and waits[2] == 2 * FIRST
    assert waits[-1] == MOST and waits == sorted(waits)
    now += FORGET + 1
    refusals.forget(now)
    seen(refusals, "late", now)
    assert refusals.due(now + GRACE)


def test_of_many_pods_of_one_owner_one_goes_at_a_time_and_others_do_not_wait() -> None:
    refusals = RefusedPods()
    for n in range(50):
        seen(refusals, f"u{n}", 0)
    seen(refusals, "else", 0, "other")
    assert {one.owner for one in refusals.due(GRACE)} == {"ns/rs", "ns/other"} and len(refusals.due(GRACE)) == 2


def test_a_pod_that_names_the_owner_of_another_namespace_does_not_delay_its_pods() -> None:
    refusals = RefusedPods()
    for uid, namespace in (("u", "ns"), ("v", "hostile")):
        one = pod(uid, containerStatuses=state())
        one["metadata"]["namespace"] = namespace
        found = refusal(one)
        assert found
        refusals.seen(found, 0)
    assert {one.uid for one in refusals.due(GRACE)} == {"u", "v"}


def test_a_pod_without_an_owner_is_told_once() -> None:
    refusals = RefusedPods()
    seen(refusals, "u", 0, "")
    refusals.told(refusals.due(GRACE)[0])
    seen(refusals, "u", 100, "")
    assert refusals.due(200) == []
    refusals.gone("u")
    assert not refusals._told


@pytest.mark.parametrize(
    ("text", "goes"),
    [
        ("GH-201: no room", True),
        ("GH-404: the kernel is too old", True),
        ("GH-409: another program", True),
        ("GH-603: another pod's", True),
        ("GH-402: /run is a link", False),
        ("GH-403: the container's device rules reach GPU 1", False),
        ("GH-412: too large", False),
    ],
)
def test_what_every_node_refuses_is_told_once_and_stays(text: str, goes: bool) -> None:
    """Evicted, it would be made anew without end."""
    evicted: list[str] = []
    told: list[str] = []

    class Client:
        async def post(self, path: str, body: Any) -> bytes:
            evicted.append(path)
            return b"{}"

    class Told:
        def add(self, about: Any, reason: str, words: str) -> None:
            told.append(f"{reason} {words}")

    within = Context(Client(), None, set(), lambda: True, lambda: True, lambda: 0.0)  # type: ignore[arg-type]
    evictor = Evictor(within, Told(), lambda code: None)  # type: ignore[arg-type]
    for now in (0.0, 100.0, 200.0):
        evictor.look(pod(containerStatuses=state(text)))
        for one in evictor.refusals.due(now):
            asyncio.run(evictor._deal_with(one))
    assert bool(evicted) == goes
    if not goes:
        assert len(told) == 1 and told[0].startswith(f"GpuShareRefusedPodStays {text}; not evicted, since every node")


def test_a_pod_that_named_its_node_would_name_it_again() -> None:
    one = pod(containerStatuses=state("GH-601: no decision"))
    for notes, stays in (
        ({}, False),
        ({"gpu-hook.io/asked": "1"}, True),
        ({"gpu-hook.io/asked": "1", "gpu-hook.io/alloc": "{}"}, False),
    ):
        one["metadata"]["annotations"] = notes
        found = refusal(one)
        assert found and ("nodeSelector" in found.stays) == stays
