"""The shim under gcc's sanitizers: threads, all routes, parallel processes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.compiled import compiled
from testbed.sanitize import BUILDS, SHIM, name, shim_library
from testbed.sim.gpus import build_simulated
from tests.shim.box import MIB, Box
from tests.shim.conftest import HERE
from tests.shim.differential import play

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(scope="module", params=BUILDS, ids=name)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shim: Path) -> Path:
    """Shim and worker built with a sanitizer."""
    library, command = shim_library(request.param, shim)
    out = tmp_path_factory.mktemp("sanitized")
    shutil.copy(library, out)
    worker = ["-D_GNU_SOURCE", str(HERE / "worker.c"), str(library), "-Wl,--allow-shlib-undefined", "-lpthread"]
    (out / "worker").symlink_to(compiled("worker", [*command, f"-I{SHIM}", *worker]))
    return out


def test_threads_and_all_routes(sanitized: Path, tmp_path: Path, fake_cuda: Path) -> None:
    box = Box(tmp_path / "box", sanitized, fake_cuda)
    options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1"}
    with box.start([str(sanitized / "worker"), "busy", "77"], **options) as other:
        for seed in range(3):
            out = box.run([str(sanitized / "worker"), "threads", str(seed), "800"], check=False, timeout=200, **options)
            assert out.returncode == 0, out.stderr + out.stdout
        assert other.poll() is None
        other.kill()
        _, said = other.communicate()
    assert "ERROR" not in said and "WARNING" not in said, said
    alone = box.run([str(sanitized / "worker"), "threads", "9", "800"], timeout=200, **options)
    assert alone.stdout == "0\n"
    assert 900 * MIB < box.peak() <= 1024 * MIB


@pytest.mark.parametrize("sanitized", BUILDS[:1], ids=name, indirect=True)  # the other does not follow Python's forks
def test_random_calls(sanitized: Path, tmp_path: Path, shim: Path) -> None:
    """The differential test; Python itself is not built with the sanitizer, so its library comes first."""
    build_simulated()
    (sanitized / "sim").symlink_to(shim / "sim")
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    options = {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    bench = play(tmp_path, sanitized, 8, 1, **options)
    assert bench.granted and bench.refused and bench.samples
