"""python -m testbed.cluster_page [--nodes N] [FILE.png]: draws docs/guide/cluster-page.png, the page of a cluster with simulated
nodes and pods in a real browser. --measure: the page's cost in the controller and the browser. `Scene` is that cluster, also for
tests: the controller's own copy, overview and server, without an API server."""

import argparse
import asyncio
import gc
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from oci_hook.core import decision as decisions
from oci_hook.core.decision import DecidedShare, DecidedTerms, Decision
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.rules import Rules
from oci_hook.kube.answers.overview import Waiting
from oci_hook.kube.controller.copy import Copy
from oci_hook.kube.controller.serve.page import Page
from oci_hook.kube.controller.serve.router import Router
from oci_hook.kube.controller.serve.server import HttpsServer
from oci_hook.kube.controller.serve.service import Service
from oci_hook.kube.formats import names
from oci_hook.kube.formats.node_info import Digest, NodeInventory, digest_text, inventory_text
from oci_hook.kube.placing.cluster_state import ClusterState
from testbed import REPO
from testbed.browser import Browser

MEMORY = 81559
RULES = Rules()
LEADER = {
    "leads": True,
    "holder": "gpu-hook-controller-6d4f-1-0a1b2c3d",
    "own": "gpu-hook-controller-6d4f-1-0a1b2c3d",
    "synced": True,
}
TEAMS = ("ml", "search", "vision", "batch")


def node(name: str, gpus: int = 8, memory: int = MEMORY, model: str = "NVIDIA H100 80GB HBM3", **labels: str) -> Any:
    """The Node object with its reporter's annotations; without GPUs: of a node that has no report yet."""
    annotations = {}
    if gpus:
        listed = tuple(Gpu(f"GPU-{name}-{i}", i, i, memory, model) for i in range(gpus))
        have = Inventory("", "550.1", "", True, listed, (), (), "", "", cuda_version="12.4")
        annotations = {
            names.INVENTORY: inventory_text(NodeInventory(have, RULES, 1)),
            names.LEDGER: digest_text(Digest(), have),
        }
    labels = {names.NODE_LABEL: "true", **{key.replace("_", "-"): value for key, value in labels.items()}}
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": {}, "status": {}}


def pod(name: str, namespace: str, at: str = "", shares: Any = (), kind: str = "default", **words: str) -> Any:
    """shares: (GPU's number, MiB or 0 for the whole GPU, per cent)"""
    uid = f"u-{namespace}-{name}"[:200]
    notes = {f"gpu-hook.io/{key.replace('_', '-')}": value for key, value in words.items()}
    spec: dict[str, Any] = {"containers": [{"name": "main"}]}
    if at:
        given = tuple(DecidedShare(f"GPU-{at}-{i}", mib, compute) for i, mib, compute in shares)
        made = Decision(uid, at, 1, (("main", given),), (("main", DecidedTerms("fixed-share", kind)),), "0" * 64)
        notes[names.ALLOC] = decisions.text(made)
        spec["nodeName"] = at
    meta = {"namespace": namespace, "name": name, "uid": uid, "annotations": notes}
    return {
        "metadata": {**meta, "creationTimestamp": "2026-11-01T09:00:00Z"},
        "spec": spec,
        "status": {"phase": "Running"},
    }


class Scene:
    """copy: the controller's copy of the cluster. who: its answer about the leader."""

    def __init__(self, nodes: int = 0, gpus: int = 8, seed: int = 1) -> None:
        self.copy = Copy(ClusterState(), lambda: 0.0)
        self.copy.enabled.update(TEAMS)
        self.who: dict[str, Any] = dict(LEADER)
        self._rng = random.Random(seed)
        self._pods = 0
        for i in range(nodes):
            self.copy.node(node(f"gpu-{i:04}", gpus))
            self.fill(f"gpu-{i:04}", gpus)

    def fill(self, at: str, gpus: int) -> None:
        """Puts some pods on each GPU of a node."""
        rng = self._rng
        for i in range(gpus):
            kind = rng.random()
            if kind < 0.15:
                self.place(at, [(i, 0, 0)])
            elif kind < 0.8:
                self.place(
                    at,
                    [(i, rng.choice((10_000, 23_000, 37_000)), rng.choice((0, 20, 40)))],
                    rng.choice(("default", "online")),
                )
                if rng.random() < 0.5:
                    self.place(at, [(i, rng.choice((4_000, 12_000, 30_000)), 20)], "offline", "batch")

    def place(self, at: str, shares: Any, kind: str = "default", team: str = "") -> str:
        """Returns the pod's UID."""
        self._pods += 1
        made = pod(f"pod-{self._pods}", team or self._rng.choice(TEAMS[:3]), at, shares, kind)
        self.copy.pod(made)
        return str(made["metadata"]["uid"])

    def wait(self, name: str, namespace: str, why: Waiting | None, **words: str) -> None:
        made = pod(name, namespace, **words)
        self.copy.pod(made)
        if why is not None:
            self.copy.waiting[made["metadata"]["uid"]] = why

    def page(self, token: str = "") -> Page:
        return Page(self.copy, token, lambda: self.who)


