"""SELinux enforced by Debian's policy, in the machine `selinux`: containers of docker, and of podman as a unit, have their shares."""

import re

import pytest

from testbed import REPO
from testbed.engines.box import IMAGE
from tests.machine.conftest import ASKS, HAS_SHARE, SUITE, Inside

pytestmark = [
    pytest.mark.machine,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(SUITE != "selinux", reason="the machine has no SELinux"),
]

USES = "gpu-probe info alloc 64; cat /proc/self/attr/current"
# A container may have no module loaded, which opening a node without a driver asks for; the rest is of all its programs.
OF_ALL = "module_request|noatsecure|siginh|rlimitinh"


@pytest.fixture(scope="module")
def enforced(machine: Inside, request: pytest.FixtureRequest) -> Inside:
    """With what docs/guide/environments.md says that Debian's policy needs."""
    page = (REPO / "docs/guide/environments.md").read_text()
    (script,) = re.findall(r"```sh\n(setsebool .*?)```", page, re.DOTALL)
    machine(script.replace(" -P ", " "), 1200)  # each change that lasts compiles the whole policy
    machine("mkdir -p /etc/docker; echo '{\"selinux-enabled\": true}' >/etc/docker/daemon.json")
    inside = request.getfixturevalue("installed")
    inside("dmesg --clear")
    assert isinstance(inside, Inside)
    return inside


def no_denial(inside: Inside) -> None:
    said = inside.run(f"dmesg | grep -E 'avc: +denied.*gpu-(hook|probe)' | grep -vE '{OF_ALL}'").stdout
    assert said == ""


def test_docker(enforced: Inside) -> None:
    """Two containers on one GPU; what is changed reaches one that runs."""
    assert enforced("cat /sys/fs/selinux/enforce") == "1"
    assert "name=selinux" in enforced("docker info --format '{{.SecurityOptions}}'")
    for name in ("one", "two"):
        enforced(f"docker run -d --name {name} --network none --runtime gpu-hook {ASKS} {IMAGE} sleep 1000")
    for name in ("one", "two"):
        said = enforced(f"docker exec {name} sh -c '{USES}'")
        assert HAS_SHARE in said and "alloc 64 MiB: ok" in said and ":container_t:" in said, said
    assert "2048 MiB total" in enforced("gpu-hook set one --memory 2Gi; docker exec one gpu-probe info")
    assert enforced.holders() == ["one", "two"]
    enforced("docker rm -f one two")
    no_denial(enforced)


@pytest.mark.parametrize(
    ("runtime", "precreate"),
    [("gpu-hook", True), ("runc", True), ("crun", True), ("runc", False), ("crun", False)],
)
def test_podman(enforced: Inside, runtime: str, precreate: bool) -> None:
    """By our runtime, and by the OCI hooks."""
    hook = "/etc/containers/oci/podman-hooks.d/gpu-hook-precreate.json"
    enforced("true" if precreate else f"mv {hook} /root/precreate.json")
    try:
        unit = f"podman-{runtime}-{precreate}"
        command = f"podman --runtime {runtime} run --rm --network none {ASKS} {IMAGE} sh -c '{USES}'"
        enforced(f"systemd-run --quiet --wait --unit {unit} {command} || {{ journalctl -n 30 -u {unit}; exit 1; }}")
    finally:
        enforced("true" if precreate else f"mv /root/precreate.json {hook}")
    assert enforced.holders() == []
    no_denial(enforced)


def test_the_agent(enforced: Inside) -> None:
    enforced("systemctl start gpu-hook-agent; systemctl is-active gpu-hook-agent")
    no_denial(enforced)
