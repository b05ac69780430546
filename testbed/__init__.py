"""Nodes with simulated GPUs, real containers on them, and what measures them: for tests, benchmarks, validation and demo."""

import platform
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
BUILD = REPO / "build" / platform.machine()  # what scripts/build makes
