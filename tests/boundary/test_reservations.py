"""Soft limits, which the cgroups above may keep when a container's cgroup is removed: who makes them 0 before, and what is
told where nobody could."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oci_hook.boundary import limit_records, protocol
from oci_hook.boundary.nvml_limits import LimitError, NvmlLimits
from oci_hook.linux.mount import mountinfo
from testbed.boundary import ASK, Node, Stub
from testbed.containers import Bundle
from testbed.until import until
from tests.boundary.test_agent import Agent
from tests.boundary.test_agent import agent as agent

pytestmark = pytest.mark.root
LEND = {**ASK, "gpu-hook.io/memory": "2Gi", "gpu-hook.io/memory-request": "1Gi"}
BOTH = pytest.mark.parametrize(
    "node", [{"limits": "dmem"}, {"limits": "dmem-keeps"}], indirect=True, ids=["clears", "keeps"]
)
KEEPS = pytest.mark.parametrize("node", [{"limits": "dmem-keeps"}], indirect=True, ids=["keeps"])
Start = Callable[..., str]


def soft_of(library: Path, files: str, cgroup: str, uuid: str) -> int:
    nvml = NvmlLimits(str(library), (("GPU_HOOK_SIM_GPUS", files),))
    try:
        return nvml.get(uuid, cgroup).soft >> 20
    except LimitError:
        return -2


class Slice:
    """A cgroup in which containers have theirs, as a pod's or an engine's."""

    def __init__(self, node: Node, bundle: Bundle, name: str) -> None:
        self.node, self.bundle, self.name = node, bundle, name
        self.top = next(Path(m.point) for m in mountinfo() if m.fstype == "cgroup2" and m.root == "/")

    def start(self, ask: dict[str, str], below: str = "") -> str:
        def edit(spec: dict[str, Any]) -> None:
            spec["linux"]["cgroupsPath"] = f"{self.name}{below}/box{len(self.node.runc.ids)}"

        return self.node.start(self.bundle(ask, edit=edit))

    def soft(self, cgroup: str = "") -> int:
        """MiB that GPU 0 sets aside there; without a name, in this cgroup."""
        path = cgroup or f"/sys/fs/cgroup{self.name}"
        files = str(self.node.state / "sim/gpus")
        found: int = self.node.place.call(soft_of, self.node.library, files, path, self.node.uuids[0])
        return found

    def remove(self) -> None:
        for folder in sorted((self.top / self.name[1:]).rglob("*"), key=lambda path: -len(path.parts)):
            if folder.is_dir():
                folder.rmdir()
        if (self.top / self.name[1:]).exists():
            (self.top / self.name[1:]).rmdir()


@pytest.fixture
def pod(node: Node, bundle: Bundle) -> Iterator[Slice]:
    made = Slice(node, bundle, f"/gh-pod-{os.getpid()}")
    yield made
    for id in node.runc.ids:
        node.runtime("delete", "--force", id, program="runc")
    made.remove()


def left(node: Node) -> list[list[Any]]:
    return protocol.ask(str(node.state), {"do": "leaks"}, 60)["left"]  # type: ignore[no-any-return]


@BOTH
@pytest.mark.parametrize("served", [True, False], ids=["server", "helper"])
@pytest.mark.parametrize("how", ["delete", "kill"])
def test_a_soft_limit_is_0_before_its_cgroup_goes(node: Node, pod: Slice, served: bool, how: str) -> None:
    """`delete --force` of one that runs; and `kill`, after which systemd removes the cgroup before anybody deletes."""
    if served:
        node.serve()
    node.set(oversubscribe="2.0")
    id = pod.start(LEND)
    cgroup = node.cgroup(id)
    assert node.limits(cgroup) == [2048] and pod.soft(cgroup) == pod.soft() == 1024
    if how == "kill":
        assert node.runtime("kill", id, "TERM").returncode == 0
        assert node.limits(cgroup)[0] in (2048, -2), "the hard limit stays"
        assert pod.soft() == 0
        assert node.runtime("delete", "--force", id, program="runc").returncode == 0  # nobody else makes it 0
    else:
        assert node.delete(id).returncode == 0
    assert pod.soft() == 0 and node.records() == []
    assert not (node.state / "boundary/leaks").exists()


@BOTH
def test_a_node_that_does_not_lend_sets_none(node: Node, pod: Slice) -> None:
    id = pod.start(ASK)
    assert node.limits(node.cgroup(id)) == [1024] and pod.soft() == 0
    assert node.delete(id).returncode == 0 and pod.soft() == 0


@BOTH
def test_what_is_left_is_told(node: Node, pod: Slice, request: pytest.FixtureRequest) -> None:
    """Its runtime is called without us, as for a container that ends by itself on systemd, or that `runc run` runs."""
    node.serve()
    node.set(oversubscribe="2.0")
    lives, first, second = pod.start(LEND), pod.start(LEND), pod.start(LEND, "/deeper")
    for id in (first, second):
        assert node.runtime("delete", "--force", id, program="runc").returncode == 0
    (pod.top / pod.name[1:] / "deeper").rmdir()
    keeps = "keeps" in request.node.callspec.id
    assert pod.soft() == (3072 if keeps else 1024)
    where = f"/sys/fs/cgroup{pod.name}"
    assert left(node) == ([[node.uuids[0], where, 2 << 30]] if keeps else [])
    said = node.cli("doctor", status=1)
    told = f"the driver still sets 2048 MiB of GPU 0 aside at {where} for containers that have ended"
    assert (told in " ".join(said.split())) == keeps, said
    assert node.delete(lives).returncode == 0
    assert left(node) == ([[node.uuids[0], where, 2 << 30]] if keeps else [])
    assert (node.state / "boundary/leaks").exists() == keeps


@KEEPS
def test_one_that_lives_on_gets_its_soft_limit_back(node: Node, pod: Slice) -> None:
    """A signal that its program handles; and a `delete` that the runtime refuses."""
    node.set(oversubscribe="2.0")
    id = pod.start(LEND)
    node.runtime("delete", id)
    [record] = node.records()
    assert pod.soft() == 0 and record.state == "set" and record.ending
    node.serve()
    request = {"do": "check", "grant": record.key}
    assert protocol.ask(str(node.state), request, 60) == {"ok": True, "repaired": False}
    limit_records.write(str(node.state), record.replace(ending=1))
    assert protocol.ask(str(node.state), request, 60) == {"ok": True, "repaired": True}
    assert pod.soft() == 1024 and node.limits(node.cgroup(id)) == [2048]
    assert protocol.ask(str(node.state), request, 60) == {"ok": True, "repaired": False}


@KEEPS
def test_a_node_begins_to_lend_and_ends_it(node: Node, pod: Slice) -> None:
    node.serve()
    id = pod.start(ASK)
    [record] = node.records()
    request = {"do": "check", "grant": record.key}
    for lends, soft in (("2.0", 1024), ("1.0", 0)):
        node.set(oversubscribe=lends)
        assert "cut off" not in node.cli("ps")
        assert protocol.ask(str(node.state), request, 60)["repaired"] is True
        assert pod.soft() == soft and node.limits(node.cgroup(id)) == [1024]


@KEEPS
def test_the_agent_clears_what_ended_by_itself(node: Node, pod: Slice, agent: Agent) -> None:
    """Without systemd the cgroup is there until the runtime deletes the container."""
    agent.served()
    node.set(oversubscribe="2.0")
    id = pod.start(LEND)
    assert pod.soft() == 1024
    os.kill(node.pid(id), 9)
    until(lambda: not node.records())
    assert pod.soft() == 0
    assert node.delete(id).returncode == 0 and pod.soft() == 0


@KEEPS
def test_of_two_cgroups_only_the_lower_one_has_a_soft_limit(node: Node, pod: Slice) -> None:
    """As crun makes them. The driver adds it to the upper one's, which is then not what was set there."""
    node.serve()
    node.set(oversubscribe="2.0")
    id = pod.start(LEND)
    [record] = node.records()
    upper = f"/sys/fs/cgroup{pod.name}"
    inode = (pod.top / pod.name[1:]).stat().st_ino
    limit_records.write(str(node.state), record.replace(cgroups=((upper, inode), *record.cgroups)))
    request = {"do": "check", "grant": record.key}
    assert [protocol.ask(str(node.state), request, 60)["repaired"] for _ in range(3)] == [True, False, False]
    assert node.limits(upper) == node.limits(node.cgroup(id)) == [2048] and pod.soft() == 1024
    assert node.delete(id).returncode == 0
    assert pod.soft() == 0 and node.limits(upper) == [-1] and node.records() == []


def test_a_hung_driver_holds_up_one_end(node: Node, bundle: Bundle) -> None:
    """The runtime's kill is called all the same, and the next ones do not wait."""
    stub = Stub(node)
    node.set(oversubscribe="2.0")
    id = node.start(bundle(LEND))
    stub.fault("hang set")
    assert node.runtime("kill", id, "WINCH").returncode == 0
    assert (node.state / "boundary/hung").exists()
    [record] = node.records()
    assert record.reserves and stub.calls()[-1] == "set"
    before = len(stub.calls())
    assert node.runtime("kill", id, "WINCH").returncode == 0 and len(stub.calls()) == before
    stub.fault("")
    assert node.delete(id).returncode == 0 and node.records() == []
