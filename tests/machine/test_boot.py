"""A machine that boots: each container that an engine starts again has its share again, after a reboot and a power cut, and
where the clock is years off until somebody sets it."""

import re
import time

import pytest

from testbed.engines.box import IMAGE
from tests.machine.conftest import ASKS, HAS_SHARE, Inside

pytestmark = [pytest.mark.machine, pytest.mark.root, pytest.mark.slow]

QUADLET = f"""
[Unit]
Description=a container by quadlet
[Container]
Image={IMAGE}
ContainerName=quadlet
Network=none
Annotation=gpu-hook.io/devices=1
Annotation=gpu-hook.io/memory=2Gi
Exec=sleep 1000000
Pull=never
[Install]
WantedBy=multi-user.target
"""
WRONG_CLOCK = """
[Unit]
DefaultDependencies=no
ConditionPathExists=/etc/wrong-clock
After=local-fs.target
Before=gpus.service gpu-hook-inventory.service sysinit.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'date -s "$(cat /etc/wrong-clock)"'
[Install]
WantedBy=sysinit.target
"""
STARTED_BY = {"docker": "docker", "podman": "podman", "quadlet": "podman"}


@pytest.fixture(scope="module")
def services(installed: Inside) -> Inside:
    """A container of docker, of podman-restart.service and of a quadlet, by podman's hooks; and the agent."""
    installed(
        f"docker run -d --name docker --restart always --network none --runtime gpu-hook {ASKS} {IMAGE} sleep 1000000"
    )
    installed(f"podman run -d --name podman --restart always --network none {ASKS} {IMAGE} sleep 1000000")
    installed(f"mkdir -p /etc/containers/systemd; cat >/etc/containers/systemd/quadlet.container <<'Q'\n{QUADLET}Q")
    installed("systemctl daemon-reload; systemctl start quadlet")
    installed("systemctl enable -q podman-restart; systemctl enable -q --now gpu-hook-agent")
    installed(f"cat >/etc/systemd/system/wrong-clock.service <<'U'\n{WRONG_CLOCK}U\nsystemctl enable -q wrong-clock")
    assert installed.holders() == ["docker", "podman", "quadlet"]
    return installed


@pytest.mark.parametrize("how", ["reboot", "power cut", "2001-02-03", "2040-05-06"])
def test_containers_have_their_shares_again(services: Inside, how: str) -> None:
    """A date: the boot's clock has it."""
    dated = how[0] == "2"
    if dated:
        services(f"echo {how} >/etc/wrong-clock")
    if how == "power cut":
        services("sync")
        services.machine.cut()
        services.machine.up(print)
    else:
        services.machine.reboot()
    for unit in ("docker", "podman-restart", "quadlet", "gpu-hook-agent"):
        services.until(f"systemctl is-active {unit}", 300, f"journalctl -b --no-pager -n 40 -u {unit}")
    names = "import json, sys; names = [one['name'] for one in json.load(sys.stdin)['containers']]; sys.exit(len(names) != 3)"
    services.until(f'gpu-hook ps --json | python3 -c "{names}"')
    have_their_shares(services)
    started = {
        unit: int(services(f"systemctl show -P ActiveEnterTimestampMonotonic {unit}"))
        for unit in ("gpu-hook-inventory", "docker", "podman-restart", "quadlet", "gpu-hook-agent")
    }
    assert min(started, key=lambda unit: started[unit]) == "gpu-hook-inventory", started
    if dated:
        assert services("date +%Y") == how[:4] + "\n"
        services(f"rm /etc/wrong-clock; date -s @{time.time():.0f}")
        have_their_shares(services)
        changed = (
            "gpu-hook set docker --memory 2Gi; docker exec docker gpu-probe info; gpu-hook set docker --memory 1Gi"
        )
        assert "2048 MiB total" in services(changed)
        once = f"docker run --rm --network none --runtime gpu-hook {ASKS} {IMAGE} gpu-probe info"
        assert HAS_SHARE in services(once)
        services.until('gpu-hook events --json --since 1h | grep \'"event": "ended"\'')  # by the agent
        assert services.holders() == ["docker", "podman", "quadlet"]
    assert not re.findall("GH-[0-9]+", services("journalctl -b --no-pager -o cat"))


def have_their_shares(services: Inside) -> None:
    assert services.holders() == ["docker", "podman", "quadlet"]
    for name, engine in STARTED_BY.items():
        said = services(f"{engine} exec {name} gpu-probe info")
        assert HAS_SHARE in said or name == "quadlet" and "2048 MiB total" in said, said


def test_they_end(services: Inside) -> None:
    services("systemctl stop quadlet; rm /etc/containers/systemd/quadlet.container; systemctl daemon-reload")
    services("systemctl disable -q wrong-clock; rm /etc/systemd/system/wrong-clock.service")
    services("docker rm -f docker; podman rm -f --time 0 podman; systemctl disable -q podman-restart")
    services.until("gpu-hook ps --json | grep -q '\"containers\": \\[\\]'")
