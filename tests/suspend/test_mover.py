"""suspend/mover.py, without a driver."""

import io
import os
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.layout import LEDGER_DIR
from oci_hook.core.policy_page import HOLD_MOST
from oci_hook.errors import GhError, refuse
from oci_hook.linux import cgroup
from oci_hook.linux.proc import process_life
from oci_hook.suspend import __main__ as program
from oci_hook.suspend import mover
from oci_hook.suspend.hold import CANNOT
from testbed import REPO
from tests.cli.box import Install, this_process
from tests.linux.test_memory_room import MIB, group


@pytest.mark.parametrize(("need", "code"), [(90, ""), (300, "GH-416"), (450, "GH-415")])
def test_others_in_a_cgroup_above_are_not_its_own_fault(
    need: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is killed for GH-416."""
    inner = group(group(tmp_path / "slice", 2, str(1000 * MIB), 900, 0) / "box", 2, str(500 * MIB), 100, 0)
    monkeypatch.setattr(cgroup, "v1_path", lambda pid, controller: None)
    monkeypatch.setattr(cgroup, "v2_path", lambda pid: str(inner))
    grant = Grant("k", Identity("/run", "a", "/b"), Life("", init=process_life(os.getpid())), ())
    try:
        mover._check_cgroup(grant, need)
        said = ""
    except GhError as e:
        (problem,) = e.problems
        said = problem.code
    assert said == code


def test_what_it_uses_itself_may_be_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its own cgroup has no memory controller, what the one above has may be others'."""
    inner = group(tmp_path / "slice", 2, str(1000 * MIB), 900, 0) / "box"
    inner.mkdir()
    (inner / "cgroup.procs").touch()
    monkeypatch.setattr(cgroup, "v1_path", lambda pid, controller: None)
    monkeypatch.setattr(cgroup, "v2_path", lambda pid: str(inner))
    grant = Grant("k", Identity("/run", "a", "/b"), Life("", init=process_life(os.getpid())), ())
    with pytest.raises(GhError, match="^GH-416"):
        mover._check_cgroup(grant, 300)


def test_a_name_that_the_locale_cannot_write_hides_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise refuse("GH-415", "process 7 (\ufffd) shares memory")

    out = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr(program.node_settings, "load", lambda prefix: None)
    monkeypatch.setattr(mover, "suspend", refused)
    monkeypatch.setattr(sys, "stdout", out)
    assert program.main("suspend", "/", "k", "b") == CANNOT
    assert "process 7 (\ufffd) shares" in out.buffer.getvalue().decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize("mib", [4, 2 << 20])
def test_all_that_were_held_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    """Also where the only one that had lent memory ends while the other one comes back. They are held for no longer than
    containers believe, however much comes back."""
    assert f"HOLD_MOST {HOLD_MOST}ull" in (REPO / "oci_hook/shim/process/policy.c").read_text()
    (tmp_path / LEDGER_DIR).mkdir()
    server, other, trainer = (
        Grant(key, Identity("/run", key, "/b"), Life(""), (Share("GPU-0", 4, request_mib=request),))
        for key, request in (("server", 4), ("other", 4), ("trainer", 1))
    )
    held: dict[str, int] = {}
    ledger = SimpleNamespace(
        grants=(server, other, trainer), hold=lambda keys, until: held.update(dict.fromkeys(keys, until))
    )
    monkeypatch.setattr(mover.store, "snapshot", lambda state: ledger.grants)
    monkeypatch.setattr(mover.store, "open_ledger", lambda state: nullcontext(ledger))
    with mover._RoomKept(SimpleNamespace(state_dir=str(tmp_path)), server, mib):  # type: ignore[arg-type]
        assert len(held) == 3 and all(0 < until - time.monotonic_ns() <= HOLD_MOST for until in held.values())
        ledger.grants = (server, other)
    assert not held["server"] and not held["other"]


@pytest.mark.parametrize("suspended", [0, 5])
def test_who_is_paused_is_not_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch, suspended: int) -> None:
    """It cannot move what is frozen, which is no fault of the container: nobody is killed for GH-417, or held meanwhile."""
    life = Life("", init=process_life(os.getpid()))
    grant = Grant("k", Identity("/run", "a", "/b"), life, (Share("GPU-0", 4),), suspended=suspended)
    hold = SimpleNamespace(grant=grant, fd=-1)
    monkeypatch.setattr(mover.node_inventory, "load", lambda settings: None)
    monkeypatch.setattr(mover, "Hold", lambda settings, key: nullcontext(hold))
    monkeypatch.setattr(mover.gpu_processes, "listed", lambda grant: ())
    monkeypatch.setattr(mover.gpu_processes, "call", lambda *_: pytest.fail("it was asked"))
    monkeypatch.setattr(mover, "paused", lambda grant: True, raising=False)
    monkeypatch.setattr(mover, "_RoomKept", lambda *_: pytest.fail("others were held"))
    with pytest.raises(
        GhError, match=f"GH-417: container a is not {'resumed' if suspended else 'suspended'}: it is paused"
    ):
        if suspended:
            mover.resume(None, "k")  # type: ignore[arg-type]
        mover.suspend(None, "k", "b")  # type: ignore[arg-type]


