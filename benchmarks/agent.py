"""The agent's cost and delays: 100 real containers with programs on 8 simulated GPUs.

rss_mb and cpu_percent are those of the agent and its NVML process together, at the default interval. cheat_samples: looks
at the GPUs, from the first that can see the cheat to the finding. reclaim_ms: from SIGKILL of a
container's init until nothing of its grant is on disk. Both are the worst of several. churn_*: the agent's growth between the
tenth and the last of so many real containers that live some milliseconds each. harm_to_kill_*: from
the signal that tells a container to take its neighbours' memory past the shim until its init is gone; beside
all the others, at the default interval, at random times. honest_killed: containers that were killed and took nothing.
watch_cpu_percent: of the agent and its NVML process while nothing but the watch of free memory looks at the GPUs.
"""

import contextlib
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from oci_hook.ledger import store
from testbed import REPO
from testbed import agent as agents
from testbed.stage import Stage

GPUS, GPU_MIB, SHARE_MIB = 8, 24576, 1024
CONTAINERS = 100
PORT = 9461


class Node(Stage):
    """With the GPUs of a large machine, and an image with the probe and the cheat."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--gpus", str(GPUS), "--memory", f"{GPU_MIB}Mi")
        self.image = agents.image(folder)

    def tenant(self, gpu: int, *args: str) -> str:
        ask = {"gpu-hook.io/devices": str(gpu), "gpu-hook.io/memory": f"{SHARE_MIB}Mi", "gpu-hook.io/compute": "5"}
        return self.start(self.image, *args, annotations=ask)

    def remove(self, id: str) -> None:
        """As an engine does."""
        self.runc("delete", "--force", id, program=self.program)
        self.runc.ids.remove(id)


def get(path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=20) as answer:
        return bytes(answer.read())


@contextlib.contextmanager
def agent(node: Node, *flags: str):
    command = [sys.executable, "-m", "oci_hook", "agent", "--prefix", str(node.prefix), *flags]
    command += ["--address", f"127.0.0.1:{PORT}"]
    process = subprocess.Popen(command, cwd=REPO, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if json.loads(get("/api/node"))["agent"]["nvml"] == "ok":
                    break
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait()


def family(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    agent = psutil.Process(process.pid)
    return [agent, *agent.children()]


def rss_mb(processes: list[psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes) / (1 << 20)


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def cheat_samples(node: Node, process: "subprocess.Popen[bytes]", gpu: int) -> int:
    """Samples from the first that can show the cheat to the one that names it."""
    id = node.tenant(gpu, "/bin/bypass", "900")
    seen: set[float] = set()
    for _ in range(2000):
        said = json.loads(get("/api/node"))
        mine = next((c for c in said["containers"] if c["id"] == id), None)
        history = json.loads(get("/api/history")).get(mine["key"], {}) if mine else {}
        seen |= {at for line in history.values() for at, used, _ in line if used}
        if mine and any(f["kind"] == "no-shim" for f in mine["findings"]):
            return len(seen)
        time.sleep(0.02)
    return 9999


def reclaim_ms(node: Node, id: str) -> float:
    """Reads the files, since only the agent may look at the ledger meanwhile."""
    key = store.grant_key(str(node.runc.root), id)
    paths = [node.state / f"ledger/{key}.json", node.state / f"pages/{key}"]
    pid = node.runc.pid(id)
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    while any(p.exists() for p in paths) and time.monotonic() < start + 30:
        time.sleep(0.002)
    return (time.monotonic() - start) * 1000


def harm_to_kill_ms(node: Node, gpu: int, chance: random.Random) -> float:
    """The cheat takes all free memory but 1 GiB."""
    said = json.loads(get("/api/node"))
    used = next(c for c in said["gpus"] if c["index"] == gpu)["used_mib"]
    id = node.tenant(gpu, "/bin/bypass", str(GPU_MIB - used - 1024), "wait")
    pid = node.runc.pid(id)
    time.sleep(0.5 + chance.random() * 2)  # it waits for the signal by then
    fd = os.pidfd_open(pid)
    try:
        start = time.monotonic()
        os.kill(pid, signal.SIGUSR1)
        ended, took = select.select([fd], [], [], 30)[0], (time.monotonic() - start) * 1000
        time.sleep(0.1)
        told = agents.events(node)
        by_agent = any(e["event"] == "finding" and e["id"] == id and e["action"] == "killed" for e in told)
        return took if ended and by_agent else 30000.0
    finally:
        os.close(fd)
        node.remove(id)


def killed(node: Node) -> int:
    """Honest containers that the agent killed; the cheats are already out of the list."""
    told = agents.events(node)
    return len({e["id"] for e in told if e["event"] == "finding" and e["action"] == "killed"} & set(node.runc.ids))


def churn(node: Node, process: "subprocess.Popen[bytes]", containers: int) -> tuple[float, int]:
    """(MB, descriptors) that short-lived containers leave behind in the agent."""

    def pass_by(n: int) -> None:
        for _ in range(n):
            node.remove(node.tenant(0, "/bin/true"))
        time.sleep(2)

    def now() -> tuple[float, int]:
        agent = psutil.Process(process.pid)
        return rss_mb([agent]), agent.num_fds()

    pass_by(10)
    memory, descriptors = now()
    pass_by(containers)
    after = now()
    return after[0] - memory, after[1] - descriptors


def run(short: bool) -> dict[str, dict[str, object]]:
    with contextlib.closing(Node(Path(tempfile.mkdtemp(prefix="gh-agent-")))) as node:
        for n in range(CONTAINERS):
            node.tenant(n % GPUS, "/bin/gpu-probe", "alloc", "300", "launch", "100", "5", "hold", "100000")
        with agent(node) as process:
            time.sleep(6)
            pids = family(process)
            seconds = 20 if short else 120
            before, start = cpu_seconds(pids), time.monotonic()
            time.sleep(seconds)
            cpu = 100 * (cpu_seconds(pids) - before) / (time.monotonic() - start)
            scrapes = []
            for _ in range(5 if short else 20):
                at = time.monotonic()
                body = get("/metrics")
                scrapes.append((time.monotonic() - at) * 1000)
                time.sleep(0.3)
            rss = rss_mb(pids)
            more_mb, more_fds = churn(node, process, 20 if short else 300)
            reclaims = [reclaim_ms(node, id) for id in node.runc.ids[: 3 if short else 15]]
        with agent(node, "--interval", "60") as process:
            time.sleep(4)
            pids = family(process)
            before, start = cpu_seconds(pids), time.monotonic()
            time.sleep(15 if short else 50)
            watch = 100 * (cpu_seconds(pids) - before) / (time.monotonic() - start)
        with agent(node) as process:
            time.sleep(6)
            chance = random.Random(1)
            harms = sorted(harm_to_kill_ms(node, n % GPUS, chance) for n in range(10 if short else 100))
        honest = killed(node)
        with agent(node, "--policy", "report", "--interval", "1") as process:
            cheats = [cheat_samples(node, process, gpu) for gpu in range(1 if short else 5)]
    worst = harms[-1 if len(harms) < 100 else -1 - len(harms) // 100]
    scrape = statistics.median(scrapes)
    return {
        "rss_mb": {"value": round(rss, 1), "unit": "MB", "budget": 60, "ok": rss <= 60},
        "cpu_percent": {"value": round(cpu, 2), "unit": "%", "budget": 1, "ok": cpu <= 1},
        "scrape_ms": {"value": round(scrape, 1), "unit": "ms", "budget": 50, "ok": scrape <= 50},
        "scrape_bytes": {"value": len(body), "unit": "bytes", "budget": None, "ok": True},
        "churn_mb": {"value": round(more_mb, 1), "unit": "MB", "budget": 4, "ok": more_mb <= 4},
        "churn_descriptors": {"value": more_fds, "unit": "", "budget": 1, "ok": more_fds <= 1},
        "cheat_samples": {"value": max(cheats), "unit": "samples", "budget": 2, "ok": max(cheats) <= 2},
        "harm_to_kill_p50_ms": {"value": round(harms[len(harms) // 2], 1), "unit": "ms", "budget": None, "ok": True},
        "harm_to_kill_p99_ms": {"value": round(worst, 1), "unit": "ms", "budget": 1000, "ok": worst <= 1000},
        "honest_killed": {"value": honest, "unit": "", "budget": 0, "ok": honest == 0},
        "watch_cpu_percent": {"value": round(watch, 2), "unit": "%", "budget": 1, "ok": watch <= 1},
        "reclaim_ms": {"value": round(max(reclaims), 1), "unit": "ms", "budget": 1000, "ok": max(reclaims) <= 1000},
    }
