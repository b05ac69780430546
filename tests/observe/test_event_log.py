"""The event log as it is read while others write it."""

import os
from pathlib import Path

import pytest

from oci_hook.ledger import events
from oci_hook.observe.event_log import Follower


def test_events_are_read_over_a_change_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX", 2000)
    state = str(tmp_path)
    events.record(state, "first", n=-1)
    follower, fresh = Follower(state, old=True), Follower(state, old=False)
    assert [e["n"] for e in follower.read()] == [-1] and fresh.read() == []
    seen: list[int] = []
    for n in range(100):
        events.record(state, "counted", n=n)
        if n % 7 == 0:
            seen += [e["n"] for e in follower.read()]
    seen += [e["n"] for e in follower.read()]
    assert seen == list(range(100))
    assert [e["n"] for e in fresh.read()][-1] == 99
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 5000


def test_a_line_that_comes_after_the_change_of_files(tmp_path: Path) -> None:
    """Its writer had opened the file before another one renamed it."""
    state, late = str(tmp_path), tmp_path / "events"
    events.record(state, "first")
    follower = Follower(state, old=True)
    assert len(follower.read()) == 1
    with open(late, "ab", buffering=0) as f:
        late.rename(tmp_path / "events.1")
        assert follower.read() == []
        f.write(b'{"at":1,"event":"late"}\n')
        events.record(state, "new")
        assert [e["event"] for e in follower.read()] == ["late", "new"]
        f.write(b'{"at":1,"event":"later"}\n')
        assert [e["event"] for e in follower.read()] == ["later"] and follower.read() == []


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(
        b'{"at":1,"event":"a"}\nnot json\n{"at":"x","event":"b"}\n[]\n{"event":"c"}\n\xff\n'
    )
    events.record(str(tmp_path), "whole")
    with open(tmp_path / "events", "ab") as f:
        f.write(b'{"at":1,"event":"half"')
    assert [e["event"] for e in Follower(str(tmp_path), old=True).read()] == ["a", "whole"]


def test_an_event_never_fails_its_writer(tmp_path: Path) -> None:
    for place in ("/nonexistent", str(tmp_path / "file"), "/proc"):
        events.record(place, "lost")
    (tmp_path / "events").symlink_to("/dev/full")
    events.record(str(tmp_path), "lost", what=object())
    (tmp_path / "events").unlink()
    os.mkfifo(tmp_path / "events")
    events.record(str(tmp_path), "lost")
    (tmp_path / "events").unlink()
    events.record(str(tmp_path), "long", id="c", text="x" * 9000)
    (event,) = Follower(str(tmp_path), old=True).read()
    assert (event["id"], event["cut"]) == ("c", True)
