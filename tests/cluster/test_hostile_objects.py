"""What a tenant can write into its own objects must not end or stop the controller. Real API server; nodes are plain objects."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.cluster import plain_nodes
from testbed.cluster.machine import wait
from testbed.cluster.plane import Plane, answers

ELSEWHERE = "/api/v1/namespaces/default/pods"  # our webhooks are not asked there
DEEP = 1500  # json.loads and msgspec refuse some 1000 levels


@pytest.fixture
def deep_json() -> Iterator[None]:
    """This process may write and read it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * DEEP)
    yield
    sys.setrecursionlimit(before)


def deep_fields(levels: int) -> Any:
    fields: dict[str, Any] = {}
    for _ in range(levels):
        fields = {"f:a": fields}
    return fields


def test_the_controller_outlives_a_pod_with_deep_managed_fields(plane: Plane, deep_json: None) -> None:
    wait(60, "the service account", lambda: answers(plane.api, "/api/v1/namespaces/default/serviceaccounts/default"))
    controller = plane.ready(plane.controller())
    plane.node("n1", 16000)
    made = plain_nodes.pod("deep")
    made["metadata"]["managedFields"] = [
        {
            "manager": "tenant",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z",
            "fieldsV1": deep_fields(DEEP),
        }
    ]
    kept = json.dumps(plane.api("POST", ELSEWHERE, made)).count("f:a")
    assert kept >= DEEP  # else this API server does not show what this is about
    plane.create("p", "4Gi")
    plane.bound("p")
    assert controller.ready()
    plane.api("DELETE", f"{ELSEWHERE}/deep?gracePeriodSeconds=0")
