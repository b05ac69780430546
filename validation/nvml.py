"""Run "nvml": what NVML says of processes whose use of the GPU is known. The agent's findings rest on it."""

import contextlib
import ctypes
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from testbed.load import cells
from testbed.load.cells import Cell

from . import shares
from .boxes import Boxes, Node
from .frame import Json, Run
from .suspend import Driver

KINDS = ("alloc", "refused", "copy", "memset", "launch")


class Sampler(threading.Thread):
    """Reads the utilization of all processes every half second: by pid, per cent, as (seconds since the start, value)."""

    def __init__(self) -> None:
        import pynvml

        super().__init__(daemon=True)
        self.nvml, self.over = pynvml, threading.Event()
        self.nvml.nvmlInit()
        self.device = self.nvml.nvmlDeviceGetHandleByIndex(0)
        self.seen: dict[int, list[tuple[float, int]]] = {}
        self.whole: list[int] = []
        self.listed: set[int] = set()

    def run(self) -> None:
        last, begin = 0, time.time()
        while not self.over.wait(0.5):
            self.whole.append(int(self.nvml.nvmlDeviceGetUtilizationRates(self.device).gpu))
            self.listed |= {p.pid for p in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.device)}
            with contextlib.suppress(self.nvml.NVMLError):
                for sample in self.nvml.nvmlDeviceGetProcessUtilization(self.device, last):
                    last = max(last, sample.timeStamp)
                    at = round(sample.timeStamp / 1e6 - begin, 2)
                    self.seen.setdefault(sample.pid, []).append((at, int(sample.smUtil)))

    def end(self) -> Json:
        self.over.set()
        self.join()
        rows = {
            str(pid): {"mean": round(statistics.mean(v for _, v in got), 1), "samples": got}
            for pid, got in self.seen.items()
        }
        return {"by_process": rows, "whole": self.whole, "listed": sorted(self.listed)}


def kind(driver: Driver, what: str, seconds: int) -> Json:
    with driver.user() as user:
        sampler = Sampler()
        sampler.start()
        said: Json = {}
        try:
            said = user.ask(f"repeat {what} {seconds}", seconds + 20)
        finally:
            out = sampler.end()
        return {**said, "pid": user.pid, **out}


def suspended(driver: Driver, mib: int) -> Json:
    with driver.user(mib) as user:
        sampler = Sampler()
        sampler.start()
        begin = time.time()
        driver.helper("suspend", user.pid)
        away = time.time()
        time.sleep(2)
        driver.helper("resume", user.pid)
        return {
            "pid": user.pid,
            "suspended_after_s": away - begin,
            "resumed_after_s": time.time() - begin,
            **sampler.end(),
        }


def cell(stage: Boxes, one: Cell, native: bool) -> Json:
    sampler = Sampler()
    sampler.start()
    try:
        measured: Any = cells.measure(stage, one, 0, native)
    finally:
        out = sampler.end()
    return {"had": [round(sum(b) / len(b), 3) for b in measured["bins"]], **out}


def validate(run: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    driver, stage = Driver(node), Boxes(node, folder, simulated)
    ctypes.CDLL(node.inventory.libnvml)  # pynvml finds it by its name then
    driver.cuda.cuInit(0)
    for what in KINDS:
        run.phase(what, 30, lambda what=what: kind(driver, what, 2))  # type: ignore[misc]
    run.phase("suspended", 60, lambda: suspended(driver, 4096))
    if not shares.calibrate(run, stage):
        return
    pair = Cell("70/30", "saturated", {"sigma": 0.5, "weight": 70}, {"sigma": 0.5, "weight": 30}, seconds=3.0, warm=0.6)
    three = Cell("one beside three", "saturated", {"sigma": 0.5}, {"sigma": 0.5, "procs": 3}, seconds=3.0, warm=0.6)
    for one, native in ((pair, True), (pair, False), (three, True)):
        name = f"{'native' if native else 'gpu-hook'}: {one.name}"
        run.phase(name, 40, lambda one=one, native=native: cell(stage, one, native))  # type: ignore[misc]
