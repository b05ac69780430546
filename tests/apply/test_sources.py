"""The host files that a plan mounts: they exist, only root can write them, and they are not empty."""

import os
from pathlib import Path

import pytest

from oci_hook.apply.sources import check_sources
from oci_hook.config.settings import Settings
from oci_hook.core.plan import DATA, Bind
from oci_hook.errors import NodeError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the sources are root's")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(str(tmp_path / "prefix"), driver_root=str(tmp_path / "driver"), state_dir=str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("place", "options", "code"),
    [
        ("prefix/lib/shim/libcuda.so.1", None, "GH-305"),
        ("driver/usr/lib64/libcuda.so.1", None, "GH-302"),
        ("state/pages/k/policy", DATA, "GH-303"),
        ("prefix/lib/private/container/policy", DATA, ""),  # a place to mount on
        ("driver/usr/share/nvidia/x.json", DATA, ""),  # some releases ship empty ones
    ],
)
def test_empty_files(settings: Settings, tmp_path: Path, place: str, options: tuple[str, ...], code: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    step = Bind(str(path), "/x", options) if options else Bind(str(path), "/x")
    path.write_bytes(b"x")
    check_sources([step], settings)
    path.write_bytes(b"")
    if not code:
        check_sources([step], settings)
        return
    with pytest.raises(NodeError, match=f"{code}: {path} is empty"):
        check_sources([step], settings)
