"""Compute shares end to end: real containers through the runtime wrapper, the shipped shim, one simulated GPU.

Loose bounds, since others may use this machine; scripts/bench share and priority measure.
"""

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import priority as bench_priority
from benchmarks import share as bench_share
from testbed.load import cells, stage
from testbed.until import until
from tests.gate.gpus import settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
SATURATED = {"kernel": 80, "sigma": 0.5}


@pytest.fixture(scope="module")
def gpu(native: Path) -> Iterator[Any]:
    made = stage.Stage(gpus=1, scale=5)
    yield made
    made.close()


def test_a_program_has_its_words_in_a_path_with_a_space_too(tmp_path: Path) -> None:
    """scripts/bench liars gives its program two words, scripts/gpu-validate one with the checkout's path."""
    script = stage.Tenant("t", tmp_path).command_lines(("/a path/liar", "rests", "0"), "/load", "--scale 5")
    assert shlex.split(script)[:4] == ["exec", "/a path/liar", "rests", "0"]


def test_weights_of_the_annotations_hold_and_the_bare_driver_has_none(gpu: Any) -> None:
    cell = cells.Cell("", "saturated", {**SATURATED, "weight": 75}, {**SATURATED, "weight": 25}, seconds=1, warm=0.8)

    def figures(native: bool) -> Any:
        return cells.judge(cell, cells.measure(gpu, cell, 0, native), [1.0, 1.0])

    settles(lambda: figures(native=False), lambda got: got["error"] < 6 and got["efficiency"] > 0.85, 4)
    settles(lambda: figures(native=True), lambda got: got["error"] > 15, 4)


def test_a_fixed_share_is_a_cap(gpu: Any) -> None:
    cell = cells.Cell("", "cap", {**SATURATED, "cap": 30}, seconds=1, warm=0.5)
    settles(
        lambda: cells.judge(cell, cells.measure(gpu, cell, 0, False), [1.0])["cap_error"],
        lambda error: abs(error) < 5,
        4,
    )


@pytest.mark.parametrize(
    ("tenants", "parts"),
    [
        (({"cap": 30},), (0.95,)),
        (({"cap": 30}, {"weight": 70}), (0.5, 0.5)),
        (({"cap": 30, "limit": 40},), (0.4,)),
        (({"cap": 20, "limit": 25}, {"weight": 60}), (0.25, 0.7)),
    ],
    ids=["alone", "two", "ceiling", "ceiling beside another"],
)
def test_compute_of_class_online_is_a_booking(gpu: Any, tenants: tuple[Any, ...], parts: tuple[float, ...]) -> None:
    """They compete, whatever they booked; a compute-limit is a ceiling also for them (`cap` is a fixed-share)."""
    cell = cells.Cell("", "cap", *({**SATURATED, **t, "class": 2} for t in tenants), seconds=1, warm=0.8)

    def right(got: list[float]) -> bool:
        return all(abs(one - part) < 0.08 for one, part in zip(got, parts, strict=True))

    settles(lambda: [sum(b) / len(b) for b in cells.measure(gpu, cell, 0, False)["bins"]], right, 4)


def test_offline_work_makes_room_and_loses_nothing(gpu: Any) -> None:
    pair = bench_priority.Pair(20, "80 us")

    def measured() -> tuple[float, float]:
        got = bench_priority.measure_pair(gpu, pair, 8, False, 0)
        assert got["checksum_ok"] and len(got["latency_ms"]) == 8 and min(got["latency_ms"]) > 3.5
        return sorted(got["latency_ms"])[4], got["low_gpu_time"]

    # 3.6 ms alone; sliced it would be more than twice that
    settles(measured, lambda got: got[0] < 1.6 * 3.7 and got[1] > 0.35, 4)


