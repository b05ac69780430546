import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from testbed.agent import image
from testbed.installs import Install
from testbed.stage import Stage


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory, native: Path) -> Iterator[Stage]:
    """One install with two simulated GPUs for all tests of the agent."""
    stage = Stage(tmp_path_factory.mktemp("agent"))
    yield stage
    stage.runc.close()


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with gpu-probe and the cheat."""
    return image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def stage(box: Stage) -> Iterator[Stage]:
    yield box
    box.runc.close()
    box.runc.ids.clear()
    (box.state / "events").unlink(missing_ok=True)  # one failed test shall not fail the next


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as p:
        yield p
        p.kill()


@pytest.fixture
def node(prefix: Install) -> NodeState:
    """What the agent's parts share, for an install without containers."""
    return NodeState(str(prefix.prefix), AgentOptions())
