"""The simulator's wheel; pyproject.toml has the rest. Built in the checkout: its parts need the shim's sources."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "packaging/wheel"))
import commands

setup(**commands.arguments("python-simulator"))
