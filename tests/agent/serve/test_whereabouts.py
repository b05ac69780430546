"""Where the agent is, by the file that it locks."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.agent.options import Options
from oci_hook.agent.serve import whereabouts

SETTINGS = Options(address="127.0.0.1:9409")
OTHER = Options(address="127.0.0.1:1234", token_file="/etc/token")


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


def test_it_counts_while_the_lock_is_held(tmp_path: Path, lock: int) -> None:
    whereabouts.tell(lock, OTHER)
    assert whereabouts.used(str(tmp_path), SETTINGS) == SETTINGS
    fcntl.flock(lock, fcntl.LOCK_EX)
    found = whereabouts.used(str(tmp_path), SETTINGS)
    assert (found.address, found.token_file) == (OTHER.address, OTHER.token_file)
    whereabouts.tell(lock, Options(address="none"))
    assert whereabouts.used(str(tmp_path), SETTINGS).address == "none"
    fcntl.flock(lock, fcntl.LOCK_UN)
    assert whereabouts.used(str(tmp_path), SETTINGS) == SETTINGS


@pytest.mark.parametrize(
    "text", [b"", b"1\n", b"PID\n", b"1\n127.0.0.1:5\nnone\n", b"\xff\n\n\n\n", b"PID\n127.0.0.1:5\nnone"]
)
def test_what_it_does_not_say(tmp_path: Path, lock: int, text: bytes) -> None:
    """An older agent's file has its process alone; a full disk leaves less; another process's is stale."""
    os.pwrite(lock, text.replace(b"PID", str(os.getpid()).encode()), 0)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert whereabouts.used(str(tmp_path), SETTINGS) == SETTINGS


def test_no_file(tmp_path: Path) -> None:
    assert whereabouts.used(str(tmp_path), SETTINGS) == SETTINGS and whereabouts.holder(str(tmp_path / "x")) == 0


def test_a_full_disk() -> None:
    with open("/dev/full", "r+b", buffering=0) as full:
        whereabouts.tell(full.fileno(), OTHER)
