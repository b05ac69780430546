"""A pod that has room by now does not wait until the scheduler looks again by itself, which takes a minute or more."""

import time

from oci_hook.kube.formats.names import ROOM
from oci_hook.kube.formats.node_info import Digest
from testbed.cluster import plain_nodes
from testbed.cluster.plane import PODS, Plane

SIZES = [16384]


def test_a_share_that_its_node_frees_late_is_used_soon(plane: Plane) -> None:
    """The pod's object goes first, which the scheduler sees; the node's ledger says only later that the share is free."""
    plane.ready(plane.controller("--extender-address", "127.0.0.1:8460"))
    plane.use_extender()
    plane.node("a", *SIZES)
    plane.create("old", "12Gi")
    uid = plane.bound("old")["metadata"]["uid"]
    plain_nodes.play_digest(plane.api, "a", SIZES, Digest(((uid, ("main",)),)))
    plane.create("new", "12Gi")
    plane.api("DELETE", f"{PODS}/old?gracePeriodSeconds=0")
    time.sleep(8)  # the scheduler has tried, and tries no more
    assert not plane.pod("new")["spec"].get("nodeName")
    plain_nodes.play_digest(plane.api, "a", SIZES, Digest())
    plane.bound("new", seconds=25)


def test_room_of_which_no_object_tells_is_used_soon(plane: Plane) -> None:
    """A deleted pod that its node's ledger never listed counts for five more seconds. The scheduler looks too early, and no object
    changes when they are over."""
    plane.ready(plane.controller("--extender-address", "127.0.0.1:8460"))
    plane.use_extender()
    plane.node("a", *SIZES)
    plane.create("old", "12Gi")
    plane.bound("old")
    plane.create("new", "12Gi")
    time.sleep(3)
    plane.api("DELETE", f"{PODS}/old?gracePeriodSeconds=0")
    plane.bound("new", seconds=40)
    assert ROOM in plane.api.get("/api/v1/nodes/a")["metadata"]["labels"]