def test_what_has_ended_meanwhile_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the driver said of each process; where it says nothing, there must be room for all."""
    grant = Grant("k", Identity("/run", "a", "/b"), Life("", init=process_life(os.getpid())), (Share("GPU-0", 900),))
    asked: list[dict[str, int]] = []

    def call(inventory: object, what: str, *more: Any) -> dict[str, Any]:
        if what == "resume":
            asked.append(more[-1])
        return {"states": dict.fromkeys(sizes, 0), "used": sizes}

    monkeypatch.setattr(mover.gpu_processes, "call", call)
    monkeypatch.setattr(mover.gpu_processes.account, "look", lambda grant: None)
    with subprocess.Popen(["sleep", "600"]) as two, open(tmp_path / "moving", "w+b") as file:
        monkeypatch.setattr(mover.gpu_processes, "listed", lambda grant: (process_life(os.getpid()), *second))
        second, sizes = (process_life(two.pid),), {os.getpid(): 100 * MIB, two.pid: 700 * MIB}
        found = mover.gpu_processes.find(grant, None, ())  # type: ignore[arg-type]
        mover.gpu_processes.note(file.fileno(), found)
        grant = grant.replace(host_mib=found.used_mib)
        mover._come_back(grant, None, (file.fileno(),))  # type: ignore[arg-type]
        two.kill()
        two.wait()
        second = ()
        mover._come_back(grant, None, (file.fileno(),))  # type: ignore[arg-type]
        file.truncate(0)
        mover._come_back(grant, None, (file.fileno(),))  # type: ignore[arg-type]
    assert asked == [{"GPU-0": mib} for mib in (800, 100, 800)]


@pytest.mark.parametrize("starts", [0, 1, 2])
def test_who_took_the_place_of_one_that_ended_needs_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: int
) -> None:
    """Between the first look and the lock, when one ends and its supervisor starts so many."""
    install, asked = Install(tmp_path), []
    me, sizes = process_life(os.getpid()), {os.getpid(): 100 * MIB}
    states = dict.fromkeys(sizes, 0)
    with ExitStack() as stack:
        first, *later = (stack.enter_context(subprocess.Popen(["sleep", "600"])) for _ in range(1 + starts))
        for child in (first, *later):
            stack.callback(child.kill)
        sizes[first.pid], states[first.pid] = 700 * MIB, 0

        def call(inventory: object, what: str, mine: Any, *more: Any) -> dict[str, Any]:
            if what == "look":
                return {"states": states, "used": {pid: 0 if states[pid] else size for pid, size in sizes.items()}}
            if what == "lock" and first.pid in sizes:
                first.kill()
                first.wait()
                del sizes[first.pid], states[first.pid]
                for child in later:
                    sizes[child.pid], states[child.pid] = 700 * MIB, 0
            if what == "suspend":
                states.update({pid: 2 for pid, _ in mine if pid in states})
            if what == "resume":
                asked.append(more[-1])
            return {"done": True}

        monkeypatch.setattr(mover.gpu_processes, "call", call)
        monkeypatch.setattr(mover.gpu_processes, "listed", lambda grant: tuple(map(process_life, sizes)))
        monkeypatch.setattr(mover, "_check_cgroup", lambda *_: None)
        monkeypatch.setattr(mover.memory_room, "of_node", lambda: (100 << 30, 100 << 30))
        key = install.grant("a" * 64, Share("GPU-0", 900), life=this_process().replace(init=me)).key
        assert mover.suspend(install.settings, key, "b").grant.host_mib == 100 + 700 * starts
        mover.resume(install.settings, key)
    assert asked == [{"GPU-0": 100 + 700 * starts}]
