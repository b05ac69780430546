"""Two hundred pods of odd sizes through a real kube-apiserver and kube-scheduler: all that fit get a node and GPUs, no Binding is
refused. Nodes are plain objects, so no container runs."""

import json
import random
from typing import Any

import pytest

from oci_hook.cli import explain_pod, ps_cluster
from oci_hook.kube.answers import extender
from oci_hook.kube.placing.cluster_state import ClusterState
from testbed.cluster.machine import wait
from testbed.cluster.plane import EXTENDER, Plane, always
from testbed.cluster.plane import PODS as API_PODS

NODES = {"n1": (80_000, 80_000), "n2": (40_000, 40_000, 24_000), "n3": (16_000, 16_000, 16_000, 16_000)}
SIZES = (700, 1_300, 2_300, 3_700, 5_900, 7_100)
PODS = 200


@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_every_pod_that_fits_gets_its_gpus_and_no_binding_is_refused(plane: Plane, placement: str) -> None:
    controller = plane.ready(plane.controller("--extender-address", f"127.0.0.1:{EXTENDER}", "--place", placement))
    plane.use_extender()
    for name, found in NODES.items():
        plane.node(name, *found)
    rng = random.Random(placement)
    for number in range(PODS):
        notes = rng.choice(({}, {}, {"gpu-hook.io/compute": str(rng.choice((3, 7)))}, {"gpu-hook.io/class": "offline"}))
        plane.create(f"p{number}", str(rng.choice(SIZES)), annotations=notes)

    def settled() -> bool:
        """No pod without a node fits anywhere, asked beside what all others have."""
        nodes, pods = objects(plane)
        state = state_of(nodes, pods)
        waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
        answers = [extender.filter({"Pod": pod, "NodeNames": list(NODES)}, state, 0.0) for pod in waiting]
        return not any(answer["NodeNames"] for answer in answers)

    wait(240, "every pod that fits has a node", settled)
    nodes, pods = objects(plane)
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    assert 30 < len(bound) < PODS, "some wait, since the cluster is full"
    sizes = {f"GPU-{name}-{i}": size for name, found in NODES.items() for i, size in enumerate(found)}
    granted = plane.granted()
    assert all(granted[uuid] <= sizes[uuid] for uuid in granted) and granted.keys() == sizes.keys()
    assert sum(granted.values()) > 0.9 * sum(sizes.values())
    refused = {name: n for name, n in controller.figures().items() if "refusals_total" in name and "bind" in name and n}
    assert not refused

    # What people are told agrees: of those that wait, and of those that run.
    waiting = next(pod for pod in pods if not pod["spec"].get("nodeName"))
    said = explain_pod.report(f"work/{waiting['metadata']['name']}", (nodes, pods), [])
    assert said.exit_status == 1 and said.data["problem"]["code"] == "GH-607"
    assert [node["fits"] for node in said.data["nodes"]] == [False] * len(NODES)
    listed = ps_cluster.report((nodes, pods)).data["pods"]
    assert sum(one["memory_mib"] for one in listed) == sum(granted.values())

    # One ends, and another one gets its room.
    largest = max(bound, key=lambda pod: pod["metadata"]["annotations"]["gpu-hook.io/memory"])
    always(1, settled)
    plane.api("DELETE", f"{API_PODS}/{largest['metadata']['name']}?gracePeriodSeconds=0")
    plane.create("last", "500")
    wait(120, "the scheduler has looked again", lambda: bool(plane.pod("last")["spec"].get("nodeName")))


def objects(plane: Plane) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found = [plane.api.get(path)["items"] for path in ("/api/v1/nodes", API_PODS)]
    return json.loads(json.dumps(found[0])), found[1]


def state_of(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> ClusterState:
    state = ClusterState()
    for node in nodes:
        state.apply_node(node)
    for pod in pods:
        state.apply_pod(pod)
    return state
