"""Packages built once per test run, and machines to install them on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.packaging.machine import Machine, debian

NEEDED = "python3,python3-click,python3-yaml,python3-tomlkit,runc"


@pytest.fixture(scope="session")
def bookworm() -> Path:
    """Debian 12 with what the package depends on, so that it can be installed without a network."""
    return debian("bookworm", NEEDED)


@pytest.fixture(scope="session")
def packages(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the .deb and the image."""
    out = tmp_path_factory.mktemp("packages")
    for kind in ("deb", "image"):
        package(kind, out)
    return out


def package(kind: str, out: Path, umask: int = 0o022, **environment: str) -> Path:
    """What scripts/package builds, without its look at whether the checkout is ready."""
    command = [sys.executable, "-B", str(REPO / "packaging/build.py"), kind, "--out", str(out)]
    whole = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, umask=umask, env=whole, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip())


@pytest.fixture
def machine(bookworm: Path, packages: Path) -> Iterator[Machine]:
    machine = Machine(bookworm, packages)
    yield machine
    machine.close()
