"""An install with simulated cards per test file and system, for engines that are started once."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.engines.box import Place

TRIXIE = "containerd,docker.io,docker-cli,podman,crun,runc,python3"


@pytest.fixture(scope="session")
def trixie() -> Path:
    """Debian 13 with its engines: containerd 1.7, docker 26, podman 5, Python 3.13. Made once, in minutes."""
    root = REPO / "build/trixie"
    if not root.exists():
        half = root.with_name("trixie.half")
        shutil.rmtree(half, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={TRIXIE}", "trixie", half], check=True)
        for archive in half.glob("var/cache/apt/archives/*.deb"):
            archive.unlink()
        half.rename(root)
    return root


@pytest.fixture(scope="module", params=("this machine", "trixie"))
def place(native: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    place = Place(native, request.getfixturevalue("trixie") if request.param == "trixie" else None)
    yield place
    place.close()