def test_a_linger_of_the_settings_is_kept_to(gpu: Any) -> None:
    """100 ms as qGPU has it, or as long as the gaps advise; it counts for containers that start from now on."""
    fixed = bench_priority.Pair(5, "80 us", 100)

    def released(pair: Any, requests: int) -> list[float]:
        got = sorted(bench_priority.measure_pair(gpu, pair, requests, False, 0)["release_ms"])
        assert got
        return got

    try:
        bench_priority.set_linger(gpu, fixed.linger)
        settles(lambda: released(fixed, 4), lambda got: min(got) > 99 and got[len(got) // 2] < 115, 4)
    finally:
        bench_priority.set_linger(gpu, 0)
    adaptive = bench_priority.Pair(20, "80 us")
    settles(lambda: released(adaptive, 8), lambda got: got[len(got) // 2] < 15, 4)


def test_freeze_and_resume_lose_nothing(gpu: Any) -> None:
    """By the command line, twice; then its commands have all ended, once and in order."""
    annotations = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": gpu.memory}
    with gpu.tenant(0, annotations) as batch:
        batch.run("trace=1 ends=1 kernel=80 sigma=0.5")
        for _ in range(2):
            goes_on(batch)
            gpu.cli("freeze", batch.name)
            until(lambda: stands_still(batch))
            (grant,) = json.loads(gpu.cli("ps", "--json"))["containers"]
            assert grant["state"] == "frozen" and grant["frozen_since"]
            gpu.cli("resume", batch.name)
        goes_on(batch)
        (result,) = batch.stop()
    assert result["retired"] == result["launches"] and result["fold"] == bench_priority.fold(result["retired"])


def test_ps_says_who_keeps_a_container_out(gpu: Any) -> None:
    """Online work that never ends: the offline container starves, but not silently."""
    shares = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": gpu.memory}
    with (
        gpu.tenant(0, {**shares, "gpu-hook.io/class": "offline"}) as batch,
        gpu.tenant(0, {**shares, "gpu-hook.io/class": "online"}) as web,
    ):
        batch.run("trace=1 kernel=80")
        until(lambda: batch.launches()[0] > 100)
        web.run("trace=1 kernel=80")
        until(lambda: web.launches()[0] > 100)
        until(lambda: stands_still(batch))
        said = {g["id"]: g for g in json.loads(gpu.cli("ps", "--json"))["containers"]}
        assert said[batch.name]["state"] == "waits" and said[batch.name]["waits_for"] == web.name, said
        assert said[batch.name]["waits_since"] and said[web.name]["state"] == "running"
        web.stop()
        goes_on(batch)
        states = {g["id"]: g["state"] for g in json.loads(gpu.cli("ps", "--json"))["containers"]}
        assert states == {batch.name: "running", web.name: "running"}


def goes_on(container: Any) -> None:
    before = container.launches()[0]
    until(lambda: container.launches()[0] > before + 100)


def stands_still(container: Any) -> bool:
    """It launches nothing for a while."""
    count, at = container.launches()
    return bool(time.monotonic_ns() - at > 5e8 and container.launches()[0] == count)


def test_the_other_goes_on_when_one_is_killed(gpu: Any) -> None:
    settles(lambda: sorted(bench_share.takeover(gpu, "kill", 8, 99, 1, 0)), lambda took: took[len(took) // 2] < 20, 4)


def test_the_checksum_tells_what_is_lost_doubled_or_swapped() -> None:
    assert bench_priority.fold(3) != bench_priority.fold(2)
    in_order = 0
    for i in (0, 1, 2):
        in_order = (in_order ^ i) * bench_priority.PRIME & bench_priority.MASK
    assert in_order == bench_priority.fold(3)


def test_judging_by_what_is_owed() -> None:
    """A tenant that needs 40 % is not owed half; caps and weights count."""
    cell = cells.Cell("", "mixed", {"weight": 50}, {"weight": 50})
    row = cells.judge(cell, {"bins": [[0.4], [0.6]], "first_bin": 0}, [0.4, 1.0])
    assert row["owed"] == [0.4, 0.6] and row["error"] < 1e-9 and row["jain"] > 0.9999
    capped = cells.Cell("", "cap", {"cap": 30})
    row = cells.judge(capped, {"bins": [[0.3] * 10 + [0.5] * 10], "first_bin": 0}, [1.0])
    assert row["cap_error"] == pytest.approx(10) and row["cap_over_1s"] == pytest.approx(20)
