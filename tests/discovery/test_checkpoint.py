"""discovery/checkpoint.py: all processes or none, whichever call of the driver fails."""

import ctypes
import itertools
import os
import signal
import subprocess
from typing import Any

import pynvml
import pytest

from oci_hook.discovery import checkpoint
from oci_hook.discovery.checkpoint import CHECKPOINTED, FAILED, LOCKED, RUNNING, Process, Refused
from oci_hook.linux.proc import process_life
from oci_hook.suspend import mover
from testbed import REPO

THREE: list[Process] = [(11, 1), (12, 1), (13, 1)]
MOVES = {
    "Lock": (RUNNING, LOCKED),
    "Checkpoint": (LOCKED, CHECKPOINTED),
    "Restore": (CHECKPOINTED, LOCKED),
    "Unlock": (LOCKED, RUNNING),
}


class Fake(checkpoint.CheckpointDriver):
    """States by process. fails: the numbers of the calls that fail, from 0. full: no GPU has room. lost: restores that failed
    cannot be repeated."""

    def __init__(self, states: list[int], fails: tuple[int, ...] = (), full: bool = False, lost: bool = False) -> None:
        self.states = dict(zip(THREE, states, strict=True))
        self.fails, self.full, self.lost = fails, full, lost
        self.gone: set[Process] = set()
        self.calls: list[str] = []

    def state(self, process: Process) -> int | None:
        return self.states.get(process)

    def check_room(self, processes: list[Process], needs: checkpoint.Needs) -> None:
        if self.full:
            raise checkpoint.Full("no room")

    def call(self, name: str, process: Process) -> None:
        self.calls.append(name)
        before, after = MOVES[name]
        if process in self.gone and name == "Restore":
            raise Refused(process, name, checkpoint.LOST)
        if len(self.calls) - 1 in self.fails or self.states[process] != before:
            if self.lost and name == "Restore":
                self.gone.add(process)
            raise Refused(process, name, 2)
        self.states[process] = after

    def all(self, state: int) -> bool:
        return set(self.states.values()) == {state}


def test_all_are_locked_before_any_is_moved() -> None:
    fake = Fake([RUNNING] * 3)
    assert checkpoint.suspend(fake, THREE, {}) == {"done": True} and fake.all(CHECKPOINTED)
    assert fake.calls == ["Lock"] * 3 + ["Checkpoint"] * 3
    fake.calls.clear()
    assert checkpoint.resume(fake, THREE, {}) == {"done": True} and fake.all(RUNNING)
    assert fake.calls == ["Restore"] * 3 + ["Unlock"] * 3


def test_a_lock_that_fails_has_all_run_again() -> None:
    fake = Fake([RUNNING] * 3)
    assert checkpoint.lock(fake, THREE, {}) == {"done": True} and fake.all(LOCKED)
    fake = Fake([RUNNING] * 3, (2,))
    assert checkpoint.lock(fake, THREE, {}) == {"failed": 13, "why": "Lock", "half": False} and fake.all(RUNNING)


@pytest.mark.parametrize("at", range(6))
def test_a_suspend_that_fails_has_all_run_again(at: int) -> None:
    fake = Fake([RUNNING] * 3, (at,))
    said = checkpoint.suspend(fake, THREE, {})
    assert said == {"failed": THREE[at % 3][0], "why": fake.calls[at], "half": False} and fake.all(RUNNING)


@pytest.mark.parametrize("at", range(6))
def test_a_resume_that_fails_sends_all_back_while_none_runs(at: int) -> None:
    fake = Fake([CHECKPOINTED] * 3, (at,))
    said = checkpoint.resume(fake, THREE, {})
    assert said["failed"] == THREE[at % 3][0] and said["half"] is (at >= 3)
    assert fake.all(CHECKPOINTED) if at < 3 else RUNNING in fake.states.values() or fake.all(LOCKED)
    fake.fails = ()
    assert checkpoint.resume(fake, THREE, {}) == {"done": True} and fake.all(RUNNING)


@pytest.mark.parametrize("at", range(3))
def test_a_restore_that_cannot_be_repeated_is_told(at: int) -> None:
    fake = Fake([CHECKPOINTED] * 3, (at,), lost=True)
    said = checkpoint.resume(fake, THREE, {})
    assert said == {"failed": THREE[at][0], "why": "Restore", "half": False, "lost": True} and fake.all(CHECKPOINTED)


@pytest.mark.parametrize("running", range(3))
def test_nothing_is_restored_where_there_is_no_room(running: int) -> None:
    states = [RUNNING] * running + [CHECKPOINTED] * (3 - running)
    fake = Fake(states, full=True)  # and a process of the container that uses no CUDA
    assert checkpoint.resume(fake, [*THREE, (14, 1)], {}) == {"full": "no room", "half": running > 0}
    assert fake.calls == [] and [*fake.states.values()] == states


