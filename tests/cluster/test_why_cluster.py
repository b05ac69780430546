"""`why --cluster` asks a real API server, and its proposal is carried out: after it the waiting pod has a node. Nodes are plain
objects, so no container runs."""

import json
import subprocess
import sys
from typing import Any

from testbed.cluster import lab, plain_nodes
from testbed.cluster.machine import wait
from testbed.cluster.plane import EXTENDER, PODS, WORK, Plane


def why(plane: Plane, *words: str) -> dict[str, Any]:
    enter = ["nsenter", f"--target={plane.control.machine.pid}", "--net", "--"]
    config = f"--kubeconfig={plane.control.keys.folder}/admin.conf"
    command = [*enter, sys.executable, "-m", "oci_hook", "why", "--cluster", "--json", config, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1) and "warning" not in done.stderr, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def replica_set(plane: Plane, name: str, memory: str) -> None:
    made = plain_nodes.pod(name, memory, annotations={"gpu-hook.io/node-placement": "spread"}, labels={"app": name})
    template = {"metadata": {**made["metadata"], "name": None}, "spec": made["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    plane.api("POST", f"/apis/apps/v1/namespaces/{WORK}/replicasets", {"metadata": {"name": name}, "spec": spec})
    wait(120, f"a pod of {name} has a node", lambda: bool(nodes_of(plane, name)))


def nodes_of(plane: Plane, app: str) -> list[str]:
    listed = plane.api.get(f"{PODS}?labelSelector=app%3D{app}")["items"]
    return [one["spec"]["nodeName"] for one in listed if one["spec"].get("nodeName")]


def test_a_proposal_is_carried_out(plane: Plane) -> None:
    plane.ready(plane.controller("--extender-address", f"127.0.0.1:{EXTENDER}"))
    plane.use_extender()
    for name in ("n1", "n2"):
        plane.node(name, 16_000)
    replica_set(plane, "web", "6000")
    replica_set(plane, "db", "6500")
    assert sorted(nodes_of(plane, "web") + nodes_of(plane, "db")) == ["n1", "n2"]
    plane.create("big", "15000")

    found = why(plane, "--pod", f"{WORK}/big")
    (move,) = found["moves"]
    assert found["reached"] and found["proven"] and move["owner"].startswith("ReplicaSet/")
    assert why(plane, "--defrag")["free_gpus"] == {"before": 0, "after": 1}

    # A budget keeps one of the two: its status comes from the controller manager.
    budgets = f"/apis/{lab.POLICY}/namespaces/{WORK}/poddisruptionbudgets"
    selector = {"matchLabels": {"app": "web"}}
    plane.api("POST", budgets, {"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": selector}})
    found = why(plane, "--pod", f"{WORK}/big")
    (move,) = found["moves"]
    assert move["owner"] == "ReplicaSet/db" and found["place"]["node"] == nodes_of(plane, "db")[0]
    assert {"reason": "protected by a PodDisruptionBudget", "pods": 1} in found["fixed"]

    old, new = move["from"]["node"], move["to"]["node"]
    assert move["instead"] == old, "the emptier node, once the pod is gone"
    plane.api.merge(f"/api/v1/nodes/{old}", {"spec": {"unschedulable": True}})
    plane.api("DELETE", f"{PODS}/{move['pod']}?gracePeriodSeconds=0")
    wait(120, "its successor is in the new place", lambda: nodes_of(plane, "db") == [new])
    plane.api.merge(f"/api/v1/nodes/{old}", {"spec": {"unschedulable": None}})
    assert plane.bound("big", 180)["spec"]["nodeName"] == old == found["place"]["node"]
    plane.api("DELETE", f"{budgets}/keep")
