"""`gpu-hook agent release-driver` and `take-driver`, towards an agent of this test; tests/agent/test_release_driver.py has a
real one."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from oci_hook.cli import agent as command
from oci_hook.core.grant import Share
from oci_hook.core.layout import AGENT_LOCK
from tests.cli.box import Install

AGENT = """
import fcntl, signal, sys, time
from oci_hook.agent.serve import whereabouts
file = open(sys.argv[1], "w"); fcntl.flock(file, fcntl.LOCK_EX)
def off(*_): whereabouts.tell(file.fileno(), off=sys.argv[2] == "lets go")
signal.signal(signal.SIGUSR1, off); signal.signal(signal.SIGUSR2, lambda *_: whereabouts.tell(file.fileno()))
print("ready", flush=True)
while True: time.sleep(100)
"""


@pytest.fixture(params=["lets go"])
def pid(install: Install, request: pytest.FixtureRequest) -> Iterator[int]:
    line = [sys.executable, "-c", AGENT, str(install.state / AGENT_LOCK), request.param]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_no_agent(install: Install) -> None:
    for word in ("release-driver", "take-driver"):
        assert install.text("agent", word) == "no agent runs\n"
        assert install.data("agent", word)["agent"] == 0


def test_it_waits_until_the_agent_says_so(install: Install, pid: int) -> None:
    assert install.text("agent", "release-driver") == f"the agent, process {pid}, keeps off the driver\n"
    install.grant("busy", Share("GPU-0", 1024))
    assert install.data("agent", "release-driver") == {"agent": pid, "containers": ["busy"]}
    assert "containers hold a share, and programs in them may use the driver: busy\n" in install.text(
        "agent", "release-driver"
    )
    assert install.data("agent", "take-driver") == {"agent": pid}


@pytest.mark.parametrize("pid", ["holds it"], indirect=True)
def test_an_agent_that_does_not_let_go(install: Install, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RELEASE_SECONDS", 0.2)
    (error,) = install.data("agent", "release-driver", status=1)["errors"]
    assert error["code"] == "GH-322" and f"process {pid}, still asks the driver" in error["message"]
