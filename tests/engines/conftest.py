"""An install with simulated cards per test file, for engines that are started once per file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.box import Place


@pytest.fixture(scope="module")
def place(native: Path) -> Iterator[Place]:
    place = Place(native)
    yield place
    place.close()
