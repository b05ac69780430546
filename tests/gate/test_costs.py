"""The shipped shim charges launches beside another tenant for the GPU time that they take. Simulated GPU."""

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from gpu_hook_simulator import driver_root
from tests.gate.gpus import Load, Tenant, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]
SATURATED_AT = 116  # of the slot's head


def charged(p: Any, loads: list[Load], seconds: float, settle: float) -> list[tuple[float, float]]:
    """GPU time charged, in ns, and launches, of the tenant in each slot during the same span."""

    def charged() -> list[int]:
        return [struct.unpack_from("<Q", p.gpu.slot_file(i).read_bytes(), 40)[0] for i in range(len(loads))]

    for load in loads:
        load.ready()
    time.sleep(settle)
    since, before = time.monotonic_ns(), charged()
    time.sleep(seconds)
    until, after = time.monotonic_ns(), charged()
    time.sleep(0.1)
    return [(b - a, load.rate(since, until)) for a, b, load in zip(before, after, loads, strict=True)]


def saturated(p: Any, slot: int) -> int:
    return int(p.gpu.slot_file(slot).read_bytes()[SATURATED_AT])


def test_a_synchronise_per_kernel_is_charged_its_kernels(place: Make) -> None:
    """The cost learned from the first kernels, which are shorter, does not last; time slices of others are not charged."""
    p = place(Tenant(), Tenant())
    loads = [p.kernels(0, "grows", 80, 1, 0), p.kernels(1, "plain", 80)]

    def right(seen: list[tuple[float, float]]) -> bool:
        (mine, launches), (theirs, others) = seen
        exact = abs(mine / (launches * 80e3) - 1) < 0.2 and abs(theirs / (others * 80e3) - 1) < 0.2
        return exact and abs(launches / (launches + others) - 0.5) < 0.1 and not saturated(p, 0)

    settles(lambda: charged(p, loads, 2, 1.5), right)


def test_kernels_longer_than_the_window_leave_no_gaps(place: Make) -> None:
    """While the next launch waits at the gate, the program leaves no gap of its own; both tenants take turns."""
    p = place(Tenant(), Tenant())
    loads = [p.kernels(0, "plain", 1400), p.kernels(1, "plain", 80)]

    def right(seen: list[tuple[float, float]]) -> bool:
        (mine, launches), (theirs, others) = seen
        equal = abs(mine / (launches * 1400e3) - 1) < 0.1 and abs(mine / (mine + theirs) - 0.5) < 0.05
        return equal and (launches * 1400e3 + others * 80e3) * p.gpu.scale > 2e9 * 0.8

    settles(lambda: charged(p, loads, 2, 1.5), right)


def test_a_program_that_the_gpu_waits_for_is_charged_its_kernels(place: Make) -> None:
    """Each comes when the one before is done, seen or not: the time until another tenant's kernel ends is
    not its own."""
    p = place(Tenant(), Tenant())
    loads = [p.kernels(i, "paced", 80) for i in range(2)]

    def parts() -> list[float]:
        return [mine / (launches * 80e3) for mine, launches in charged(p, loads, 1, 0.5)]

    # What was learned while both began is a fifth too much until a kernel is seen that waited for none of the other's.
    settles(parts, lambda each: all(abs(part - 1) < 0.15 for part in each), tries=20)


@pytest.mark.parametrize("us", [80, 200])
def test_the_time_that_a_launch_takes_is_not_charged(place: Make, us: int) -> None:
    """Under a ceiling, each kernel is launched into an idle stream, whose first event is over before the driver has launched
    the kernel. Here each call of the driver takes up to a fifth of the kernel's time, and some 5 us."""
    p = place(Tenant(cap=0.3))
    driver_root.set_faults(p.gpu.file, {"block_every": 1, "block_us": us * p.gpu.scale // 5})
    loads = [p.kernels(0, "plain", us)]

    def part() -> float:
        ((mine, launches),) = charged(p, loads, 1, 0.5)
        return mine / (launches * us * 1e3)

    settles(part, lambda part: abs(part - 1) < 0.08)


def test_events_that_are_slow_to_record_are_no_reason_to_charge_less(place: Make) -> None:
    """The kernel is done before the events after it are recorded, so what seems to be between these is the time of a call."""
    p = place(Tenant(cap=0.3))
    driver_root.set_faults(p.gpu.file, {"block_every": 1, "block_us": 30 * p.gpu.scale})
    loads = [p.kernels(0, "plain", 60)]

    def part() -> float:
        ((mine, launches),) = charged(p, loads, 1, 0.5)
        return mine / (launches * 60e3)

    settles(part, lambda part: 0.88 < part < 1.3)
