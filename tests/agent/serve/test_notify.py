"""systemd is told that the agent is ready and alive."""

import math
import socket
from pathlib import Path

import pytest

from oci_hook.agent.serve.notify import Notifier


def test_systemd_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "notify"))
        n = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"})
        n.say("READY=1", "STATUS=well")
        assert s.recv(100) == b"READY=1\nSTATUS=well" and n.watchdog == 30
        assert [n.alive(t) for t in (100.0, 105.0, 110.5)] == [110, 110, 120.5]
        s.setblocking(False)
        assert s.recv(100) == s.recv(100) == b"WATCHDOG=1"
        with pytest.raises(BlockingIOError):
            s.recv(100)
    n.say("READY=1")  # nobody listens any more
    assert Notifier({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog == 0
    Notifier({}).say("x")
    assert Notifier({}).alive(5) == math.inf
