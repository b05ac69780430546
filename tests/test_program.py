"""How the programs of the container path end: a line per problem, an event, an exit status."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import REPO

# A program whose work is the code in argv[2]. argv[1]: the state directory, argv[3]: the exit status of a failure,
# argv[4]: the deadline.
PROGRAM = """
import os, sys, time
from oci_hook import program
from oci_hook.errors import Problem, RequestError, refuse
from oci_hook.oci import log

class Test(program.Program):
    def work(self):
        self.state_dir = sys.argv[1]
        exec(sys.argv[2])
    def report(self, problems):
        os.write(2, "".join(f"{p}\\n" for p in problems).encode())

log.JOURNAL = sys.argv[1] + "/journal"
sys.exit(program.run(Test("the test", float(sys.argv[4]), int(sys.argv[3]), "some-id")))
"""


def run(state: Path, work: str, failed: int = 1, deadline: float = 60) -> tuple[int, list[str]]:
    """(exit status, lines on standard error)."""
    command = [sys.executable, "-c", PROGRAM, str(state), work, str(failed), str(deadline)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
    return done.returncode, done.stderr.splitlines()


def events(state: Path) -> list[dict[str, object]]:
    file = state / "events"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_done(tmp_path: Path) -> None:
    assert run(tmp_path, "pass") == (0, [])
    assert events(tmp_path) == []


def test_refused(tmp_path: Path) -> None:
    work = "raise RequestError(Problem('GH-101', 'one'), Problem('GH-103', 'two'))"
    assert run(tmp_path, work) == (1, ["GH-101: one", "GH-103: two"])
    [event] = events(tmp_path)
    assert (event["event"], event["id"], event["codes"]) == ("refused", "some-id", ["GH-101", "GH-103"])


def test_no_event_twice_and_none_without_a_state_directory(tmp_path: Path) -> None:
    """admit() records that there was no room; and before the settings are read nobody knows where events go."""
    assert run(tmp_path, "raise refuse('GH-201', 'no room')") == (1, ["GH-201: no room"])
    assert run(tmp_path, "self.state_dir = ''; raise refuse('GH-501', 'x')") == (1, ["GH-501: x"])
    assert events(tmp_path) == []


@pytest.mark.parametrize(
    ("work", "line"),
    [
        ("x = [0]\nwhile True: x += x", "GH-412: .* 256 MiB of memory that the test may use; make config.json smaller"),
        ("1 / 0", "GH-405: unexpected ZeroDivisionError: division by zero; the journal has details; please report it"),
    ],
)
def test_whatever_goes_wrong_is_one_coded_line(tmp_path: Path, work: str, line: str) -> None:
    status, [said] = run(tmp_path, work)
    assert status == 1 and re.match(line, said), said


def test_late(tmp_path: Path) -> None:
    line = "GH-405: the test was not done after 1 s; is the node or its ledger's disk overloaded?"
    assert run(tmp_path, "time.sleep(60)", deadline=0.6) == (1, [line])


def test_a_failure_may_be_no_failure(tmp_path: Path) -> None:
    """poststop: the container has ended, whatever the hook does."""
    assert run(tmp_path, "raise refuse('GH-303', 'x')", failed=0) == (0, ["GH-303: x"])
