"""The model, compiled when its sources are newer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.decide.conftest import sanitized as sanitized

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[2]


@pytest.fixture(scope="session")
def share_model() -> Path:
    """The executable, where `gpu-hook sim model` looks for it."""
    command = [sys.executable, REPO / "scripts/build", "--part", "sim/model"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return REPO / "build" / os.uname().machine / "sim/share-model"
