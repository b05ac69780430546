"""setuptools' build backend, which also requires the C compiler if the checkout has no .venv with one."""

from typing import Any

from compiled import VENV
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

# What pyproject.toml's extra `build` says, which a build backend cannot ask for.
COMPILER = ["ziglang==0.17.1", "ninja>=1.11"]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """scripts/build finds the compiler in .venv, else in the Python that runs it."""
    compiler = [] if VENV.exists() else COMPILER
    return [*build_meta.get_requires_for_build_wheel(config_settings), *compiler]
