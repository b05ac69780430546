"""setuptools' backend, which also asks for the C compiler where the checkout has none of its own."""

from typing import Any

from compiled import VENV
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """As scripts/build looks for it: in .venv, else beside the Python that runs it."""
    compiler = [] if VENV.exists() else ["ziglang>=0.13"]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *compiler]
