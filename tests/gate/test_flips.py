"""What the gate lets the driver do, by drivers of the tests' own.

Arguments that change while a call is at the gate: the driver gets what the gate saw. Events of several contexts.
"""

import struct
import time
from pathlib import Path

import pytest

from testbed.compiled import ZIG, compiled
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


def run_counted(place: Path, shim: Path, driver: Path, program: Path, what: str, ceiling: int = 99) -> None:
    """Beside a ceiling, or one that was active lately, so that every call is counted."""
    box = Box(place / "box", shim, driver)
    page = bytearray(policy({0: 1024 * MIB}))
    struct.pack_into("<I", page, 128 + 68, ceiling)
    struct.pack_into("<I", page, 128 + 88, 1)  # slot
    if not ceiling:
        page += bytes(4096)
        struct.pack_into("<QIIIIQQ48s", page, 4096, 0x3130555047504847, 1, 4096, 2, 1, 1, 3, bytes(page[128:176]))
        slots = box.place / "share/0/slot"
        slots.mkdir(parents=True)
        (box.place / "slot").mkdir()
        for slot in range(2):
            struct.pack_into("<BBHIIIQ", page, 4096 + 128 + 32 * slot, 1, 0, 100, 0, 0, 0, 1 + slot)
        other = bytearray(8192)
        struct.pack_into("<QI76xQ", other, 0, 0x31544F4C53504847, 2, time.monotonic_ns() + 10**12)  # active_at
        (slots / "00").write_bytes(bytes(8192))
        (slots / "01").write_bytes(other)
        (box.place / "slot/0").write_bytes(bytes(8192))
    box.write_policy(bytes(page))
    done = box.run([str(program), what], check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_a_decision_holds_for_the_launches_after_it(tmp_path: Path, shim: Path) -> None:
    """A program whose processor is the limit lost a tenth to what the gate does at each launch."""
    run_counted(tmp_path, shim, *over("contexts_driver", "contexts"), "at once", ceiling=0)


@pytest.mark.parametrize("what", ["attributes", "devices", "boxes", "batches"])
def test_the_driver_gets_what_the_gate_saw(tmp_path: Path, shim: Path, what: str) -> None:
    """Lists of 0, 1, the most, and one more."""
    run_counted(tmp_path, shim, *over("flip_driver", "flips"), what)


@pytest.mark.parametrize("what", ["turns", "streams", "elsewhere", "releases", "threads"])
def test_events_are_of_the_context_in_which_they_are_used(tmp_path: Path, shim: Path, what: str) -> None:
    run_counted(tmp_path, shim, *over("contexts_driver", "contexts"), what)
