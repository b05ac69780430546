"""Arguments that change while a call is at the gate: the driver gets what the gate saw. A driver of the test's own."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shim.box import MIB, Box, policy

pytestmark = pytest.mark.root
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def flips(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """flip_driver.c and flips.c, compiled."""
    out = tmp_path_factory.mktemp("flips")
    cc = [sys.executable, "-m", "ziglang", "cc", "-O1", "-w"]
    driver = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*cc, *driver, "-o", out / "driver", HERE / "flip_driver.c"], check=True)
    subprocess.run([*cc, "-o", out / "flips", HERE / "flips.c", "-ldl"], check=True)
    return out / "driver", out / "flips"


@pytest.mark.parametrize("what", ["attributes", "devices", "boxes", "batches"])
def test_the_driver_gets_what_the_gate_saw(tmp_path: Path, shim: Path, flips: tuple[Path, Path], what: str) -> None:
    """Beside a ceiling, so that every call is counted; lists of 0, 1, the most, and one more."""
    driver, program = flips
    box = Box(tmp_path / "box", shim, driver)
    page = bytearray(policy({0: 1024 * MIB}))
    struct.pack_into("<I", page, 128 + 68, 99)  # compute_limit
    struct.pack_into("<I", page, 128 + 88, 1)  # slot
    box.write_policy(bytes(page))
    done = box.run([str(program), what], check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
