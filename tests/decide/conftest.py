"""C test programs of decide(), compiled with sanitizers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compiled import compiled
from tests.sanitize import BUILDS, SHIM, gcc, name


@pytest.fixture(scope="session", params=BUILDS[:1], ids=name)
def sanitized(request: pytest.FixtureRequest) -> Callable[..., Path]:
    """sanitized(name, *sources): a program with address and undefined-behaviour sanitizers."""
    cc = gcc(request.param)
    flags = ["-std=c11", "-g", *request.param, "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    flags += ["-fno-sanitize-recover=all", f"-I{SHIM}"]

    def make(program: str, *sources: Path) -> Path:
        return compiled(program, [cc, *flags, *map(str, sources)])

    return make
