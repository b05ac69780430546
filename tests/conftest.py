"""Fixtures for tests with real containers: an install with simulated GPUs, images, bundles, and runc with clean-up.

Everything lives below tmp_path; containers that a test leaves behind are killed and deleted at its end.
"""

import contextlib
import gc
import glob
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from build_c.native_build import PYTHON
from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import DeviceFile, DriverFile, Gpu, Inventory
from oci_hook.discovery.save import save_inventory
from oci_hook.install import settings_edit
from oci_hook.ledger import store
from oci_hook.linux.mount import mountinfo, unmount
from oci_hook.linux.proc import boot_id
from scripts import tiny_image
from tests import installs

# Else each of the thousands of Python processes that tests start compiles all that it imports, half of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

installs.ask_once()
hypothesis.settings.register_profile("sure", deadline=None)  # else an example may take 0.2 s, also on a busy machine
hypothesis.settings.load_profile("sure")
hypothesis.settings.register_profile("quick", max_examples=15)  # scripts/test --quick

REPO = Path(__file__).resolve().parent.parent
ARCH = platform.machine()
DRIVER = "550.163.01"
UUIDS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-11111111-1111-4111-8111-111111111111")
MEMORY_MIB = 24576
_ids = itertools.count()


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


class Install:
    """An install of its own: prefix, state directory, a driver root of fake files, two simulated GPUs."""

    def __init__(self, root: Path, **settings: str) -> None:
        self.prefix = root / "prefix"
        self.state = root / "state"
        self.driver = root / "driver"
        self.settings: Settings = installs.lay(
            str(self.prefix), runtime=settings.get("runtime"), state_dir=str(self.state)
        )
        self.program = str(self.prefix / "bin/gpu-hook-runtime")
        self.inventory = make_inventory(self.driver, self.state)
        self.set(driver_root=str(self.driver))
        save_inventory(self.settings, self.inventory)

    def set(self, **changes: object) -> None:
        """Change settings.yaml: text, a number, a flag or a list for each key."""
        self.settings = settings_edit.change(str(self.prefix), **{key: as_text(v) for key, v in changes.items()})

    def grants(self) -> tuple[Grant, ...]:
        return store.snapshot(str(self.state))


def as_text(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_inventory(driver: Path, state: Path) -> Inventory:
    """Two simulated GPUs and a driver root with files that say what they are, each with contents of its own."""
    libs = driver / "usr/lib64"
    libs.mkdir(parents=True)
    (driver / "usr/bin").mkdir()
    files = []
    for soname, capability in (("libnvidia-ptxjitcompiler.so.1", "compute"), ("libnvidia-cfg.so.1", "utility")):
        path = libs / f"{soname.removesuffix('.1')}.{DRIVER}"
        path.write_text(f"driver file {soname}\n")
        files.append(DriverFile(str(path), "library", capability, (path.name, soname)))
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libs / f"{name}.{DRIVER}").write_text(f"the real {name}\n")
    smi = driver / "usr/bin/nvidia-smi"
    smi.write_text("#!/bin/sh\necho smi\n")
    smi.chmod(0o755)
    files.append(DriverFile(str(smi), "binary", "utility"))
    (state / "sim/gpus").mkdir(parents=True)
    gpus = []
    for i, uuid in enumerate(UUIDS):
        (state / f"sim/gpus/{i}").write_bytes(bytes(4096))
        file = str(state / f"sim/gpus/{i}")
        gpus.append(Gpu(uuid, i, i, MEMORY_MIB, "Simulated GPU", simulated=True, file=file))
    return Inventory(
        boot_id=boot_id(),
        driver_version=DRIVER,
        driver_root=str(driver),
        simulated=True,
        gpus=tuple(gpus),
        control=(DeviceFile("/dev/nvidiactl", 195, 255),),
        files=tuple(files),
        libcuda=str(libs / f"libcuda.so.{DRIVER}"),
        libnvml=str(libs / f"libnvidia-ml.so.{DRIVER}"),
    )


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


Bundle = Callable[..., Path]


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


def remove_cgroup(path: str) -> None:
    """Ends what still runs in it. What was killed takes a moment to leave it."""
    for _ in range(200):
        try:
            return os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            with contextlib.suppress(OSError):
                for pid in Path(path, "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)


class Runc:
    """Calls a runtime (gpu-hook-runtime where a prefix is given) with a --root of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "runc"
        self.folder = folder
        self.ids: list[str] = []

    def new_id(self) -> str:
        self.ids.append(f"gh-test-{os.getpid()}-{next(_ids)}")
        return self.ids[-1]

    def popen(self, *args: str, program: str = "runc", flags: Sequence[str] = (), **kw: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen([program, "--root", str(self.root), *flags, *args], text=True, **kw)

    def __call__(
        self, *args: str, program: str = "runc", flags: Sequence[str] = (), **kw: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run to the end; stdout and stderr are files, since a container keeps a pipe open."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            p = self.popen(*args, program=program, flags=flags, stdout=out, stderr=err, stdin=subprocess.DEVNULL, **kw)
            status = p.wait(timeout=60)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(p.args, status, out.read(), err.read())

    def create(
        self, bundle: Path, install: Install | None = None, id: str | None = None, flags: Sequence[str] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Create through the wrapper of `install`, or by plain runc. The id is the last of `ids`."""
        program = install.program if install else "runc"
        return self("create", "--bundle", str(bundle), id or self.new_id(), program=program, flags=flags)

    def run(self, bundle: Path, install: Install | None = None) -> "subprocess.CompletedProcess[str]":
        """Run in the foreground, to the container's end."""
        program = install.program if install else "runc"
        return self("run", "--bundle", str(bundle), self.new_id(), program=program)

    def exec(self, id: str, *args: str) -> "subprocess.CompletedProcess[str]":
        return self("exec", id, *args)

    def pid(self, id: str) -> int:
        return int(json.loads((self.root / id / "state.json").read_text())["init_process_pid"])

    def living(self) -> set[str]:
        listing = self("list", "--format", "json")
        return {c["id"] for c in json.loads(listing.stdout or "null") or () if c["status"] in ("created", "running")}

    def close(self) -> None:
        for id in self.ids:
            if (self.root / id).exists():
                self("delete", "--force", id)
            # A runc that was killed early has written nothing down that its `delete` could go by.
            for pattern in (f"*/{id}", f"*/*/*/{id}"):  # where runc puts what has no path: below its own
                # glob, not Path.glob: cgroups of tests beside this one vanish while it looks
                for group in glob.glob(f"/sys/fs/cgroup/{pattern}"):
                    remove_cgroup(group)


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
