"""What the gate lets the driver do, by drivers of the tests' own.

Arguments that change while a call is at the gate: the driver gets what the gate saw. Events of several contexts.
"""

import struct
from pathlib import Path

import pytest

from tests.compiled import ZIG, compiled
from tests.shim.box import MIB, Box, policy

pytestmark = pytest.mark.root
HERE = Path(__file__).parent


def over(driver: str, program: str) -> tuple[Path, Path]:
    """A driver and the program that runs over it, compiled."""
    cc = [*ZIG, "-w"]
    shared = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    return (
        compiled("driver", [*cc, *shared, str(HERE / f"{driver}.c")]),
        compiled(program, [*cc, str(HERE / f"{program}.c"), "-ldl", "-lpthread"]),
    )


def run_counted(place: Path, shim: Path, driver: Path, program: Path, what: str) -> None:
    """Beside a ceiling, so that every call is counted."""
    box = Box(place / "box", shim, driver)
    page = bytearray(policy({0: 1024 * MIB}))
    struct.pack_into("<I", page, 128 + 68, 99)  # compute_limit
    struct.pack_into("<I", page, 128 + 88, 1)  # slot
    box.write_policy(bytes(page))
    done = box.run([str(program), what], check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("what", ["attributes", "devices", "boxes", "batches"])
def test_the_driver_gets_what_the_gate_saw(tmp_path: Path, shim: Path, what: str) -> None:
    """Lists of 0, 1, the most, and one more."""
    run_counted(tmp_path, shim, *over("flip_driver", "flips"), what)


@pytest.mark.parametrize("what", ["turns", "streams", "elsewhere", "releases", "threads"])
def test_events_are_of_the_context_in_which_they_are_used(tmp_path: Path, shim: Path, what: str) -> None:
    run_counted(tmp_path, shim, *over("contexts_driver", "contexts"), what)
