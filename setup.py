"""The product's wheel; pyproject.toml has the rest."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "packaging/wheel"))
import commands

setup(**commands.arguments("python"))
