"""Programs that people use, in a real container with a share: each sees its share and is held to it."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oci_hook.discovery import driver_files
from oci_hook.discovery.save import save_inventory
from testbed.containers import Bundle, Runc
from testbed.installs import Install
from testbed.packages import nvidia
from testbed.stage import CLIENTS, CONTEXT_MIB, LIMIT_MIB, Stage, compile_client, glibc_image, python_image
from tests.discovery.test_driver_files import debian_driver

__all__ = ["debian_driver"]  # a fixture

pytestmark = [pytest.mark.root, pytest.mark.slow]

BIN = Path(sys.executable).parent
ENV = {
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "200",
    "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1",
}


class Python:
    """An image with this Python and the clients, and the mounts it needs."""

    def __init__(self, stage: Stage) -> None:
        self.root = stage.folder / "python"
        self.mounts = python_image(self.root, "psutil", "cuda.bindings.driver")
        shutil.copytree(CLIENTS, self.root / "clients")
        self.stage = stage

    def more(self, *mounts: dict[str, Any]) -> dict[str, Any]:
        return {"env": ENV, "edit": lambda spec: spec["mounts"].extend([*self.mounts, *mounts])}

    def run(self, script: str, *args: str, env: dict[str, str] | None = None) -> list[str]:
        """What a script of testbed/clients says."""
        more = self.more()
        more["env"] = ENV | (env or {})
        done = self.stage.run(self.root, sys.executable, f"/clients/{script}", *args, **more)
        assert done.returncode == 0, done
        return done.stdout.splitlines()

    def holder(self, mib: int) -> str:
        """A container whose own process holds so much."""
        said = self.root / "tmp/holds"
        said.unlink(missing_ok=True)
        id = self.stage.start(self.root, sys.executable, "/clients/hold.py", str(mib), **self.more())
        for _ in range(400):
            if said.exists() and said.read_text().endswith("\n"):
                break
            time.sleep(0.05)
        assert said.read_text() == "[0, 0, 0, 0]\n"
        return id


@pytest.fixture(scope="module")
def python(stage: Stage) -> Python:
    return Python(stage)


@pytest.fixture
def holder(stage: Stage, python: Python) -> Iterator[str]:
    """A container that holds 300 MiB with its context, beside a neighbour of 700 MiB on the same GPU."""
    neighbour = python.holder(700 - CONTEXT_MIB)
    id = python.holder(300 - CONTEXT_MIB)
    yield id
    for one in (id, neighbour):
        stage.runc("delete", "--force", one, program=stage.program)


def test_cuda_bindings_and_nvml_tell_one_story(python: Python) -> None:
    assert python.run("driver.py") == [
        f"devices 1 1 {LIMIT_MIB}",
        f"cuMemAlloc {LIMIT_MIB - CONTEXT_MIB} CUDA_ERROR_OUT_OF_MEMORY 0 {LIMIT_MIB}",
        f"nvml {LIMIT_MIB} 0 {LIMIT_MIB} {LIMIT_MIB} 0",
        f"processes True:{LIMIT_MIB}",
        f"cuMemCreate {LIMIT_MIB - CONTEXT_MIB} CUDA_ERROR_OUT_OF_MEMORY 0 {LIMIT_MIB}",
        f"cuMemAllocAsync {LIMIT_MIB - CONTEXT_MIB} CUDA_ERROR_OUT_OF_MEMORY 0 {LIMIT_MIB}",
    ]


def test_nvml_shows_the_share_and_changes_nothing(stage: Stage, python: Python, holder: str) -> None:
    said = stage.runc("exec", holder, sys.executable, "/clients/nvml_only.py").stdout.splitlines()
    assert said == [
        "devices 1 0",
        f"memory {LIMIT_MIB} 300 {LIMIT_MIB - 300}",
        "processes (1, 300)",
        *["refused 4"] * 5,  # NVML_ERROR_NO_PERMISSION
    ]


def test_nvitop(stage: Stage, holder: str) -> None:
    done = stage.runc("exec", holder, sys.executable, str(BIN / "nvitop"), "--once", "--no-unicode")
    assert done.returncode == 0, done
    assert "300.0MiB / 1024MiB" in done.stdout or "300MiB / 1024MiB" in done.stdout, done.stdout
    assert re.search(r"\b1 C\b", done.stdout) and f"hold.py {300 - CONTEXT_MIB}" in done.stdout
    assert "700" not in done.stdout and "Traceback" not in done.stderr


def test_nvidia_smi(stage: Stage, python: Python, holder: str) -> None:
    """NVIDIA's own program: its table, its queries; and what it may not change.

    The table's list of processes comes from an internal table of NVML, which is empty on simulated GPUs.
    """
    (program,) = (p for p in nvidia().rglob("nvidia-smi") if p.is_file() and p.stat().st_size > 100000)
    shutil.copy(program, python.root / "tmp/nvidia-smi")

    def said(*args: str) -> str:
        done = stage.runc("exec", holder, "/tmp/nvidia-smi", *args)
        assert done.returncode == 0, done
        return done.stdout

    table = said()
    assert re.search(r"\| +300MiB / +1024MiB +\|", table) and "700" not in table, table
    query = ("--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits")
    assert said(*query).split() == ["1024,", "300,", "724"]
    assert re.fullmatch(r"GPU 0: Simulated GPU 8 GiB \(UUID: GPU-.*\)\n", said("-L"))
    done = stage.runc("exec", holder, "/tmp/nvidia-smi", "-c", "EXCLUSIVE_PROCESS")
    assert done.returncode != 0 and "ermission" in done.stdout + done.stderr, done


def test_gpustat(stage: Stage, holder: str) -> None:
    done = stage.runc("exec", holder, sys.executable, str(BIN / "gpustat"), "--show-pid", "--show-cmd")
    assert done.returncode == 0, done
    assert "300 /  1024 MB" in done.stdout and "/1(" in done.stdout, done.stdout
    assert "700" not in done.stdout


def test_find_library(python: Python) -> None:
    """docs/guide/images.md: it asks ldconfig, which nobody has run in the image since the library came."""
    ldconfig = Path(shutil.which("ldconfig", path="/sbin:/usr/sbin") or "")
    (python.root / "sbin").mkdir(exist_ok=True)
    shutil.copy(ldconfig, python.root / "sbin/ldconfig")
    (python.root / "etc/ld.so.conf").write_text("/usr/lib/x86_64-linux-gnu\n/usr/lib/aarch64-linux-gnu\n/usr/lib64\n")
    assert python.run("find_library.py") == ["0", "None", "libcuda.so.1", "0"]


@pytest.fixture
def real(native: Path, tmp_path: Path, debian_driver: Path, no_new_devices: None) -> Install:
    """An install whose driver is the real one of Debian, on a machine without its GPU."""
    made = Install(tmp_path)
    found = driver_files.find(str(debian_driver))
    made.set(driver_root=str(debian_driver))
    known = made.inventory.replace(
        driver_version=found.version,
        driver_root=str(debian_driver),
        libcuda=found.libcuda,
        libnvml=found.libnvml,
        files=found.files,
    )
    made.inventory = known
    save_inventory(made.settings, known)
    return made


def test_real_driver_without_a_gpu(real: Install, bundle: Bundle, runc: Runc, tmp_path: Path) -> None:
    """The shims over the real libraries: they load, their every symbol is found, and they say what those say.

    nvidia-smi reads NVML's internal tables, which are passed on; without a GPU it can only say that there is none.
    """
    root = glibc_image(tmp_path / "image")
    compile_client(root / "bin/route", "route.c", "-ldl")
    asked = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"}
    done = runc.run(bundle(asked, args=["route", "libcuda.so.1", "cuMemAlloc_v2"], rootfs=root), real)
    assert done.stdout == "failed=100\n", done  # CUDA_ERROR_NO_DEVICE
    smi = next(file.path for file in real.inventory.files if file.path.endswith("nvidia-smi"))
    path = {"LD_LIBRARY_PATH": os.path.dirname(real.inventory.libnvml)}
    bare = subprocess.run([smi], env=path, capture_output=True, text=True)
    done = runc.run(bundle(asked, args=["/usr/bin/nvidia-smi"], rootfs=root), real)
    assert "couldn't communicate with the NVIDIA driver" in bare.stdout
    assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout), done
