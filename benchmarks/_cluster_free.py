"""Whole GPUs that packing keeps free: ours beside best fit, and beside the exact optimum of small cases (_exact.py)."""

import random

from benchmarks import _cluster_fill as fill
from benchmarks._exact import Item, best


def best_fit(gpus: list[int], mib: int) -> int:
    """The GPU with the least room that is enough, of those in use before free ones; -1 for none."""
    return min(((free == fill.MEMORY, free, i) for i, free in enumerate(gpus) if free >= mib), default=(0, 0, -1))[2]


def sizes_of(rng: random.Random, count: int) -> list[int]:
    odd = rng.random() < 0.5
    return [rng.choice(fill.ODD) if odd else rng.randrange(3_000, 52_000) for _ in range(count)]


def arriving(cases: int, seed: int, nodes: int = 3, gpus: int = 4) -> tuple[int, int, int, int]:
    """Free GPUs after pods came one by one, over all cases: (ours, best fit's, the optimum that knows all of them, unproven)."""
    rng = random.Random(seed)
    ours = fitted = optimum = unproven = 0
    for _ in range(cases):
        sizes = sizes_of(rng, rng.randrange(8, 18))
        cluster = fill.Cluster(nodes, gpus, fill.PACK, with_filter=True)
        cluster.run(sizes)
        if cluster.waiting:
            raise SystemExit("a case is larger than its cluster")
        found = best(((fill.MEMORY,) * gpus,) * nodes, tuple(map(Item, sizes)))
        left = [fill.MEMORY] * (nodes * gpus)
        for mib in sizes:
            left[best_fit(left, mib)] -= mib
        ours, fitted = ours + cluster.free_gpus(), fitted + left.count(fill.MEMORY)
        optimum, unproven = optimum + found.free, unproven + (not found.proven)
    return ours, fitted, optimum, unproven


def coming_and_going(share: float, steps: int, seed: int, nodes: int = 6, gpus: int = 4) -> tuple[float, float]:
    """GPUs free on average while pods end at random and others come, so that this share of the memory is taken: (ours, best
    fit's, on the same sequence)."""
    rng = random.Random(seed)
    cluster = fill.Cluster(nodes, gpus, fill.PACK, with_filter=True)
    left = [fill.MEMORY] * (nodes * gpus)
    alive: list[tuple[dict, int, int]] = []
    ours = fitted = number = taken = 0
    for step in range(steps):
        while taken < share * nodes * gpus * fill.MEMORY:
            mib = rng.randrange(3_000, 52_000)
            made = fill.pod(f"p{number}", mib, 0)
            number += 1
            cluster.state.apply_pod(made)
            at = best_fit(left, mib)
            if at < 0 or not cluster.place(made, mib):
                cluster.state.remove_pod(made["metadata"]["uid"], 0.0)
                break
            left[at] -= mib
            taken += mib
            alive.append((made, mib, at))
        made, mib, at = alive.pop(rng.randrange(len(alive)))
        cluster.end(made, mib)
        left[at] += mib
        taken -= mib
        if step >= steps // 4:
            ours, fitted = ours + cluster.free_gpus(), fitted + left.count(fill.MEMORY)
    counted = steps - steps // 4
    return ours / counted, fitted / counted


def figures(short: bool) -> dict:
    ours, fitted, optimum, unproven = arriving(20 if short else 120, 1)
    found = {
        "free_gpus_of_the_optimum": figure(ours / optimum, "x"),
        "free_gpus_of_best_fit": figure(ours / fitted, "x"),
        "optimum_not_proven": figure(unproven, ""),
    }
    for share in (50, 80):
        mine, other = coming_and_going(share / 100, 200 if short else 1500, 2, 12, 8)
        found[f"free_gpus_while_pods_end_{share}"] = figure(mine, "of 96")
        found[f"free_gpus_while_pods_end_{share}_of_best_fit"] = figure(mine / other, "x")
    return found


def figure(value: float, unit: str) -> dict:
    return {"value": value, "unit": unit, "budget": None, "ok": True}