@asynccontextmanager
async def served(page: Page, port: int = 0) -> AsyncIterator[str]:
    """The URL of the page on the loopback. port: 0 for any."""
    server = HttpsServer(*_unasked(), page)
    with socket.create_server(("127.0.0.1", port)) as found:
        port = int(found.getsockname()[1])
    await server.listen_page("127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        await server.close()


def _unasked() -> tuple[Service, Router]:
    """Empty objects: the page's routes do not use them."""
    return Service.__new__(Service), Router.__new__(Router)


def scene(nodes: int) -> Scene:
    made = Scene(nodes)
    made.copy.node(node("gpu-new", 0))
    made.copy.node(node("lab-1", 2, 24576, "NVIDIA A10"))
    made.place("lab-1", [(0, 6_000, 25)], "online", "search")
    broken = node("lab-2", 2, 24576, "NVIDIA A10")
    broken["metadata"]["annotations"][names.INVENTORY] = "{}"
    made.copy.node(broken)
    made.wait("train-large-0", "ml", Waiting("GH-201", "GH-201: no GPU has room for 81920 MiB"), memory="80Gi")
    made.wait("eval-7", "vision", Waiting("GH-203", "GH-203: 12 GPUs are asked for, the node has 8"), gpus="12")
    made.wait("chat-7f", "search", None, memory="4Gi")
    return made


async def draw(file: Path, nodes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with served(scene(nodes).page()) as url, Browser(Path(folder)) as browser:
            await browser.size(1180, 1000)
            await browser.open(url)
            await browser.picture(file)
            if browser.errors:
                raise RuntimeError(str(browser.errors))


def end_of_loading() -> None:
    """Freezes the garbage collector's objects, as the controller does once it has read everything."""
    gc.collect()
    gc.freeze()


async def measure(nodes: int) -> None:
    """Processor time of this thread, in ms; bytes as they travel."""
    made = Scene(nodes)
    end_of_loading()
    page = made.page()
    for name in ("the first look", "nothing changed", "a tenth of the nodes changed"):
        if name.startswith("a tenth"):
            for i in range(0, nodes, 10):
                made.copy.node(node(f"gpu-{i:04}"))
        waits: list[float] = []
        decisions = asyncio.create_task(_decide(waits))
        await asyncio.sleep(0)
        began = time.thread_time()
        await page._look()
        took = time.thread_time() - began
        decisions.cancel()
        waits.sort()
        longest, most = 1e3 * waits[-1], 1e3 * waits[int(0.99 * len(waits))]
        print(f"{nodes} nodes, {name}: {1e3 * took:.0f} ms; one piece p99 {most:.1f} ms, longest {longest:.1f} ms")
    print(f"all: {len(await page._text(0, True))} bytes compressed, {len(await page._text(0, False))} plain")
    with tempfile.TemporaryDirectory() as folder:
        async with served(page) as url, Browser(Path(folder)) as browser:
            await browser.size(390, 844)
            await browser.open(url)
            paint = await browser.run("performance.getEntriesByType('paint').map(e => Math.round(e.startTime))")
            data = await browser.run("performance.getEntriesByType('resource').map(e => Math.round(e.responseEnd))")
            print(f"in the browser: painted at {paint[-1]} ms, data there at {data[-1]} ms, bytes {browser.received}")


async def _decide(waits: list[float]) -> None:
    """Notes how long the loop was busy with other work."""
    last = time.thread_time()
    while True:
        await asyncio.sleep(0)
        now = time.thread_time()
        waits.append(now - last)
        last = now


def main() -> None:
    parser = argparse.ArgumentParser(prog="testbed.cluster_page")
    parser.add_argument("file", nargs="?", type=Path, default=REPO / "docs/guide/cluster-page.png")
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--measure", action="store_true")
    args = parser.parse_args()
    asyncio.run(measure(args.nodes) if args.measure else draw(args.file, args.nodes))


if __name__ == "__main__":
    main()
