"""Tier 0.5: what stream memory operations give. Simulated GPU."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from oci_hook.core.tiers import MEMOPS
from tests.gate.gpus import OFFLINE, ONLINE, Load, Tenant, measure, processes, settles, until

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
