"""The commands as a user other than root: each says to be run as root, and none that there is nothing."""

import encodings.idna  # noqa: F401  loaded by the first connection
import http.server
import json
import os
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from oci_hook.agent.serve.recent import Recent
from oci_hook.cli import main, node_now
from oci_hook.core.grant import Share
from oci_hook.ledger import events, slot_files, store
from tests.cli.box import Install

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become another user")
NOBODY = 65534


@contextmanager
def plain_user() -> Iterator[None]:
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def node(native: Path) -> Iterator[Install]:
    """An install as people have it: everybody may read it, and root alone its state."""
    with tempfile.TemporaryDirectory(prefix="gh-plain-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        install = Install(Path(folder))
        install.grant("web", Share("GPU-0", 4096, 30, slot=1))
        events.record(str(install.state), "granted", id="web", shares=[])
        for name in main.COMMANDS:  # another user may not read this machine's Python
            main.cli.get_command(click.Context(main.cli), name)
        try:
            yield install
        finally:
            slot_files.drop(str(install.state))


COMMANDS = (
    ("ps",),
    ("gpus",),
    ("gpus", "--refresh"),
    ("explain", "-a", "gpu-hook.io/memory=1Gi"),
    ("events",),
    ("events", "-c", "web"),
    ("why", "web"),
    ("why", "-a", "gpu-hook.io/memory=1Gi"),
    ("top", "--once"),
    ("set", "web", "--memory", "1Gi"),
    ("freeze", "web"),
    ("resume", "web"),
    ("release", "web"),
    ("sim", "down"),
    ("sim", "fault", "--lost"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_run_as_root(node: Install, command: tuple[str, ...]) -> None:
    with plain_user():
        result = node.run(*command)
    (line,) = result.output.splitlines()
    assert result.exit_code == 1 and line.startswith("GH-30") and line.endswith("run this as root"), line
    assert "df " not in line and "no event" not in line
    assert [grant.who.id for grant in store.snapshot(str(node.state))] == ["web"]


@contextmanager
def agent(node: Install, told: dict[str, Any]) -> Iterator[None]:
    """One that answers so, by path."""

    class Agent(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(told.get(self.path)).encode())

        def log_message(self, *args: object) -> None: ...

    with socketserver.ThreadingUnixStreamServer(f"{node.state}.sock", Agent) as server:
        os.chmod(server.server_address, 0o666)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            os.unlink(server.server_address)


def test_ps_prints_what_a_running_agent_tells_everybody(node: Install) -> None:
    """As root's table has it, but for what the ledger alone knows."""
    told = node_now.alone(node.settings)
    as_root = node.text("ps").splitlines()
    with agent(node, {"/api/node": told}), plain_user():
        lines = node.text("ps").splitlines()
        (container,) = node.data("ps")["containers"]
    assert lines == [*as_root, "(by the agent; root sees more)"] and "web" in lines[1]
    assert container["gpus"][0]["memory_mib"] == 4096


INSPECTED = """#!/bin/sh
[ "$3" = eager ] && echo '[
{"Id": "%s", "State": {"Status": "created"}, "HostConfig": {"Runtime": "gpu-hook"}, "Config": {}}]'
"""


def test_why_says_what_a_running_agent_tells_everybody(node: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of containers that run, that ended, and that were refused: by the engine's name and by the id."""
    state, bygone, eager = str(node.state), "b" * 64, "e" * 64
    events.record(state, "granted", id=bygone, name="", shares=[["GPU-0", 1024, 10]], seconds=0.01)
    events.record(state, "ended", id=bygone, name="", peak_mib=512)
    events.record(state, "granted", id=bygone, name="", shares=[["GPU-0", 2048, 20]], seconds=0.01)
    events.record(state, "ended", id=bygone, name="trainer", peak_mib=1024)
    events.record(state, "refused", id=eager, messages=["GH-201: no room"])
    docker = node.state.parent / "docker"
    docker.write_text(INSPECTED % eager)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=":")
    told = {"/api/node": node_now.alone(node.settings), "/api/events": Recent(state).read()}
    told["/api/node"]["agent"]["state"] = "ok"
    asked = ("web", "trainer", bygone[:8], bygone, "eager", eager)
    with agent(node, told):
        with plain_user():
            web, *ended, by_name, by_id = (node.text("why", name) for name in asked)
            nobody = node.text("why", "nobody", status=1)
        as_root = node.text("why", "trainer")
        del told["/api/events"]
        with plain_user():
            untold = node.text("why", "trainer", status=1)
    assert web.startswith("web starts with policy")
    for text in ended:
        assert (
            f"trainer ({'b' * 12}) ended at " in text
            and " ended: its share was released; the agent saw it use at most 1Gi\n" in text
        )
        assert " granted: GPU-0: 2Gi, compute 20% (took 10.0 ms)\n" in text and "GPU-0: 1Gi" not in text
        assert text.endswith("\n(by the agent; root sees more)\n")
    assert " granted: GPU-0: 2Gi, compute 20% (took 10.0 ms)\n" in as_root and "by the agent" not in as_root
    assert by_name == f"eager ({by_id[:12]}){by_id[12:]}"
    assert by_id.startswith(f"{'e' * 12} was refused at ") and "\n  GH-201: no room\n" in by_id
    of_others = "GH-410: no container {} holds a share, and the last events that the agent tells are of others"
    assert nobody.startswith(of_others.format("nobody") + "; a container whose name is not known was refused at ")
    assert untold == of_others.format("trainer") + "\n"


def test_events_are_those_that_a_running_agent_tells_everybody(node: Install) -> None:
    """By the engine's name and by the id."""
    state = str(node.state)
    events.record(state, "refused", id="e" * 64, name="eager", messages=["GH-201: no room"])
    told = {"/api/node": node_now.alone(node.settings), "/api/events": Recent(state).read()}
    as_root = node.text("events")
    with agent(node, told), plain_user():
        said, one = node.run("events"), node.run("events", "-c", "eager", "--json")
        nobody = node.text("events", "-c", "nobody", status=1)
    with plain_user():
        other = node.text("events", status=1)
    assert said.stdout == as_root and "  eager  GH-201: no room\n" in as_root
    assert said.stderr == "(by the agent: the last events; root sees all)\n"
    assert json.loads(one.stdout)["text"] == "GH-201: no room"
    assert "GH-410: no event is about nobody" in nobody
    assert other.startswith("GH-303: only root may read or change the ledger in ")
    assert "`gpu-hook ps`, `top`, `why` and `events` answer every user" in other


def test_root_sees_all_of_it(node: Install) -> None:
    """What the others are told of is there."""
    assert "web" in node.text("ps") and "web" in node.text("events") and "GPU-0" in node.text("gpus")


def test_doctor_says_first_to_be_run_as_root(node: Install) -> None:
    """And nothing that only seems to be wrong to this user."""
    node.data("doctor", status=2)
    with plain_user():
        found = node.data("doctor", status=1)["findings"]
    assert found[0]["message"].endswith("run this as root")
    assert found[0]["fix"] == "sudo gpu-hook doctor --prefix PREFIX"
    assert {finding["state"] for finding in found[1:]} == {"ok"}


def test_before_there_is_a_state_directory(node: Install) -> None:
    """Then a plain user is told what root is told."""
    slot_files.drop(str(node.state))
    os.rename(node.state, node.prefix / "away")
    said = {}
    for name in ("root", "user"):
        if name == "user":
            with plain_user():
                said[name] = [node.run(command).output for command in ("ps", "events", "gpus")]
        else:
            said[name] = [node.run(command).output for command in ("ps", "events", "gpus")]
    assert said["root"] == said["user"] and "no container holds a share" in said["user"][0]
