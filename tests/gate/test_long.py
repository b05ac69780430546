"""Kernels of many milliseconds, and neighbours that lie: nobody gets less than its share. Simulated GPU."""

import mmap
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.slot_page import MAGIC, PROCESS_OFFSET, VERSION
from tests.gate.gpus import SLOT, Tenant, measure, settles, until

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]
V = 32  # of the slot file: offset of the virtual time


@pytest.mark.parametrize(
    ("weights", "us"), [((70, 30), 30000), ((30, 70), 30000), ((50, 50), 20000), ((70, 30), 100000)]
)
def test_long_kernels_take_no_more_than_their_share(place: Make, weights: tuple[int, int], us: int) -> None:
    """A tenant of kernels of 0.5 ms beside one of long kernels, whose first ones have an unknown cost."""
    p = place(*(Tenant(w) for w in weights), scale=3)
    brief, long_ = p.kernels(0, "plain", 500), p.kernels(1, "plain", us)

    def right(counts: list[float]) -> bool:
        had = [counts[0] * 500, counts[1] * us]
        return abs(had[0] / sum(had) - weights[0] / 100) < 0.06

    settles(lambda: measure([brief, long_], 9, 3), right)


def test_who_comes_later_does_not_wait_for_a_queue_of_long_kernels(place: Make) -> None:
    """A program whose neighbour is granted and idle queues no more than some tens of milliseconds."""
    p = place(Tenant(), Tenant(), scale=2)
    first = p.kernels(0, "plain", 20000)
    until(lambda: first.points and first.points[-1][1] > 20)
    time.sleep(0.5)
    came = time.monotonic_ns()
    second = p.kernels(1, "plain", 500)
    second.ready()
    time.sleep(3)
    now = time.monotonic_ns()
    had = [first.rate(came, now) * 20000, second.rate(second.points[0][0], now) * 500]
    assert had[1] > 0.35 * sum(had), had


@pytest.mark.parametrize("rest", [False, True], ids=["for ever", "with rests"])
def test_a_liar_that_claims_anew_all_the_time(place: Make, rest: bool) -> None:
    """v is 1, with a new claim every few hundred microseconds; a rest of 2.5 ms in 150 makes it look alive. It uses no
    GPU time. Its neighbour of the same weight has at least nine tenths of its half."""
    p = place(Tenant(), Tenant(), scale=2)
    load = p.kernels(0, "plain", 80)
    load.ready()
    page, end, epoch, begin = bytearray(SLOT), time.monotonic() + 8, 1 << 40, time.monotonic_ns()
    with open(p.gpu.slot_file(1), "r+b", buffering=0) as f:
        while time.monotonic() < end:
            now = time.monotonic_ns() // p.gpu.scale
            epoch += 1
            beat = now - 5_000_000 if rest and now % 150_000_000 < 2_500_000 else now
            head = [1, 0, 0, epoch, now, now + 100_000_000, now + 100_000_000, beat, 0, beat]
            struct.pack_into("<QIIQII10QIBBBB", page, 0, MAGIC, VERSION, 1, 1, 0, 0, *head, 10**6, 1, 2, 0, 0)
            struct.pack_into("<7QIHBB", page, PROCESS_OFFSET, 1, 9, 8, beat, beat, 10**6, 0, 1, 1, 1, 0)
            f.seek(0)
            f.write(page)
            time.sleep(0.0002)
    until_ns = time.monotonic_ns()
    part = load.rate(begin + 3 * 10**9, until_ns - 10**8) * 80e-6 * p.gpu.scale / ((until_ns - begin) / 1e9 - 3.1)
    assert part > 0.45, part


@pytest.mark.parametrize("paid", [0, 0.5])
def test_a_tenant_that_charges_itself_too_little(place: Make, paid: float) -> None:
    """It computes, and lets its v rise at a part of the speed that it should. Its neighbour of the same weight still has
    what the driver's own slices would give it."""
    p = place(Tenant(), Tenant())
    liar, honest = p.kernels(0, "plain", 80), p.kernels(1, "plain", 80)
    stop = threading.Event()
    forger = threading.Thread(target=forge, args=(p.gpu.slot_file(0), stop, paid))
    forger.start()
    try:
        settles(
            lambda: measure([liar, honest], 6, 6)[1] * 80e-6 * p.gpu.scale / 6, lambda had: 0.38 < had < 0.6, tries=3
        )
    finally:
        stop.set()
        forger.join()


def forge(path: Path, stop: threading.Event, paid: float) -> None:
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), SLOT) as page:
        (last,) = struct.unpack_from("<Q", page, V)
        while not stop.wait(0.0005):
            (v,) = struct.unpack_from("<Q", page, V)
            if v > last:
                last += int((v - last) * paid)
                struct.pack_into("<Q", page, V, last)
