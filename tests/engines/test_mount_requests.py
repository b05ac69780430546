"""docker without annotations and without trust in the environment: requests as mounts of /dev/null."""

import json

import pytest

from testbed.engines.box import IMAGE, LOOK
from testbed.engines.docker import Docker
from tests.engines.test_docker import docker, dockerd  # noqa: F401  fixtures

pytestmark = [pytest.mark.root, pytest.mark.slow]
REQUEST = "/dev/null:/run/gpu-hook/request"


@pytest.fixture
def wary(docker: Docker) -> Docker:  # noqa: F811
    docker.place.rules(trust_env=False)
    return docker


def test_a_share_by_mounts(wary: Docker) -> None:
    done = wary.run("-v", f"{REQUEST}/memory=1Gi", "-v", f"{REQUEST}/devices=0", script=LOOK + "ls /run/gpu-hook")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1024 MiB total" in done.stdout and "request" not in done.stdout, done.stdout
    assert "nvidia0" in wary.run("-v", f"{REQUEST}/memory=1Gi:ro", script="ls /dev").stdout
    assert "nvidia0" not in wary.run("-e", "NVIDIA_VISIBLE_DEVICES=0", script="ls /dev").stdout


def test_nvidias_mounts(wary: Docker) -> None:
    gpu = "/dev/null:/var/run/nvidia-container-devices/1"
    done = wary.run("-v", gpu, "-v", f"{REQUEST}/memory=1Gi", script="ls /dev")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nvidia1" in done.stdout and "nvidia0" not in done.stdout


def test_a_container_that_is_started_again(wary: Docker) -> None:
    flags = ("--runtime=gpu-hook", "--network=none", "-v", f"{REQUEST}/memory=1Gi")
    id = wary("create", *flags, IMAGE, "sh", "-c", "ls /dev; ls -A /run/gpu-hook").stdout.strip()
    for _ in range(2):
        done = wary("start", "-a", id)
        assert done.returncode == 0 and "nvidia0" in done.stdout, done.stdout + done.stderr
    mounts = json.loads(wary("inspect", id).stdout)[0]["Mounts"]
    assert [m["Destination"] for m in mounts] == ["/run/gpu-hook/request/memory=1Gi"]


def test_a_mount_that_is_no_request(wary: Docker) -> None:
    done = wary.run("-v", f"{REQUEST}/memory=4G", script="true")
    assert done.returncode != 0 and "GH-101: mount /run/gpu-hook/request/memory='4G' is not a size" in done.stderr
