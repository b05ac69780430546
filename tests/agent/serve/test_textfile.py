"""The file of metrics for node-exporter, on a full disk and in a folder of others."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from oci_hook.agent.serve import textfile
from oci_hook.ledger import events
from oci_hook.observe.event_log import Follower

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.root
@root_only
def test_a_full_disk_loses_events_and_the_textfile_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    try:
        assert textfile.write(str(disk / "x.prom"), b"old\n") == ""
        events.record(str(disk), "kept")
        with pytest.raises(OSError), open(disk / "fill", "wb", buffering=0) as f:
            while True:
                f.write(bytes(4096))
        for _ in range(200):
            events.record(str(disk), "lost", text="x" * 1000)
        assert Follower(str(disk), old=True).read()[0]["event"] == "kept"
        assert "No space" in textfile.write(str(disk / "x.prom"), bytes(10000))
        assert (disk / "x.prom").read_text() == "old\n"
        assert not [p for p in disk.iterdir() if p.name.endswith(".new")]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_what_the_owner_of_the_textfiles_folder_puts_there_is_replaced(tmp_path: Path, kind: str) -> None:
    file, there = tmp_path / "x.prom", tmp_path / "x.prom.new"
    (tmp_path / "roots").write_text("old")
    if kind == "link":
        os.link(tmp_path / "roots", there)
    else:
        os.mkfifo(there)
    reader = os.open(there, os.O_RDONLY | os.O_NONBLOCK)  # without one, an agent that opens the fifo waits for ever
    assert textfile.write(str(file), b"new\n") == ""
    os.close(reader)
    assert file.stat().st_mode == stat.S_IFREG | 0o644 and not there.exists()
    assert (tmp_path / "roots").read_text() == "old" and file.read_text() == "new\n"
