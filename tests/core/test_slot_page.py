"""The slot file: the host finds what the shim's header puts there, and takes any bytes for what they are."""

import random
import struct
import subprocess
from pathlib import Path

import pytest

from oci_hook.core import slot_page
from oci_hook.core.gpu_page import SLOT_FILE_SIZE
from oci_hook.core.slot_page import Gate, parse
from testbed.compiled import ZIG

SHIM = Path(__file__).resolve().parents[2] / "oci_hook" / "shim"

WRITER = r"""
#include <stdio.h>
#include "gate/decide.h"
#include "pages/slot_page.h"
int main(void) {
    static struct gh_slot_page page = {
        .head = {.magic = GH_SLOT_MAGIC, .version = GH_SLOT_VERSION, .top = 2, .charged = 7 * GH_S, .mode = GH_FROZEN,
                 .mode_by = 2, .counts = 1, .epoch = 17, .mode_since = 9 * GH_S, .preempt_bound = 3 * GH_MS, .wanted = 8 * GH_S,
                 .wanted_at = 5, .waited = 2 * GH_S, .ignorings = 1,
                 .held_for = {[2] = 4 * GH_S, [63] = GH_MS}, .held_at = 6},
        .process = {{.owner = 1, .launched = 100, .done = 90, .heartbeat = 6 * GH_S, .held = 2, .waiting = 3,
                 .uncharged = 5 * GH_MS},
                {.launched = 50, .done = 50, .held = 9, .uncharged = 1}}};
    for (unsigned i = 0; i < GH_WAITS; i++)
        page.head.waits[i] = i;
    fprintf(stderr, "%u %llu %d", GH_SLOT_PROCESSES, GH_WAIT_FIRST, GH_DRAIN);
    return fwrite(&page, 1, sizeof page, stdout) != sizeof page;
}
"""
GATE = Gate(7.0, 8.0, 150, 3, tuple(range(16)), 2.0, "frozen", 9.0, 2, 0.003, ((3, 4.0), (64, 0.001)), 0.005, True, 17)
GATE = GATE.replace(beats=(6.0,))


def made(**words: int) -> bytes:
    """A slot file as the shim writes it."""
    head = {"charged": 7, "mode": 4, "by": 2, "counts": 1, "since": 9, "bound": 3, "wanted": 8, "waited": 2, **words}
    n = {name: value * 10**9 for name, value in head.items()}
    n |= {name: head[name] for name in ("mode", "by", "counts")} | {"bound": head["bound"] * 10**6}
    page = slot_page.HEAD.pack(
        *(slot_page.MAGIC, slot_page.VERSION, head.get("top", 2), 1, 0, 0, 5, n["charged"], 0, 17, *[0] * 6, 0, 0),
        *(n["mode"], n["by"], n["counts"], n["since"], n["bound"], 0, n["wanted"], 0, n["waited"], *range(16)),
        *(4 * 10**9 * (slot == 2) + 10**6 * (slot == 63) for slot in range(64)),
    )
    processes = slot_page.PROCESS.pack(1, 100, 90, 0, 6 * 10**9, 0, 5 * 10**6, 77, 2, 3, 0) + slot_page.PROCESS.pack(
        0, 50, 50, 0, 0, 0, 1, 78, 9, 0, 0
    )
    return (page.ljust(slot_page.PROCESS_OFFSET, b"\0") + processes).ljust(SLOT_FILE_SIZE, b"\0")


def test_python_reads_what_c_wrote(tmp_path: Path) -> None:
    (tmp_path / "writer.c").write_text(WRITER)
    subprocess.run([*ZIG, "-I", str(SHIM), "-o", tmp_path / "writer", tmp_path / "writer.c"], check=True)
    done = subprocess.run([tmp_path / "writer"], check=True, capture_output=True)
    assert parse(done.stdout) == GATE == parse(made())
    processes, first, drain = map(int, done.stderr.split())
    assert (processes, first / 1e9, drain) == (
        slot_page.PROCESSES,
        slot_page.WAIT_BOUNDS[0],
        slot_page.MODES.index("drain"),
    )


def test_times_are_this_machines() -> None:
    """On a slowed-down GPU; waits are in real time as they are."""
    slow = parse(made(), 10)
    slower = GATE.replace(held_for=((3, 40.0), (64, 0.01)), uncharged=0.05, beats=(60.0,))
    assert slow == slower.replace(charged=70.0, wanted=80.0, since=90.0, preempt_bound=0.03)


def test_a_shim_that_counts_no_waits() -> None:
    assert parse(made(counts=0, wanted=0, waited=0)) == GATE.replace(wanted=None, waits=None, waited=0.0)


@pytest.mark.parametrize("word", ["charged", "since", "wanted", "waited"])
def test_a_figure_that_makes_no_sense(word: str) -> None:
    assert parse(made(**{word: 10**10 - 1})) is None


def test_anything_else_says_nothing() -> None:
    good = made()
    for bad in (b"", bytes(8192), good[:-1], good + b"\0", b"\xff" * 8192, made(mode=7), made(by=99)):
        assert parse(bad) is None
    assert parse(made(top=(1 << 32) - 1)) == parse(good)
    assert parse(made(bound=10**9)) == GATE.replace(preempt_bound=0.0)


def test_any_bytes_give_figures_that_are_bounded() -> None:
    draw = random.Random(7)
    for _ in range(2000):
        page = bytearray(made())
        for _ in range(draw.randrange(1, 30)):
            at = draw.randrange(16, 1200) & ~7
            page[at : at + 8] = struct.pack("<Q", draw.choice((draw.getrandbits(64), draw.getrandbits(8), 2**64 - 1)))
        told = parse(bytes(page), 1000)
        if told is not None:
            assert 0 <= told.charged < 5e12 and 0 <= told.waiting <= 112 * 255 and told.preempt_bound < 5e6
            assert 0 <= told.uncharged <= 112e3 and all(0 < held < 5e12 for _, held in told.held_for)
            assert told.waits is None or (len(told.waits) == 16 and all(0 <= n <= slot_page.SANE for n in told.waits))
