"""A ceiling holds from a container's first launch on, over any time, whatever its processes do. Simulated GPU.

No bound below depends on a processor: a program that gets none launches less.
"""

import shlex
import time
from collections.abc import Callable
from typing import Any

import pytest

from testbed.until import until
from tests.gate.gpus import LONG, Tenant, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]
SLACK = 6.0  # ms: 0.3 points of 2 s
AHEAD = 1.0  # ms that may be launched and not run yet


def launches(load: Any) -> list[tuple[int, int]]:
    """(when, launches so far) of all processes that wrote, one after the other."""
    points: list[tuple[int, int]] = []
    before = last = 0
    for at, count in list(load.points):
        before += last if count < last else 0
        last = count
        points.append((at, before + count))
    return points


def excess(series: list[list[tuple[int, int]]], ms: float, cap: float, scale: int) -> float:
    """By how many ms of GPU time the launches of any stretch of time exceed the ceiling's part of it, at most."""
    steps = sorted((at, i, count) for i, points in enumerate(series) for at, count in points)
    counts, least, most = [0] * len(series), None, 0.0
    for at, i, count in steps:
        counts[i] = count
        over = sum(counts) * ms - cap * at / 1e6 / scale
        least = over if least is None else min(least, over)
        most = max(most, over - least)
    return most


def used(series: list[list[tuple[int, int]]], ms: float, scale: int) -> float:
    """The part of the GPU that the launches since the first one took."""
    begin, end = min(p[0][0] for p in series), max(p[-1][0] for p in series)
    return sum(p[-1][1] for p in series) * ms / ((end - begin) / 1e6 / scale)


def enough(series: list[list[tuple[int, int]]], ms: float, scale: int, least: float, way: str) -> Any:
    """The series, once they use that part of the GPU; False until then. Of threads, only the first one's launches are known."""
    return (way == "threads" or used(series, ms, scale) > least) and series


@pytest.mark.parametrize(
    ("cap", "us", "way", "processes"),
    [
        (0.01, 80, "plain", 1),
        (0.1, 80, "plain", 1),
        (0.3, 8, "plain", 1),
        (0.3, 1500, "plain", 1),
        (0.3, 5000, "plain", 1),
        (0.3, 20000, "plain", 1),
        (0.3, 80, "eager", 1),
        (0.3, 20000, "eager", 1),  # longer than the time after which a stream counts as one that waits
        (0.3, 400, "graph", 1),
        (0.3, 80, "plain", 3),
        (0.5, 80, "threads", 1),
        (0.7, 1500, "plain", 3),
        (0.99, 80, "plain", 1),
        *((0.2, 5000, way, 1) for way in ("retains", "green", "refused")),
    ],
)
def test_nothing_is_saved_up_before_the_first_launch(
    place: Make, cap: float, us: int, way: str, processes: int
) -> None:
    p = place(Tenant(cap=cap))
    loads = [p.kernels(0, way, us) for _ in range(processes)]
    for load in loads:
        load.ready()
    time.sleep(2)
    ms = us / 1000 * (10 if way == "graph" else 1)
    series = until(lambda: enough([launches(load) for load in loads], ms, p.gpu.scale, cap / 2, way))
    assert excess(series, ms, cap, p.gpu.scale) < SLACK + AHEAD + ms * processes, series[0][:20]


def test_idle_time_saves_up_little(place: Make) -> None:
    """Bursts of 40 ms of GPU time with 100 ms between them."""
    p = place(Tenant(cap=0.3))
    load = p.kernels(0, "plain", 80, 500, 100_000 * p.gpu.scale)
    until(lambda: load.points and load.points[-1][1] > 2000)
    assert excess([launches(load)], 0.08, 0.3, p.gpu.scale) < SLACK + AHEAD + 0.08


def test_a_ceiling_that_comes_later_begins_empty(place: Make) -> None:
    p = place(Tenant())
    load = p.kernels(0, "plain", 80)
    load.ready()
    time.sleep(0.5)
    p.gpu.tenants[0].cap = 0.1
    p.gpu.write()
    began = time.monotonic_ns()
    time.sleep(2)
    # 1024 launches that the driver took before, uncounted, at most.
    points = [(at, count) for at, count in launches(load) if at > began]
    assert excess([points], 0.08, 0.1, p.gpu.scale) < SLACK + AHEAD + 0.08


def test_processes_that_follow_each_other_have_one_bucket(place: Make) -> None:
    p = place(Tenant(cap=0.3))
    box = p.boxes[0]
    # Longer and longer, since on a busy machine one may not have launched anything within a second.
    lives = f"for s in 1 1 1 2 4 8 16 30; do timeout --foreground -s KILL $s {shlex.quote(str(p.load))} plain 80; done"
    load = box.start(["sh", "-c", f"while :; do {lives}; done"])
    until(lambda: sum(one[1] > two[1] for one, two in zip(load.points, load.points[1:], strict=False)) >= 3)
    series = until(lambda: enough([launches(load)], 0.08, p.gpu.scale, 0.1, "plain"))
    assert excess(series, 0.08, 0.3, p.gpu.scale) < SLACK + AHEAD + 0.08


@pytest.mark.parametrize("end", ["killed", "exits"])
def test_a_kernel_that_ended_with_its_process_was_had(place: Make, end: str) -> None:
    """Each process launches a kernel of a second and ends after a part of it, before anything could be charged."""
    p = place(Tenant(cap=0.3))

    def part() -> float:
        """Of the time from the first one's launch to the last one's, for which kernels ran."""
        had = begin = launched = 0.0
        for i in range(5):
            load = p.kernels(0, "eager" if end == "killed" else "leaves", 1_000_000)
            load.ready()
            launched = time.monotonic()
            begin = begin if i else launched
            if end == "killed":
                time.sleep(0.15)
                load.kill()
            else:
                load.process.wait(LONG)
            had += time.monotonic() - launched if i < 4 else 0
        return had / (launched - begin)

    settles(part, lambda had: had < 0.4, 3)
