"""Arguments that change while a call is at the gate: the driver gets what the gate saw. A driver of the test's own."""

import struct
from pathlib import Path

import pytest

from tests.compiled import ZIG, compiled
from tests.shim.box import MIB, Box, policy

pytestmark = pytest.mark.root
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def flips() -> tuple[Path, Path]:
    """flip_driver.c and flips.c, compiled."""
    cc = [*ZIG, "-w"]
    driver = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    return (
        compiled("driver", [*cc, *driver, str(HERE / "flip_driver.c")]),
        compiled("flips", [*cc, str(HERE / "flips.c"), "-ldl"]),
    )


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
