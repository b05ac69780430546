"""Time that gpu-hook adds to `docker run --rm` and to a container's start by CRI, beside plain runc; rounds, interleaved.

docker and containerd are this machine's, started with directories of their own as the tests start them. Needs root. The
GPUs are simulated; no container touches one.
"""

import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable

from oci_hook.install import prefix as installs
from testbed.engines.box import IMAGE, Place
from testbed.engines.containerd import Containerd
from testbed.engines.docker import Docker

ASKED = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "256"}
RATIO_BUDGET = 1.7  # of scripts/bench start: an engine's start has nothing more added than its `create`


def run(short: bool) -> dict[str, dict[str, object]]:
    if os.geteuid():
        raise SystemExit("scripts/bench engines starts docker and containerd: run it as root")
    rounds = 10 if short else 40
    place = Place(installs.native())
    try:
        return {**_figures("docker_run", _docker(place, rounds)), **_figures("cri_start", _cri(place, rounds))}
    finally:
        place.close()


def _docker(place: Place, rounds: int) -> dict[str, list[float]]:
    docker = Docker(place)
    docker.config.write_text("{}\n")
    place.gpu_hook("install", "--engine", "docker", "--config", str(docker.config))
    place.rules(trust_env=True)
    docker.start()

    def start(*flags: str) -> float:
        begin = time.perf_counter()
        done = docker("run", "--rm", "--network=none", *flags, IMAGE, "true")
        if done.returncode:
            raise SystemExit(done.stderr)
        return (time.perf_counter() - begin) * 1000

    try:
        if docker("load", "--input", str(place.archive)).returncode:
            raise SystemExit("docker load failed")
        through = "--runtime=gpu-hook"
        return _rounds(rounds, lambda: start(), lambda: start(through), lambda: start(through, *docker.ask(256)))
    finally:
        docker.stop()


def _cri(place: Place, rounds: int) -> dict[str, list[float]]:
    containerd = Containerd(place)
    place.gpu_hook("install", "--engine", "containerd", "--config", str(containerd.config))
    containerd.start()

    def start(handler: str, annotations: dict[str, str]) -> float:
        """Milliseconds from CreateContainer to running, in an existing sandbox."""
        pod = containerd.pod(annotations, handler)
        begin = time.perf_counter()
        containerd.container(pod, "main")
        took = (time.perf_counter() - begin) * 1000
        containerd.remove_pods()
        return took

    try:
        if containerd.ctr("images", "import", str(place.archive)).returncode:
            raise SystemExit("ctr images import failed")
        return _rounds(
            rounds, lambda: start("", {}), lambda: start("gpu-hook", {}), lambda: start("gpu-hook", dict(ASKED))
        )
    finally:
        containerd.stop()


def _rounds(
    rounds: int, plain: Callable[[], float], unasked: Callable[[], float], share: Callable[[], float]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"plain": [], "unasked": [], "share": [], "python": []}
    work = [("plain", plain), ("unasked", unasked), ("share", share), ("python", python)]
    for _, measure in work:
        measure()  # the first one also warms caches
    dice = random.Random(1)
    for _ in range(rounds):
        dice.shuffle(work)
        for name, measure in work:
            times[name].append(measure())
    return times


def python() -> float:
    """The yard stick of scripts/bench start."""
    begin = time.perf_counter()
    subprocess.run(("/usr/bin/python3", "-I", "-S", "-c", "import json"), check=True)
    return (time.perf_counter() - begin) * 1000


def _figures(name: str, times: dict[str, list[float]]) -> dict[str, dict[str, object]]:
    def figure(value: float, unit: str, budget: float | None = None) -> dict[str, object]:
        return {"value": value, "unit": unit, "budget": budget, "ok": budget is None or value <= budget}

    plain = statistics.median(times["plain"])

    def added(kind: str) -> float:
        return statistics.median(a - b for a, b in zip(times[kind], times["plain"], strict=True))

    return {
        f"{name}_plain_ms": figure(plain, "ms"),
        f"{name}_share_added_ms": figure(added("share"), "ms"),
        f"{name}_share_added_in_pythons": figure(
            added("share") / statistics.median(times["python"]), "x python", RATIO_BUDGET
        ),
        f"{name}_share_ratio": figure((plain + added("share")) / plain, "x plain"),
        f"{name}_unasked_added_ms": figure(added("unasked"), "ms"),
    }
