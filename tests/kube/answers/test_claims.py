"""What `explain --pod` says of a pod with claims, by the objects alone."""

from typing import Any

import pytest

from oci_hook.cli.explain_pod import lines
from oci_hook.errors import RequestError
from oci_hook.kube.answers.claims import ClaimObjects, explain, holders, wants
from oci_hook.kube.answers.explain import Explanation
from oci_hook.kube.dra.allocation import asked
from oci_hook.kube.dra.kubelet_messages import ClaimName
from oci_hook.kube.formats import slices
from oci_hook.kube.formats.claim_words import DRIVER, SHARE_CLASS
from oci_hook.kube.pod.asked import words
from testbed.installs import MEMORY_MIB
from tests.kube.dra.node import NODE, result
from tests.kube.dra.test_allocation import INVENTORY, Rules

PLAIN = Rules()
OTHERS, ILL = (slices.OTHERS, "NoSchedule"), ("example.com/ill", "NoExecute")
POD: Any = {
    "metadata": {"uid": "1-1", "namespace": "default", "name": "p1"},
    "spec": {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "c1"}]},
}


def said(
    *requests: dict[str, Any],
    rules: Rules = PLAIN,
    others: tuple[dict[str, Any], ...] = (),
    taints: tuple[dict[str, Any], ...] = (),
    status: Any = None,
) -> Explanation:
    """By a node with the two GPUs of INVENTORY, of which others' claims have parts."""
    pool = {"name": NODE, "generation": 1}
    devices = [{**device, "taints": taints} for device in slices.devices(INVENTORY, rules, (), {})]
    one = {"spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices}}
    claim = {
        "metadata": {"namespace": "default", "name": "c1"},
        "spec": {"devices": {"requests": list(requests)}},
        "status": status,
    }
    found = explain(words(POD), POD, ClaimObjects((claim, *others), (one,)))
    assert found is not None
    return found


def ask(memory_mib: int, of: str = SHARE_CLASS, **more: Any) -> dict[str, Any]:
    return {"deviceClassName": of, "capacity": {"requests": {"memory": f"{memory_mib}Mi"}}, **more}


@pytest.mark.parametrize(
    ("choices", "given"),
    [
        ([ask(MEMORY_MIB + 1), ask(MEMORY_MIB)], MEMORY_MIB),
        ([ask(MEMORY_MIB), ask(1024)], MEMORY_MIB),
        ([ask(1024, count=3), ask(1024, of="others"), ask(512, count=2)], 512),
        ([ask(MEMORY_MIB + 1), ask(1024, count=3)], 0),
    ],
)
def test_of_first_available_any_one_that_fits_is_enough(choices: list[dict[str, Any]], given: int) -> None:
    found = said({"name": "gpu", "firstAvailable": choices})
    (node,) = found.nodes
    assert node.fits == bool(given) and not found.suggestions
    asked = {line for gpu in node.gpus for line in gpu.given}
    assert asked == ({f"c1: {given} MiB"} if given else set())


def test_the_next_request_has_the_room_that_the_chosen_one_leaves() -> None:
    first = {"name": "a", "firstAvailable": [ask(MEMORY_MIB + 1), ask(MEMORY_MIB, count=2)]}
    assert said(first).nodes[0].fits and not said(first, {"name": "b", "exactly": ask(1)}).nodes[0].fits


def test_a_gpu_with_as_many_claims_as_may_share_it_has_no_room() -> None:
    small = [
        {"metadata": {"name": f"s{gpu}"}, "status": {"allocation": {"devices": {"results": [result("64Mi", gpu=gpu)]}}}}
        for gpu in (0, 1)
    ]
    ask_one = {"name": "gpu", "exactly": ask(64)}
    (node,) = said(ask_one, rules=Rules(max_shares_per_gpu=1), others=(small[0],)).nodes
    assert [gpu.note for gpu in node.gpus] == ["as many claims as may share it have parts of it", ""] and node.gpus[
        1
    ].given
    found = said(ask_one, rules=Rules(max_shares_per_gpu=1), others=tuple(small))
    assert not found.nodes[0].fits and not found.suggestions


def test_who_only_looks_at_a_gpu_takes_nothing_of_it() -> None:
    """adminAccess: Kubernetes' scheduler does not count it."""
    results = [{**result("0", gpu=gpu), "adminAccess": True, "consumedCapacity": None} for gpu in (0, 1)]
    watcher = {"metadata": {"name": "w"}, "status": {"allocation": {"devices": {"results": results}}}}
    found = said({"name": "gpu", "exactly": ask(MEMORY_MIB, count=2)}, others=(watcher,))
    assert found.nodes[0].fits and holders(ClaimObjects((watcher,))) == ()


@pytest.mark.parametrize("node", ["", NODE])
def test_a_claim_with_admin_access_is_told_what_the_driver_tells(node: str) -> None:
    """Kubernetes' scheduler has room for it, whatever others hold, and the driver refuses it."""
    request = {"name": "gpu", "exactly": ask(1024, adminAccess=True)}
    claim = {
        "metadata": {"namespace": "default", "name": "c1", "uid": "u"},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [{**result("1Gi"), "adminAccess": True}]}}},
    }
    pod = {**POD, "spec": {**POD["spec"], "nodeName": node}}
    found = explain(words(pod), pod, ClaimObjects((claim,)))
    assert found is not None and (found.node, found.nodes, found.suggestions) == (node, (), ())
    with pytest.raises(RequestError) as refusal:
        asked(claim, ClaimName("default", "u", "c1"), NODE, INVENTORY, PLAIN)
    assert lines(found) == [f"pod default/p1 waits: {refusal.value}"]


