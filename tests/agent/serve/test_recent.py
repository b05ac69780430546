"""The last events for the web page: bounded, newest first, and what is damaged is left out."""

import json
from pathlib import Path
from types import SimpleNamespace

from oci_hook.agent.serve import recent
from oci_hook.agent.serve.publish import Publisher
from oci_hook.agent.serve.recent import Recent
from oci_hook.core.grant import Identity
from oci_hook.ledger import events


def test_newest_first_and_refusals_stay(tmp_path: Path) -> None:
    log = Recent(str(tmp_path))
    assert log.read() == {"events": [], "refused": []}
    events.record(str(tmp_path), "refused", id="a" * 64, name="", messages=["GH-201: no room", "x"])
    for i in range(3 * recent.MOST):
        events.record(str(tmp_path), "ended", id=f"c{i}", name=f"ns/p/{i}", peak_mib=1024)
    seen = log.read()
    assert [e["container"] for e in seen["events"]] == [
        f"ns/p/{i}" for i in reversed(range(2 * recent.MOST, 3 * recent.MOST))
    ]
    assert seen["events"][0]["text"] == "its share was released; the agent saw it use at most 1Gi"
    (refused,) = seen["refused"]
    assert (refused["container"], refused["text"]) == ("a" * 12, "GH-201: no room; x")
    assert log.read() == seen  # nothing new
    assert Recent(str(tmp_path)).read() == seen  # an agent that begins now reads the old ones as well


def test_the_name_that_the_end_has(tmp_path: Path) -> None:
    for event, name in (("granted", ""), ("ended", "trainer")):
        events.record(str(tmp_path), event, id="a" * 64, name=name)
    events.record(str(tmp_path), "ended", id="", name="odd")
    events.record(str(tmp_path), "refused", id="", messages=[])
    seen = Recent(str(tmp_path)).read()["events"]
    assert [(e["id"], e["container"]) for e in seen] == [("", ""), ("", "odd"), *[("a" * 12, "trainer")] * 2]


def test_those_of_another_state_directory(tmp_path: Path) -> None:
    """As after `settings set state_dir=DIR`."""
    for name in "ab":
        (tmp_path / name).mkdir()
        events.record(str(tmp_path / name), "ended", id=name, name="")
    node = SimpleNamespace(state_dir=str(tmp_path / "a"), grants={})
    publisher = Publisher(node, *[None] * 9)  # type: ignore[arg-type]
    assert [e["id"] for e in publisher.events()["events"]] == ["a"]
    node.state_dir = str(tmp_path / "b")
    for _ in range(2):
        assert [e["id"] for e in publisher.events()["events"]] == ["b"]


def test_names_of_those_that_live(tmp_path: Path) -> None:
    """docker has not written a name yet when a container gets its share."""
    events.record(str(tmp_path), "granted", id="a" * 64, name="", shares=[], seconds=0.1)
    who = Identity("/run/runc", "a" * 64, "/b", container="web")
    for living, name in (((), "a" * 12), ((who,), "web")):
        (event,) = Recent(str(tmp_path)).read(living)["events"]
        assert event["container"] == name


def test_damaged_and_endless_events(tmp_path: Path) -> None:
    lines = [
        {"at": 1, "event": "granted", "shares": 7},
        {"at": 1, "event": "granted", "shares": [["GPU-0"]]},
        {"at": 1, "event": "granted", "seconds": "x"},
        {"at": 1, "event": "refused", "messages": 5},
        {"at": "nan", "event": "ended"},
        {"at": 1e999, "event": "ended"},
        {"at": [], "event": "ended"},
        {"at": 2, "event": "e" * 500, "name": ["n" * 900], "x": "y" * 3000},
    ]
    (tmp_path / "events").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"at": 3, "ev')
    (event,) = Recent(str(tmp_path)).read()["events"]
    assert event["at"] == 2 and len(event["event"]) == 64 and len(event["container"]) <= 256
    assert len(event["text"]) <= recent.TEXT_MAX
    json.dumps(event, allow_nan=False)
