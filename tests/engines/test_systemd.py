"""systemd for real, on cgroup v2: it keeps a container's GPUs across daemon-reload, since it was told of them.

runc asks it for a scope with the rules of config.json.
"""

import os
from collections.abc import Iterator

import pytest

from tests.engines.box import Place
from tests.engines.systemd_box import SYSTEMD, Systemd

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists(SYSTEMD), reason="systemd is not installed"),
]


@pytest.fixture
def systemd(place: Place) -> Iterator[Systemd]:
    made = Systemd(place)
    yield made
    made.close()


@pytest.mark.parametrize("place", ("this machine",), indirect=True)
def test_daemon_reload(systemd: Systemd) -> None:
    bundle = systemd.bundle(annotations={"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"})
    done = systemd.runc("run", "--detach", "--bundle", str(bundle), "one")
    assert done.returncode == 0, done.stderr
    allowed = systemd("systemctl", "show", "gh-one.scope", "--property=DeviceAllow").stdout
    assert "/dev/char/195:0 rw\n" in allowed and "195:1 " not in allowed, allowed

    def opened() -> str:
        """What the kernel says of GPU 0, which is ours, and of GPU 1: whether there is a driver, or no permission."""
        script = "exec 2>&1; mknod /tmp/gpu1 c 195 1; cat </dev/nvidia0; cat </tmp/gpu1; rm /tmp/gpu1; true"
        return systemd.runc("exec", "--cap", "CAP_MKNOD", "one", "sh", "-c", script).stdout

    before = opened()
    assert "nvidia0: No such device or address" in before and "gpu1: Operation not permitted" in before
    for command in (("daemon-reload",), ("set-property", "--runtime", "gh-one.scope", "TasksMax=100")):
        assert systemd("systemctl", *command).returncode == 0
        assert opened() == before, command
    assert systemd.runc("delete", "--force", "one").returncode == 0
