"""What the inventory says about the driver's limits, for each GPU."""

import json
from pathlib import Path

import pytest

from oci_hook.core.boundary import NO_CGROUP2
from oci_hook.discovery import nvml_gpus
from testbed.boundary import DRIVER, Node
from testbed.containers import Bundle

pytestmark = pytest.mark.root


def reasons(node: Node) -> list[str]:
    return [gpu["no_limits"] for gpu in json.loads((node.state / "inventory.json").read_text())["gpus"]]


@pytest.mark.parametrize("node", [{"mig": "1g.5gb,1g.2gb"}], indirect=True)
def test_mig_devices_cannot(node: Node, bundle: Bundle) -> None:
    """A share with boundary driver gets the GPU that is not split; on a MIG device it is refused with the reason."""
    found = reasons(node)
    assert ["MIG" in why for why in found] == [True, True, False] and found[2] == ""
    id = node.start(bundle({"gpu-hook.io/memory": "1Gi", "gpu-hook.io/boundary": "driver"}))
    [grant] = node.grants()
    assert [share.uuid for share in grant.shares] == [node.uuids[2]]
    assert node.limits(node.cgroup(id), node.uuids[2]) == [1024]
    refused = node.create(bundle({**DRIVER, "gpu-hook.io/devices": "0:0"}))
    assert "GH-204" in refused.stderr and "MIG" in refused.stderr
    both = node.start(bundle({"gpu-hook.io/devices": "0:0,1", "gpu-hook.io/memory": "512Mi"}))
    assert node.limits(node.cgroup(both), node.uuids[2]) == [512], "auto: on the GPU that can"


@pytest.mark.parametrize(
    ("node", "why"),
    [({"driver": "535"}, "is older than 615"), ({"driver": "580"}, "is older than 615"), ({"driver": "615.71"}, "")],
    indirect=["node"],
)
def test_drivers(node: Node, why: str) -> None:
    assert all(why in found if why else found == "" for found in reasons(node))


def test_nothing_is_left_of_the_question(node: Node) -> None:
    node.cli("gpus", "--refresh")
    done = node.run("sh", "-c", "ls -d /sys/fs/cgroup/gpu-hook-[0-9]*")
    assert done.stdout == "", done


def test_without_version_2_nobody_makes_a_cgroup() -> None:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        pytest.skip("cgroup v2 is at /sys/fs/cgroup of this machine")
    before = set(Path("/sys/fs/cgroup").iterdir())
    with nvml_gpus.any_cgroup() as asked:
        assert asked == "/sys/fs/cgroup" and set(Path("/sys/fs/cgroup").iterdir()) == before
    assert "cgroup v2" in NO_CGROUP2
