"""Tiers 0.5, 1 and 2: what stream memory operations and channel-group controls give. Simulated GPU."""

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from oci_hook.core.slot_page import SUB, SUB_OFFSET, parse
from oci_hook.core.tiers import MEMOPS, SLICE, STOP
from tests.gate.gpus import OFFLINE, ONLINE, Load, Tenant, measure
from tests.gate.tiers import controls, let

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]
LONG_US = 20_000
SHORT_US = 350  # longer than the window, shorter than an online container waits for
LINGER_NS = 500_000


def long_beside_bursts(p: Any) -> tuple[Load, Load]:
    """Kernels of 20 ms, one after the other, and bursts of 3.2 ms of work with 1.5 ms of rest between them."""
    offline = p.kernels(0, "plain", LONG_US, 1, 0)
    offline.ready()
    return offline, p.kernels(1, "plain", 80, 40, 1500 * p.gpu.scale)


def goes_on(load: Load, launches: int = 1, seconds: float = 15) -> bool:
    before, end = load.at(time.monotonic_ns()), time.monotonic() + seconds
    while load.at(time.monotonic_ns()) - before < launches and time.monotonic() < end:
        time.sleep(0.05)
    return load.at(time.monotonic_ns()) - before >= launches


def test_online_work_is_quicker_and_offline_work_goes_on(place: Make) -> None:
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=LINGER_NS))
    controls(p, "work")
    offline, online = long_beside_bursts(p)
    rate, bound = {}, {}
    for _ in range(3):  # a busy machine starves programs now and then
        for tiers in (SLICE, STOP, 0):  # in this order, so that what is not undone is seen
            let(p, tiers)
            (rate[tiers],) = measure([online], 0.9, 0.6)
            assert goes_on(offline), tiers
            said = parse(p.gpu.slot_file(0).read_bytes())
            assert said
            bound[tiers] = said.preempt_bound
        if min(rate[SLICE], rate[STOP]) > rate[0] * 1.25:
            break
    assert min(rate[SLICE], rate[STOP]) > rate[0] * 1.25, rate
    assert bound[STOP] <= 0.001 < LONG_US * 1e-6 < bound[0], bound
    online.kill()
    assert goes_on(offline)


def test_a_held_program_that_is_stopped_goes_on(place: Make) -> None:
    """The online one ends while the offline one, off the GPU, cannot notice it."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=LINGER_NS))
    controls(p, "work")
    let(p, STOP)
    offline, online = long_beside_bursts(p)
    measure([offline, online], 0.5, 0.5)
    offline.process.send_signal(signal.SIGSTOP)
    (count,) = measure([online], 0.5, 0.2)
    assert count > 0
    online.kill()
    offline.process.send_signal(signal.SIGCONT)
    assert goes_on(offline)


def test_the_gpu_does_not_wait_for_the_next_command(place: Make) -> None:
    """Kernels longer than the window of an offline container, beside an online one that does nothing."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE))
    offline = p.kernels(0, "plain", SHORT_US)
    offline.ready()
    rate = {}
    for _ in range(3):  # a busy machine starves programs now and then
        for tiers in (MEMOPS, 0):
            let(p, tiers)
            (rate[tiers],) = measure([offline], 0.7, 0.4)
        if rate[MEMOPS] > rate[0] * 1.02:
            break
    assert rate[MEMOPS] > rate[0] * 1.02, rate


@pytest.mark.parametrize("ends", ["online", "offline"])
def test_a_command_behind_a_closed_word_is_off_the_gpu(place: Make, ends: str) -> None:
    """It counts as held, not as in flight; it goes on when the freeze ends, and goes with its process."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=LINGER_NS))
    let(p, MEMOPS)
    offline = p.kernels(0, "plain", SHORT_US)
    offline.ready()
    online = p.kernels(1, "plain", 80, 40, 3000 * p.gpu.scale)

    def held() -> bool:
        _, launched, done, _, _, _, threads, *_ = SUB.unpack_from(p.gpu.slot_file(0).read_bytes(), SUB_OFFSET)
        return threads > 0 and launched == done

    end = time.monotonic() + 15
    while not held():
        assert time.monotonic() < end
        time.sleep(0.001)
    if ends == "online":
        online.kill()
        assert goes_on(offline, 50)
    else:
        offline.kill()
        (count,) = measure([online], 0.5, 0.2)
        assert count > 0
        again = p.kernels(0, "plain", SHORT_US)
        again.ready()
        assert goes_on(again, 5)


def test_controls_that_do_not_work_harm_nobody(place: Make) -> None:
    """Were they let, against what a probe finds."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=LINGER_NS))
    let(p, SLICE | STOP)
    offline, online = long_beside_bursts(p)
    for mode in ("error", "inert"):
        controls(p, mode)
        counts = measure([offline, online], 0.6, 0.3)
        assert counts[1] > 20, (mode, counts)
    online.kill()
    assert goes_on(offline)
