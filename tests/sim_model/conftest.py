"""The model and the C test programs, compiled when their sources are newer."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
SHIM = REPO / "oci_hook" / "shim"


@pytest.fixture(scope="session")
def share_model() -> Path:
    """The executable, where `gpu-hook sim model` looks for it."""
    command = [sys.executable, REPO / "scripts/build", "--part", "sim/model"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return REPO / "build" / os.uname().machine / "sim/share-model"


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """sanitized(name, *sources, flags...): a program with address and undefined-behaviour sanitizers."""
    gcc = shutil.which("gcc")
    if not gcc:
        pytest.skip("no gcc: its sanitizers are needed")
    place = tmp_path_factory.mktemp("sanitized")
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{SHIM}"]

    def make(name: str, *sources: Path) -> Path:
        out = place / name
        if not out.exists():
            subprocess.run([gcc, *flags, "-o", str(out), *map(str, sources)], check=True)
        return out

    return make
