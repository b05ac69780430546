"""The agent beside containers that are suspended, with no more rights than its unit gives it."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from oci_hook.agent.act import enforce, moving
from oci_hook.agent.act.moving import Moving
from oci_hook.agent.act.response import Response
from oci_hook.agent.judge.audit_rules import Finding, Verdict
from oci_hook.agent.judge.turns import LentTenant, MemoryMove
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watch.child import Child
from oci_hook.agent.watched import Watched
from oci_hook.cli.main import cli
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.layout import PAGES_DIR
from oci_hook.core.units import MIB
from oci_hook.errors import GhError, Problem
from oci_hook.linux.proc import process_life
from oci_hook.observe.account import PageFigures
from oci_hook.suspend import __main__ as moves
from oci_hook.suspend import gpu_processes, hold
from oci_hook.suspend.hold import CANNOT, NO_ROOM, Hold, cut_off
from testbed import REPO
from testbed.agent import events, grant, running
from testbed.stage import CONTEXT_MIB, SHARE, Stage
from testbed.until import until
from tests.cli.box import Install
from tests.e2e.test_suspend import CRASH

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def gpu_hook(stage: Stage, *words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--prefix", str(stage.prefix)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_it_ends_what_a_crash_has_cut_off(stage: Stage, root: Path) -> None:
    id = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=SHARE)
    found = grant(stage, id)
    assert found
    until(lambda: stage.used_mib() == 300 + CONTEXT_MIB)
    command = [sys.executable, "-c", CRASH, str(stage.prefix), found.key, "sent", "suspend"]
    assert subprocess.run(command, cwd=REPO).returncode == -signal.SIGKILL
    assert stage.used_mib() == 0
    with running(stage) as agent:
        until(lambda: (now := grant(stage, id)) and not now.off_gpu)
        assert stage.used_mib() == 300 + CONTEXT_MIB
        (told,) = until(lambda: [e for e in events(stage) if e["event"] == "resumed"])  # after the ledger
        assert told["cut_off"]
        until(lambda: not agent.node()["agent"]["problems"])


def test_it_shows_who_is_suspended(stage: Stage, root: Path) -> None:
    id = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=SHARE)
    with running(stage) as agent:
        until(lambda: stage.used_mib() == 300 + CONTEXT_MIB)
        gpu_hook(stage, "suspend", id)
        until(lambda: agent.container(id)["state"] == "suspended")
        agent.looks(3)
        seen = agent.container(id)
        assert seen["suspended_since"] and seen["host_mib"] >= 300 and not seen["findings"]
        assert seen["gpus"][0]["used_mib"] == 0 and agent.node()["gpus"][0]["granted_mib"] == 0
        text = agent.get("/metrics").decode()
        assert "gpu_hook_container_suspended_memory_bytes{" in text and 'state="suspended"' in text
        node = json.loads(gpu_hook(stage, "top", "--json"))
        assert [c["state"] for c in node["containers"]] == ["suspended"]
        assert "suspended" in gpu_hook(stage, "top", "--once") and "host's memory" in gpu_hook(stage, "why", id)
        gpu_hook(stage, "resume", id)
        until(lambda: agent.container(id)["state"] == "running")
        agent.looks(3)
        assert not agent.container(id)["findings"] and agent.container(id)["gpus"][0]["used_mib"] >= 300


def suspended_by_a_person(stage: Stage, root: Path) -> Grant:
    """The grant as a look at the ledger saw it while it was under way."""
    id = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=SHARE)
    until(lambda: stage.used_mib() == 300 + CONTEXT_MIB)
    gpu_hook(stage, "suspend", id)
    found = grant(stage, id)
    assert found and found.suspended
    return found.replace(suspended=0, moving=found.suspended)


def test_a_move_that_ended_since_the_ledger_was_read_is_not_cut_off(stage: Stage, root: Path) -> None:
    seen = suspended_by_a_person(stage, root)
    assert not cut_off(str(stage.state), seen)
    gpu_hook(stage, "resume", seen.who.id)
    assert not cut_off(str(stage.state), seen)
    stage.runc("delete", "--force", seen.who.id, program=stage.program)
    assert not cut_off(str(stage.state), seen)


def test_a_look_of_the_agent_keeps_no_command_from_moving_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has the lock while it asks the ledger. Where another command has it, that is said soon."""
    told = Grant("k", Identity("/run", "a", "/b"), Life(""), (), moving=7)
    (tmp_path / PAGES_DIR / "k").mkdir(parents=True)
    monkeypatch.setattr(hold.store, "snapshot", lambda _: (told,))
    settings, held = SimpleNamespace(state_dir=str(tmp_path)), []

    def command() -> None:
        with Hold(settings, "k"):  # type: ignore[arg-type]
            held.append(True)
            with pytest.raises(GhError, match="GH-411.*by another command"), Hold(settings, "k"):  # type: ignore[arg-type]
                pass

    def read(*_: object) -> Grant:
        thread.start()
        thread.join(0.1)
        held.append(False)
        return told

    thread = threading.Thread(target=command)
    monkeypatch.setattr(hold.grant_file, "read", read)
    assert cut_off(str(tmp_path), told)
    thread.join()
    assert held == [False, True]


