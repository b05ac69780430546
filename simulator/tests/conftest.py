"""Simulated GPUs for one test: a driver root and GPU files below tmp_path, used by real processes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.sim.gpus import Sim, build_simulated


@pytest.fixture(scope="session")
def simulated() -> Path:
    return build_simulated()


@pytest.fixture
def sim(tmp_path: Path, simulated: Path) -> Iterator[Sim]:
    made = Sim(tmp_path, simulated)
    yield made
    made.close()


@pytest.fixture
def make_sim(tmp_path: Path, simulated: Path) -> Iterator[Callable[..., Sim]]:
    made: list[Sim] = []

    def make(**options: Any) -> Sim:
        made.append(Sim(tmp_path / f"sim{len(made)}", simulated, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
