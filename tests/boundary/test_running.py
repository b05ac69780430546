"""The driver's limit of containers that run: `set`, `release`, `uninstall`, and a move of the state directory."""

import json
import shutil

import pytest

from oci_hook.boundary import limit_records
from testbed.boundary import ASK, Node, Stub
from testbed.containers import Bundle

pytestmark = pytest.mark.root
SERVED = pytest.mark.parametrize("served", [True, False], ids=["server", "helper"])


def shares(node: Node) -> list[int]:
    return [share.memory_mib for grant in node.grants() for share in grant.shares]


@SERVED
def test_set_changes_the_drivers_limit(node: Node, bundle: Bundle, served: bool) -> None:
    if served:
        node.serve()
    id = node.start(bundle(ASK))
    cgroup = node.cgroup(id)
    for mib in (3072, 512, 512, 1024):
        said = json.loads(node.cli("set", id, "--memory", f"{mib}Mi", "--json"))
        assert said["in_effect"] is True
        assert node.limits(cgroup) == [mib] and shares(node) == [mib]
    node.cli("set", id, "--class", "offline")
    assert node.limits(cgroup) == [1024]
    [record] = node.records()
    assert record.state == "set" and record.limits[0].hard == 1 << 30


@pytest.mark.parametrize("state", [limit_records.SET, limit_records.SETTING])
def test_ps_shows_a_set_that_was_cut_off(node: Node, bundle: Bundle, state: str) -> None:
    """Killed after the driver had the larger limit, or while it got it; the ledger has the former one."""
    id = node.start(bundle(ASK))
    assert "cut off" not in node.cli("ps")
    [record] = node.records()
    larger = tuple(limit.replace(soft=3 << 30, hard=3 << 30) for limit in record.limits)
    limit_records.write(str(node.state), record.replace(limits=larger, state=state))
    assert "the driver's memory limit is 3072 MiB, the ledger's 1024 MiB: a change was cut off" in node.cli("ps")
    [container] = json.loads(node.cli("ps", "--json"))["containers"]
    assert container["boundary"] == "driver" and not container["boundary_failed"]
    node.cli("set", id, "--memory", "1Gi")
    assert "cut off" not in node.cli("ps") and node.limits(node.cgroup(id)) == [1024]


def test_set_changes_each_gpu(node: Node, bundle: Bundle) -> None:
    """One GPU's limit becomes larger and the other's smaller."""
    ask = {"gpu-hook.io/request": json.dumps([{"memory": "1Gi"}, {"memory": "3Gi"}])}
    id = node.start(bundle(ask))
    [grant] = node.grants()
    node.cli("set", id, "--memory", "2Gi")
    assert node.limits(node.cgroup(id), *[share.uuid for share in grant.shares]) == [2048, 2048]


@SERVED
def test_a_larger_limit_that_the_driver_refuses(node: Node, bundle: Bundle, served: bool) -> None:
    """Nothing is changed."""
    stub = Stub(node)
    if served:
        node.serve()
    id = node.start(bundle(ASK))
    stub.fault("fail set")
    said = node.cli("set", id, "--memory", "3Gi", status=1)
    assert "GH-414" in said and "the former one is in effect" in said
    assert shares(node) == [1024] and stub.limits() == [f"{node.uuids[0]} 1024"]
    stub.fault("")
    node.cli("set", id, "--memory", "3Gi")
    assert shares(node) == [3072] and stub.limits() == [f"{node.uuids[0]} 3072"]


@SERVED
def test_a_smaller_limit_that_the_driver_refuses(node: Node, bundle: Bundle, served: bool) -> None:
    """The shim has it, the driver keeps the larger one, and the command says so; a second one makes it right."""
    stub = Stub(node)
    if served:
        node.serve()
    id = node.start(bundle(ASK))
    stub.fault("fail set")
    said = json.loads(node.cli("set", id, "--memory", "512Mi", "--json", status=3))
    assert said["in_effect"] is False and shares(node) == [512]
    assert stub.limits() == [f"{node.uuids[0]} 1024"]
    stub.fault("")
    node.cli("set", id, "--memory", "512Mi")
    assert stub.limits() == [f"{node.uuids[0]} 512"]


def test_a_larger_limit_that_has_no_room(node: Node, bundle: Bundle) -> None:
    id = node.start(bundle(ASK))
    node.start(bundle({**ASK, "gpu-hook.io/memory": "6Gi"}))
    assert "GH-201" in node.cli("set", id, "--memory", "4Gi", status=1)
    assert node.limits(node.cgroup(id)) == [1024]


def test_a_released_grant_has_no_limit(node: Node, bundle: Bundle) -> None:
    id = node.start(bundle(ASK))
    cgroup = node.cgroup(id)
    node.cli("release", "--force", id)
    assert node.limits(cgroup) == [-1] and node.records() == []


def test_an_uninstall_leaves_no_limit(node: Node, bundle: Bundle) -> None:
    stub = Stub(node)
    node.start(bundle(ASK))
    assert len(stub.limits()) == 1
    node.cli("uninstall", "--force")
    assert stub.limits() == [] and not (node.state / "boundary").exists()


def test_a_moved_state_directory_leaves_no_limit(node: Node, bundle: Bundle) -> None:
    """The container ended while nobody could clear its limit."""
    stub = Stub(node)
    id = node.start(bundle(ASK))
    stub.fault("fail set")
    node.delete(id)
    assert len(stub.limits()) == 1 and len(node.records()) == 1
    new = node.folder / "other"
    said = node.cli("settings", "set", f"state_dir={new}", status=1)
    assert "GH-504" in said and "memory limit" in said
    stub.fault("")
    node.cli("settings", "set", f"state_dir={new}")
    assert stub.limits() == [] and not (node.state / "boundary").exists()
    shutil.rmtree(new, ignore_errors=True)


@SERVED
def test_set_of_a_container_that_fell_back(node: Node, bundle: Bundle, served: bool) -> None:
    """It says that the driver has no limit, and sets it where it can."""
    stub = Stub(node)
    if served:
        node.serve()
    stub.fault("fail set")
    id = node.start(bundle(ASK))
    said = node.cli("set", id, "--memory", "2Gi")
    assert "the driver has none for this container: setting the limit" in said and shares(node) == [2048]
    stub.fault("")
    assert "the driver has none" not in node.cli("set", id, "--memory", "3Gi")
    assert stub.limits() == [f"{node.uuids[0]} 3072"]
