"""Two hundred pods of odd sizes on three real nodes: every pod that fits runs, its annotation is what its node granted, no node
refuses, and no GPU has more than its memory. A shorter run of 60 is in every run; GPU_HOOK_PODS=200 is the whole."""

import os
import random
import time
from collections import defaultdict
from typing import Any

import pytest

from testbed.cluster import lab
from tests.cluster.whole import Namespace, Whole, pod

PODS = int(os.environ.get("GPU_HOOK_PODS", "60"))
BATCH = 20
SIZES = (700, 1300, 2300, 3700, 5900, 7100)
TOTAL = sum(node.count * int(node.memory.removesuffix("Gi")) << 10 for node in lab.NODES)


@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_every_pod_that_fits_runs(whole: Whole, team: Namespace, placement: str) -> None:
    rng = random.Random(placement)
    began = time.monotonic()
    scale = 1.1 * TOTAL * len(SIZES) / (PODS * sum(SIZES))  # they ask for a little more than there is
    for first in range(0, PODS, BATCH):
        team.apply(*(odd(f"p{n}", rng, scale, placement) for n in range(first, min(first + BATCH, PODS))))
        lab.wait(300, f"batch {first} is settled", lambda: settled(team), every=2)
    decided, granted = team.decided(), team.grants()
    assert decided == granted and 0 < len(granted) < PODS, f"{len(granted)} of {PODS} run"
    taken: dict[tuple[str, str], int] = defaultdict(int)
    for node, shares in granted.values():
        for uuid, mib in shares.items():
            taken[node, uuid] += mib
    sizes = {n.name: int(n.gpus.memory.removesuffix("Gi")) << 10 for n in whole.nodes}
    assert all(used <= sizes[node] for (node, _), used in taken.items()), taken
    assert len(taken) == 8 and sum(taken.values()) > 0.85 * TOTAL
    for one in team.pods():  # who waits has no room: nothing as large is free on any GPU
        if not one["spec"].get("nodeName"):
            asked = int(one["metadata"]["annotations"]["gpu-hook.io/memory"].removesuffix("Mi"))
            assert all(sizes[node] - used < asked for (node, _), used in taken.items()), one["metadata"]["name"]
    print(f"{placement}: {len(granted)} of {PODS} pods run after {time.monotonic() - began:.0f} s")


def odd(name: str, rng: random.Random, scale: float, placement: str) -> Any:
    mib = int(rng.choice(SIZES) * scale) | 1  # odd, so that no sizes add up
    more = rng.choice(({}, {"gpu-hook.io/class": "offline"}))
    made = pod(name, notes={"gpu-hook.io/memory": f"{mib}Mi", "gpu-hook.io/node-placement": placement, **more})
    made["spec"]["containers"][0]["command"] = ["sleep", "100000"]
    return made


def settled(team: Namespace) -> bool:
    """Each pod runs or was told that it has no room. A node that refuses one fails the test."""
    for one in team.pods():
        states = one["status"].get("containerStatuses") or [{"state": {}, "restartCount": 0}]
        assert states[0]["restartCount"] == 0 and "GH-" not in str(states), states
        told = any(
            c["type"] == "PodScheduled" and c["status"] == "False" for c in one["status"].get("conditions") or ()
        )
        if not ("running" in states[0]["state"] or (told and not one["spec"].get("nodeName"))):
            return False
    return True
