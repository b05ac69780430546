"""A real kube-scheduler without our extender on a nearly full cluster. It chooses nodes by sums and packs, so it chooses the fullest
node that has the sum, whose GPUs have no room: the Binding is denied. Every pod that fits must get its node nevertheless."""

import random

from oci_hook.kube.answers import extender
from oci_hook.kube.formats import names
from testbed.cluster import lab
from testbed.cluster.machine import wait
from testbed.cluster.plane import PODS, Plane
from tests.cluster.test_odd_pods import objects, state_of

NODES, GPUS, MIB = 5, 4, 80_000
ODD = (7_000, 13_000, 23_000, 37_000, 50_000)


def test_a_packing_scheduler_without_extender_binds_every_pod_that_fits(plane: Plane) -> None:
    controller = plane.ready(plane.controller("--place", "binpack"))
    plane.control.use_scheduler_config({"profiles": [lab.packing(names.MEMORY, 1)]})
    for number in range(NODES):
        plane.node(f"n{number}", *[MIB] * GPUS)
    rng, left, count = random.Random(3), 0.9 * NODES * GPUS * MIB, 0
    while left > 0:
        mib = rng.choice(ODD)
        plane.create(f"p{count}", str(mib))
        left, count = left - mib, count + 1

    def settled() -> bool:
        nodes, pods = objects(plane)
        state = state_of(nodes, pods)
        waiting = [pod for pod in pods if not pod["spec"].get("nodeName")]
        listed = [node["metadata"]["name"] for node in nodes]
        return not any(extender.filter({"Pod": pod, "NodeNames": listed}, state, 0.0)["NodeNames"] for pod in waiting)

    wait(240, "every pod that fits has a node", settled, every=1)
    bound = [pod for pod in plane.pods() if pod["spec"].get("nodeName")]
    assert len(bound) > 0.9 * count
    granted = plane.granted()
    assert all(used <= MIB for used in granted.values())
    denied = sum(n for name, n in controller.figures().items() if "refusals_total" in name and 'call="bind"' in name)
    assert denied > 0, "no node misled the scheduler: this test shows nothing"
    # Who waits is gone: the nodes are as before.
    plane.api("DELETE", f"{PODS}?gracePeriodSeconds=0")

    def without_taint() -> bool:
        nodes = plane.api.get("/api/v1/nodes")["items"]
        return not any(t["key"] == names.FRAGMENTED for n in nodes for t in n["spec"].get("taints") or ())

    wait(60, "the taints are taken off", without_taint, every=1)
