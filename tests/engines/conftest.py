"""An install with simulated GPUs per test file and system, for engines that are started once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.engines.box import Place
from testbed.packages import debian_13


@pytest.fixture(scope="module", params=("this machine", "Debian 13"))
def place(native: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    place = Place(native, debian_13() if request.param == "Debian 13" else None)
    yield place
    place.close()
