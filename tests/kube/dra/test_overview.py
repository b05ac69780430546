"""What `explain --pod` says of a pod with claims, by the objects alone."""

from typing import Any

import pytest

from oci_hook.kube.answers.explain import Explanation
from oci_hook.kube.dra import slices
from oci_hook.kube.dra.overview import ClaimObjects, explain
from oci_hook.kube.formats.claim_words import DRIVER, SHARE_CLASS
from oci_hook.kube.pod.asked import words
from tests.conftest import MEMORY_MIB
from tests.kube.dra.node import NODE
from tests.kube.dra.test_pure import INVENTORY, Rules

POD = {
    "metadata": {"uid": "1-1", "namespace": "default", "name": "p1"},
    "spec": {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "c1"}]},
}


def said(*requests: dict[str, Any]) -> Explanation:
    """By a node with the two GPUs of INVENTORY, all of them free."""
    pool = {"name": NODE, "generation": 1}
    devices = slices.devices(INVENTORY, Rules(), (), {})
    one = {"spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices}}
    claim = {"metadata": {"namespace": "default", "name": "c1"}, "spec": {"devices": {"requests": list(requests)}}}
    found = explain(words(POD), POD, ClaimObjects((claim,), (one,)))
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
