"""The boundary's hook called for a process that is not the grant's container: that container keeps what it has."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.boundary import ASK, DRIVER, Node, Stub
from testbed.containers import Bundle

pytestmark = pytest.mark.root
SERVED = pytest.mark.parametrize("served", [True, False], ids=["server", "helper"])
ASKS = pytest.mark.parametrize("ask", [DRIVER, ASK], ids=["driver", "auto"])


def copy(node: Node, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Plain runc with a bundle that gpu-hook-runtime edited for another container."""
    return node.runtime("run", "--detach", "--bundle", str(folder), node.runc.new_id(), program="runc")


def has_all(node: Node, id: str, mib: int = 1024) -> None:
    assert node.limits(node.cgroup(id)) == [mib]
    [record], [grant] = node.records(), node.grants()
    assert (record.state, record.id, grant.who.id) == ("set", id, id)
    assert node.cgroup(id) in [path for path, _ in record.cgroups]


@ASKS
@SERVED
@pytest.mark.parametrize("cgroup", ["", "/gh-misdirected"], ids=["own cgroup", "same cgroup"])
def test_a_copy_of_a_running_container(
    node: Node, bundle: Bundle, ask: dict[str, str], served: bool, cgroup: str
) -> None:
    """It has the container's policy page mounted. It is refused, and takes neither limit nor grant."""
    if served:
        node.serve()

    def edit(spec: dict[str, Any]) -> None:
        if cgroup:
            spec["linux"]["cgroupsPath"] = f"{cgroup}-{os.getpid()}"

    folder = bundle(ask, edit=edit)
    id = node.start(folder)
    done = copy(node, folder)
    assert done.returncode != 0 and "GH-414" in done.stderr and "another container" in done.stderr, done
    has_all(node, id)
    node.runtime("delete", "--force", node.runc.ids[-1], program="runc")
    has_all(node, id)
    assert node.events("boundary-fallback") == [], "the container has its limit"
    assert node.delete(id).returncode == 0
    assert node.records() == [] and node.grants() == ()


def test_a_copy_of_a_container_without_limit(node: Node, bundle: Bundle) -> None:
    """No record names the container's cgroup; the runtime's state file shows its first process."""
    stub = Stub(node)
    stub.fault("fail set")
    folder = bundle(ASK)
    id = node.start(folder)
    [before] = node.records()
    assert before.state == "failed"
    stub.fault("")
    done = copy(node, folder)
    assert done.returncode != 0 and "another container" in done.stderr, done
    assert node.records() == [before] and [grant.who.id for grant in node.grants()] == [id] and stub.limits() == []


@ASKS
def test_the_hook_called_for_another_process(node: Node, bundle: Bundle, ask: dict[str, str]) -> None:
    id = node.start(bundle(ask))
    other = node.start(bundle({"gpu-hook.io/devices": "1", "gpu-hook.io/memory": "64Mi"}))
    key = next(grant.key for grant in node.grants() if grant.who.id == id)
    state = node.folder / "given.json"
    for pid in (os.getpid(), node.pid(other), 1 << 22):
        state.write_text(json.dumps({"ociVersion": "1.0.2", "id": id, "status": "creating", "pid": pid, "bundle": "/"}))
        program = node.prefix / "bin/gpu-hook-boundary"
        done = node.run("sh", "-c", f"exec {program} set {node.state} {key} < {state}")
        assert done.returncode != 0 and "another container" in done.stderr, done
    assert node.delete(other).returncode == 0
    has_all(node, id)
