"""docs/guide/install.md: every command, on machines as it says. GPUs are simulated (`sim up` for `gpus --refresh`), the
packages are those that the other tests use."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import REPO
from testbed.engines.box import Hideout
from testbed.packages import debian_13
from tests.packaging.machine import Machine

pytestmark = [pytest.mark.root, pytest.mark.slow]
PODMAN = """[containers]
default_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""
PAGE = (REPO / "docs/guide/install.md").read_text()


def blocks(label: str) -> list[str]:
    found = [text for name, text in re.findall(r"^```sh (\w+)\n(.*?)^```$", PAGE, re.M | re.S) if name == label]
    return [text.replace("gpu-hook gpus --refresh ", "gpu-hook sim up --gpus 2 ") for text in found]


def test_every_block_is_run() -> None:
    assert set(re.findall(r"^```(.+)$", PAGE, re.M)) == {
        "sh build",
        "sh deb",
        "sh rpm",
        "sh tarball",
        "sh pip",
        "sh image",
        "sh simulator",
    }


def test_build() -> None:
    """What the other tests build is what the page says."""
    (text,) = blocks("build")
    assert re.findall(r"scripts/package (\w+) --out dist\n", text) == ["deb", "rpm", "tarball", "wheel", "image"]
    (text,) = blocks("simulator")
    assert "scripts/package simulator-deb --out dist\n" in text
    assert 'exec .venv/bin/python -B packaging/build.py "$@"' in (REPO / "scripts/package").read_text()


def test_deb(machine: Machine) -> None:
    machine.sh("ln -s /packages /dist; touch /usr/bin/dockerd")
    first, second, last = blocks("deb")
    first = first.replace("gpu-hook_*.deb ", "gpu-hook_*.deb ./dist/gpu-hook-simulator_*.deb ")
    assert "all is well" in machine.sh(f"cd /; {first}")
    assert "nothing to change" not in machine.sh("gpu-hook uninstall --engine docker")
    machine.sh(second)
    assert "gpu-hook" in machine.sh("cat /etc/docker/daemon.json")
    machine.sh(last)
    assert not machine.exists("/opt/gpu-hook") and not machine.exists("/etc/docker/daemon.json")


def test_rpm(machine: Machine) -> None:
    """By rpm on a Debian: it has what the package needs under other names (--nodeps)."""
    machine.sh("ln -s /packages /dist; rpm --initdb")
    first, last = blocks("rpm")
    first = first.replace("gpu-hook-[0-9]*.rpm", "gpu-hook-0*.rpm ./dist/gpu-hook-simulator-*.rpm")
    last = last.replace("gpu-hook", "gpu-hook gpu-hook-simulator")
    for own, other in (
        ("dnf install --assumeyes ", "rpm --install --nodeps "),
        ("dnf remove --assumeyes", "rpm --erase"),
    ):
        first, last = first.replace(own, other), last.replace(own, other)
    assert "all is well" in machine.sh(f"cd /; {first}")
    machine.sh(last)
    assert not machine.exists("/opt/gpu-hook") and not machine.exists("/usr/lib/gpu-hook")


def test_tarball(machine: Machine) -> None:
    machine.sh("ln -s /packages /dist")
    (text,) = blocks("tarball")
    unpack, link, rest = text.split("\n", 2)
    machine.sh(f"cd /; {unpack}")
    machine.simulator_beside("/srv/gpu-hook_*")
    assert "GPU-" in machine.sh(
        f"cd /; {link}\n{rest.replace('gpu-hook uninstall', 'gpu-hook gpus; gpu-hook uninstall')}"
    )
    assert machine.sh("ls -A /srv /opt /usr/local/sbin") == "/opt:\n\n/srv:\n\n/usr/local/sbin:\n"


@pytest.fixture
def host(packages: Path) -> Iterator[Hideout]:
    """This machine."""
    hideout = Hideout()
    yield hideout
    hideout.close()


def test_simulator(machine: Machine) -> None:
    machine.sh("ln -s /packages /dist; dpkg -i /packages/gpu-hook_0*.deb")
    (text,) = blocks("simulator")
    _, text = text.split("\n", 1)  # it is built
    assert machine.sh(f"cd /; {text}").count("Simulated GPU 24 GiB") == 2
    assert not machine.exists("/opt/gpu-hook/sim") and machine.exists("/opt/gpu-hook")
    assert "gpu-hook-simulator" in machine.fails("gpu-hook sim up")


def test_pip(wheel: Path, packages: Path, host: Hideout, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    dist.mkdir()
    shutil.copy(wheel, dist)
    (simulator,) = packages.glob("gpu_hook_simulator-*.whl")
    shutil.copy(simulator, dist)
    # pip finds in a folder what it would fetch: the hideout has no network.
    download = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "-d", str(dist)]
    subprocess.run([*download, str(wheel)], check=True)
    first, completion, last = blocks("pip")
    first = first.replace("dist/gpu_hook-*.whl", "dist/gpu_hook-*.whl dist/gpu_hook_simulator-*.whl")
    setting = f"set -e; cd {tmp_path}; export PIP_NO_INDEX=1 PIP_FIND_LINKS={dist}\n"
    done = host.run("sh", "-c", setting + first)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, gpu, boundary = done.stdout.splitlines()
    assert gpu.count("GPU-") == 1 and boundary.startswith("memory limits held by the shim alone")
    done = host.run("sh", "-c", f"{setting}export HOME={tmp_path}\n{completion}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu-hook" in (tmp_path / ".local/share/bash-completion/completions/gpu-hook").read_text()
    done = host.run("sh", "-c", setting + last + "ls /opt")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "removed /opt/gpu-hook"), done.stdout + done.stderr


def test_image(packages: Path) -> None:
    """By podman 5 on a Debian 13, which has nothing of what the command line imports."""
    (text,) = blocks("image")
    beside = (
        "dpkg-deb -x dist/gpu-hook-simulator_*.deb u; cp -r u/usr/lib/gpu-hook/gpu_hook_simulator /opt/gpu-hook-cli\n"
    )
    text = text.replace("/opt/gpu-hook-cli/gpu-hook sim up", f"{beside}/opt/gpu-hook-cli/gpu-hook sim up")
    bare = "umount /usr/local/lib/python3*/dist-packages; rm -rf /usr/bin/python3* /usr/lib/python3*"
    hideout = Hideout(debian_13(), bare)
    try:
        script = f"set -e; mkdir -p /etc/containers; cat >/etc/containers/containers.conf <<'END'\n{PODMAN}END\n"
        script += f"ln -s {packages} /run/dist; cd /run\n{text}ls /opt\n"
        done = hideout.run("sh", "-c", script)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "simulated GPU 0" in done.stdout
        assert done.stdout.splitlines()[-1] == "gpu-hook", done.stdout + done.stderr  # podman rm; nothing is in /opt
    finally:
        hideout.run("sh", "-c", "podman rm --all --force --time=0")
        hideout.close()
