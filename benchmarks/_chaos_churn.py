"""The users' part: a steady, seeded change of pods. Pure: it returns operations, the caller performs them.

Bare pods have few names, so a name comes again with another UID. Two Deployments and a StatefulSet are scaled, jobs end.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks._chaos_check import Pod
from testbed.cluster.managed import WORK

IMAGE = "your-registry.invalid/gpu-hook/probe:1"
PODS = f"/api/v1/namespaces/{WORK}/pods"
APPS = f"/apis/apps/v1/namespaces/{WORK}"
JOBS = f"/apis/batch/v1/namespaces/{WORK}/jobs"
NAMES = tuple(f"b{n}" for n in range(8))
JOB_NAMES = ("j0", "j1", "j2")
SCALED = {"deployments/d0": 3, "deployments/d1": 2, "statefulsets/s0": 3}  # most replicas
MOST = 13  # pods without those of jobs; then some end before others begin
GPU = 16384
# Requests of one container: MiB and per cent; (0, 0) is a whole GPU. Less than 256 MiB is less than a program's context takes.
SIZES = (
    *((256, 0), (512, 5), (2048, 10), (3001, 7), (4096, 25), (5000, 33), (6143, 50), (8192, 50), (8193, 0)),
    *((12288, 60), (GPU - 1, 1), (GPU, 0), (0, 0)),
)
SMALL = (256, 1)


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    body: Any = None

    def __str__(self) -> str:
        return f"{self.method} {self.path.rpartition(f'namespaces/{WORK}/')[2]}"


def spec(asks: Sequence[tuple[int, int]], seconds: float = 0, **more: Any) -> dict[str, Any]:
    """A pod's template. seconds: it ends by itself then."""
    notes, containers = {}, []
    for number, (memory, compute) in enumerate(asks):
        name = f"c{number}"
        words = {"memory": memory, "compute": compute} if memory or compute else {"gpus": 1}
        notes |= {f"gpu-hook.io/{word}.{name}": str(value) for word, value in words.items() if value}
        command = ["sleep", str(seconds or 1_000_000)]
        containers.append({"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": command})
    return {
        "metadata": {"annotations": notes},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers, **more},
    }


def pod(name: str, asks: Sequence[tuple[int, int]]) -> Operation:
    made = spec(asks)
    made["metadata"]["name"] = name
    return Operation("POST", PODS, made)


def delete(name: str, grace: int) -> Operation:
    return Operation("DELETE", f"{PODS}/{name}?gracePeriodSeconds={grace}")


def job(name: str, asks: Sequence[tuple[int, int]], seconds: float) -> Operation:
    template = spec(asks, seconds, restartPolicy="Never")
    return Operation("POST", JOBS, {"metadata": {"name": name}, "spec": {"template": template, "backoffLimit": 100}})


def beginning() -> list[Operation]:
    """The objects that are scaled."""
    sizes = {"d0": [(3001, 20)], "d1": [(5000, 0), (1000, 10)], "s0": [(4096, 15)]}
    found = []
    for path in SCALED:
        kind, _, name = path.partition("/")
        template = spec(sizes[name])
        template["metadata"]["labels"] = {"app": name}
        body: dict[str, Any] = {"selector": {"matchLabels": {"app": name}}, "template": template, "replicas": 1}
        if kind == "statefulsets":
            body |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        found.append(Operation("POST", f"{APPS}/{kind}", {"metadata": {"name": name}, "spec": body}))
    return found


def draw(chance: random.Random, pods: Sequence[Pod], jobs: Sequence[str], bind: bool = False) -> list[Operation]:
    """One to three operations, sometimes a few more. jobs: names of existing jobs. bind: one of them is a small pod that surely fits."""
    found: list[Operation] = []
    here = sorted((p for p in pods if not p.deleting), key=lambda p: p.name)
    bare = [p for p in here if not p.owner]
    unused = [name for name in NAMES if name not in {p.name for p in pods}]
    if bind:
        name = unused[0] if unused else bare[0].name
        if not unused:
            found.append(delete(name, 0))
        found.append(pod(name, [SMALL]))
        unused = unused[1:]
    for _ in range(chance.randint(1, 3)):
        found += one(chance, bare, here, unused, jobs)
    return found


def one(
    chance: random.Random, bare: list[Pod], here: list[Pod], unused: list[str], jobs: Sequence[str]
) -> list[Operation]:
    full = sum(not p.of_job for p in here) >= MOST
    what = chance.choices(("create", "delete", "again", "scale", "end", "job"), (0 if full else 5, 4, 2, 3, 2, 2))[0]
    if what == "create" and unused:
        return [pod(unused.pop(chance.randrange(len(unused))), asks(chance))]
    if what in ("delete", "again") and bare:
        gone = bare.pop(chance.randrange(len(bare)))
        ends = delete(gone.name, chance.choice((0, 0, 1)))
        return [ends, pod(gone.name, asks(chance))] if what == "again" else [ends]
    if what == "end" and here:  # of any owner; the owner makes another
        return [delete(chance.choice(here).name, chance.choice((0, 1)))]
    if what == "job":
        name = chance.choice(JOB_NAMES)
        if name in jobs:
            return [Operation("DELETE", f"{JOBS}/{name}?propagationPolicy=Background")]
        return [job(name, asks(chance)[:1], chance.choice((0.1, 1, 3)))]
    path, most = chance.choice(sorted(SCALED.items()))
    replicas = chance.randint(0, 1 if full else most)
    return [Operation("PATCH", f"{APPS}/{path}", {"spec": {"replicas": replicas}})]


def asks(chance: random.Random) -> list[tuple[int, int]]:
    return [chance.choice(SIZES[:7]) if n else chance.choice(SIZES) for n in range(chance.choice((1, 1, 1, 2)))]
