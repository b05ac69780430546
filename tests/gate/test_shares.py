"""Shares, caps and classes between real processes in boxes of their own, with the shipped shim. Simulated GPU.

scripts/bench share measures how exact they are.
"""

import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.slot_page import parse
from testbed.until import until
from tests.gate.gpus import (
    OFFLINE,
    ONLINE,
    SLOT,
    Tenant,
    forged,
    forging,
    has,
    have,
    measure,
    one_tenant,
    records,
    settles,
)

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]


WANT = 840  # of a slot file's head


def told(p: Any, slot: int) -> Any:
    return parse(p.gpu.slot_file(slot).read_bytes(), p.gpu.scale)


@pytest.mark.parametrize("weights", [(50, 50), (70, 30), (50, 30, 20)])
def test_weights_of_saturated_tenants(place: Make, weights: tuple[int, ...]) -> None:
    p = place(*(Tenant(w) for w in weights))
    loads = [p.kernels(i, "plain", 80) for i in range(len(weights))]
    have(loads, [weight / 100 for weight in weights], 0.05, 2)


def learned(p: Any, slot: int, duty: float) -> None:
    """As if the container had been seen to need that part of the GPU, which takes it some time."""
    until(lambda: told(p, slot))
    with open(p.gpu.slot_file(slot), "r+b") as f:
        os.pwrite(f.fileno(), struct.pack("<IB", round(duty * 1e6), 0), 112)


def test_one_that_needs_little_is_held_for_nobody(place: Make) -> None:
    """A program that launches a short kernel now and then, beside one that leaves gaps, too."""
    p = place(Tenant(70), Tenant(30))
    loads = [p.kernels(0, "plain", 80, 20, 2000), p.kernels(1, "rare", 5)]
    measure(loads, 0.2)

    def held() -> float:
        learned(p, 1, 0.015)
        before = sum(seconds for _, seconds in told(p, 1).held_for)
        measure(loads, 2, 0)
        return float(sum(seconds for _, seconds in told(p, 1).held_for) - before)

    settles(held, lambda seconds: seconds < 0.1)


def test_one_that_needed_little_has_its_part_when_it_needs_much(place: Make) -> None:
    p = place(Tenant(70), Tenant(30))
    other, little = p.kernels(0, "plain", 80), p.kernels(1, "rare", 5)
    measure([other, little], 0.2)
    little.kill()
    learned(p, 1, 0.015)
    have([other, p.kernels(1, "plain", 80)], [0.7, 0.3], 0.05, 2)


@pytest.mark.parametrize(("burst", "long"), [(60, True), (5, False)])
def test_time_slices_would_double_a_long_burst(place: Make, burst: int, long: bool) -> None:
    """So one with such bursts is said to want the GPU all the time, however rare they are; another one, when it has work."""
    p = place(Tenant(70), Tenant(30))
    measure([p.kernels(0, "plain", 80, burst, 100_000), p.kernels(1, "plain", 80)], 1)

    def want() -> int:
        time.sleep(0.2)
        return int(struct.unpack_from("<I", p.gpu.slot_file(0).read_bytes(), WANT)[0])

    settles(want, lambda ppm: ppm == 10**6 if long else 0 < ppm < 500_000)


@pytest.mark.parametrize("way", ["ex", "cooperative", "ptsz", "graph", "legacy"])
def test_every_route_passes_the_gate(place: Make, way: str) -> None:
    p = place(Tenant(75), Tenant(25))
    odd, plain = p.kernels(0, way, 80), p.kernels(1, "plain", 80)
    many = 10 if way == "graph" else 1  # a graph of ten kernels

    def right(counts: list[float]) -> bool:
        return abs(counts[0] * many / (counts[0] * many + counts[1]) - 0.75) < 0.08

    settles(lambda: measure([odd, plain], 1), right)


