"""The driver is replaced under a running agent and running shares, as NVIDIA's GPU Operator does it: first everybody lets go
of it, then its kernel module is unloaded and its files go, then another one is there."""

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from testbed.boundary import ASK, DRIVER, Node
from testbed.containers import Bundle
from testbed.until import until
from tests.boundary.conftest import node as node
from tests.boundary.test_agent import Agent
from tests.boundary.test_agent import agent as agent

pytestmark = pytest.mark.root
NEW = "615.71.9"
VERSION_AT = 192  # gpu.h struct gpu_head, driver_version


def uses(node: Node, agent: Agent) -> set[str]:
    """What the agent's processes have open or mapped of the driver's libraries and of its GPUs."""
    ours = (str(node.prefix / "sim/root"), str(node.state / "sim/gpus"))
    found = set()
    top = psutil.Process(agent.process.pid)
    for pid in (each.pid for each in (top, *top.children(recursive=True))):
        maps = [line.split(maxsplit=5)[5:] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        names = [words[0] for words in maps if words]
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                names.append(os.readlink(fd))
            except FileNotFoundError:
                pass
        found |= {name for name in names if name.startswith(ours)}
    return found


class Libraries:
    """The simulated driver's files."""

    def __init__(self, node: Node) -> None:
        self.node, self.folder = node, node.library.parent
        self.away = node.folder / "away"

    def remove(self) -> None:
        shutil.move(self.folder, self.away)

    def install(self, version: str) -> None:
        """Another version's, for the same GPUs."""
        self.folder.mkdir()
        for name in ("libcuda.so", "libnvidia-ml.so"):
            [old] = [file for file in self.away.glob(f"{name}.*") if not file.is_symlink()]
            shutil.copy(old, self.folder / f"{name}.{version}")
            (self.folder / f"{name}.1").symlink_to(f"{name}.{version}")
            (self.folder / name).symlink_to(f"{name}.1")
        for gpu in (self.node.state / "sim/gpus").iterdir():
            with gpu.open("r+b") as file:
                file.seek(VERSION_AT)
                file.write(version.encode().ljust(32, b"\0"))


def works(agent: Agent) -> None:
    agent.served()
    until(lambda: "gpu_hook_nvml_read_timestamp_seconds" in agent.metrics())
    until(lambda: agent.metric("agent_problem", '"driver"') == agent.metric("agent_problem", '"inventory"') == 0)


def test_the_driver_is_replaced_under_running_shares(node: Node, bundle: Bundle, agent: Agent) -> None:
    works(agent)
    ids = [node.start(bundle(ask)) for ask in (ASK, DRIVER)]
    assert uses(node, agent)

    said = node.cli("agent", "release-driver")
    assert f"the agent, process {agent.process.pid}, keeps off the driver" in said
    assert all(id[:12] in said for id in ids), "programs in them may use the driver"
    assert uses(node, agent) == set() and agent.server() == 0
    assert agent.metric("agent_problem", '"driver"') == 1
    assert node.start(bundle(ASK)), "one that starts meanwhile gets its limit by itself"
    assert node.limits(node.cgroup(node.runc.ids[-1])) == [1024] and uses(node, agent) == set()

    libraries = Libraries(node)
    libraries.remove()
    done = node.create(bundle(ASK))
    assert done.returncode == 1 and "GH-302" in done.stderr and "is gone" in done.stderr, done
    assert node.delete(ids.pop()).returncode == 0, "one can end"
    assert [node.runtime("exec", id, "true").returncode for id in ids] == [0]
    assert uses(node, agent) == set()

    libraries.install(NEW)
    works(agent)
    assert f"GPUs found: 2, driver {NEW}" in agent.log.read_text()
    assert NEW in node.cli("gpus")
    assert {Path(name).name for name in uses(node, agent)} >= {f"libnvidia-ml.so.{NEW}"}
    assert [node.limits(node.cgroup(id)) for id in ids] == [[1024]]
    until(lambda: len(node.records()) == len(node.grants()) == 2)
    assert node.limits(node.cgroup(node.start(bundle(DRIVER)))) == [1024]
    agent.stop()


def test_it_is_taken_again_when_told(node: Node, agent: Agent) -> None:
    """The upgrade was called off. By signals as by commands, in any order."""
    works(agent)
    for _ in range(2):
        node.cli("agent", "release-driver")
        assert uses(node, agent) == set()
    node.cli("agent", "take-driver")
    works(agent)
    assert uses(node, agent)
    agent.process.send_signal(signal.SIGUSR1)
    until(lambda: agent.metric("agent_problem", '"driver"') == 1 and not uses(node, agent))
    agent.process.send_signal(signal.SIGUSR2)
    works(agent)
    agent.process.send_signal(signal.SIGUSR2)
    works(agent)
    agent.stop()
    assert node.cli("agent", "release-driver") == "no agent runs\n"