@pytest.mark.parametrize("lent", [False, True])
def test_what_a_person_suspends_before_the_agents_program_runs_stays_so(
    stage: Stage, root: Path, monkeypatch: pytest.MonkeyPatch, lent: bool
) -> None:
    """The agent was right when it looked. lent: it was to come back from being away for another one."""
    seen, node = suspended_by_a_person(stage, root), NodeState(str(stage.prefix), AgentOptions())
    node.grants = {seen.key: seen}
    watch = Moving(node, *[None] * 3)  # type: ignore[arg-type]
    if lent:
        watch._ends[seen.key] = Child(moving.PROGRAM, 1.0, 1.0)
        watch._ends[seen.key].start(0.0, "resume", node.prefix, seen.key)
    else:
        monkeypatch.setattr(moving, "cut_off", lambda *_: True)
        watch.tick(0.0)
    until(lambda: watch._ends[seen.key].status() is not None)
    assert watch._ends[seen.key].status() == 0
    watch.stop()
    now = grant(stage, seen.who.id)
    assert now and now.suspended and not now.moving and stage.used_mib() == 0
    assert not [e for e in events(stage) if e["event"] == "resumed"]


def test_one_that_cannot_be_ended_keeps_no_other_one_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its turn, and not by its waits, which grow with each failure."""
    grants = {key: Grant(key, Identity("/run", key, "/b"), Life(""), (), moving=7) for key in "bac"}
    node = SimpleNamespace(grants=grants, state_dir="", prefix="", problem=lambda *_: None, granted_gpus=set)
    watch = Moving(node, *[None] * 3)  # type: ignore[arg-type]
    monkeypatch.setattr(moving, "cut_off", lambda *_: True)
    tried: list[tuple[str, float]] = []
    ended = SimpleNamespace(poll=lambda: 1, send_signal=lambda _: None, stdin=None, stdout=None, wait=lambda timeout: 1)

    def start(child: Child, now: float, *words: str) -> str:
        child._process, _ = ended, tried.append((words[-1], now))  # type: ignore[assignment]
        return ""

    monkeypatch.setattr(Child, "start", start)
    for now in range(26):
        watch.tick(float(now))
    assert tried == [(key, at + i) for at in (0, 11) for i, key in enumerate("abc")]
    tried.clear()
    for now in range(1000, 1600):
        if now == 1500:
            grants["d"] = grants["a"].replace(key="d")
        watch.tick(float(now))
    assert next(at for key, at in tried if key == "d") == 1500


@pytest.mark.parametrize(("suspended", "lent_to", "ended"), [(0, "", True), (7, "b", False), (7, "", True)])
def test_a_return_has_ended_once_the_ledger_says_so(suspended: int, lent_to: str, ended: bool) -> None:
    """Also where a person has suspended the container meanwhile: the agent does not wait for what does not come."""
    gpu = moving._Lent("GPU-0", None, None, None, None, {})  # type: ignore[arg-type]
    gpu.moving, gpu._child = MemoryMove("k"), SimpleNamespace(status=lambda: 0, stop=lambda: None)  # type: ignore[assignment]
    told = Grant("k", Identity("/run", "a", "/b"), Life(""), (), suspended=suspended, lent_to=lent_to)
    assert gpu._ended({"k": told}, 1.0) == ended == (gpu.moving is None)


@pytest.mark.parametrize(("status", "more"), [(1, 0), (NO_ROOM, 3 * moving.MORE)])
def test_only_want_of_room_has_it_need_more(status: int, more: int) -> None:
    """Not a busy driver, another command, or a full disk: it would need so much in the end that it never comes back."""
    gpu = moving._Lent("GPU-0", None, None, None, None, {})  # type: ignore[arg-type]
    told = Grant("k", Identity("/run", "a", "/b"), Life(""), (Share("GPU-0", 6144),), suspended=7, lent_to="b")
    gpu._node = SimpleNamespace(grants={"k": told}, gpu=lambda _: None)  # type: ignore[assignment]
    gpu._child = SimpleNamespace(status=lambda: status, stop=lambda: None)  # type: ignore[assignment]
    known = gpu._known["k"] = moving._Known(0.0)
    for now in range(3):
        gpu.moving = MemoryMove("k")
        assert gpu._ended({"k": told}, now * 4.0)
    assert known.wanted == more


@pytest.mark.parametrize(
    ("status", "seconds", "pause"), [(1, 0.1, 3.0), (1, 20.0, 200.0), (1, 60.0, 300.0), (NO_ROOM, 20.0, 3.0)]
)
def test_a_return_that_fails_has_others_wait_for_a_tenth_of_the_time(status: int, seconds: float, pause: float) -> None:
    """While it is tried, they get no memory: a container whose processes do not move when the driver asks costs no more."""
    gpu = moving._Lent("GPU-0", None, None, None, None, {})  # type: ignore[arg-type]
    told = Grant("k", Identity("/run", "a", "/b"), Life(""), (Share("GPU-0", 6144),), suspended=7, lent_to="b")
    gpu._node = SimpleNamespace(grants={"k": told}, gpu=lambda _: None)  # type: ignore[assignment]
    gpu._child = SimpleNamespace(status=lambda: status, stop=lambda: None)  # type: ignore[assignment]
    known = gpu._known["k"] = moving._Known(0.0)
    gpu.moving, gpu._began = MemoryMove("k"), 100.0
    assert gpu._ended({"k": told}, 100.0 + seconds)
    assert known.not_before == 100.0 + seconds + pause


@pytest.mark.parametrize(
    ("what", "codes", "status"),
    [
        ("suspend", ("GH-415",), CANNOT),
        ("suspend", ("GH-416",), 1),
        ("resume", ("GH-415",), 1),
        ("resume", ("GH-201", "GH-201"), NO_ROOM),
        ("end", ("GH-417",), 1),
    ],
)
def test_how_a_move_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str, codes: tuple[str, ...], status: int
) -> None:
    def fails(*_: object) -> None:
        raise GhError(*(Problem(code, "why") for code in codes))

    monkeypatch.setattr(moves.node_settings, "load", lambda prefix: None)
    for name in ("suspend", "resume"):
        monkeypatch.setattr(moves.mover, name, fails)
    assert moves.main(what, "/", "k") == status
    assert capsys.readouterr().out == "".join(f"{code}: why\n" for code in codes)


def test_who_is_killed_for_lent_memory_is_told_why() -> None:
    gpu = moving._Lent("GPU-0", None, None, None, None, {})  # type: ignore[arg-type]
    grants = {key: Grant(key, Identity("/run", key, "/b"), Life(""), (Share("GPU-0", 6),)) for key in "ab"}
    found: list[Finding] = []
    gpu._node = SimpleNamespace(grants=grants)  # type: ignore[assignment]
    answers = {"answer": lambda finding, harm: found.append(finding), "over": lambda finding: False}
    gpu._response = SimpleNamespace(**answers)  # type: ignore[assignment]
    gpu._known = {key: moving._Known(0.0) for key in "ab"}
    tenants = LentTenant("a", 1, 5 * MIB, 1 * MIB, fixed=True), LentTenant("b", 1, 0, 5 * MIB, waits=5 * MIB)
    said = b"GH-415: process 7 (python) shares memory\n"
    gpu._child = SimpleNamespace(status=lambda: CANNOT, stop=lambda: None, read=lambda size: said)  # type: ignore[assignment]
    for _ in range(moving.REFUSALS):
        gpu._answer_stuck(tenants, 0)
        gpu.moving = MemoryMove("a", "b")
        gpu._ended(grants, 1.0)
    assert not found
    gpu._answer_stuck(tenants, 0)
    assert found[0].key == "a" and found[0].evidence.endswith(
        "cannot be moved: GH-415: process 7 (python) shares memory"
    )


def test_what_moves_with_a_container_is_on_its_other_gpus_as_well() -> None:
    gpu = moving._Lent("GPU-0", None, None, None, None, {})  # type: ignore[arg-type]
    uses = {uuid: SimpleNamespace(used=size * MIB) for uuid, size in (("GPU-0", 5), ("GPU-1", 7), ("GPU-2", 1))}
    gpu._node = SimpleNamespace(watched={"k": SimpleNamespace(uses=uses)})  # type: ignore[assignment]
    told = Grant("k", Identity("/run", "a", "/b"), Life(""), ())
    assert gpu._elsewhere(told, 6 * MIB) == 8 * MIB
    assert gpu._elsewhere(told.replace(suspended=7, host_mib=13), 6 * MIB) == 7 * MIB
    assert gpu._elsewhere(told.replace(suspended=7, host_mib=5), 6 * MIB) == 0


@pytest.mark.parametrize("stands", [False, True])
def test_nobody_leaves_for_one_that_is_paused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stands: bool) -> None:
    Install(tmp_path)
    node, life = NodeState(str(tmp_path), AgentOptions("none")), Life("", None, process_life(os.getpid()))
    node.grants = {"k": Grant("k", Identity("/run", "k", "/b"), life, (Share("GPU-0", 6),), suspended=5, lent_to="b")}
    node.watched = {"k": Watched()}
    accounts = SimpleNamespace(waiting=lambda *_: {}, read=lambda grants: ({}, frozenset()))
    gpu = moving._Lent("GPU-0", node, accounts, None, None, {})  # type: ignore[arg-type]
    monkeypatch.setattr(moving, "paused", lambda grant: stands, raising=False)
    gpu._follow(node.grants, 0.0)
    assert [tenant.fixed for tenant in gpu._tenants(node.grants, 1.0)] == [stands]


@pytest.mark.parametrize("surcharge", [False, True])
@pytest.mark.parametrize(("seen", "counts"), [(1, 6), (9, 9)])
def test_a_word_in_its_page_takes_no_more_of_a_lent_gpu_than_its_limit(surcharge: bool, seen: int, counts: int) -> None:
    """Or what NVML sees, where that is more."""
    huge = (8 << 40,)
    lie = PageFigures((0,), huge, frozenset()) if surcharge else PageFigures(huge, (0,), frozenset())
    gpu = moving._Lent("GPU-0", None, None, None, None, {})  # type: ignore[arg-type]
    uses = {"GPU-0": SimpleNamespace(used=seen * MIB)}
    gpu._node = SimpleNamespace(watched={"k": SimpleNamespace(uses=uses, account=lie)})  # type: ignore[assignment]
    gpu._auditing = SimpleNamespace(verdict=Verdict())  # type: ignore[assignment]
    assert gpu._used(Grant("k", Identity("/run", "a", "/b"), Life(""), (Share("GPU-0", 6),)), lie) == counts * MIB


@pytest.mark.parametrize(("seen", "counts"), [(1, 6), (9, 9)])
def test_no_more_than_its_limit_is_to_be_moved(monkeypatch: pytest.MonkeyPatch, seen: int, counts: int) -> None:
    """As above. More than the node has memory for would keep it on its GPU for ever."""
    told = Grant("k", Identity("/run", "a", "/b"), Life("", None, process_life(os.getpid())), (Share("GPU-0", 6),))
    monkeypatch.setattr(gpu_processes, "listed", lambda grant: (grant.life.init,))
    said = {"states": {os.getpid(): 0}, "used": {os.getpid(): seen * MIB}}
    monkeypatch.setattr(gpu_processes, "call", lambda *_: said)
    monkeypatch.setattr(
        gpu_processes.account, "look", lambda grant: PageFigures((8 << 40,), (0,), frozenset(), {}, (0,))
    )
    assert gpu_processes.find(told, None, ()).used_mib == counts  # type: ignore[arg-type]


def freezing(place: Path) -> NodeState:
    """Of an agent with the policy `freeze`; k and b share a GPU."""
    Install(place)
    node = NodeState(str(place), AgentOptions("none", policy="freeze"))
    node.grants = {key: Grant(key, Identity("/run", key, "/b"), Life(""), (Share("GPU-0", 6),)) for key in "kb"}
    node.watched = {key: Watched() for key in "kb"}
    return node


@pytest.mark.parametrize("over", ["", "b", "look", "delete"])
def test_who_kept_others_waiting_and_could_not_be_frozen_is_left_when_that_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, over: str
) -> None:
    """Since nobody or another one keeps them waiting, nobody waits, or the GPU's memory is no longer lent."""
    node, tried = freezing(tmp_path), []
    monkeypatch.setattr(enforce, "freeze", lambda _: tried.append(1) or "busy")
    response, accounts = Response(node), SimpleNamespace(waiting=lambda *_: {})
    watch = Moving(node, accounts, None, response)  # type: ignore[arg-type]
    gpu = watch._lent["GPU-0"] = moving._Lent("GPU-0", node, accounts, None, response, {})  # type: ignore[arg-type]
    gpu._known = {key: moving._Known(0.0) for key in "kb"}
    gpu._known["k"].refused = moving.REFUSALS
    tenants = tuple(LentTenant(key, 0, 5, 1) for key in "kb")
    monkeypatch.setattr(moving.turns, "stuck", lambda *_: ("b", "k"))
    for _ in range(2):
        gpu._answer_stuck(tenants, 0)
        response.tick()
    assert len(tried) == 3
    if over == "look":
        gpu.look(0.0)
    elif over == "delete":
        watch.tick(0.0)
        assert not watch._lent
    else:
        monkeypatch.setattr(moving.turns, "stuck", lambda *_: ("k", over) if over else None)
        gpu._answer_stuck(tenants, 0)
    response.tick()
    assert len(tried) == 3 and gpu._known["k"].refused == 0


def test_who_was_frozen_for_others_and_goes_on_is_frozen_again_where_it_keeps_them_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once the driver has again not moved it a few times in a row."""
    node, frozen = freezing(tmp_path), []
    monkeypatch.setattr(enforce, "freeze", lambda _: frozen.append(1) or "")
    monkeypatch.setattr(enforce, "is_thawed", lambda _: True)
    monkeypatch.setattr(moving.turns, "stuck", lambda *_: ("b", "k"))
    response, accounts = Response(node), SimpleNamespace(waiting=lambda *_: {})
    gpu = moving._Lent("GPU-0", node, accounts, None, response, {})  # type: ignore[arg-type]
    seen = []
    for n in range(4 * moving.REFUSALS):
        gpu._follow(node.grants, 0.0)
        gpu._known["k"].refused += 1
        gpu._answer_stuck(tuple(LentTenant(key, 0, 5, 1) for key in "kb"), 0)
        seen.append(len(frozen))
        if n == 2 * moving.REFUSALS:
            response.tick()
    assert seen == [0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2]
