"""Findings are answered as the policy says, again where that failed."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_hook.agent.act import enforce, facts
from oci_hook.agent.act.auditing import Auditing
from oci_hook.agent.act.response import Response
from oci_hook.agent.judge.audit_rules import Finding, TenantProcess
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watch import sampler
from oci_hook.agent.watched import Watched
from oci_hook.observe.event_log import Follower
from tests.agent.parts import grant
from tests.cli.box import Install


@pytest.mark.parametrize("wrong", [None, MemoryError, ValueError, UnicodeError, RuntimeError])
@pytest.mark.parametrize("policy", ["kill", "freeze"])
def test_first_it_acts_and_then_it_describes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str, wrong: type[Exception] | None
) -> None:
    done: list[str] = []

    def describe(pid: int) -> str:
        done.append("describe")
        if wrong:
            raise wrong
        return "somebody"

    monkeypatch.setattr(facts, "describe", describe)
    monkeypatch.setattr(enforce, "kill", lambda *_: (done.append("kill"), "")[1])
    monkeypatch.setattr(enforce, "freeze", lambda *_: (done.append("freeze"), "")[1])
    install = Install(tmp_path)
    node = NodeState(str(tmp_path), AgentOptions("none", policy=policy))
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    Response(node).answer(Finding("over-memory", "k", "GPU-0", 7, 8, "too much"))
    assert done == [policy, "describe"]
    (told,) = Follower(str(install.state), old=True).read()
    assert told["evidence"] == f"too much ({f'not described: {wrong.__name__}' if wrong else 'somebody'})"


def test_processes_that_are_slow_to_describe_hold_the_agent_up_for_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of one container or of many, at each tick; each of them once."""
    install = Install(tmp_path)
    node, asked = NodeState(str(tmp_path), AgentOptions("none")), []
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    monkeypatch.setattr(facts, "describe", lambda pid: (asked.append(pid), time.sleep(0.4), "somebody")[-1])
    response = Response(node)
    for _ in range(2):
        for pid in range(1, 9):
            for uuid in ("GPU-0", "GPU-1"):
                response.answer(Finding("no-shim", "k", uuid, pid, 8, "past it"))
        response.tick()
    assert asked == [1, 2, 3] * 2
    told = [e["evidence"] for e in Follower(str(install.state), old=True).read()]
    assert told == (["past it (somebody)"] * 6 + ["past it"] * 10) * 2


def test_one_that_cannot_be_killed_is_waited_for_once_at_each_tick(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However many of its processes are found: the next tick kills them all."""
    Install(tmp_path)
    node, hit = NodeState(str(tmp_path), AgentOptions("none", policy="kill")), []
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    monkeypatch.setattr(enforce, "kill", lambda _, others: (hit.append(others), "1 of its processes still runs")[1])
    response = Response(node)
    for pid in range(7, 10):
        response.answer(Finding("no-shim", "k", "GPU-0", pid, 8, "past it"))
    assert hit == [((7, 8),)] and not node.watched["k"].stopped
    response.tick()
    assert hit[1:] == [((7, 8), (8, 8), (9, 8))]


def test_who_was_to_be_killed_and_lives_is_killed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And is not called killed before it is gone."""
    install = Install(tmp_path)
    node = NodeState(str(tmp_path), AgentOptions("none", policy="kill"))
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    response = Response(node)
    answers = iter(["2 of its processes still run", "2 of its processes still run", "", "", "one is back", ""])
    hit: list[Any] = []
    monkeypatch.setattr(enforce, "kill", lambda _, others: (hit.append(others), next(answers))[1])
    response.answer(Finding("over-memory", "k", "GPU-0", 7, 8, "too much"))
    stopped = [node.watched["k"].stopped]
    for _ in range(5):
        response.tick()
        stopped.append(node.watched["k"].stopped)
    assert stopped == ["", "", "killed", "killed", "", "killed"] and hit == [((7, 8),)] * 6
    told = [e["action"] for e in Follower(str(install.state), old=True).read()]
    assert told == ["killed failed: 2 of its processes still run", "killed", "killed failed: one is back", "killed"]
    response.forget({"k"})
    response.tick()
    assert len(hit) == 6


def test_who_was_frozen_and_goes_on_is_watched_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who could not be frozen is frozen at the next tick, if that is still to be."""
    install = Install(tmp_path)
    node = NodeState(str(tmp_path), AgentOptions("none", policy="freeze"))
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    response, watched, finding = Response(node), node.watched["k"], Finding("over-memory", "k", "GPU-0", 0, 0, "9 MiB")
    answers, thawed = iter(["busy", "", "busy"]), iter([False, True])
    monkeypatch.setattr(enforce, "freeze", lambda _: next(answers))
    monkeypatch.setattr(enforce, "is_thawed", lambda _: next(thawed))
    watched.answered = {"GPU-0"}
    response.answer(finding)
    stopped = [watched.stopped]
    for _ in range(4):
        response.tick()
        stopped.append(watched.stopped)
    assert stopped == ["", "frozen", "frozen", "", ""] and not watched.answered and watched.resumed == 1
    response.answer(finding)
    response.clear(finding)
    response.tick()
    told = [e["action"] for e in Follower(str(install.state), old=True).read()]
    assert told == ["frozen failed: busy", "frozen", "resumed", "frozen failed: busy", "is over"]


def test_who_could_not_be_frozen_is_frozen_while_one_reason_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Install(tmp_path)
    node, tried = NodeState(str(tmp_path), AgentOptions("none", policy="freeze")), []
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    monkeypatch.setattr(enforce, "freeze", lambda _: tried.append(1) or "busy")
    first, second = (Finding(kind, "k", "GPU-0", 0, 0, "") for kind in ("over-memory", "over-compute"))
    response = Response(node)
    response.answer(first)
    response.answer(second)
    response.clear(second)
    response.tick()
    assert len(tried) == 2
    response.clear(first)
    response.tick()
    assert len(tried) == 2


@pytest.mark.parametrize("looks", [1, 3])
def test_who_harmed_others_and_could_not_be_frozen_is_left_when_that_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, looks: int
) -> None:
    """Also where the audit never had it: that takes two looks. If it harms them once more, it is answered once more."""
    Install(tmp_path)
    node, tried = NodeState(str(tmp_path), AgentOptions("none", policy="freeze")), []
    node.grants, node.watched = {"k": grant("k", "c")}, {"k": Watched()}
    monkeypatch.setattr(enforce, "freeze", lambda _: tried.append(1) or "busy")
    response, watched = Response(node), node.watched["k"]
    auditing = Auditing(
        node,
        SimpleNamespace(find=lambda _: {7: ("k", TenantProcess(7, 8, "x", 7))}),  # type: ignore[arg-type]
        SimpleNamespace(read=lambda *_: ({}, frozenset())),  # type: ignore[arg-type]
        SimpleNamespace(by_process=list, look=lambda *_: None),  # type: ignore[arg-type]
        response,
    )
    watched.answered.add("GPU-0")
    response.answer(Finding("over-memory", "k", "GPU-0", 0, 0, "too much"), harm=True)
    tries = []
    for processes in (*[((7, 2 << 30, 0),)] * looks, (), (), ()):
        auditing.audit({"GPU-0": sampler.GpuSample(2 << 30, 8 << 30, 0, processes)})
        response.tick()
        tries.append(len(tried))
    assert len(set(tries[looks - 1 :])) == 1 and not watched.answered
