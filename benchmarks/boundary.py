"""Time that the driver's memory limit adds to a create: through the server, and through the helper, which starts NVML itself.

Simulated driver 615; runc and cgroup v2 are real. Rounds of everything, interleaved; an added time is the median over
rounds of (with the driver's limit - with the shim alone) in the same round. A real NVML starts in about a second.
"""

import itertools
import json
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from testbed import tiny_image
from testbed.boundary import ASK, DRIVER, Node

SERVER_BUDGET = 2.0  # ms


def run(short: bool) -> dict[str, dict[str, object]]:
    rounds = 30 if short else 200
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-bench-"))
    nodes = {}
    try:
        for name in ("server", "helper"):
            (folder / name).mkdir()
            nodes[name] = Node(folder / name)
            nodes[name].set(boundary="shim")
        nodes["server"].serve()
        place = _Place(folder)
        return _figures(_measure(place, nodes["server"], nodes["helper"], rounds))
    finally:
        for node in nodes.values():
            node.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Place:
    """An image, and bundles of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tiny_image.busybox(folder / "rootfs")
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        self.spec = json.loads((folder / "config.json").read_text())
        self.spec["process"].update(terminal=False, args=["/bin/true"])
        self.spec["root"]["path"] = str(folder / "rootfs")
        self.numbers = itertools.count()

    def create(self, node: Node, annotations: dict[str, str]) -> float:
        """Milliseconds of one create."""
        folder = self.folder / f"bundle{next(self.numbers)}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**self.spec, "annotations": annotations}))
        id = node.runc.new_id()
        try:
            return _time(lambda: node.create(folder, id))
        finally:
            node.delete(id)
            shutil.rmtree(folder)

    def client(self, node: Node, key: str, pid: int) -> float:
        """Milliseconds of the hook's program alone, for a container that has its limits already."""
        state = self.folder / "state.json"
        state.write_text(json.dumps({"pid": pid}))
        program = [str(node.prefix / "bin/gpu-hook-boundary"), "set", str(node.state), key]
        with state.open() as stdin:
            return _time(lambda: subprocess.run(node.place.enter(*program), stdin=stdin))


def _time(work: "Callable[[], subprocess.CompletedProcess[str]]") -> float:
    begin = time.perf_counter_ns()
    done = work()
    took = time.perf_counter_ns() - begin
    if done.returncode:
        raise SystemExit(f"{done.args}: status {done.returncode}: {done.stderr}")
    return took / 1e6


def _measure(place: _Place, server: Node, helper: Node, rounds: int) -> dict[str, list[float]]:
    bundle = place.folder / "held"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({**place.spec, "annotations": DRIVER}))
    held = {}
    for node in (server, helper):
        if node.create(bundle).returncode:
            raise SystemExit("the container whose limits are set again could not be made")
        [grant] = node.grants()
        held[node] = grant.key, node.pid(node.runc.ids[-1])
    nothing = server.place.enter("/bin/true")
    work: list[tuple[str, Callable[[], float]]] = [
        ("shim", lambda: place.create(server, ASK)),
        ("by_server", lambda: place.create(server, DRIVER)),
        ("by_helper", lambda: place.create(helper, DRIVER)),
        ("nothing", lambda: _time(lambda: subprocess.run(nothing, capture_output=True, text=True))),
        ("client_server", lambda: place.client(server, *held[server])),
        ("client_helper", lambda: place.client(helper, *held[helper])),
    ]
    dice = random.Random(1)
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        dice.shuffle(work)
        for name, measure in work:
            times.setdefault(name, []).append(measure())
    return times


def _figures(times: dict[str, list[float]]) -> dict[str, dict[str, object]]:
    def figure(values: list[float], budget: float | None = None) -> dict[str, object]:
        value = statistics.median(values)
        return {"value": value, "unit": "ms", "budget": budget, "ok": budget is None or value <= budget}

    def added(name: str, plain: str) -> list[float]:
        return [a - b for a, b in zip(times[name], times[plain], strict=True)]

    return {
        "create_added_by_server_ms": figure(added("by_server", "shim"), SERVER_BUDGET),
        "create_added_by_helper_ms": figure(added("by_helper", "shim")),
        "hook_alone_by_server_ms": figure(added("client_server", "nothing")),
        "hook_alone_by_helper_ms": figure(added("client_helper", "nothing")),
        "create_with_the_shim_alone_ms": figure(times["shim"]),
    }
