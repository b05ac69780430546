"""The agent's parts one by one: the ledger watch, the account pages, the answers to findings."""

import errno
import os
import selectors
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.agent import agent
from oci_hook.agent.act import driver_changes, enforce, response
from oci_hook.agent.agent import full, only_one
from oci_hook.agent.judge.audit_rules import Finding
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.watch.accounts import Accounts
from oci_hook.agent.watch.boundary_server import BoundaryServer
from oci_hook.agent.watch.ledger_watch import LedgerWatch
from oci_hook.agent.watched import Watched
from oci_hook.boundary import protocol
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Inventory
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import store
from oci_hook.linux.proc import boot_id, process_life
from oci_hook.observe.event_log import Follower
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def node(prefix: Install) -> NodeState:
    return NodeState(str(prefix.prefix), AgentOptions())


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as p:
        yield p
        p.kill()


def grant(pid: int, key: str = "a" * 32) -> Grant:
    who = Identity("/run/runc", key[:3], "/b")
    return Grant(key, who, Life(boot_id(), process_life(pid)), (Share("GPU-0", 1024),))


def test_an_end_is_noticed_at_once(node: NodeState, child: "subprocess.Popen[bytes]") -> None:
    with selectors.DefaultSelector() as selector:
        ended: list[set[str]] = []
        watch = LedgerWatch(node, selector, ended.append)
        given = grant(child.pid)
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
    given = grant(child.pid)
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
    answers, ended, given = response.Response(node), [], grant(child.pid).replace(born=1)
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


def test_a_container_without_a_page_has_no_usage(node: NodeState, child: "subprocess.Popen[bytes]") -> None:
    accounts = Accounts(node)
    starting = grant(child.pid)
    running = starting.replace(key="b" * 32, life=starting.life.replace(init=starting.life.creator))
    node.grants = {starting.key: starting, running.key: running}
    assert accounts.read(node.grants) == ({starting.key: None, running.key: None}, frozenset())
    accounts.write_surcharge(starting.key, 0, 512)
    accounts.close()
    assert not accounts.files()


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
    given = grant(child.pid)
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


def test_one_agent_and_room_for_a_grant(tmp_path: Path) -> None:
    fd = only_one(str(tmp_path))
    with pytest.raises(GhError, match=f"GH-320: process {os.getpid()} is the agent"):
        only_one(str(tmp_path))
    os.close(fd)
    assert full(str(tmp_path)) == "" and "No such file" in full(f"{tmp_path}/none")


def test_a_state_directory_where_its_unit_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(agent, "own_dir", refused)
    with pytest.raises(GhError, match=f"GH-303: {tmp_path}: Read-only file system.*ReadWritePaths="):
        only_one(str(tmp_path))


def test_a_ledger_that_was_removed_is_not_made_anew(node: NodeState) -> None:
    """As by `settings set state_dir=DIR`: only a tick, which knows the new directory, makes a ledger."""
    folder = Path(node.state_dir, "ledger")
    with selectors.DefaultSelector() as selector:
        watch = LedgerWatch(node, selector, lambda ended: None)
        watch.tick(0.0)
        shutil.rmtree(folder)
        watch.soon(10.0)
        watch.read(10.0)
        assert not folder.exists()
        watch.tick(1000.0)
        assert folder.exists()
        watch.close()


def test_the_ledger_says_when_a_container_was_moved(node: NodeState, child: "subprocess.Popen[bytes]") -> None:
    """Also where both ways are over before the next look at the GPUs."""
    with selectors.DefaultSelector() as selector:
        watch = LedgerWatch(node, selector, lambda ended: None)
        given = grant(child.pid)
        away = given.replace(suspended=7)
        told = []
        for now, state in enumerate((given, given, given.replace(moving=7), away, away, given, given)):
            watch.take((state,), float(now))
            told.append(node.watched[given.key].moved)
        assert told == [float("-inf"), float("-inf"), 2, 3, 3, 5, 5]
        watch.close()


