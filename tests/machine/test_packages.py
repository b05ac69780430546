"""The packages on a machine with systemd: the agent as a service, an upgrade below containers that run, removal, purge."""

import pytest

from testbed.engines.box import IMAGE
from tests.machine.conftest import ASKS, HAS_SHARE, Inside

pytestmark = [pytest.mark.machine, pytest.mark.root, pytest.mark.slow]
KEPT = ("docker", "containerd", "containers")  # what engines keep of containers


def test_the_agent_is_a_service(installed: Inside) -> None:
    """With its hardening, as shipped: it is ready, is started again after a crash, and says what it sees."""
    installed("systemctl enable -q gpu-hook-agent; systemctl restart gpu-hook-agent")
    shown = installed("systemctl show -P ActiveState -P Type -P WatchdogUSec -P ProtectSystem gpu-hook-agent").split()
    assert {"active", "notify", "strict"} <= set(shown), shown
    pid = installed("systemctl show -P MainPID gpu-hook-agent").strip()
    installed(f"kill -KILL {pid}")
    installed.until(
        f"systemctl is-active -q gpu-hook-agent && test $(systemctl show -P MainPID gpu-hook-agent) != {pid}"
    )
    assert "GH-" not in installed("journalctl -b -u gpu-hook-agent --no-pager -o cat")


def test_an_agent_that_hangs_is_started_again(installed: Inside) -> None:
    """By systemd's watchdog, which waits less here than as shipped. Containers get their shares meanwhile."""
    drop_in = "/run/systemd/system/gpu-hook-agent.service.d"
    installed(
        f"mkdir -p {drop_in}; printf '[Service]\\nWatchdogSec=20\\n' >{drop_in}/soon.conf; systemctl daemon-reload"
    )
    installed("systemctl restart gpu-hook-agent")
    pid = installed("systemctl show -P MainPID gpu-hook-agent").strip()
    installed(f"kill -STOP {pid}")
    assert HAS_SHARE in installed(f"docker run --rm --network none --runtime gpu-hook {ASKS} {IMAGE} gpu-probe info")
    installed.until(
        f"systemctl is-active -q gpu-hook-agent && test $(systemctl show -P MainPID gpu-hook-agent) != {pid}"
    )
    assert "Failed with result 'watchdog'" in installed("journalctl -b -u gpu-hook-agent --no-pager -o cat")
    installed(f"rm -r {drop_in}; systemctl daemon-reload; gpu-hook doctor | grep '^ok *agent'")


def test_an_upgrade_below_a_container(installed: Inside) -> None:
    installed(f"docker run -d --name stays --network none --runtime gpu-hook {ASKS} {IMAGE} sleep 1000000")
    installed("apt-get install -y -q /share/with/newer/*.deb", 900)
    assert installed("dpkg-query -W -f '${Version}' gpu-hook") == "99"
    assert HAS_SHARE in installed("docker exec stays gpu-probe info")
    assert installed.holders() == ["stays"]
    assert HAS_SHARE in installed(f"docker run --rm --network none --runtime gpu-hook {ASKS} {IMAGE} gpu-probe info")


def test_removal_waits_for_containers_and_leaves_nothing(installed: Inside) -> None:
    said = installed.fails("apt-get remove -y -q gpu-hook")
    assert "GH-306: 1 container(s) use the simulated GPUs" in said or "GH-504: 1 container(s) hold shares" in said, said
    installed("docker rm -f stays; dpkg --configure -a; systemctl disable -q --now gpu-hook-agent")
    installed("systemctl disable -q --now gpus; rm -r /etc/systemd/system/gpus.service; systemctl daemon-reload")
    installed("rmdir /etc/systemd/system/gpu-hook-inventory.service.wants 2>/dev/null || true")
    installed("apt-get purge -y -q gpu-hook gpu-hook-simulator", 900)
    places = ("/proc", "/share", "/root", "/home", "/var/log", *(f"/var/lib/{name}" for name in KEPT))
    pruned = " -o ".join(f"-path {place}" for place in places)
    left = installed(
        f"find / -xdev \\( {pruned} \\) -prune -o -name '*gpu-hook*' -print; ls /dev | grep nvidia || true"
    )
    assert left == "", left
    assert "/opt/gpu-hook" not in installed(
        "cat /etc/docker/daemon.json /etc/containerd/config.toml 2>/dev/null || true"
    )
    for engine in ("docker", "podman"):
        installed(f"{engine} run --rm --network none {IMAGE} true")
