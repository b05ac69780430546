"""Native time slicing of real processes on simulated GPUs, against what the virtual-time model says of it.

Both have their constants from calibration.json. The GPUs are slowed down, so that two cores serve all processes; all
cells run at once, each on a GPU of its own. Work is counted by the benchmarks' load generator.
"""

import json
import os
import time
from pathlib import Path

import pytest

from gpu_hook_simulator import model_run
from gpu_hook_simulator.model.scenarios import Scenario, gappy, launch_bound, saturated
from testbed.sim.gpus import Sim, ahead, build_simulated

SCALE, BINS, BIN_NS = 15, 6, 100_000_000  # the slowdown; how many bins of GPU time are measured; the length of one
GAPPY = gappy(spread="uniform")  # with gaps of one length two tenants would stay in step for seconds
SYNC = {"count": 1, "kernel": 80, "sigma": 0.5, "host": 5, "sync": 1}
# Each cell with the allowed distance of its sum of normalised throughputs from the model's: 3 points where the queue is
# always full. It is more for programs that wait: this machine wakes them late, and 60 bursts differ from the next 60.
CELLS = (
    (Scenario("2 saturated", "", (saturated(), saturated())), 0.03),
    (Scenario("70/30 asked, not given", "", (saturated(weight=70), saturated(weight=30))), 0.03),
    (Scenario("3 saturated", "", (saturated(30), saturated(200), saturated(600))), 0.03),
    (Scenario("2 gappy", "", (GAPPY, GAPPY)), 0.15),
    (Scenario("2 launch-bound", "", (launch_bound(), launch_bound())), 0.08),
    (Scenario("saturated + launch-bound", "", (saturated(), launch_bound())), 0.08),
    (Scenario("saturated + gappy", "", (saturated(), GAPPY)), 0.08),
    (Scenario("a synchronise per kernel + saturated", "", (SYNC, saturated())), 0.08),
)


def words(tenant: dict[str, float]) -> str:
    return " ".join(f"{k}={v}" for k, v in tenant.items() if k != "weight")


class Process:
    """The load generator on one GPU."""

    def __init__(self, sim: Sim, load: Path, place: Path, gpu: int, program: str) -> None:
        place.mkdir()
        os.mkfifo(place / "fifo")
        self.place = place
        options = [
            "--control",
            place / "fifo",
            "--out",
            place / "out",
            "--scale",
            SCALE,
            "--start",
            f"run id=1 {program}",
        ]
        sim.start(*ahead(), "env", f"CUDA_VISIBLE_DEVICES={gpu}", str(load), *map(str, options))

    def stop(self) -> None:
        (self.place / "fifo").write_text("stop\nquit\n")

    def rate(self, first: int) -> float:
        """Its kernels' part of the GPU time in the measured bins."""
        for _ in range(600):
            for line in (self.place / "out").read_text().splitlines():
                said = json.loads(line)
                if said.get("id") == 1:
                    at = first - said["first_bin"]
                    return float(sum(said["bins"][at : at + BINS])) / (BINS * BIN_NS)
            time.sleep(0.1)
        raise AssertionError("no answer")


@pytest.mark.slow
def test_native_slicing_is_that_of_the_model(tmp_path: Path) -> None:
    native = build_simulated("sim", "bench")
    load = native / "bench/load"
    sim = Sim(tmp_path / "sim", native, gpus=32, scale=SCALE)
    alone: dict[str, Process] = {}
    cells: list[list[Process]] = []
    try:
        gpu = 0
        for cell, _ in CELLS:
            programs = [words(t) for t in cell.tenants]
            places = [tmp_path / f"{gpu}-{i}" for i in range(len(programs))]
            both = enumerate(zip(places, programs, strict=True))
            cells.append([Process(sim, load, place, gpu, f"{p} seed={i}") for i, (place, p) in both])
            gpu += 1
            for p in programs:
                if p not in alone:
                    alone[p] = Process(sim, load, tmp_path / f"{gpu}", gpu, p)
                    gpu += 1
        first = int(time.monotonic() * 1e9 / SCALE / BIN_NS) + 2
        time.sleep((first + BINS) * BIN_NS * SCALE / 1e9 - time.monotonic() + 0.5)
        for process in (*alone.values(), *(p for cell in cells for p in cell)):
            process.stop()
        base = {p: process.rate(first) for p, process in alone.items()}
        wrong = []
        for (cell, tolerance), processes in zip(CELLS, cells, strict=True):
            programs = [words(t) for t in cell.tenants]
            x = [process.rate(first) / base[p] for process, p in zip(processes, programs, strict=True)]
            (said,) = model_run.run_scenarios((cell,), ("native",))
            each = " ".join(f"{a:.3f}/{b:.3f}" for a, b in zip(x, said["throughput"], strict=True))
            line = f"{cell.name}: {sum(x):.3f}, the model says {said['efficiency']:.3f}; each {each}"
            print(line)
            apart = [abs(a - b) for a, b in zip(x, said["throughput"], strict=True)]
            if max(abs(sum(x) - said["efficiency"]), *apart) > tolerance:
                wrong.append(line)
        assert not wrong, base
    finally:
        sim.close()