@pytest.mark.parametrize("fails", [False, True])
def test_what_discovery_does_not_resolve_is_discovered_seldom(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Such as a GPU in MIG mode without an instance, beside others. A new difference is discovered at once."""
    asked: list[int] = []
    watch = driver_changes.DriverChanges(node)

    def discover(root: str) -> Inventory:
        asked.append(now)
        if fails:
            raise refuse("GH-302", "no")
        return prefix.inventory

    monkeypatch.setattr(driver_changes, "discover", discover)
    seen = {gpu.uuid: GpuSample(0, 0, -1, ()) for gpu in prefix.inventory.gpus}
    seen["GPU-split"] = GpuSample(0, 0, -1, ())
    for now in range(0, 800, 5):
        if now == 600:
            seen["GPU-new"] = GpuSample(0, 0, -1, ())
        watch.look(float(now))
        if watch._thread:
            watch._thread.join()
        watch.compare(dict(seen))
    # Each is taken at the look after it.
    assert asked == [10, 45, 110, 235, 480, 610, 645, 710]


class Machine:
    """A real driver's signs, as DriverChanges sees them; nothing of it is there."""

    def __init__(self, node: NodeState, inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files, self.module, self.asked = "old", "old", 0
        self.inventory = inventory
        monkeypatch.setattr(driver_changes.cache, "load", self._load)
        monkeypatch.setattr(driver_changes, "is_loaded", lambda root: self.module == self.files != "")
        monkeypatch.setattr(driver_changes, "discover", self._discover)
        monkeypatch.setattr(driver_changes, "save_inventory", lambda settings, found: None)
        self.watch = driver_changes.DriverChanges(node)

    def _load(self, settings: object) -> Inventory:
        if self.files == self.module == "old":
            return self.inventory
        raise refuse("GH-301", "changed")

    def _discover(self, root: str) -> Inventory:
        self.asked += 1
        raise refuse("GH-302", "no")

    def look(self, now: float) -> None:
        self.watch.look(now)
        if self.watch._thread:
            self.watch._thread.join()


def test_a_driver_that_comes_late_is_discovered_at_once(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU Operator lets our pod come back before its driver pod has loaded the module: backing off, we would miss it by
    minutes."""
    machine = Machine(node, prefix.inventory, monkeypatch)
    machine.files, machine.module = "new", ""
    for now in range(0, 600, 5):
        machine.look(float(now))
    before, machine.module = machine.asked, "new"
    machine.look(600.0)
    assert machine.asked == before + 1
    machine.look(605.0)
    assert machine.asked == before + 1, "while it does not answer, seldom"


@pytest.mark.parametrize(
    "steps", ["unload remove install load", "remove unload load install", "remove install unload load"]
)
def test_what_was_released_is_asked_nothing_before_it_is_another_one(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    machine = Machine(node, prefix.inventory, monkeypatch)
    machine.look(0.0)
    assert node.inventory is not None
    machine.watch.release()
    changes = {
        "unload": ("module", ""),
        "load": ("module", "new"),
        "remove": ("files", ""),
        "install": ("files", "new"),
    }
    for now, step in enumerate(steps.split(), 1):
        machine.look(float(now))
        assert machine.watch.released and node.inventory is None and "driver" in node.problems and not machine.asked
        setattr(machine, *changes[step])
    machine.look(10.0)
    assert not machine.watch.released and machine.asked == 1 and "driver" not in node.problems


def test_what_was_released_may_come_back_as_it_was(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(node, prefix.inventory, monkeypatch)
    machine.watch.release()
    for now, module in enumerate(("old", "", "", "old")):
        machine.module = module
        machine.look(float(now))
        assert machine.watch.released == (now < 3)
    assert node.inventory is prefix.inventory


def test_what_was_released_and_stays_is_taken_when_told(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(node, prefix.inventory, monkeypatch)
    machine.watch.release()
    for now in range(0, 3600, 5):
        machine.look(float(now))
    assert machine.watch.released and node.inventory is None
    machine.watch.take()
    machine.look(3600.0)
    assert node.inventory is prefix.inventory and not machine.asked and "driver" not in node.problems


def test_a_boundary_server_that_ends_during_a_request_ends_no_agent(tmp_path: Path) -> None:
    """The selector may see its end and the request's in one look."""
    taken: list[object] = []
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(protocol.path(str(tmp_path)))
        listener.listen()
        server = BoundaryServer(selector)
        server.state, server._state_dir = "ok", str(tmp_path)
        server.ask({"do": "list"}, taken.append, 0.0)
        listener.accept()[0].close()
        [(key, _)] = selector.select(10)
        server.stop("its process ended")
        key.data(0.0)
        assert server.state == "down" and not taken
