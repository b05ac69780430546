"""Tier 0.5: what stream memory operations give. Simulated GPU."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.tiers import MEMOPS
from testbed.until import until
from tests.gate.gpus import OFFLINE, ONLINE, Load, Tenant, measure, processes, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]
SHORT_US = 350  # longer than the window, shorter than an online container waits for
LINGER_NS = 500_000


def goes_on(load: Load, launches: int) -> None:
    before = load.at(time.monotonic_ns())
    until(lambda: load.at(time.monotonic_ns()) - before >= launches)


def test_the_gpu_does_not_wait_for_the_next_command(place: Make) -> None:
    """Kernels longer than the window of an offline container, beside an online one that does nothing."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE))
    offline = p.kernels(0, "plain", SHORT_US)
    offline.ready()

    def rate(tiers: int) -> float:
        p.gpu.let(tiers)
        return measure([offline], 0.5, 0.3)[0]

    settles(lambda: rate(MEMOPS) / rate(0), lambda gain: gain > 1.02)


@pytest.mark.parametrize("ends", ["online", "offline"])
def test_a_command_behind_a_closed_word_is_off_the_gpu(place: Make, ends: str) -> None:
    """It counts as held, not as in flight. It runs when the freeze ends, and vanishes with its process."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=LINGER_NS))
    p.gpu.let(MEMOPS)
    offline = p.kernels(0, "plain", SHORT_US)
    offline.ready()
    online = p.kernels(1, "plain", 80, 40, 3000 * p.gpu.scale)

    def held() -> bool:
        _, launched, done, *_, threads, _, _ = processes(p.gpu, 0)[0]
        return threads > 0 and launched == done

    until(held)
    if ends == "online":
        online.kill()
        goes_on(offline, 50)
    else:
        offline.kill()
        (count,) = measure([online], 0.5, 0.2)
        assert count > 0
        again = p.kernels(0, "plain", SHORT_US)
        again.ready()
        goes_on(again, 5)


def test_a_word_that_nobody_can_sleep_on_makes_no_pacer_spin(place: Make) -> None:
    """The online container cuts its slot file: each sleep on its word ends at once."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE))
    p.gpu.let(MEMOPS)
    offline = p.kernels(0, "plain", SHORT_US)
    offline.ready()
    until(lambda: pacer_time(offline))

    def busy() -> float:
        before, since = pacer_time(offline), time.monotonic_ns()
        time.sleep(0.5)
        return (pacer_time(offline) - before) / (time.monotonic_ns() - since)

    usual = busy()
    os.truncate(p.gpu.slot_file(1), 0)
    settles(busy, lambda part: part < 3 * usual)
    goes_on(offline, 5)


def test_a_child_gets_no_page_that_the_gpu_reads(place: Make) -> None:
    """Else a store of the parent's could go to a copy of it."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE))
    offline = p.kernels(0, "plain", SHORT_US)
    offline.ready()

    def kept() -> int:
        """Mappings that a fork leaves out: the flag dc (proc(5))."""
        maps = Path(f"/proc/{offline.process.pid}/smaps").read_text().splitlines()
        return sum("dc" in line.split() for line in maps if line.startswith("VmFlags:"))

    assert kept() == 0
    p.gpu.let(MEMOPS)
    until(lambda: kept() == 1)
    goes_on(offline, 5)


def pacer_time(load: Load) -> int:
    """Nanoseconds for which the process's pacer has run."""
    for thread in Path(f"/proc/{load.process.pid}/task").iterdir():
        if (thread / "comm").read_text() == "gpu-hook\n":
            return int((thread / "schedstat").read_text().split()[0])
    return 0
