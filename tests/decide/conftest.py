"""C test programs of decide(), compiled with sanitizers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.sanitize import BUILDS, name, shim_program


@pytest.fixture(scope="session", params=BUILDS[:1], ids=name)
def sanitized(request: pytest.FixtureRequest) -> Callable[..., Path]:
    """sanitized(name, *sources): a program with address and undefined-behaviour sanitizers."""
    return shim_program(request.param)