def test_an_error_of_nvml_is_no_want_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the agent would look for ever more room for it. All of it is still away."""

    def broken() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    fake = Fake([CHECKPOINTED] * 3)
    monkeypatch.setattr(fake, "check_room", lambda *more: checkpoint.CheckpointDriver.check_room(fake, *more))
    monkeypatch.setattr(pynvml, "nvmlInit", broken)
    said = checkpoint.resume(fake, THREE, {"GPU-0": 1})
    assert mover._code(said) == "GH-417" and said["half"] is False and fake.all(CHECKPOINTED)
    assert "NVML does not say" in mover._why(said)


def test_what_needs_no_room_goes_on_without_a_look() -> None:
    fake = Fake([LOCKED] * 3, full=True)
    assert checkpoint.resume(fake, THREE, {}) == {"done": True} and fake.all(RUNNING)


def test_nothing_is_restored_while_one_of_them_is_stopped() -> None:
    """The driver would wait for it, and whoever shares its GPU for the driver."""
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            mine = process_life(child.pid)
            fake = Fake([CHECKPOINTED] * 3)
            fake.states[mine] = CHECKPOINTED
            os.kill(child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            said = checkpoint.resume(fake, [*THREE, mine], {})
            assert (said["half"], mover._code(said)) == (False, "GH-417") and f"{child.pid} is stopped" in said["error"]
            assert fake.calls == [] and fake.all(CHECKPOINTED)
            os.kill(child.pid, signal.SIGCONT)
            os.waitid(os.P_PID, child.pid, os.WCONTINUED)
            assert checkpoint.resume(fake, [*THREE, mine], {}) == {"done": True}
        finally:
            child.kill()


@pytest.mark.parametrize("states", [*itertools.product((RUNNING, LOCKED, CHECKPOINTED), repeat=3)])
def test_whatever_a_crash_has_left_comes_back_or_is_moved(states: tuple[int, ...]) -> None:
    fake = Fake([*states])
    assert checkpoint.resume(fake, THREE, {}) == {"done": True} and fake.all(RUNNING)
    fake = Fake([*states])
    assert checkpoint.suspend(fake, THREE, {}) == {"done": True} and fake.all(CHECKPOINTED)


def test_a_failure_in_the_undoing_is_told() -> None:
    fake = Fake([RUNNING] * 3, (4, 5))
    assert checkpoint.suspend(fake, THREE, {})["half"] is True
    fake.fails = ()
    assert checkpoint.resume(fake, THREE, {}) == {"done": True} and fake.all(RUNNING)


def test_a_process_that_the_driver_has_lost_is_told() -> None:
    said = checkpoint.suspend(Fake([RUNNING, FAILED, RUNNING]), THREE, {})
    assert said["failed"] == 12 and "state 3" in said["why"]


def test_a_pid_that_is_another_process_by_now_is_not_touched() -> None:
    called = []

    class Real(checkpoint.CheckpointDriver):
        def __init__(self) -> None:
            class Library:
                def __getattr__(self, name: str) -> object:
                    return lambda *_: called.append(name) or 0

            self._cuda = Library()  # type: ignore[assignment]

    pid, start = process_life(os.getpid())
    driver = Real()
    for name in MOVES:
        driver.call(name, (pid, start + 1))
    assert driver.state((pid, start + 1)) is None and called == []
    driver.call("Lock", (pid, start))
    assert called == ["cuCheckpointProcessLock"]


def test_a_driver_without_checkpoints_is_named() -> None:
    said = checkpoint.main("libc.so.6", "look", [])
    assert said == {"error": "the driver has no checkpoints of processes, which came with 570"}


def test_the_processes_of_a_driver_without_the_newest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """470 has the first and the second version of each call."""
    names = (REPO / "data/driver-symbols/libnvidia-ml-470.256.02.txt").read_text().split()
    assert "nvmlDeviceGetComputeRunningProcesses_v2" in names and "nvmlDeviceGetComputeRunningProcesses_v3" not in names
    has = {"Compute": [(7, 5 << 30), (8, (1 << 64) - 1)], "Graphics": [(9, 1)], "MPSCompute": []}

    class Library:
        def __getattr__(self, name: str) -> Any:
            if name not in names:
                raise AttributeError(name)
            listed = next(has[kind] for kind in has if name == f"nvmlDeviceGet{kind}RunningProcesses_v2")

            def call(handle: object, count: Any, into: Any) -> int:
                size = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint)).contents
                room, size.value = size.value, len(listed)
                if room < len(listed):
                    return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
                for i, (pid, used) in enumerate(listed):
                    into[i].pid, into[i].usedGpuMemory = pid, used
                return 0

            return call

    monkeypatch.setattr(pynvml, "nvmlLib", Library())
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: None)
    for _ in range(2):
        assert checkpoint.by_nvml() == {7: 5 << 30, 8: None, 9: 1}
    names.remove("nvmlDeviceGetComputeRunningProcesses_v2")  # nothing known is not nobody there
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert checkpoint.by_nvml() is None
