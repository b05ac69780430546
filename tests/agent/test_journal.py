"""The agent's lines in the journal."""

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from oci_hook.agent import journal


def test_journal_lines_carry_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    st = os.fstat(sys.stderr.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{st.st_dev}:{st.st_ino}")
    monkeypatch.setattr(journal, "SOCKET", str(tmp_path / "journal"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(tmp_path / "journal"))
        journal.write("found\nMESSAGE=forged", journal.WARNING, container="a\nb", finding="")
        entry = s.recv(4096)
    lines = entry.split(b"\n")
    assert b"MESSAGE=found; MESSAGE=forged" in lines and b"PRIORITY=4" in lines
    assert b"GPU_HOOK_CONTAINER\n" + (3).to_bytes(8, "little") + b"a\nb\n" in entry and b"FINDING" not in entry
    journal.write("nobody reads the socket any more", journal.WARNING)
    assert capfd.readouterr().err == "<4>nobody reads the socket any more\n"


def test_lines_for_a_file_or_a_terminal_have_the_time_in_place_of_the_prefix(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")  # inherited, and standard error redirected since
    journal.write("GH-501: one\nGH-501: two\x1b[1m\n", journal.WARNING, container="a")
    monkeypatch.delenv("JOURNAL_STREAM")
    journal.write("started")
    at = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    assert re.fullmatch(rf"{at}GH-501: one; GH-501: two\?\[1m\n{at}started\n", capfd.readouterr().err)
