"""The number of GPUs that stay free: our packing against the optimum and best fit. And a scheduler without our extender, which chooses
nodes by sums, on a full cluster."""

import itertools
import os
import random

import pytest

from benchmarks import _cluster_fill as fill
from benchmarks import _cluster_free as free
from benchmarks._exact import Item, best

SEQUENCES = int(os.environ.get("GPU_HOOK_SEQUENCES", "40"))


def brute(nodes: tuple[tuple[int, ...], ...], items: tuple[Item, ...]) -> int:
    """The result of `best`, by trying every placement."""
    gpus = [(n, mib) for n, found in enumerate(nodes) for mib in found]
    ways = [
        [c for c in itertools.combinations(range(len(gpus)), item.gpus) if len({gpus[g][0] for g in c}) == 1]
        for item in items
    ]
    most = -1
    for choice in itertools.product(*ways):
        on: list[list[Item]] = [[] for _ in gpus]
        for item, chosen in zip(items, choice, strict=True):
            for g in chosen:
                on[g].append(item)
        if all(
            (len(here) == 1 or not any(i.whole for i in here))
            and sum(i.mib for i in here) <= mib
            and sum(i.compute for i in here) <= 100
            for here, (_, mib) in zip(on, gpus, strict=True)
        ):
            most = max(most, sum(not here for here in on))
    return most


def test_the_solver_finds_what_trying_everything_finds() -> None:
    rng = random.Random(1)
    for _ in range(120):
        nodes = tuple(
            tuple(rng.choice((10, 16)) for _ in range(rng.randrange(1, 3))) for _ in range(rng.randrange(1, 4))
        )
        items = tuple(
            Item(0, 0, rng.choice((1, 1, 2)), True)
            if rng.random() < 0.15
            else Item(rng.randrange(1, 12), rng.choice((0, 30, 60)), rng.choice((1, 1, 1, 2)))
            for _ in range(rng.randrange(0, 6))
        )
        found = best(nodes, items)
        assert found.proven and found.free == brute(nodes, items), (nodes, items)


@pytest.mark.parametrize("seed", range(4))
def test_as_many_gpus_stay_free_as_best_fit_keeps_and_nearly_the_optimum(seed: int) -> None:
    ours, fitted, optimum, unproven = free.arriving(12, seed)
    assert not unproven
    assert fitted - 1 <= ours <= optimum <= ours + 12, (ours, fitted, optimum)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_gpus_stay_free_while_pods_come_and_go(share: float) -> None:
    """Ended pods leave gaps on many GPUs. A new pod takes the tightest gap on any node, so large gaps stay."""
    ours, fitted = free.coming_and_going(share, 400, 7)
    assert ours >= 0.95 * fitted > 0, (ours, fitted)


@pytest.mark.parametrize("placement", [fill.PACK, fill.SPREAD])
@pytest.mark.parametrize("share", [0.80, 0.90, 0.95, 0.98])
def test_nothing_is_refused_and_all_that_fit_are_bound(placement: str, share: float) -> None:
    """With the extender: no denial. Without it: a denied pod finds another node, since its node got the taint."""
    for seed in range(SEQUENCES // 10):
        for with_filter in (True, False):
            cluster = fill.Cluster(5, 4, placement, with_filter, seed=seed)
            cluster.run(cluster.fill(share))
            assert cluster.stuck() == 0, (seed, with_filter)
            assert not (with_filter and cluster.denied), (seed, cluster.denied)


def test_without_the_taint_a_packing_scheduler_chooses_the_full_node_for_ever() -> None:
    """The reason for the taint: if this no longer holds, delete fragments.py."""
    stuck = 0
    for seed in range(5):
        cluster = fill.Cluster(5, 4, fill.PACK, with_filter=False, marks=False, seed=seed)
        cluster.run(cluster.fill(0.8), seconds=120)
        stuck += cluster.stuck()
    assert stuck > 0
