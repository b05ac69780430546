"""Errors in the runtime's log and on standard error."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.errors import Problem
from oci_hook.oci import log

ONE = [Problem("GH-401", 'a "quoted" \\ value')]
TWO = [Problem("GH-101", "first"), Problem("GH-101", "again"), Problem("GH-103", "second")]


def test_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_text('{"level":"info","msg":"of runc"}\n')
    log.report(ONE, str(path), "json")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[1]["level"] == "error" and lines[1]["msg"] == 'GH-401: a "quoted" \\ value'
    assert lines[1]["time"].endswith("Z") and len(lines) == 2
    assert capfd.readouterr().err == 'GH-401: a "quoted" \\ value\n'


def test_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    log.report(ONE, str(path), "text")
    assert path.read_text().endswith('level=error msg="GH-401: a \\"quoted\\" \\\\ value"\n')
    assert path.read_text().startswith('time="2')
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("path", ["", "/nowhere/log", "/"])
def test_no_log_means_runcs_line_on_stderr(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    log.report(ONE, path, "json")
    err = capfd.readouterr().err
    assert err.startswith('time="') and 'level=error msg="GH-401: ' in err and err.count("\n") == 1


def test_the_last_line_names_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    log.report(TWO, str(path), "json")
    messages = [json.loads(line)["msg"] for line in path.read_text().splitlines()]
    assert messages == ["GH-101: first", "GH-101: again", "GH-103: second (and GH-101 in the log)"]
    assert capfd.readouterr().err.splitlines() == messages


def test_hostile_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log.report([Problem("GH-101", 'x\n{"level":"info"}\x00\u2028\ud800' + "y" * 5000)], str(path), "json")
    (line,) = path.read_text().splitlines()
    assert len(json.loads(line)["msg"]) <= 300


def test_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "JOURNAL", str(tmp_path / "log"))
    before = len(os.listdir("/proc/self/fd"))
    log.journal("nobody listens")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "log"))
        log.journal("Traceback\nü \ud800" + "x" * 20000)
        said = listener.recv(20000)
        assert said.startswith("<27>gpu-hook: Traceback\nü ?".encode()) and 8000 <= len(said) <= 8100
        for _ in range(100):  # a journal that nobody reads does not block us
            log.journal("x")
    assert len(os.listdir("/proc/self/fd")) == before


def test_closed_stderr_is_no_failure() -> None:
    code = (
        "import os; os.close(2)\nfrom oci_hook.errors import Problem\nfrom oci_hook.oci import log\n"
        "log.report([Problem('GH-401', 'x')], '', 'text'); log.journal('x'); print('alive')"
    )
    r = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert r.stdout == "alive\n"


def test_a_log_that_is_full(capfd: pytest.CaptureFixture[str]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    log.report(ONE, "/dev/full", "json")
    assert "GH-401" in capfd.readouterr().err
