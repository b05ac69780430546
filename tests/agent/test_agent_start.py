"""One agent for a node, where it may write."""

import errno
import os
import selectors
import shutil
from pathlib import Path

import pytest

from oci_hook.agent import agent
from oci_hook.agent.agent import full, only_one
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch.ledger_watch import LedgerWatch
from oci_hook.errors import GhError

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def test_one_agent_and_room_for_a_grant(tmp_path: Path) -> None:
    fd = only_one(str(tmp_path))
    with pytest.raises(GhError, match=f"GH-320: process {os.getpid()} is the agent"):
        only_one(str(tmp_path))
    os.close(fd)
    assert full(str(tmp_path)) == "" and "No such file" in full(f"{tmp_path}/none")


def test_a_state_directory_where_its_unit_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(agent, "own_dir", refused)
    with pytest.raises(GhError, match=f"GH-303: {tmp_path}: Read-only file system.*ReadWritePaths="):
        only_one(str(tmp_path))


def test_a_ledger_that_was_removed_is_not_made_anew(node: NodeState) -> None:
    """As by `settings set state_dir=DIR`: only a tick, which knows the new directory, makes a ledger."""
    folder = Path(node.state_dir, "ledger")
    with selectors.DefaultSelector() as selector:
        watch = LedgerWatch(node, selector, lambda ended: None)
        watch.tick(0.0)
        shutil.rmtree(folder)
        watch.soon(10.0)
        watch.read(10.0)
        assert not folder.exists()
        watch.tick(1000.0)
        assert folder.exists()
        watch.close()
