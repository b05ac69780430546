"""A container that uses no GPU writes process records into its slot file: its neighbours' ceilings, shares and waits hold. The
shipped shim on a simulated GPU; check_belief.c has the same in virtual time, for anything that may be written."""

import os
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from oci_hook.core import slot_page
from testbed.until import until
from tests.gate.gpus import Tenant, forging, have, measure, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]
V, ACTIVE_AT = 32, 88  # of a slot file's head
AHEAD = 1 << 60


def forged(
    p: Any, slot: int, count: int, v: str = "most", ahead: int = 0, flicker: float = 0
) -> AbstractContextManager[None]:
    """So many records of processes with work, each as its own process would write it. v: as far ahead, or behind, as is believed.
    ahead: of the clock. flicker: work and rest in turns of so many ms."""

    def write(file: Any) -> None:
        now = time.monotonic_ns() // p.gpu.scale
        work = not flicker or int(now / 1e6 / flicker) % 2 == 0
        os.pwrite(file.fileno(), struct.pack("<QIIQ", slot_page.MAGIC, slot_page.VERSION, count, count), 0)
        os.pwrite(file.fileno(), struct.pack("<Q", 100 * now if v == "most" else 1), V)
        os.pwrite(file.fileno(), struct.pack("<Q", now + ahead), ACTIVE_AT)
        one = (8 + work, 8, now + ahead, now + ahead, 10**6, 0, 1, 0, 0, 1)
        os.pwrite(
            file.fileno(),
            b"".join(slot_page.PROCESS.pack(1 + i, *one) for i in range(count)),
            slot_page.PROCESS_OFFSET,
        )

    return forging(p.gpu.slot_file(slot), 0.002, write)


@pytest.mark.parametrize(
    ("us", "count", "ahead", "flicker"),
    [(1500, 112, 0, 0), (5000, 1, 0, 0), (5000, 112, AHEAD, 0), (20000, 8, 0, 7), (80, 112, 0, 0)],
)
def test_a_ceiling_holds(place: Make, us: int, count: int, ahead: int, flicker: float) -> None:
    p = place(Tenant(30, cap=0.3), Tenant(70))
    with forged(p, 1, count, ahead=ahead, flicker=flicker):
        load = p.kernels(0, "plain", us)
        settles(lambda: measure([load], 3, 1)[0] * us * p.gpu.scale / 3e6, lambda got: 0.25 < got < 0.33)


def test_a_ceiling_of_many_shapes_holds(place: Make) -> None:
    p = place(Tenant(30, cap=0.3), Tenant(70))
    with forged(p, 1, 112):
        load = p.kernels(0, "shapes", 1000)
        settles(lambda: measure([load], 3, 1)[0] * 1000 * p.gpu.scale / 3e6, lambda got: 0.2 < got < 0.33)


@pytest.mark.parametrize(("us", "count", "v"), [(5000, 112, "most"), (5000, 8, "most"), (5000, 1, "least")])
def test_shares_hold(place: Make, us: int, count: int, v: str) -> None:
    p = place(Tenant(69), Tenant(30), Tenant(1))
    with forged(p, 2, count, v):
        loads = [p.kernels(0, "plain", us), p.kernels(1, "plain", us)]
        have(loads, [0.7, 0.3], 0.06, 4, 2)


def test_a_long_kernel_is_charged_its_time(place: Make) -> None:
    """Beside short ones. Else the time of each would seem to be others' for the most part."""
    p = place(Tenant(69), Tenant(30), Tenant(1))
    with forged(p, 2, 112):
        loads = [p.kernels(0, "plain", 20000), p.kernels(1, "plain", 500)]

        def right(counts: list[float]) -> bool:
            return 0.62 < counts[0] * 20 / (counts[0] * 20 + counts[1] * 0.5) < 0.76

        settles(lambda: measure(loads, 4, 2), right)


@pytest.mark.parametrize("count", [1, 112])
def test_who_waits_for_a_launch_at_the_gate_goes_on(place: Make, waiter: str, count: int) -> None:
    p = place(Tenant(), Tenant(), scale=2)
    load = p.boxes[0].start([waiter, "self"])
    load.ready()
    with forged(p, 1, count):
        before = load.points[-1][1]
        until(lambda: load.points[-1][1] > before + 50)

        def longest() -> float:
            time.sleep(4)
            ends = [at for at, _ in load.points[-1000:] if at > time.monotonic_ns() - 4 * 10**9]
            return max((b - a) / 1e9 / p.gpu.scale for a, b in zip(ends, ends[1:], strict=False)) if ends[1:] else 9

        settles(longest, lambda seconds: seconds < 0.3)


def test_no_more_processes_are_believed_than_the_host_counts(place: Make, waiter: str) -> None:
    """Who waits for a launch at the gate is quicker beside one process than beside 112."""
    p = place(Tenant(), Tenant(), scale=2)
    load = p.boxes[0].start([waiter, "self"])
    load.ready()

    def rounds() -> float:
        before, since = load.points[-1][1], time.monotonic()
        time.sleep(2)
        return float(load.points[-1][1] - before) / (time.monotonic() - since)

    with forged(p, 1, 112):
        slow = rounds()
        p.gpu.count({1: 1})
        settles(rounds, lambda quick: quick > 1.5 * slow)


@pytest.mark.parametrize("count", [1, 112])
def test_who_wrote_once_is_not_there_for_ever(place: Make, count: int) -> None:
    """All times lie ahead, and nobody writes any more: the neighbour is alone after a while, and its launches are not counted."""
    p = place(Tenant(), Tenant())
    with forged(p, 1, count, ahead=AHEAD):
        load = p.kernels(0, "plain", 20)
        load.ready()

    def passes() -> bool:
        before = struct.unpack_from("<Q", p.gpu.slot_file(0).read_bytes(), slot_page.PROCESS_OFFSET + 8)[0]
        launched = load.points[-1][1]
        time.sleep(0.3)
        after = struct.unpack_from("<Q", p.gpu.slot_file(0).read_bytes(), slot_page.PROCESS_OFFSET + 8)[0]
        return bool(load.points[-1][1] - launched > 10 * (after - before + 1))

    until(passes)
