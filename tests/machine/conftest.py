"""Tests in a whole Debian machine, which scripts/machine boots: each command goes there by its channel.

`scripts/test --machine[=trixie|sid|arm64|selinux]` runs them, in one machine and in order: the boot, containers, limits, the
packages, the image. What a test makes in the machine goes with the machine.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h2
import pytest

from testbed import REPO, debian, tiny_image
from testbed.engines.box import IMAGE, MEMORY_MIB, PAUSE, pack
from testbed.machine import image
from testbed.machine.machine import CannotRun, Machine
from testbed.packages import compose, unpacked
from tests.packaging.conftest import package

SUITE = os.environ.get("GPU_HOOK_MACHINE", "")

ASKS = "--annotation gpu-hook.io/devices=0 --annotation gpu-hook.io/memory=1Gi"
# What the kernel says of GPU 0 (allowed: it has no driver) and of GPU 1; then what the driver says.
LOOK = "cat </dev/nvidia0; mknod /tmp/other c 195 1; cat </tmp/other; rm -f /tmp/other; gpu-probe info"
HAS_SHARE = f"device 0: Simulated GPU {MEMORY_MIB >> 10} GiB, 1024 MiB total"


class Inside:
    """Runs shell commands in the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def run(self, script: str, timeout: float = 600) -> "subprocess.CompletedProcess[str]":
        """stdout has both streams."""
        return self.machine.run(f"exec 2>&1\n{script}", timeout)

    def __call__(self, script: str, timeout: float = 600) -> str:
        """What the commands print; the last one, and each that is not in a condition, must succeed."""
        done = self.run(f"set -e\n{script}", timeout)
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout

    def fails(self, script: str) -> str:
        done = self.run(f"set -e\n{script}")
        assert done.returncode != 0, f"{script}\n{done.stdout}"
        return done.stdout

    def holders(self) -> list[str]:
        """The names of the containers that have a share."""
        return sorted(one["name"] for one in json.loads(self("gpu-hook ps --json"))["containers"])

    def until(self, script: str, seconds: int = 120, why: str = "") -> str:
        """What the commands print when they succeed at last. why: commands that tell, once, what keeps them from it."""
        tries = f'while [ $SECONDS -lt {seconds} ]; do said=$({script}) && echo "$said" && exit; sleep 1; done; exit 1'
        done = self.run(tries, seconds + 60)
        assert done.returncode == 0, f"{script}: {self.run(f'{script}; {why}').stdout}"
        return done.stdout


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """The machine of GPU_HOOK_MACHINE with this checkout's packages and an image in /share/with."""

    def say(text: str) -> None:
        print(text, flush=True)

    beside = tmp_path_factory.mktemp("beside")
    machine = Machine(SUITE)
    suite = machine.suite
    native = REPO / "build" / suite.arch
    subprocess.run(
        [sys.executable, REPO / "scripts/build", "--arch", suite.arch], check=True, stdout=subprocess.DEVNULL
    )
    try:
        image.build(suite, say)
        other = suite.architecture if suite.arch != tiny_image.ARCH else ""
        libraries = ("busybox-static", "libc6", "libgcc-s1")
        host = unpacked(suite.suite, *libraries, architecture=other) if other else Path("/")
        rootfs = tiny_image.with_c_library(tmp_path_factory.mktemp("image") / "rootfs", host, suite.arch)
        shutil.copy(native / "sim/gpu-probe", rootfs / "bin/gpu-probe")
        pack(beside / "images.tar", rootfs, {IMAGE: ["sh"], PAUSE: ["sleep", "1000000"]}, suite.arch)
        subprocess.run(["tar", "-cf", beside / "rootfs.tar", "-C", rootfs, "."], check=True)
        shutil.copy(compose(other), beside)
        shutil.copytree(
            native, beside / "build" / suite.arch, ignore=shutil.ignore_patterns(".*", "bench", "tests", "controller-*")
        )
        for name in ("h2", "hpack", "hyperframe"):  # for pod.py
            shutil.copytree(Path(h2.__file__).parents[1] / name, beside / "python" / name)
        package("image", beside, arch=suite.arch)
        for kind in ("deb", "simulator-deb"):
            newer(package(kind, beside, arch=suite.arch), beside / "newer")
        for folder in (beside, *beside.parents[:2]):
            folder.chmod(0o755)  # apt reads them as another user
        machine.up(say, beside)
    except (debian.CannotFetch, CannotRun) as e:
        machine.down()
        pytest.skip(str(e))
    yield Inside(machine)
    machine.down()


def newer(deb: Path, out: Path) -> None:
    """The same package as version 99, made here, where it takes no minute."""
    out.mkdir(exist_ok=True)
    root = out / "root"
    subprocess.run(["dpkg-deb", "-R", deb, root], check=True)
    control = root / "DEBIAN/control"
    text = re.sub(r"^Version: .*", "Version: 99", control.read_text(), flags=re.MULTILINE)
    control.write_text(re.sub(r"gpu-hook \(= [^)]*\)", "gpu-hook (= 99)", text))
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "-b", root, out / deb.name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def installed(machine: Inside) -> Inside:
    """gpu-hook by its packages, registered with the engines; two simulated GPUs, also after a boot."""
    machine("apt-get install -y -q /share/with/*.deb")
    machine(
        r"""printf '%s\n' '[Unit]' 'Before=gpu-hook-inventory.service' 'After=local-fs.target' 'DefaultDependencies=no' \
        '[Service]' 'Type=oneshot' 'RemainAfterExit=yes' \
        'ExecStart=/usr/bin/gpu-hook sim up --gpus 2 --memory 8Gi --nodes --force' \
        '[Install]' 'WantedBy=gpu-hook-inventory.service' >/etc/systemd/system/gpus.service
        systemctl enable -q gpus.service; systemctl start gpus.service; systemctl restart gpu-hook-inventory.service"""
    )
    machine("systemctl enable -q --now docker containerd")
    machine("gpu-hook install --engine docker --engine containerd --engine podman --restart")
    machine("docker load -qi /share/with/images.tar; podman load -qi /share/with/images.tar")
    machine("ctr images import /share/with/images.tar")
    return machine


def has_its_gpu_alone(said: str) -> bool:
    """Of what LOOK prints."""
    other = "other: Operation not permitted" in said
    return "nvidia0: No such device or address" in said and other and HAS_SHARE in said
