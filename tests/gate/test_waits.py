"""Kernels that wait for kernels of another process, of their own process, or of a frozen container. Simulated GPU.

None may wait for ever, whatever the gate holds back.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.compiled import compiled
from testbed.sanitize import BUILDS, SHIM, gcc, name
from testbed.until import until
from tests.gate.gpus import OFFLINE, ONLINE, Load, Tenant, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]


def rounds(load: Load) -> int:
    assert load.process.poll() is None, load.said()
    return load.points[-1][1] if load.points else 0


def pair(p: Any, waiter: str, slots: tuple[int, int], way: str = "peer") -> list[Load]:
    """Two processes of one collective."""
    words = Path(p.gpu.place.parent / "words")
    words.touch()
    os.truncate(words, 8 << 20)
    return [p.boxes[slot].start([waiter, way, str(words), str(me), "4"]) for me, slot in enumerate(slots)]


@pytest.mark.parametrize(
    ("caps", "slots"),
    [((0.3, 0), (0, 0)), ((0, 0), (0, 1)), ((0.3, 0.3), (0, 1)), ((0.2, 0.6), (0, 1))],
    ids=["one container, capped", "two", "two, capped", "two, with different caps"],
)
def test_two_processes_that_wait_for_each_other(
    place: Make, waiter: str, caps: tuple[float, float], slots: tuple[int, int]
) -> None:
    """If caps were charged for waiting, each side would make the other wait longer and longer."""
    p = place(*(Tenant(cap=cap) for cap in caps), scale=2)
    both = pair(p, waiter, slots)
    until(lambda: min(map(rounds, both)) > 150)


@pytest.mark.parametrize("way", ["peer", "unnamed"])
def test_beside_a_busy_neighbour(place: Make, waiter: str, way: str) -> None:
    p = place(Tenant(), Tenant(), scale=2)
    other = p.kernels(1, "plain", 40)
    other.ready()
    both = pair(p, waiter, (0, 0), way)
    until(lambda: min(map(rounds, both)) > 100)
    before = rounds(other)
    until(lambda: rounds(other) > before)


@pytest.mark.parametrize("way", [["self"], ["self", "4"], ["resident"]])
@pytest.mark.parametrize("cap", [0, 0.5])
def test_a_kernel_that_waits_for_one_at_the_gate(place: Make, waiter: str, way: list[str], cap: float) -> None:
    """Work in flight keeps the next launch back only for as long as it can be running."""
    p = place(Tenant(cap=cap), Tenant(), scale=2)
    if not cap:
        p.kernels(1, "plain", 40).ready()
    load = p.boxes[0].start([waiter, *way])
    until(lambda: rounds(load) > 10)


def test_a_kernel_that_waits_for_a_fill(place: Make, waiter: str) -> None:
    """The ceiling's wait of one round makes no other round longer."""
    p = place(Tenant(cap=0.3), scale=2)
    load = p.boxes[0].start([waiter, "fill"])
    until(lambda: rounds(load) > 3)
    counts = [rounds(load)]
    for _ in range(4):
        time.sleep(2.5)
        counts.append(rounds(load))
    assert counts[4] - counts[3] > 0.5 * (counts[1] - counts[0]), counts


def test_online_work_that_waits_for_offline_work(place: Make, waiter: str) -> None:
    """In each round it shows no progress for a second; then the offline work is let in."""
    p = place(Tenant(class_=ONLINE), Tenant(class_=OFFLINE), scale=1)
    both = pair(p, waiter, (0, 1))
    until(lambda: rounds(both[1]) >= 3)


def test_who_waits_for_a_frozen_container_goes_on_with_it(place: Make, waiter: str) -> None:
    p = place(Tenant(), Tenant(), scale=2)
    both = pair(p, waiter, (0, 1))
    until(lambda: min(map(rounds, both)) > 10)
    p.gpu.tenants[1].freeze = 1
    p.gpu.write()
    until(both[1].waits)

    def later() -> tuple[list[int], list[int]]:
        before = [rounds(load) for load in both]
        time.sleep(0.3)
        return before, [rounds(load) for load in both]

    before, _ = settles(later, lambda seen: seen[0] == seen[1])
    p.gpu.tenants[1].freeze = 0
    p.gpu.write()
    until(lambda: min(map(rounds, both)) > max(before) + 10)


@pytest.mark.parametrize("build", BUILDS[:1], ids=name)
def test_what_is_learned_of_kernels_that_wait(build: tuple[str, ...]) -> None:
    flags = ["-std=c11", "-g", *build, "-fno-sanitize-recover=all", f"-I{SHIM}", "-Wall", "-Werror"]
    sources = [str(Path(__file__).parent / "check_cost.c"), str(SHIM / "gate/cost.c"), str(SHIM / "gate/decide.c")]
    out = compiled("check_cost", [gcc(build), *flags, *sources])
    done = subprocess.run([str(out)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
