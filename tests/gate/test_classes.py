"""Containers that a higher class or a freeze keeps out: what they can still do, how they end, and which others go on.

Simulated GPU."""

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from testbed.until import until
from tests.gate.gpus import DEFAULT, LONG, OFFLINE, ONLINE, Load, Tenant, forged, forging, has, measure, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]


class Calls(Load):
    """A running calls.c: its first thread's launches over time, and how long each call of the other one took."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.took: list[tuple[str, int, int]] = []
        super().__init__(argv, env)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            name, at, number = line.split()
            if name == "launched":
                self.points.append((int(at), int(number)))
            else:
                self.took.append((name, int(at), int(number)))

    def stands_still(self, seconds: float = 0.7) -> int:
        """Since when nothing has been launched; 0 if that is too short a time ago."""
        last = self.points[-1]
        first = next(at for at, count in self.points if count == last[1])
        return first if last[0] - first > seconds * 1e9 else 0

    def rounds(self, since: int) -> int:
        """How often the last call of a round has returned since then."""
        return sum(name == "nvmlDeviceGetUtilizationRates" and at > since for name, at, _ in list(self.took))


def freeze(p: Any, slot: int, on: bool) -> None:
    p.gpu.tenants[slot].freeze = int(on)
    p.gpu.write()


@pytest.mark.parametrize("by", ["freeze", "class"])
def test_a_suspended_container_can_do_all_but_launch(place: Make, calls: str, by: str) -> None:
    """Its launching thread is held. Another one allocates, frees, copies, queries, synchronises, asks NVML: none of
    that waits for the end of the freeze, which does not come before they are done."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE))
    box = p.boxes[0]
    program = Calls(box.command([calls, "20"], first=True), box.env())
    box.running.append(program)
    until(lambda: program.points and program.points[-1][1] > 50)
    online = p.kernels(1, "plain", 80) if by == "class" else None
    if online is None:
        freeze(p, 0, True)
    since = until(program.stands_still)
    until(lambda: program.rounds(since) >= 5)
    last, count = program.points[-1]
    longest = max(took for _, at, took in list(program.took) if since < at <= last)
    assert longest < 2e6, "microseconds"
    assert program.process.poll() is None and program.points[-1][1] <= count + 1
    if online is None:
        freeze(p, 0, False)
    else:
        online.kill()
    until(lambda: program.points[-1][1] > count + 50)


@pytest.mark.parametrize("by", ["freeze", "class"])
def test_a_suspended_container_can_be_killed(place: Make, by: str) -> None:
    """It ends at once, and the others do not notice."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=OFFLINE), Tenant(class_=ONLINE))
    gone, other = p.kernels(0, "plain", 80), p.kernels(1, "plain", 80)
    measure([gone, other], 0.1, 0.2)
    online = p.kernels(2, "plain", 80) if by == "class" else None
    if online is None:
        freeze(p, 0, True)
    else:
        online.ready()
    held(p, gone)
    gone.process.send_signal(signal.SIGKILL)
    gone.process.wait(LONG)
    stays = online or other
    has(p.gpu, stays, 80, 0.7)
    if online:
        online.kill()
        has(p.gpu, other, 80, 0.7)


@pytest.mark.parametrize(("mine", "its"), [(OFFLINE, ONLINE), (DEFAULT, DEFAULT), (ONLINE, OFFLINE)])
def test_what_a_suspended_container_writes_keeps_nobody_out(place: Make, mine: int, its: int) -> None:
    """It may launch nothing, whatever its slot file says all the time."""
    p = place(Tenant(class_=mine), Tenant(class_=its))

    def busy(file: Any) -> None:
        now = time.monotonic_ns() // p.gpu.scale
        head = [0, 0, 0, 1 << 40, now, now + 100_000_000, now + 100_000_000, now, 0, now]
        file.seek(0)
        file.write(forged(now, head))

    load = p.kernels(0, "plain", 80)
    load.ready()
    with forging(p.gpu.slot_file(1), 0.002, busy):
        if its > mine:
            held(p, load)
        freeze(p, 1, True)
        has(p.gpu, load, 80, 0.7)


def held(p: Any, load: Load, seconds: float = 0.5) -> None:
    """Wait until it has launched nothing for a while."""
    until(lambda: time.monotonic_ns() - load.points[-1][0] > seconds * 1e9)


def test_offline_work_goes_on_when_the_online_container_is_killed(place: Make) -> None:
    """A process is killed while it keeps another container out: that one must not wait for what only the process could do."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=1_000_000_000), scale=10)
    offline = p.kernels(0, "plain", 80)
    offline.ready()
    took = []
    for _ in range(5):
        online = p.kernels(1, "plain", 80)
        online.ready()
        held(p, offline)
        before = len(offline.points)
        killed = time.monotonic_ns()
        online.kill()
        until(lambda n=before: len(offline.points) > n)
        took.append((offline.points[before][0] - killed) / 1e6 / p.gpu.scale)
    assert sorted(took)[1] < 20, "ms of GPU time"


def test_offline_work_goes_on_when_the_online_container_is_stopped(place: Make) -> None:
    """SIGSTOP, as a debugger sends it: after 50 ms without a sign of life the others no longer wait for it."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=1_000_000))
    offline = p.kernels(0, "plain", 80)
    offline.ready()
    online = p.kernels(1, "plain", 80)
    online.ready()
    held(p, offline)
    before = len(offline.points)
    online.process.send_signal(signal.SIGSTOP)
    until(lambda: len(offline.points) > before)
    online.process.send_signal(signal.SIGCONT)
    held(p, offline)
    has(p.gpu, online, 80, 0.7)


def test_two_online_containers_compete_and_keep_offline_work_out(place: Make) -> None:
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE), Tenant(class_=ONLINE))
    offline = p.kernels(0, "plain", 80)
    offline.ready()
    first, second = p.kernels(1, "plain", 80), p.kernels(2, "plain", 80)

    def right(counts: list[float]) -> bool:
        online = counts[1] + counts[2]
        busy = online * 80e-6 * p.gpu.scale > 0.75
        return busy and counts[0] < online * 0.03 and abs(counts[1] / online - 0.5) < 0.1

    settles(lambda: measure([offline, first, second], 1), right)
    first.kill()
    settles(lambda: measure([offline, second], 0.5), lambda counts: counts[0] < counts[1] * 0.05)
    second.kill()
    has(p.gpu, offline, 80, 0.6)


def test_a_linger_of_the_gpu_page_is_kept_to(place: Make) -> None:
    """Bursts with gaps of 60 ms of GPU time: a linger of 200 ms leaves others nothing of the gaps, one of 1 ms most."""
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE, linger=200_000_000))
    offline = p.kernels(0, "plain", 80)
    offline.ready()
    p.kernels(1, "plain", 80, 20, 60_000 * p.gpu.scale)
    held(p, offline)
    settles(lambda: measure([offline], 1, 0.2)[0], lambda launched: launched <= 2)
    p.gpu.tenants[1].linger = 1_000_000
    p.gpu.write()
    has(p.gpu, offline, 80, 0.6, 1)
