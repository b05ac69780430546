"""The agent's helper processes: each is heard, and started again after it failed, later each time."""

import selectors
import subprocess
import sys
import time

import pytest

from oci_hook.agent.watch.child import PACKAGE, Child


def test_each_that_is_started_is_heard() -> None:
    """Also one whose pipe has the number of the one before."""
    with selectors.DefaultSelector() as selector:
        heard: list[bytes | None] = []
        child = Child("this", 1, 4, selector, lambda _: heard.append(child.read(4096)))
        numbers = set()
        for _ in range(2):
            assert child.start(0.0) == ""
            numbers.add(child.fd)
            pid, heard[:] = child.pid, []
            end = time.monotonic() + 60
            while heard[-1:] != [b""]:
                assert time.monotonic() < end, heard
                for key, _ in selector.select(1):
                    key.data(0.0)
            assert b"Zen of Python" in b"".join(said or b"" for said in heard)
            assert child.pid == pid and child.starts and not child.due(0.0)
            child.stop()
            assert (child.pid, child.fd) == (0, -1) and child.read(1) is None and not selector.get_map()
        assert len(numbers) == 1 and child.starts == 2


def test_it_is_due_later_after_each_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child("this", 1, 4)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    now = 0.0
    for wait in (1, 2, 4, 4):
        assert child.due(now) and child.start(now) == "does not start: No such file or directory"
        assert not child.due(now + 0.99 * wait)
        now += wait
    child.worked()
    child.failed(now)
    assert child.due(now + 1)
    child.stop()
    assert child.due(now) and child.starts == 0


def test_one_that_was_killed_and_hangs_still_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver, which it keeps loaded."""
    child = Child("this", 1, 4)
    child.start(0.0)
    process = child._process
    assert process and child.exists

    def wait(timeout: float) -> int:
        raise subprocess.TimeoutExpired("it", timeout)

    with monkeypatch.context() as hung:
        hung.setattr(process, "wait", wait)
        hung.setattr(process, "poll", lambda: None)
        child.stop()
        assert child.pid == 0 and child.exists
    process.wait()
    assert not child.exists


def test_a_helper_runs_where_the_package_is_not_installed() -> None:
    """As in the node image and the packages: Python finds it by its folder alone."""
    run = [sys.executable, "-S", "-c", "import oci_hook.agent.judge.meter"]
    assert subprocess.run(run, env={"PYTHONPATH": PACKAGE, "PYTHONSAFEPATH": "1"}, cwd="/").returncode == 0
