"""The product's backend for its wheel, packaging/wheel/backend.py: pip takes one from below simulator/ only."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "packaging/wheel"))
from backend import *  # noqa: F403
