"""A container that moves within its cgroups, as its root can in namespaces of its own, is still one container."""

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from oci_hook.agent.act import enforce
from oci_hook.agent.watch.process_owner import ProcessOwners
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.linux.proc import boot_id, process_life, start_time
from oci_hook.observe import inside
from testbed.until import until

TOP = Path("/sys/fs/cgroup")
HIERARCHIES = ("devices", "freezer", "pids", "memory", "cpu")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not (TOP / "freezer").is_dir(), reason="needs version 1 of cgroups"),
]


class Moved:
    """Its init is in a cgroup below its own, and another process, of another pid namespace, in its own."""

    def __init__(self) -> None:
        name = f"gh-test-{os.getpid()}-{time.monotonic_ns()}/c"
        self.folders = [TOP / h / name for h in HIERARCHIES if (TOP / h).is_dir()]
        for folder in self.folders:
            (folder / "f").mkdir(parents=True)
        command = ["unshare", "--pid", "--fork", "--kill-child", "sleep", "600"]
        self.processes = [subprocess.Popen(command) for _ in range(2)]
        pids = [until(lambda p=p: self._child(p.pid)) for p in self.processes]  # type: ignore[misc]
        self.init, self.cheat = (process_life(pid) for pid in pids)
        for folder in self.folders:
            (folder / "f/cgroup.procs").write_text(str(self.init[0]))
            (folder / "cgroup.procs").write_text(str(self.cheat[0]))
        told = self.folders[0]
        life = Life(boot_id(), init=self.init, cgroup=str(told), cgroup_inode=told.stat().st_ino)
        self.grant = Grant("k", Identity("/run", "c", "/"), life, ())
        self.freezer = TOP / "freezer" / name

    @staticmethod
    def _child(pid: int) -> int:
        return next((child.pid for child in psutil.Process(pid).children() if child.name() == "sleep"), 0)

    def close(self) -> None:
        for folder in (self.freezer, self.freezer / "f"):
            (folder / "freezer.state").write_text("THAWED")
        for pid, start in (self.init, self.cheat):
            if start_time(pid) == start:
                with contextlib.suppress(ProcessLookupError):  # a signal that it got while it was frozen ends it now
                    os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait(60)
        for folder in self.folders:
            until(lambda f=folder: not (f / "cgroup.procs").read_text() + (f / "f/cgroup.procs").read_text())  # type: ignore[misc]
            for path in (folder / "f", folder, folder.parent):
                path.rmdir()


@pytest.fixture
def moved() -> Iterator[Moved]:
    made = Moved()
    yield made
    made.close()


def test_a_process_above_the_init_is_a_member(moved: Moved) -> None:
    members = ProcessOwners()
    members.update({"k": moved.grant})
    pids = {moved.init[0], moved.cheat[0]}
    assert set(members.find(dict.fromkeys(pids, math.inf))) == pids
    assert set(inside.pids(moved.init[0], moved.grant.life.cgroup) or ()) == pids
    for bare in (moved.grant.life.replace(cgroup=""), moved.grant.life.replace(cgroup="/sys/fs/cgroup/devices/other")):
        members = ProcessOwners()
        members.update({"k": moved.grant.replace(life=bare)})
        assert set(members.find(dict.fromkeys(pids, math.inf))) == {moved.init[0]}


def test_freeze_and_kill_reach_it(moved: Moved) -> None:
    assert enforce.freeze(moved.grant) == "" and not enforce.is_thawed(moved.grant)
    (moved.freezer / "freezer.state").write_text("THAWED")
    assert enforce.is_thawed(moved.grant)
    assert enforce.freeze(moved.grant) == "" and not enforce.is_thawed(moved.grant)
    assert (moved.freezer / "freezer.self_freezing").read_text() == "1\n"
    until(lambda: (moved.freezer / "freezer.state").read_text() == "FROZEN\n")
    assert enforce.kill(moved.grant, ()) == "" and not enforce.is_thawed(moved.grant)
    assert not any(start_time(pid) == start for pid, start in (moved.init, moved.cheat))


@pytest.mark.parametrize("bare", [False, True])
def test_who_is_frozen_in_a_cgroup_below_is_killed(moved: Moved, bare: bool) -> None:
    """bare: its init has ended before."""
    (moved.freezer / "f/cgroup.procs").write_text(str(moved.cheat[0]))
    (moved.freezer / "cgroup.procs").write_text(str(moved.init[0]))
    (moved.freezer / "f/freezer.state").write_text("FROZEN")
    until(lambda: (moved.freezer / "f/freezer.state").read_text() == "FROZEN\n")
    if bare:
        os.kill(moved.init[0], signal.SIGKILL)
        until(lambda: start_time(moved.init[0]) != moved.init[1])
    assert enforce.kill(moved.grant, ()) == ""
    assert start_time(moved.cheat[0]) != moved.cheat[1]


def test_what_does_not_go_is_told(moved: Moved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforce, "_thaw", lambda top: None)
    (moved.freezer / "freezer.state").write_text("FROZEN")
    until(lambda: (moved.freezer / "freezer.state").read_text() == "FROZEN\n")
    assert "still run" in enforce.kill(moved.grant, ())


@pytest.mark.parametrize("version", ["devices", "unified", "too deep"])
def test_all_are_killed_however_many_there_are(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Without a pid namespace of their own, of which the end of their init would be the end. What cannot be seen is told."""
    top = TOP / ("unified" if version == "unified" else "devices")
    if not top.is_dir():
        pytest.skip("needs both versions of cgroups")
    folders = [top / f"gh-test-{os.getpid()}-{time.monotonic_ns()}"]
    folders += [folders[0] / "c", folders[0] / "c/f", folders[0] / "c/f/g"]
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(9)]
    monkeypatch.setattr(inside, "MOST", 2)
    monkeypatch.setattr(inside, "MOST_CGROUPS", 1 if version == "too deep" else 4)
    if version == "unified":
        monkeypatch.setattr(enforce, "_send", lambda *_: None)
    try:
        for folder in folders:
            folder.mkdir()
        for i, process in enumerate(processes):
            (folders[1 + i // 3] / "cgroup.procs").write_text(str(process.pid))
        init = process_life(processes[0].pid)
        life = Life(boot_id(), init=init, cgroup=str(folders[1]), cgroup_inode=folders[1].stat().st_ino)
        said = enforce.kill(Grant("k", Identity("/run", "c", "/"), life, ()), ())
        if version == "too deep":
            assert said == "it has too many processes or cgroups to see all of them"
        else:
            assert said == ""
            assert [process.wait(5) for process in processes] == [-signal.SIGKILL] * 9
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for folder in reversed(folders):
            until(lambda f=folder: not (f / "cgroup.procs").read_text())  # type: ignore[misc]
            folder.rmdir()
