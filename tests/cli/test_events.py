"""`gpu-hook events`: one line per event, for each kind; JSON lines; a container's events; what a tenant cannot forge."""

import json
import time
from datetime import datetime, timezone

import pytest

from oci_hook.core.grant import Share
from oci_hook.ledger import events
from oci_hook.observe import event_text
from tests.cli.box import Install


def kinds(install: Install) -> list[str]:
    return [json.loads(line)["event"] for line in install.text("events", "--json").splitlines()]


def test_each_kind_has_its_line(install: Install) -> None:
    grant = install.grant("one", Share("GPU-0", 4096, 30), who={"namespace": "ml", "pod": "p", "container": "c"})
    events.granted(str(install.state), grant, 0.0125)
    events.changed(str(install.state), grant, grant.replace(shares=(Share("GPU-0", 2048, 30),)))
    events.record(str(install.state), "new-kind", id="one", detail=7)
    lines = install.text("events").splitlines()
    assert lines[0].endswith("  granted          ml/p/c  GPU-0: 4Gi, compute 30% (took 12.5 ms)")
    assert lines[1].endswith("ml/p/c  GPU-0: memory 4096 MiB -> 2048 MiB")
    assert lines[2].endswith("  ml/p/c  detail 7")  # the name that another event says


def test_of_one_container(install: Install) -> None:
    for id, name in (
        ("abcdef1", "ns/pod/web"),
        ("abcdef2", "ns/pod/db"),
        ("abcdef22", "ns/pod/db2"),
        ("b", "ns/pod/a"),
    ):
        events.record(str(install.state), "ended", id=id, name=name)
    for name, count in (
        ("abcdef", 3),
        ("abcdef1", 1),
        ("abcdef2", 1),
        ("db", 1),
        ("ns/pod/web", 1),
        ("a", 1),
        ("b", 1),
    ):
        assert len(install.text("events", "-c", name).splitlines()) == count, name
    assert install.run("events", "-c", "abcde").exit_code == 1  # as in every command, six letters are the least
    nothing = install.run("events", "-c", "no\x1bbody")
    message = "no event is about no?body; `gpu-hook events` lists all"
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (1, "", f"GH-410: {message}\n")
    assert install.data("events", "-c", "nobody", status=1)["errors"][0]["code"] == "GH-410"


def test_the_last_ones(install: Install) -> None:
    now = int(time.time())
    for hours in (50, 30, 3, 1):
        text = json.dumps({"at": now - 3600 * hours, "event": "ended", "id": f"hhhhhh{hours}"})
        with open(install.state / "events", "a") as log:
            log.write(text + "\n")

    def shown(*words: str) -> list[str]:
        return [json.loads(line)["id"] for line in install.text("events", "--json", *words).splitlines()]

    date, local = datetime.fromtimestamp(now - 7200, timezone.utc), datetime.fromtimestamp(now - 7200)
    for since in (
        "2h",
        "120m",
        "1h30m",
        f"{date:%Y-%m-%dT%H:%M:%SZ}",
        f"{local:%Y-%m-%d %H:%M:%S}",
        f"{date.isoformat()}",
    ):
        assert shown("--since", since) == ["hhhhhh1"], since
    assert shown("--since", "1d12h") == ["hhhhhh30", "hhhhhh3", "hhhhhh1"] and shown("--since", f"{local:%Y}-01-01")
    assert shown("--since", "2d", "--tail", "2", "-c", "hhhhhh") == ["hhhhhh3", "hhhhhh1"]
    assert [len(shown("-n", n)) for n in ("1", "4", "5")] == [1, 4, 4]
    assert install.run("events", "--since", "0s").stderr == "no events since then\n"
    for wrong in ("", "10", "10 m", "m", "yesterday", "-1h", "9" * 400 + "d", "2026-13-01"):
        assert install.run("events", "--since", wrong).exit_code == 2, wrong
    assert install.run("events", "--tail", "-1").exit_code == 2


def test_a_node_without_events_is_no_error(install: Install) -> None:
    nothing = install.run("events")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "no events yet\n")


@pytest.mark.parametrize("field", ["id", "name", "kind", "evidence"])
def test_escape_sequences_do_not_reach_the_terminal(install: Install, field: str) -> None:
    event = {"id": "c", "kind": "k", "evidence": "e", "action": "a", field: "\x1b[2J"}
    events.record(str(install.state), "finding", **event)
    assert "\x1b" not in install.text("events")


def test_a_damaged_line_is_left_out(install: Install) -> None:
    events.record(str(install.state), "ended", id="one")
    with open(install.state / "events", "a") as log:
        log.write("{broken\n[]\n")
    events.record(str(install.state), "ended", id="two")
    assert kinds(install) == ["ended", "ended"]


def test_an_event_that_was_cut_short(install: Install) -> None:
    events.record(str(install.state), "granted", id="long", text="x" * 5000)
    assert "driver files only" in install.text("events") and json.loads(install.text("events", "--json"))["cut"]
    assert event_text.changed({"event": "changed", "at": 1, "cut": True}) == "cut True"
