"""Findings are answered as each policy says."""

import os
import subprocess

import pytest

from oci_hook.agent.act import enforce, response
from oci_hook.agent.judge.audit_rules import Finding
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watched import Watched
from oci_hook.observe.event_log import Follower
from testbed.agent import grant_of
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.mark.parametrize(
    ("policy", "harm", "done"),
    [
        ("report", True, "reported"),
        ("protect", False, "reported"),
        ("protect", True, "killed"),
        ("freeze", False, "frozen"),
    ],
)
def test_a_finding_is_answered_by_the_policy(
    prefix: Install,
    monkeypatch: pytest.MonkeyPatch,
    child: "subprocess.Popen[bytes]",
    policy: str,
    harm: bool,
    done: str,
) -> None:
    node = NodeState(str(prefix.prefix), AgentOptions(policy=policy))
    given = grant_of(child.pid)
    node.grants, node.watched = {given.key: given}, {given.key: Watched()}
    monkeypatch.setattr(enforce, "freeze", lambda grant: "")
    monkeypatch.setattr(enforce, "kill", lambda grant, others: "")
    answers = response.Response(node)
    finding = Finding("over-memory", given.key, "GPU-0", 0, 0, "too much")
    answers.answer(finding, harm)
    answers.tick()
    answers.clear(finding)
    assert node.watched[given.key].stopped == ("" if done == "reported" else done)
    log = Follower(node.state_dir, old=True).read()
    assert [(e["event"], e["action"]) for e in log] == [("finding", done), ("finding-cleared", "is over")]
    assert node.counters.findings_total() == 1
