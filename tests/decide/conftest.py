"""C test programs of decide(), compiled with sanitizers."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sanitize import BUILDS, SHIM, gcc, name


@pytest.fixture(scope="session", params=BUILDS[:1], ids=name)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """sanitized(name, *sources): a program with address and undefined-behaviour sanitizers."""
    cc = gcc(request.param)
    place = tmp_path_factory.mktemp("sanitized")
    flags = ["-std=c11", "-g", *request.param, "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    flags += ["-fno-sanitize-recover=all", f"-I{SHIM}"]

    def make(program: str, *sources: Path) -> Path:
        out = place / program
        if not out.exists():
            subprocess.run([cc, *flags, "-o", str(out), *map(str, sources)], check=True)
        return out

    return make
