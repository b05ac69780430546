"""Long kernels, shapes that never repeat, and neighbours that lie: nobody gets less than its share. Simulated GPU."""

import itertools
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.slot_page import MAGIC, PROCESS_OFFSET, VERSION
from testbed.until import until
from tests.gate.gpus import SLOT, Tenant, forging, has, measure, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]
V = 32  # of the slot file: offset of the virtual time


@pytest.mark.parametrize(
    ("weights", "us", "depth"),
    [
        ((70, 30), 30000, 0),
        ((30, 70), 30000, 0),
        ((50, 50), 20000, 0),
        ((70, 30), 100000, 0),
        ((30, 70), 30000, 1),
        ((30, 70), 100000, 1),
        ((30, 70), 100000, 4),
        ((30, 70), 300000, 0),
    ],
)
def test_long_kernels_take_their_share(place: Make, weights: tuple[int, int], us: int, depth: int) -> None:
    """A tenant of kernels of 0.5 ms beside one of long kernels, whose first ones have an unknown cost. depth: after so
    many the program waits for them; 0: never."""
    p = place(*(Tenant(w) for w in weights), scale=1)
    brief, long_ = p.kernels(0, "plain", 500), p.kernels(1, "plain", us, *((depth, 0) if depth else ()))

    def right(counts: list[float]) -> bool:
        had = [counts[0] * 500, counts[1] * us]
        return abs(had[0] / sum(had) - weights[0] / 100) < 0.06

    settles(lambda: measure([brief, long_], 4, 1.5), right)


@pytest.mark.parametrize(("count", "us", "weights"), [(8, 100000, (30, 70)), (8, 20000, (50, 50)), (3, 3000, (70, 30))])
def test_processes_with_long_kernels_are_one_tenant(place: Make, count: int, us: int, weights: tuple[int, int]) -> None:
    """The driver divides its time by processes: with one long kernel each at once, they would have nearly all of it. Each
    of them goes on."""
    p = place(*(Tenant(w) for w in weights), scale=1)
    many = [p.kernels(0, "plain", us, 1, 0) for _ in range(count)]
    brief = p.kernels(1, "plain", 500)

    def right(counts: list[float]) -> bool:
        had = [sum(counts[:-1]) * us, counts[-1] * 500]
        return abs(had[0] / sum(had) - weights[0] / 100) < 0.06

    settles(lambda: measure([*many, brief], 4, 1.5), right)
    before = [load.points[-1][1] for load in many]
    until(lambda: all(load.points[-1][1] > n for load, n in zip(many, before, strict=True)))


def in_flight(slot: Path) -> int:
    """How many of the container's processes have work in flight."""
    page = slot.read_bytes()
    records = struct.iter_unpack("<7QIHBB", page[PROCESS_OFFSET:])
    return sum(owner != 0 and launched > done for owner, launched, done, *_ in records)


@pytest.mark.parametrize("beside", [False, True])
def test_processes_launch_long_kernels_one_by_one(place: Make, beside: bool) -> None:
    """So a neighbour finds one of them on the GPU, not eight, also when it comes back after a time."""
    p = place(Tenant(30), Tenant(70), scale=1)
    many = [p.kernels(0, "plain", 100000, 1, 0) for _ in range(8)]
    if beside:
        p.kernels(1, "plain", 500)
    until(lambda: all(load.points and load.points[-1][1] >= 2 for load in many), seconds=20)

    def several() -> float:
        """In what part of the time more than one had a kernel in flight, but for the end of the one before."""
        seen = []
        for _ in range(300):
            seen.append(in_flight(p.gpu.slot_file(0)))
            time.sleep(0.01)
        assert 1 in seen
        return sum(count > 2 for count in seen) / len(seen)

    settles(several, lambda part: part < 0.05)


