"""Fixtures for tests with real containers: an install with simulated GPUs, images, bundles, and runc with clean-up.

Everything lives below tmp_path; containers that a test leaves behind are killed and deleted at its end.
"""

import gc
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from build_c.native_build import PYTHON
from oci_hook.linux.mount import mountinfo, unmount
from testbed import installs, tiny_image
from testbed.containers import Bundle, Runc
from testbed.installs import Install

# Else each of the thousands of Python processes that tests start compiles all that it imports, half of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

installs.ask_once()
hypothesis.settings.register_profile("sure", deadline=None)  # else an example may take 0.2 s, also on a busy machine
hypothesis.settings.load_profile("sure")
hypothesis.settings.register_profile("quick", max_examples=15)  # scripts/test --quick

REPO = Path(__file__).resolve().parent.parent
ARCH = platform.machine()


# Folders whose files share what takes long to make; of every other one, a file stays in one worker of pytest-xdist.
TOGETHER = ("packaging",)
LONGEST_FIRST = ("packaging", "engines", "model", "shim", "clients", "e2e")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first, so that the workers end at about the same time."""

    def rank(item: pytest.Item) -> int:
        folder = folder_of(item.nodeid)
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=rank)


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """The collector of garbage need not look at eight thousand tests again and again: a twentieth of all the work."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 3 --no-loadscope-reorder`, which keeps the order above."""
    from xdist.scheduler import LoadScopeScheduling

    class InGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return folder_of(nodeid) if folder_of(nodeid) in TOGETHER else nodeid.partition("::")[0]

    return InGroups(config, log)


def folder_of(nodeid: str) -> str:
    return Path(nodeid.partition("::")[0]).parent.name


@pytest.fixture(scope="session")
def native() -> Path:
    """The compiled programs and libraries, up to date with their sources."""
    out = REPO / "build" / ARCH
    subprocess.run([PYTHON, str(REPO / "scripts/build")], check=True, stdout=subprocess.DEVNULL)
    return out


@pytest.fixture
def no_new_devices() -> Iterator[None]:
    """NVIDIA's real libnvidia-ml, run by root, makes itself /dev/nvidiactl even where no GPU is."""
    before = set(Path("/dev").glob("nvidia*"))
    yield
    for node in set(Path("/dev").glob("nvidia*")) - before:
        node.unlink()


@pytest.fixture
def prefix(native: Path, tmp_path: Path) -> Install:
    """An install whose real runtime is runc."""
    return Install(tmp_path)


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """A busybox image in the layout of Red Hat (no /etc/debian_version)."""
    return tiny_image.busybox(tmp_path / "rootfs")


@pytest.fixture(scope="session")
def default_spec() -> dict[str, Any]:
    """What `runc spec` writes, not on a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        spec: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text())
    spec["process"]["terminal"] = False
    spec["root"]["readonly"] = False
    for kind in ("bounding", "effective", "permitted"):  # mknod as docker allows it
        spec["process"]["capabilities"][kind].append("CAP_MKNOD")
    return spec


@pytest.fixture
def bundle(tmp_path: Path, rootfs: Path, default_spec: dict[str, Any]) -> Bundle:
    """bundle(annotations, env, args, rootfs=, edit=) -> the directory of a new bundle. `edit` changes the spec."""
    numbers = itertools.count()

    def make(
        annotations: dict[str, str] | None = None,
        env: Sequence[str] = (),
        args: Sequence[str] = ("sleep", "300"),
        rootfs: Path = rootfs,
        edit: Callable[[dict[str, Any]], object] = lambda spec: None,
    ) -> Path:
        folder = tmp_path / f"bundle{next(numbers)}"
        folder.mkdir()
        spec = json.loads(json.dumps(default_spec))
        spec["annotations"] = annotations or {}
        spec["process"]["env"] += env
        spec["process"]["args"] = list(args)
        spec["root"]["path"] = str(rootfs)
        edit(spec)
        (folder / "config.json").write_text(json.dumps(spec))
        return folder

    return make


@pytest.fixture
def runc(tmp_path: Path) -> Iterator[Runc]:
    runtime = Runc(tmp_path)
    yield runtime
    runtime.close()


@pytest.fixture(scope="session", autouse=True)
def no_mounts_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What containers shared (ledger/slot_files.py) goes with the tests."""
    yield
    base = str(tmp_path_factory.getbasetemp())
    for mount in reversed(mountinfo()):
        if mount.point.startswith(base + "/"):
            unmount(mount.point)
