"""Packages built once per test run, and machines to install them on."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import REPO
from testbed.packages import debian_13
from tests.packaging.machine import Machine


@pytest.fixture(scope="session")
def packages(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each .deb, .rpm and wheel, the tarball and the image."""
    out = tmp_path_factory.mktemp("packages")
    for kind in ("deb", "rpm", "tarball", "image", "wheel", "simulator-deb", "simulator-rpm", "simulator-wheel"):
        package(kind, out)
    return out


def package(kind: str, out: Path, umask: int = 0o022, zone: str = "UTC", arch: str = platform.machine()) -> Path:
    """What scripts/package builds, without its look at whether the checkout is ready."""
    command = [sys.executable, "-B", str(REPO / "packaging/build.py"), kind, "--out", str(out), "--arch", arch]
    whole = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "TZ": zone}
    done = subprocess.run(command, capture_output=True, text=True, umask=umask, env=whole, cwd=out)
    if "Debian's Python cannot be had" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip())


def built_twice(kind: str, packages: Path, folder: Path) -> tuple[bytes, bytes]:
    """The package of the session, and another build by somebody with another umask and time zone."""
    other = package(kind, folder, 0o077, "Asia/Tokyo")
    return (packages / other.name).read_bytes(), other.read_bytes()


@pytest.fixture(scope="session")
def wheel(packages: Path) -> Path:
    (file,) = packages.glob("gpu_hook-*.whl")
    return file


@pytest.fixture
def machine(packages: Path) -> Iterator[Machine]:
    """A Debian without Python, and without root's cache of compiled code."""
    machine = Machine(debian_13(), packages)
    machine.sh("rm -rf /usr/bin/python3* /usr/lib/python3* /usr/local/lib/python3*")
    yield machine
    machine.close()
