"""A machine that boots: each container that an engine starts again has its share again, after a reboot and a power cut."""

import re

import pytest

from tests.engines.box import IMAGE
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
    assert installed.holders() == ["docker", "podman", "quadlet"]
    return installed


@pytest.mark.parametrize("how", ["reboot", "power cut"])
def test_containers_have_their_shares_again(services: Inside, how: str) -> None:
    if how == "reboot":
        services.machine.reboot()
    else:
        services("sync")
        services.machine.cut()
        services.machine.up(print)
    for unit in ("docker", "podman-restart", "quadlet", "gpu-hook-agent"):
        services.until(f"systemctl is-active {unit}", 300, f"journalctl -b --no-pager -n 40 -u {unit}")
    names = "import json, sys; names = [one['name'] for one in json.load(sys.stdin)['containers']]; sys.exit(len(names) != 3)"
    services.until(f'gpu-hook ps --json | python3 -c "{names}"')
    assert services.holders() == ["docker", "podman", "quadlet"]
    for name, engine in STARTED_BY.items():
        said = services(f"{engine} exec {name} gpu-probe info")
        assert HAS_SHARE in said or name == "quadlet" and "2048 MiB total" in said, said
    started = {
        unit: int(services(f"systemctl show -P ActiveEnterTimestampMonotonic {unit}"))
        for unit in ("gpu-hook-inventory", "docker", "podman-restart", "quadlet", "gpu-hook-agent")
    }
    assert min(started, key=lambda unit: started[unit]) == "gpu-hook-inventory", started
    assert not re.findall("GH-[0-9]+", services("journalctl -b --no-pager -o cat"))


def test_they_end(services: Inside) -> None:
    services("systemctl stop quadlet; rm /etc/containers/systemd/quadlet.container; systemctl daemon-reload")
    services("docker rm -f docker; podman rm -f --time 0 podman; systemctl disable -q podman-restart")
    services.until("gpu-hook ps --json | grep -q '\"containers\": \\[\\]'")
