from pathlib import Path

import pytest

from tests.cli.box import Install


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Needs no native part. Times are shown in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    return Install(tmp_path)
