"""Real containers that have more memory together than their GPU: three trainers of 10 GiB and a server of 12 GiB on 24 GiB.

The GPU is simulated: its moves take no time on a bus, so what is measured is the rest: processes, the ledger, the agent, the shim. The
trainers (class offline, request 2 GiB) compare a pattern in their memory all the time; the server (class online) is silent, and then
allocates 11 GiB for a while, again and again. An hour, or three minutes (--short). Then requests of a server beside a trainer on a
GPU whose memory is lent, and nobody has to move: their latency beside that of the same requests alone.
"""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import priority

from benchmarks._report import figure
from testbed.agent import events, running
from testbed.load.stage import Stage as LoadStage
from testbed.stage import Stage
from testbed.suspend import Node

KEY = "gpu-hook.io/"
TRAINER = {KEY + "memory": "10Gi", KEY + "memory-request": "2Gi", KEY + "class": "offline"}
SERVER = {KEY + "memory": "12Gi", KEY + "class": "online"}
MINUTES, SILENCE, BUSY = 60, 120.0, 30.0
SHORT_MINUTES, SHORT_SILENCE = 3, 30.0
BOUND = 5.0  # seconds until a silent server has its memory, on a machine with two quiet cores


class Trainer(threading.Thread):
    """looks: comparisons of its pattern. wrong: of them, those that failed. refused: allocations that did."""

    def __init__(self, node, stop):
        super().__init__(daemon=True)
        self.tenant, self.stop, self.looks, self.wrong, self.refused = node.tenant(TRAINER), stop, 0, 0, 0

    def run(self):
        ask = self.tenant.program
        self.refused += ask("begin") != "0"
        self.refused += ask(f"alloc 64 {self.tenant.name}") != "0"
        self.refused += ask("hold 9000") != "0"
        right = ask("digest")
        while not self.stop.is_set():
            self.looks += 1
            self.wrong += ask("digest") != right
            time.sleep(0.5)


class LentStage(LoadStage):
    """Trainers request a tenth of their limit."""

    memory = "10Gi"  # of 16

    def tenant(self, gpu, annotations, **more):
        if annotations and annotations.get(KEY + "class") == "offline":
            annotations = {**annotations, KEY + "memory-request": "1Gi"}
        return super().tenant(gpu, annotations, **more)


def latency(short):
    """p99 of requests beside a trainer whose memory is lent, of the same alone."""
    pair, count = priority.Pair(20, "training"), 100 if short else 600
    stage = LentStage(1, 4, "--driver", "580")
    try:
        stage.cli("settings", "set", "oversubscribe=2.0")
        words = ["-m", "oci_hook", "agent", "--prefix", str(stage.prefix), "--address", "127.0.0.1:0"]
        agent = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
        try:
            alone = priority.measure_alone(stage, pair.rate, count, 0)["latency_ms"]
            beside = priority.measure_pair(stage, pair, count, False, 0)["latency_ms"]
        finally:
            agent.terminate()
            agent.wait()
    finally:
        stage.close()
    return statistics.quantiles(beside, n=100)[98] / statistics.quantiles(alone, n=100)[98]


def run(short):
    return {**turns(short), "server_p99_of_alone": figure(latency(short), "", 1.10)}


def turns(short):
    minutes, silence = (SHORT_MINUTES, SHORT_SILENCE) if short else (MINUTES, SILENCE)
    stage = Stage(
        Path(tempfile.mkdtemp(prefix="gpu-hook-bench-")), "--driver", "580", "--memory", "24Gi", "--gpus", "1"
    )
    node, stop = Node(stage), threading.Event()
    try:
        node.say("settings", "set", "oversubscribe=2.0", "memory_turn=10")
        with running(stage, "--interval", "5"):
            server = node.tenant(SERVER).program
            refused = server("begin") != "0"
            trainers = [Trainer(node, stop) for _ in range(3)]
            for trainer in trainers:
                trainer.start()
            first, end = [], time.monotonic() + 60 * minutes
            while time.monotonic() < end:
                time.sleep(silence)
                began = time.monotonic()
                refused += server("hold 11000") != "0"
                first.append(time.monotonic() - began)
                time.sleep(BUSY)
                refused += server("free") != "0"
            stop.set()
            for trainer in trainers:
                trainer.join(300)
            seen = events(stage)
        looks = [trainer.looks for trainer in trainers]
        return {
            "refused_allocations": figure(refused + sum(t.refused for t in trainers), "", 0),
            "wrong_patterns": figure(sum(t.wrong for t in trainers), "", 0),
            "trainers_that_hang": figure(sum(t.is_alive() for t in trainers), "", 0),
            "first_allocation_p50_s": figure(statistics.median(first), "s", None),
            "first_allocation_worst_s": figure(max(first), "s", BOUND),
            "first_allocations": figure(len(first), "", None),
            "moves": figure(sum(e["event"] in ("suspended", "resumed") for e in seen), "", None),
            "failed_moves": figure(sum(e["event"] in ("not-suspended", "not-resumed") for e in seen), "", None),
            "looks_least_of_mean": figure(min(looks) / statistics.mean(looks), "", None),
        }
    finally:
        stop.set()
        node.clean()
        stage.close()
