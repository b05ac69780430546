"""Containers that end, and a ledger that cannot be read."""

import os
import selectors
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from oci_hook.agent.act import enforce, response
from oci_hook.agent.judge.audit_rules import Finding
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watch.ledger_watch import LedgerWatch
from oci_hook.ledger import store
from oci_hook.linux.proc import process_life
from oci_hook.observe.event_log import Follower
from testbed.agent import grant_of
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def test_an_end_is_noticed_at_once(node: NodeState, child: "subprocess.Popen[bytes]") -> None:
    with selectors.DefaultSelector() as selector:
        ended: list[set[str]] = []
        watch = LedgerWatch(node, selector, ended.append)
        given = grant_of(child.pid)
        with store.open_ledger(node.state_dir) as ledger:
            ledger.put(given, bytes(4096))
        watch.tick(time.monotonic())
        assert list(node.grants) == list(node.watched) == [given.key] and watch.read_at and not watch.due
        child.kill()
        deadline = time.monotonic() + 120
        while node.grants and time.monotonic() < deadline:
            for key, _ in selector.select(0.1):
                key.data(time.monotonic())
            if watch.due and time.monotonic() >= watch.due:
                watch.read(time.monotonic())
        assert not node.grants and not node.watched and ended[-1] == {given.key}
        assert node.counters.ended == 1
        assert [e["event"] for e in Follower(node.state_dir, old=True).read()] == ["ended"]
        watch.close()


def test_one_whose_share_was_released_by_force_has_not_ended(node: NodeState, child: "subprocess.Popen[bytes]") -> None:
    given = grant_of(child.pid)
    given = given.replace(life=given.life.replace(init=process_life(child.pid)))
    with selectors.DefaultSelector() as selector:
        watch = LedgerWatch(node, selector, lambda ended: None)
        watch.take((given,), time.monotonic())
        watch.take((), time.monotonic())
        assert not node.grants and not Follower(node.state_dir, old=True).read()
        watch.close()


def test_a_new_container_of_the_same_id_is_not_the_one_that_was_killed(
    prefix: Install, monkeypatch: pytest.MonkeyPatch, child: "subprocess.Popen[bytes]"
) -> None:
    node = NodeState(str(prefix.prefix), AgentOptions(policy="kill"))
    hit: list[str] = []
    monkeypatch.setattr(enforce, "kill", lambda grant, others: (hit.append(grant.key), "")[1])
    answers, ended, given = response.Response(node), [], grant_of(child.pid).replace(born=1)
    with selectors.DefaultSelector() as selector:
        watch = LedgerWatch(node, selector, ended.append)
        watch.take((given,), time.monotonic())
        answers.answer(Finding("over-memory", given.key, "GPU-0", 0, 0, "too much"))
        assert node.watched[given.key].stopped == "killed"
        watch.take((given.replace(born=2),), time.monotonic())
        assert ended == [set(), {given.key}] and not node.watched[given.key].stopped and node.counters.ended == 1
        assert Follower(node.state_dir, old=True).read()[-1]["event"] == "ended"
        answers.forget(ended[-1])
        answers.tick()
        assert len(hit) == 1
        watch.close()


def test_a_ledger_that_cannot_be_read_is_a_problem_until_it_can(node: NodeState) -> None:
    with selectors.DefaultSelector() as selector:
        watch = LedgerWatch(node, selector, lambda ended: None)
        watch.tick(time.monotonic())
        damaged = Path(node.state_dir, "ledger", "0" * 32 + ".json")
        damaged.write_text("x")
        watch.read(time.monotonic(), sweep=True)
        assert "GH-303" in node.problems["ledger"]
        damaged.unlink()
        watch.read(time.monotonic() + 1, sweep=True)
        assert not node.problems
        watch.close()


def test_a_ledger_whose_folder_is_none_is_a_problem(node: NodeState) -> None:
    with selectors.DefaultSelector() as selector:
        watch = LedgerWatch(node, selector, lambda ended: None)
        watch.tick(time.monotonic())
        folder = Path(node.state_dir, "ledger")
        shutil.rmtree(folder)
        folder.write_text("")
        watch.read(time.monotonic() + 1)
        assert "Not a directory" in node.problems["ledger"]
        watch.close()


def test_the_ledger_says_when_a_container_was_moved(node: NodeState, child: "subprocess.Popen[bytes]") -> None:
    """Also where both ways are over before the next look at the GPUs."""
    with selectors.DefaultSelector() as selector:
        watch = LedgerWatch(node, selector, lambda ended: None)
        given = grant_of(child.pid)
        away = given.replace(suspended=7)
        told = []
        for now, state in enumerate((given, given, given.replace(moving=7), away, away, given, given)):
            watch.take((state,), float(now))
            told.append(node.watched[given.key].moved)
        assert told == [float("-inf"), float("-inf"), 2, 3, 3, 5, 5]
        watch.close()
