"""Account pages that are not there."""

import os
import subprocess

import pytest

from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch.accounts import Accounts
from testbed.agent import grant_of

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def test_a_container_without_a_page_has_no_usage(node: NodeState, child: "subprocess.Popen[bytes]") -> None:
    accounts = Accounts(node)
    starting = grant_of(child.pid)
    running = starting.replace(key="b" * 32, life=starting.life.replace(init=starting.life.creator))
    node.grants = {starting.key: starting, running.key: running}
    assert accounts.read(node.grants) == ({starting.key: None, running.key: None}, frozenset())
    accounts.write_surcharge(starting.key, 0, 512)
    accounts.close()
    assert not accounts.files()