def test_a_claim_for_all_gpus_needs_each_of_the_node() -> None:
    every = {"name": "gpu", "exactly": ask(MEMORY_MIB, allocationMode="All")}
    taken = {"metadata": {"name": "s"}, "status": {"allocation": {"devices": {"results": [result("64Mi", gpu=1)]}}}}
    (node,) = said(every).nodes
    assert node.fits and all(gpu.given for gpu in node.gpus)
    (node,) = said(every, others=(taken,)).nodes
    assert not node.fits and "1 of its GPUs have room" in str(node.why) and "and 2 asked for" in str(node.why)


def a_class(name: str, cel: str = "", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": cel}}], **spec}}


@pytest.mark.parametrize(
    ("one", "ours"),
    [
        (a_class("a", "device.driver == 'gpu-hook.io' && true"), True),
        (a_class("a", 'device.driver=="gpu-hook.io"'), True),
        (a_class("a", config=[{"opaque": {"driver": DRIVER, "parameters": {}}}]), True),
        (a_class("a", "device.driver != 'gpu-hook.io'"), False),
        (a_class("a", "device.driver == 'nic'", config=[{"opaque": {"driver": "nic", "parameters": DRIVER}}]), False),
        ({"metadata": {"name": "a"}, "spec": {}}, False),
    ],
)
def test_a_class_is_ours_by_its_driver(one: dict[str, Any], ours: bool) -> None:
    claim = {
        "metadata": {"namespace": "default", "name": "c1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": ask(1, of="a")}]}},
    }
    assert bool(wants(POD, ClaimObjects((claim,), (), (one,)))) == ours


def test_taints_keep_off_whom_they_keep_off() -> None:
    ours, ill, told = ({"key": key, "effect": effect} for key, effect in (OTHERS, ILL, (f"{DRIVER}/told", "None")))
    tolerates = [{"key": ILL[0], "operator": "Exists"}]
    for taint, tolerations, fits, note in (
        (ours, [], False, "a container without a claim has a part of it"),
        (ours, tolerates, False, "a container without a claim has a part of it"),
        (ours, [{"operator": "Exists"}], True, "a container without a claim has a part of it"),
        (ill, [], False, "it has the taint example.com/ill"),
        (ill, tolerates, True, "it has the taint example.com/ill"),
        (told, [], True, ""),
    ):
        found = said({"name": "gpu", "exactly": ask(1, tolerations=tolerations)}, taints=(taint,))
        assert (found.nodes[0].fits, {gpu.note for gpu in found.nodes[0].gpus}) == (fits, {note}), taint


def test_a_claim_that_is_allocated_is_not_asked_for_again() -> None:
    """As of a pod that waits for something else beside: its scheduler keeps the allocation."""
    held = {"allocation": {"devices": {"results": [result(f"{MEMORY_MIB}Mi")]}}}
    every = {"name": "gpu", "exactly": ask(MEMORY_MIB)}
    found = said(every, status=held)
    (node,) = found.nodes
    assert node.fits and not any(gpu.given for gpu in node.gpus) and not found.suggestions
    assert "its claim c1 is allocated on node n1; only that node can have it" in str(found.problem)
    elsewhere = {"allocation": {"devices": {"results": [{**result(), "pool": "n2"}]}}}
    found = said(every, status=elsewhere)
    assert not found.nodes and "its claim c1 is allocated on node n2" in str(found.problem)
