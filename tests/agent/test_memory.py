"""Grants that have ended leave nothing in the agent's memory."""

import os
import subprocess
import time
import tracemalloc

import pytest

from oci_hook.agent.agent import Agent
from oci_hook.agent.options import AgentOptions
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.ledger import events
from oci_hook.linux.proc import boot_id, process_life
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
EACH = 100  # bytes: less than what a key in a set takes


def test_no_part_of_the_agent_keeps_what_has_ended(prefix: Install, child: "subprocess.Popen[bytes]") -> None:
    agent = Agent(str(prefix.prefix), AgentOptions(address="none"))
    state, life = agent._node.state_dir, Life(boot_id(), process_life(child.pid))
    names = iter(range(1 << 20))

    def pass_by(count: int) -> None:
        for n in (next(names) for _ in range(count)):
            given = Grant(f"{n:032x}", Identity("/run/runc", f"{n:064x}", "/b"), life, (Share("GPU-0", 1024),), born=n)
            events.record(state, "granted", id=given.who.id, key=given.key, seconds=0.01)
            events.record(state, "changed", id=given.who.id, key=given.key, before=[["GPU-0", 1024]])
            for living in ((given,), ()):
                agent._ledger.take(living, time.monotonic())
                if n % 20 == 0:
                    agent._protection.guard.follow(state, agent._node.grants)
                    agent._response.tick()
                    agent._publisher.view()
                    agent._publisher.events()
                    agent._publisher.metrics()

    try:
        tracemalloc.start()
        pass_by(300)  # until all that has a bound is full
        before = tracemalloc.get_traced_memory()[0]
        pass_by(1000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        agent._ledger.close()
    assert agent._node.counters.ended == 1300
    assert grown < 1000 * EACH, grown
