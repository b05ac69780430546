"""`top`: the screen by itself, and in a real terminal (tmux)."""

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from oci_hook.cli import live, top
from oci_hook.core.grant import Share
from tests.cli.box import Install

REPO = Path(__file__).resolve().parents[2]


def drawn(screen: top.Screen, width: int = 120, height: int = 40) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(screen.draw(width, height))
    return console.export_text()


@pytest.fixture
def busy(install: Install) -> Install:
    install.grant("one", Share("GPU-0", 12288, 30), who={"namespace": "ml", "pod": "p", "container": "train"})
    install.grant("two\x1b[2J", Share("GPU-0", 6144, 50, 50), policy="fixed-share", priority_class="online")
    install.grant("three", Share("GPU-1", 24576, whole=True), exclusive=True)
    return install


def test_the_screen(busy: Install) -> None:
    screen = top.Screen(live.node(busy.settings, str(busy.prefix)))
    lines = drawn(screen).splitlines()
    assert lines[0].startswith("gpu-hook  driver 1.2  simulated GPUs  no agent: use of the GPUs is unknown")
    memory = next(line for line in lines if line.startswith("  memory  "))
    wide = 120 - 42
    assert memory[10 : 10 + wide].rstrip("·") == "train".ljust(wide // 2) + "two?[2J".ljust(wide // 4 + 1)
    assert memory.endswith(" 18Gi of 24Gi")
    row = next(line for line in lines if "ml/p/train" in line)
    assert row.split() == ["■", "ml/p/train", "0", "-", "12Gi", "30%", "-", "-", "burst-share", "default", "starting"]
    assert any("two?[2J" in line and "online" in line for line in lines) and "\x1b[2J" not in "".join(lines)
    assert "POLICY" not in drawn(screen, 80) and all(len(line) <= 80 for line in drawn(screen, 80).splitlines())


def test_keys(busy: Install) -> None:
    screen = top.Screen(live.node(busy.settings, str(busy.prefix)))

    def order() -> list[str]:
        return [c["id"][:3] for c in screen.containers()]

    for expected in (["two", "one", "thr"], ["one", "thr", "two"]):  # compute; name (namespace first)
        while top.SORTS[screen.sort] != {"two": "compute", "one": "name"}[expected[0]]:
            assert screen.press("s")
        assert order() == expected
    for key, chosen in (("j", "thr"), ("\x1b[B", "two"), ("j", "two"), ("k", "thr"), ("x", "thr")):
        assert screen.press(key)
        assert (screen.chosen() or {})["id"][:3] == chosen
    screen.node = {**screen.node, "containers": []}
    assert screen.chosen() is None and screen.press("j") and "no container holds a share" in drawn(screen)
    assert not screen.press("q")


LONG = "a-name-of-63-characters-" + "x" * 39


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (200, 50)])
@pytest.mark.parametrize("gpus", [0, 2, 8, 32])
def test_it_fits_the_terminal(busy: Install, width: int, height: int, gpus: int) -> None:
    """Every line within the width and all of them within the height; numbers are never cut."""
    busy.grant("long", Share("GPU-0", 1024, 10), who={"namespace": LONG, "pod": LONG, "container": LONG})
    node = live.node(busy.settings, str(busy.prefix))
    node["gpus"] = [{**node["gpus"][i % 2], "index": i} for i in range(gpus)]
    node["agent"] = {**node["agent"], "state": "degraded", "problems": {"gpus": "is lost; " + "x" * 300}}
    for c in node["containers"]:
        for part in c["gpus"]:
            part.update(used_mib=11264, utilization=100)
    lines = drawn(top.Screen(node), width, height).splitlines()
    assert max(map(len, lines)) <= width and len(lines) <= height, "\n".join(lines)
    header = next(line for line in lines if line.startswith("CONTAINER"))
    assert header.split()[:3] == ["CONTAINER", "GPU", "MEMORY"] and header.split()[-1] == "STATE"
    rows = lines[lines.index(header) + 1 : -1]
    assert len(rows) >= 3 and all({"11Gi", "100%"} <= set(row.split()) for row in rows), rows
    assert "degraded" in "".join(lines[:2]) and "is lost" in "".join(lines[:3])
    assert ("no GPUs found" in "".join(lines)) == (gpus == 0)
    assert ("more GPUs" in "".join(lines)) == (gpus == 32 and height == 24)


def test_whom_it_waits_for(busy: Install) -> None:
    node = live.node(busy.settings, str(busy.prefix))
    by = {c["id"]: c for c in node["containers"]}
    by["one"]["state"] = "running"
    by["one"]["gpus"][0].update(gate={"mode": "frozen"}, waits_for=by["three"]["id"])
    assert any("ml/p/train" in line and "waits for three" in line for line in drawn(top.Screen(node)).splitlines())


def test_without_a_terminal_it_is_printed_once(busy: Install) -> None:
    assert "ml/p/train" in busy.text("top") and "quit" not in busy.text("top", "--once")
    assert len(busy.data("top")["containers"]) == 3


@pytest.fixture
def tmux() -> Iterator[list[str]]:
    if not shutil.which("tmux"):
        pytest.skip("no tmux")
    command = ["tmux", "-L", f"gpu-hook-{os.getpid()}"]
    yield command
    subprocess.run([*command, "kill-server"], capture_output=True)


@pytest.mark.slow
def test_in_a_terminal(busy: Install, tmux: list[str]) -> None:
    def call(*words: str) -> str:
        return subprocess.run([*tmux, *words], capture_output=True, text=True, check=True).stdout

    def shows(text: str) -> bool:
        for _ in range(300):
            if text in call("capture-pane", "-p"):
                return True
            time.sleep(0.1)
        return False

    call("-f", "/dev/null", "new-session", "-d", "-x", "110", "-y", "30", "sh")
    top = f"{shlex.quote(sys.executable)} -m oci_hook top --prefix {busy.prefix} --interval 0.3"
    call("send-keys", f"cd {shlex.quote(str(REPO))} && {top}", "Enter")
    assert shows("sorted by memory") and shows("■ ml/p/train")
    call("send-keys", "s", "s", "s")
    assert shows("sorted by name")
    busy.grant("fourth", Share("GPU-0", 1024))
    assert shows("■ fourth")
    call("send-keys", "q")
    for _ in range(300):
        if "sorted by" not in call("capture-pane", "-p"):
            break
        time.sleep(0.1)
    call("send-keys", "stty -a | grep -c ' -echo '; echo back", "Enter")
    assert shows("0\nback")  # the terminal is as it was
    assert "sorted by" not in call("capture-pane", "-p")


def test_json_is_the_agents_form(busy: Install) -> None:
    assert json.dumps(busy.data("top"))  # one object
