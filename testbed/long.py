"""How many examples tests draw: a part of them where they are expensive, all with scripts/test --long, few with --quick."""

import os

from hypothesis import settings


def long() -> bool:
    return os.environ.get("GPU_HOOK_LONG", "") not in ("", "0")


def draws(usual: int) -> int:
    """Examples of a property: ten times the usual ones with --long, a tenth with --quick (its profile: tests/conftest.py)."""
    if long():
        return 10 * usual
    return max(usual // 10, 10) if settings().max_examples < 100 else usual
