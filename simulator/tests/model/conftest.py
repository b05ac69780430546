"""The model, compiled when its sources are newer."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gpu_hook_simulator import model_run
from testbed.compiled import KEPT
from testbed.long import long
from testbed.sanitize import BUILDS, name, shim_program

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[2]


@pytest.fixture(scope="session", params=BUILDS[:1], ids=name)
def sanitized(request: pytest.FixtureRequest) -> Callable[..., Path]:
    """sanitized(name, *sources): a program with address and undefined-behaviour sanitizers."""
    return shim_program(request.param)


@pytest.fixture(scope="session")
def share_model() -> Path:
    """The executable, where `gpu-hook sim model` looks for it."""
    command = [sys.executable, REPO / "scripts/build", "--part", "sim/model"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return REPO / "build" / os.uname().machine / "sim/share-model"


@pytest.fixture(scope="module")
def kept_answers(share_model: Path) -> Iterator[None]:
    """The same executable gives the same answers to the same text (test_model.py): each is asked for once, and kept below
    build/. With --long, all are asked for again."""
    place = KEPT / "model" / hashlib.sha256(share_model.read_bytes()).hexdigest()[:20]
    place.mkdir(parents=True, exist_ok=True)
    ask = model_run.run_text

    def answers(text: str) -> list[dict[str, Any]]:
        file = place / hashlib.sha256(text.encode()).hexdigest()[:20]
        if long() or not file.exists():
            new = file.with_name(f"{file.name}-{os.getpid()}")
            new.write_text(json.dumps(ask(text)))
            new.rename(file)
        found: list[dict[str, Any]] = json.loads(file.read_text())
        return found

    with patch.object(model_run, "run_text", answers):
        yield
