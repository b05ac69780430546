"""The node's image on a machine that the packages have left: what it installs runs there, and its stop removes all of it."""

import pytest

from testbed.engines.box import IMAGE
from tests.machine.conftest import ASKS, Inside

pytestmark = [pytest.mark.machine, pytest.mark.root, pytest.mark.slow]


def test_the_image_installs_and_removes(installed: Inside) -> None:
    """As docs/guide/install.md runs it. It brings no simulator, so there is no GPU to give."""
    if installed.run("dpkg-query -W gpu-hook").returncode == 0:
        pytest.skip("the packages are here: the tests of test_packages.py remove them")
    name = installed("podman load -qi /share/with/gpu-hook-install_*.tar").split()[-1]
    flags = "--privileged --pid=host --net=host --env=ENGINES=docker --env=RESTART=yes --volume=/:/host:rslave"
    installed(f"podman run -d --name installer {flags} {name}")
    installed.until("podman logs installer 2>&1 | grep 'SIGTERM removes it'", 300, "podman logs installer 2>&1")
    run = f"docker run --rm --network none --runtime gpu-hook {{}} {IMAGE} echo it runs"
    assert "it runs" in installed(run.format(""))
    assert "GH-301" in installed.fails(run.format(ASKS))
    installed("podman stop --time=120 installer; podman rm installer")
    assert installed("ls /opt | grep gpu-hook || true") == ""
    assert "gpu-hook" not in installed("cat /etc/docker/daemon.json || true")