@pytest.mark.parametrize("way", ["plain", "ptsz"])
def test_a_queue_from_before_the_neighbour_came_is_no_gap(place: Make, way: str) -> None:
    """A program that is alone fills its driver's queue uncounted. What it launches next ends late, but not for lack of work."""
    p = place(Tenant(75), Tenant(25))
    first = p.kernels(0, way, 80)
    until(lambda: first.points and first.points[-1][1] >= 1000)
    have([first, p.kernels(1, "plain", 80)], [0.75, 0.25], 0.08)


@pytest.mark.parametrize("us", [80, 1500])
def test_cap_holds_alone_on_the_gpu(place: Make, us: int) -> None:
    p = place(Tenant(cap=0.3))
    load = p.kernels(0, "plain", us)
    settles(lambda: measure([load], 1.5)[0] * us * p.gpu.scale / 1.5e6, lambda got: 0.26 < got < 0.33)


def test_processes_of_a_container_are_one_tenant(place: Make) -> None:
    p = place(Tenant(), Tenant())
    loads = [*(p.kernels(0, "plain", 80) for _ in range(3)), p.kernels(1, "plain", 80)]
    one_tenant(loads, 0.5, 0.08)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_who_dies_or_stops_holds_nobody(place: Make, sign: signal.Signals) -> None:
    p = place(Tenant(), Tenant())
    gone, stays = p.kernels(0, "plain", 80), p.kernels(1, "plain", 80)
    measure([gone, stays], 0.5, 1)
    gone.process.send_signal(sign)
    has(p.gpu, stays, 80, 0.75, 0.75, 0.25)  # from 50 ms of GPU time on
    if sign == signal.SIGSTOP:
        gone.process.send_signal(signal.SIGCONT)
        have([gone, stays], [0.5, 0.5], 0.08)


def test_a_slot_file_says_who_held_its_container(place: Make) -> None:
    """Two equals that always have work: each has nothing in flight, and waits for the other, for near half of the time. They
    have it from the beginning on: who left gaps at first may be let in beside the other one for long."""
    p = place(Tenant(), Tenant())
    loads = [p.kernels(i, "eager", 80) for i in range(2)]
    for load in loads:
        load.ready()

    def held() -> list[float]:
        since, before = time.monotonic(), [dict(told(p, i).held_for) for i in range(2)]
        time.sleep(1)
        elapsed, after = time.monotonic() - since, [dict(told(p, i).held_for) for i in range(2)]
        assert all(set(one) <= {2 - i} for i, one in enumerate(after)), after  # nobody waits for itself
        return [(after[i].get(2 - i, 0) - before[i].get(2 - i, 0)) / elapsed for i in range(2)]

    settles(held, lambda parts: all(0.25 < part < 0.65 for part in parts))


def test_a_neighbours_file_is_only_bytes(place: Make) -> None:
    """The file is truncated, grown, random or gone: the other tenant goes on with the whole GPU, and so does its owner."""
    p = place(Tenant(), Tenant())
    load = p.kernels(0, "plain", 80)
    neighbour = p.gpu.slot_file(1)
    for content in (b"", b"x" * 100, bytes(SLOT * 3), bytes(range(256)) * 32, None):
        if content is None:
            neighbour.unlink()
        else:
            with open(neighbour, "r+b") as f:
                f.truncate(0)
                f.write(content)
        has(p.gpu, load, 80, 0.7)
    assert load.process.poll() is None


def test_a_liar_costs_what_slicing_would(place: Make) -> None:
    """A slot claims the GPU for ever and is always busy: the other tenant goes on after some GPU time."""
    p = place(Tenant(), Tenant())
    load = p.kernels(0, "plain", 80)
    load.ready()

    def lie(file: Any) -> None:
        now = time.monotonic_ns() // p.gpu.scale
        head = [0, 0, 0, 1 << 40, now, now + 100_000_000, now + 100_000_000, now, 0, now]
        file.seek(0)
        file.write(forged(now, head))

    with forging(p.gpu.slot_file(1), 0.002, lie):
        has(p.gpu, load, 80, 0.6, 1, 1)


