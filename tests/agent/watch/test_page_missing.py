"""Account pages that are not there."""

import os
import subprocess

import pytest

from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watch.accounts import Accounts
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.linux.proc import boot_id, process_life
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def node(prefix: Install) -> NodeState:
    return NodeState(str(prefix.prefix), AgentOptions())


def grant(pid: int, key: str = "a" * 32) -> Grant:
    who = Identity("/run/runc", key[:3], "/b")
    return Grant(key, who, Life(boot_id(), process_life(pid)), (Share("GPU-0", 1024),))


def test_a_container_without_a_page_has_no_usage(node: NodeState, child: "subprocess.Popen[bytes]") -> None:
    accounts = Accounts(node)
    starting = grant(child.pid)
    running = starting.replace(key="b" * 32, life=starting.life.replace(init=starting.life.creator))
    node.grants = {starting.key: starting, running.key: running}
    assert accounts.read(node.grants) == ({starting.key: None, running.key: None}, frozenset())
    accounts.write_surcharge(starting.key, 0, 512)
    accounts.close()
    assert not accounts.files()
