"""The node on which the tests of this folder run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.boundary import Node


@pytest.fixture
def node(native: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    """Parametrize indirectly by the options of Node."""
    options: Mapping[str, Any] = getattr(request, "param", {})
    made = Node(tmp_path, **options)
    yield made
    made.close()
