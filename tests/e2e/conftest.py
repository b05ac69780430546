"""The usual stage: two simulated GPUs, once per file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.stage import Stage


@pytest.fixture(scope="module")
def stage(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    yield made
    made.close()
