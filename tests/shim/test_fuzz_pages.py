"""The fuzz target of the page readers, under gcc's sanitizers, with inputs that it makes itself."""

import subprocess
from pathlib import Path

import pytest

from testbed.compiled import compiled
from testbed.sanitize import BUILDS, SHIM, gcc, name
from tests.shim.conftest import HERE


@pytest.fixture(scope="module", params=BUILDS[:1], ids=name)
def target(request: pytest.FixtureRequest) -> Path:
    sources = [str(path) for folder in ("account", "process") for path in sorted((SHIM / folder).glob("*.c"))]
    flags = ["-std=c11", "-g", *request.param, "-fno-sanitize-recover=all", f"-I{SHIM}"]
    defines = ["-DGH_FUZZ_MAIN", '-DGH_PRIVATE="."']  # the working directory
    command = [gcc(request.param), *flags, *defines, str(HERE / "fuzz_pages.c"), *sources, "-lpthread", "-ldl"]
    return compiled("fuzz_pages", command)


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_the_pages_say(target: Path, tmp_path: Path, seed: int) -> None:
    crash = tmp_path / "crash"
    done = subprocess.run(
        [str(target), str(seed), "1000"],
        env={"GH_FUZZ_CRASH": str(crash)},
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.returncode == 0, f"seed {seed}, input {crash.read_bytes().hex()}\n{done.stderr}"
    assert done.stdout == "1000\n"