@pytest.mark.parametrize("weights", [(70, 30), (30, 70)])
@pytest.mark.parametrize("way", ["shapes", "modules", "jitted", "graphs"])
def test_what_never_repeats(place: Make, way: str, weights: tuple[int, int]) -> None:
    """Each launch has another grid, or another handle, so that the cost of none is known before."""
    p = place(*(Tenant(w) for w in weights), scale=1)
    fresh, plain = p.kernels(0, way, 100), p.kernels(1, "plain", 500)

    def right(counts: list[float]) -> bool:
        had = [counts[0] * 100, counts[1] * 500]
        return abs(had[0] / sum(had) - weights[0] / 100) < 0.1

    settles(lambda: measure([fresh, plain], 3, 1.5), right)


def test_who_comes_later_does_not_wait_for_a_queue_of_long_kernels(place: Make) -> None:
    """A program whose neighbour is granted and idle queues no more than some tens of milliseconds."""
    p = place(Tenant(), Tenant(), scale=1)
    first = p.kernels(0, "plain", 20000)
    until(lambda: first.points and first.points[-1][1] > 20)

    def newcomer() -> float:
        """Its part of both ones' GPU time, from its first launch on."""
        came = time.monotonic_ns()
        second = p.kernels(1, "plain", 500)
        second.ready()
        time.sleep(1.5)
        now = time.monotonic_ns()
        had = [first.rate(came, now) * 20000, second.rate(second.points[0][0], now) * 500]
        second.kill()
        time.sleep(0.25)
        return had[1] / sum(had)

    settles(newcomer, lambda part: part > 0.35)


@pytest.mark.parametrize("rest", [False, True], ids=["for ever", "with rests"])
def test_a_liar_that_claims_anew_all_the_time(place: Make, rest: bool) -> None:
    """v is 1, with a new claim every few hundred microseconds; a rest of 2.5 ms in 150 makes it look alive. It uses no
    GPU time. Its neighbour of the same weight has at least nine tenths of its half."""
    p = place(Tenant(), Tenant(), scale=2)
    load = p.kernels(0, "plain", 80)
    load.ready()
    page, epochs = bytearray(SLOT), itertools.count((1 << 40) + 1)

    def claim(file: Any) -> None:
        now = time.monotonic_ns() // p.gpu.scale
        beat = now - 5_000_000 if rest and now % 150_000_000 < 2_500_000 else now
        head = [1, 0, 0, next(epochs), now, now + 100_000_000, now + 100_000_000, beat, 0, beat]
        struct.pack_into("<QIIQII10QIBBBB", page, 0, MAGIC, VERSION, 1, 1, 0, 0, *head, 10**6, 1, 2, 0, 0)
        struct.pack_into("<7QIHBB", page, PROCESS_OFFSET, 1, 9, 8, beat, beat, 10**6, 0, 1, 1, 1, 0)
        file.seek(0)
        file.write(page)

    with forging(p.gpu.slot_file(1), 0.0002, claim):
        has(p.gpu, load, 80, 0.45, 3, 2)


@pytest.mark.parametrize("paid", [0, 0.5])
def test_a_tenant_that_charges_itself_too_little(place: Make, paid: float) -> None:
    """It computes, and lets its v rise at a part of the speed that it should. Its neighbour of the same weight still has
    what the driver's own slices would give it; seldom only what the lie leaves (docs/internals/compute-gate.md)."""
    least = 0.3 if paid else 0.38
    p = place(Tenant(), Tenant())
    p.kernels(0, "plain", 80)
    honest = p.kernels(1, "plain", 80)
    (last,) = struct.unpack("<Q", p.gpu.slot_file(0).read_bytes()[V : V + 8])

    def pay(file: Any) -> None:
        nonlocal last
        (v,) = struct.unpack("<Q", os.pread(file.fileno(), 8, V))
        if v > last:
            last += int((v - last) * paid)
            os.pwrite(file.fileno(), struct.pack("<Q", last), V)

    with forging(p.gpu.slot_file(0), 0.0005, pay):
        settles(lambda: measure([honest], 3, 3)[0] * 80e-6 * p.gpu.scale / 3, lambda had: least < had < 0.6, tries=3)