@pytest.mark.parametrize("years", [-1, 1])
def test_a_neighbour_whose_clock_jumped(place: Make, years: int) -> None:
    """All times in a busy slot are far off, whoever wrote them: the other tenant has at least its half."""
    p = place(Tenant(), Tenant())
    load = p.kernels(0, "plain", 80)
    load.ready()
    when = (time.monotonic_ns() // p.gpu.scale + years * 365 * 86400 * 10**9) % 2**64
    head = [10**9, 10**9, 0, 3, when, (when + 10**7) % 2**64, 0, when, when, when]
    p.gpu.slot_file(1).write_bytes(forged(when, head))
    has(p.gpu, load, 80, 0.5, 1, 1)


def test_a_tenant_without_processor_time_keeps_nobody(place: Make, tmp_path: Path) -> None:
    """It has a thousandth of a processor; the other tenant gets what it cannot use of its half.

    (With a hundredth it can still queue a good part of its half.)
    """
    p = place(Tenant(), Tenant())
    starved, other = p.kernels(0, "plain", 80), p.kernels(1, "plain", 80)
    measure([starved, other], 0.2)
    # Its quota does not hold in real time.
    subprocess.run(["chrt", "--all-tasks", "--other", "--pid", "0", str(starved.process.pid)], check=True)
    group = Path("/sys/fs/cgroup/cpu", f"gh-{tmp_path.name}")
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text("1000000")
        (group / "cpu.cfs_quota_us").write_text("1000")
        (group / "cgroup.procs").write_text(str(starved.process.pid))
        has(p.gpu, other, 80, 0.7, 1)
    finally:
        starved.kill()
        group.rmdir()


def test_a_gpu_with_all_its_slots_granted(place: Make) -> None:
    """Two at work among 64, at both ends of the page; the others are idle."""
    p = place(*(Tenant(300 if i == 0 else 100) for i in range(64)))
    have([p.kernels(0, "plain", 80), p.kernels(63, "plain", 80)], [0.75, 0.25], 0.06)


def test_freeze_and_thaw_by_the_gpu_page(place: Make) -> None:
    p = place(Tenant(), Tenant())
    load = p.kernels(0, "plain", 80)
    measure([load], 0.1, 0.1)
    p.gpu.tenants[0].freeze = 1
    p.gpu.write()
    settles(lambda: measure([load], 0.7, 0.2)[0], lambda launched: launched <= 1)
    p.gpu.tenants[0].freeze = 0
    p.gpu.write()
    has(p.gpu, load, 80, 0.6)


def test_what_is_published_is_what_was(place: Make) -> None:
    """GPU time used, time with work and time waited, of two saturated tenants over two seconds."""
    p = place(Tenant(70), Tenant(30))
    loads = [p.kernels(i, "eager", 80) for i in range(2)]
    measure(loads, 0.2, 1)

    def window() -> list[tuple[float, float, Any, Any]]:
        """(seconds, GPU time had, what was told before, and after), of each."""
        before, since = [told(p, i) for i in range(2)], time.monotonic_ns()
        time.sleep(2)
        after, until = [told(p, i) for i in range(2)], time.monotonic_ns()
        time.sleep(0.1)
        had = [load.rate(since, until) * 80e-6 * p.gpu.scale for load in loads]
        return [((until - since) / 1e9, *each) for each in zip(had, before, after, strict=True)]

    def right(seen: list[tuple[float, float, Any, Any]]) -> bool:
        for elapsed, had, old, new in seen:
            charged, wanted = new.charged - old.charged, new.wanted - old.wanted
            waited, waits = new.waited - old.waited, sum(new.waits) - sum(old.waits)
            if not (abs(charged - had) < 0.12 * elapsed and 0.8 * had < wanted < 1.1 * elapsed):
                return False
            if not (0 < waited < 1.1 * elapsed and 0 < waits <= new.launches - old.launches + 1):
                return False
        return bool(waited > 0.2 * elapsed)  # who has 30 % waits for 70

    settles(window, right)


def test_a_long_wait_is_in_its_bin(place: Make) -> None:
    p = place(Tenant(), Tenant())
    load = p.kernels(0, "plain", 80)
    load.ready()
    p.gpu.tenants[0].freeze = 1
    p.gpu.write()
    until(lambda: told(p, 0).mode == "frozen")
    time.sleep(0.6)
    before = told(p, 0)
    assert not any(before.waits[14:])
    p.gpu.tenants[0].freeze = 0
    p.gpu.write()
    until(lambda: sum(told(p, 0).waits) > sum(before.waits))
    after = told(p, 0)
    assert sum(after.waits[14:]) == 1 and after.waited - before.waited > 0.6, (before, after)  # 0.52 s and longer


def test_online_work_stops_offline_work(place: Make) -> None:
    p = place(Tenant(class_=OFFLINE), Tenant(class_=ONLINE))
    offline = p.kernels(0, "plain", 80)
    offline.ready()  # if it were second, it would never get to its first launch
    online = p.kernels(1, "plain", 80)
    busy = 0.8 * 0.8 / 80e-6 / p.gpu.scale
    settles(lambda: measure([offline, online], 0.8), lambda n: n[1] > busy and n[0] < n[1] * 0.03)
    online.kill()
    has(p.gpu, offline, 80, 0.7)


def test_weights_change_while_it_runs(place: Make) -> None:
    p = place(Tenant(50), Tenant(50))
    loads = [p.kernels(i, "plain", 80) for i in range(2)]
    measure(loads, 0.1)
    p.gpu.tenants[0].weight = 150
    p.gpu.write()
    have(loads, [0.75, 0.25], 0.06)


def test_alone_there_is_no_thread_and_nothing_is_counted(place: Make) -> None:
    p = place(Tenant())
    load = p.kernels(0, "plain", 80, 20, 0)
    measure([load], 0.2, 0.2)
    pid = load.process.pid
    assert subprocess.run(["ls", f"/proc/{pid}/task"], capture_output=True, text=True).stdout.split() == [str(pid)]
    seen = told(p, 0)
    assert (seen.launches, seen.charged, seen.wanted, sum(seen.waits), seen.waited) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("peers", [False, True])
def test_alone_a_launch_makes_no_system_call(place: Make, peers: bool) -> None:
    """Any system call kills the program. Alone it survives; beside a busy tenant it is killed."""
    p = place(Tenant(), *([Tenant()] if peers else []))
    if peers:
        p.kernels(1, "plain", 80).ready()
    load = p.kernels(0, "silent", 1)
    assert load.process.wait(60) == (-signal.SIGSYS if peers else 0), load.said()
    load.thread.join()
    assert load.points == ([] if peers else [(1, 900)])


def test_without_a_gpu_page_only_the_own_cap_is_held(place: Make) -> None:
    p = place(Tenant(), Tenant())
    p.gpu.scribble(b"\xff" * 4096)
    load = p.kernels(0, "plain", 80)
    has(p.gpu, load, 80, 0.6, 0.5)


@pytest.mark.parametrize(("way", "subs"), [("exec", 1), ("fork", 2)])
def test_fork_and_exec_take_sub_slots_of_their_own(place: Make, way: str, subs: int) -> None:
    p = place(Tenant(), Tenant())
    other, load = p.kernels(0, "plain", 80), p.kernels(1, way, 80)
    if way != "fork":  # two processes print there
        have([other, load], [0.5, 0.5], 0.1)
    until(lambda: len(records(p.gpu, 1)) == subs and min(n for _, n in records(p.gpu, 1)) > 30)
    used = records(p.gpu, 1)
    assert len(used) == subs and len({owner for owner, _ in used}) == subs, used


def test_what_a_capturing_stream_records_is_not_gated(place: Make) -> None:
    """A frozen tenant captures and instantiates a graph without waiting; only its launch waits."""
    p = place(Tenant(freeze=1), Tenant())
    load = p.kernels(0, "graph", 80)
    until(load.waits)
    assert not load.points and load.process.poll() is None, load.said()
    p.gpu.tenants[0].freeze = 0
    p.gpu.write()
    load.ready()
