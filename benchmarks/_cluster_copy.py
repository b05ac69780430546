"""The controller's cold start and memory: its own client reads all nodes and pods page after page, from a process that simulates the
API server (an etcd with 50 000 pods would measure this machine's disk)."""

import json
import subprocess
import sys

from testbed import REPO

NODES, PODS = 5000, 50_000
SHORT = 500, 5_000
BUDGET_MB, BUDGET_S = 150, 5

READER = """
import asyncio, gc, json, ssl, sys, time
import psutil
begun = time.monotonic()
from oci_hook.kube.controller import controller
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.controller.api.client import Client
from oci_hook.kube.controller.options import ControllerOptions
from oci_hook.kube.controller.trust.own_secret import Own
from oci_hook.kube.controller.trust.generations import Secrets
from oci_hook.core.rules import Rules

async def main():
    gc.disable()
    options = ControllerOptions("127.0.0.1", 0, "gpu-hook", ("a",))
    async with Client(Credential(sys.argv[1])) as client:
        it = controller.Controller(options, client, Rules())
        it._service.use(Own(secrets=Secrets(((1, b"\\x01" * 32),), time.time())))
        for reflector in it._reflectors:
            await reflector._list()
        it._state.refresh()
        controller.end_of_loading()
        wall = time.monotonic() - begun
        cpu = time.process_time()
        resident = psutil.Process().memory_info().rss / 1e6
        high = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
        counted = sum(bool(pod.rows) for pod in it._state.pods.values())
        print(json.dumps([wall, cpu, resident, int(high.split()[1]) * 1024 / 1e6, counted]))

asyncio.run(main())
"""


def run(short: bool) -> dict:
    nodes, pods = SHORT if short else (NODES, PODS)
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks._cluster_pages", str(nodes), str(pods)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        address, size = server.stdout.readline().split()
        done = subprocess.run(
            [sys.executable, "-c", READER, address], cwd=REPO, capture_output=True, text=True, check=True, timeout=300
        )
    finally:
        server.terminate()
        server.wait()
    wall, cpu, resident, most, counted = json.loads(done.stdout)
    if counted < pods:
        raise SystemExit(f"only {counted} of {pods} pods count")
    return {
        "played_api_mb": figure(float(size), "MB", None),
        "controller_cold_start_s": figure(wall, "s", None if short else BUDGET_S),
        "controller_cold_start_cpu_s": figure(cpu, "s", None),
        "controller_memory_mb": figure(resident, "MB", None if short else BUDGET_MB),
        "controller_memory_most_mb": figure(most, "MB", None),
    }


def figure(value: float, unit: str, budget: float | None) -> dict:
    return {"value": value, "unit": unit, "budget": budget, "ok": budget is None or value <= budget}
