"""Who the agent is and whether it keeps off the driver, by the file that it locks."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.agent.serve import whereabouts


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


def test_it_counts_while_the_lock_is_held(tmp_path: Path, lock: int) -> None:
    path = str(tmp_path / "agent.lock")
    whereabouts.tell(lock)
    assert whereabouts.holder(path) == 0
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert whereabouts.holder(path) == os.getpid()
    fcntl.flock(lock, fcntl.LOCK_UN)
    assert whereabouts.holder(path) == 0


def test_off_the_driver(tmp_path: Path, lock: int) -> None:
    for off in (False, True, False):
        whereabouts.tell(lock, off)
        assert whereabouts.is_off(str(tmp_path)) == off


def test_no_file(tmp_path: Path) -> None:
    assert whereabouts.holder(str(tmp_path / "x")) == 0 and not whereabouts.is_off(str(tmp_path))


def test_a_full_disk() -> None:
    with open("/dev/full", "r+b", buffering=0) as full:
        whereabouts.tell(full.fileno())
