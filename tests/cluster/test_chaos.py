"""One fault of each kind on a real cluster while pods come and go, by a seed. `scripts/bench chaos` does many."""

from collections.abc import Iterator

import pytest

from benchmarks._chaos_rounds import GPUS, Rounds, plan
from testbed.cluster.faults import FAULTS
from testbed.cluster.managed import Managed

SEED = 19


@pytest.fixture(scope="module")
def rounds(runnable: None, native: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rounds]:
    site = Managed(tmp_path_factory.mktemp("chaos"))
    try:
        site.up(GPUS)
        made = Rounds(site.folder, site)
        made.begin()
        yield made
        made.close()
    finally:
        site.down()


@pytest.mark.parametrize("name", FAULTS)
def test_after_a_fault_who_holds_what_is_right_and_all_that_can_run_does(rounds: Rounds, name: str) -> None:
    step = list(FAULTS).index(name)
    _, chance = plan(SEED, step)
    record = rounds.step(SEED, step, FAULTS[name], chance)
    if not record["ok"]:
        rounds.clear()
    assert record["problems"] == [], record
    assert record["refused"] == [], record


def test_the_faults_happened(rounds: Rounds) -> None:
    """A fault that misses its moment would test nothing: the traps and the forgotten versions are seen."""
    for name, said in (("reserve-bind-kill", "caught"), ("delete-binding", "caught"), ("watch-gone", "gone")):
        for step in range(100, 103):
            record = rounds.step(SEED, step, FAULTS[name], plan(SEED, step)[1])
            if record["said"].get(said):
                break
        assert record["said"].get(said), record
