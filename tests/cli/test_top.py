"""`top`: the screen by itself, and in a real terminal (tmux)."""

import io
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from oci_hook.cli import node_now, top, top_processes
from oci_hook.cli.top_text import inside
from oci_hook.core.grant import Share
from oci_hook.linux import proc
from oci_hook.observe.processes import Commands
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
    screen = top.Screen(node_now.node(busy.settings))
    lines = drawn(screen).splitlines()
    assert lines[0].startswith("gpu-hook  driver 1.2  simulated GPUs  no agent: use of the GPUs is unknown")
    memory = next(line for line in lines if line.startswith("  memory  "))
    wide = 120 - 42
    assert memory[10 : 10 + wide].rstrip("·") == "train".ljust(wide // 2) + "two?[2J".ljust(wide // 4 + 1)
    assert not any(line.startswith("too narrow") for line in lines)
    assert memory.endswith(" 18Gi of 24Gi")
    row = next(line for line in lines if "ml/p/train" in line)
    assert row.split() == ["■", "ml/p/train", "0", "-", "12Gi", "30%", "-", "-", "burst-share", "default", "starting"]
    assert any("two?[2J" in line and "online" in line for line in lines) and "\x1b[2J" not in "".join(lines)
    narrow = drawn(screen, 80).splitlines()
    assert all(len(line) <= 80 for line in narrow) and "POLICY" not in next(line for line in narrow if "STATE" in line)
    assert narrow[-2] == "too narrow for the columns SHORT, POLICY, CLASS"


def test_keys(busy: Install) -> None:
    screen = top.Screen(node_now.node(busy.settings))

    def order() -> list[str]:
        return [c["id"][:3] for c in screen.containers()]

    by_key = {"c": ["two", "one", "thr"], "n": ["one", "thr", "two"]}  # compute; name (namespace first)
    for key, expected in by_key.items():
        while screen.sort != top.SORT_KEYS[key]:
            assert screen.press("s")
        assert order() == expected
        screen.press("m")
        assert screen.sort == "memory" and screen.press(key) and order() == expected
        screen.press("i")
        assert order() == expected[::-1] and "backwards" in drawn(screen)
        screen.press("i")
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
    node = node_now.node(busy.settings)
    node["gpus"] = [{**node["gpus"][i % 2], "index": i} for i in range(gpus)]
    node["agent"] = {**node["agent"], "state": "degraded", "problems": {"gpus": "is lost; " + "x" * 300}}
    for c in node["containers"]:
        for part in c["gpus"]:
            part.update(used_mib=11264, utilization=100)
    lines = drawn(top.Screen(node), width, height).splitlines()
    assert max(map(len, lines)) <= width and len(lines) <= height, "\n".join(lines)
    header = next(line for line in lines if line.startswith("CONTAINER"))
    assert header.split()[:3] == ["CONTAINER", "GPU", "MEMORY"] and header.split()[-1] == "STATE"
    end = next((i for i, line in enumerate(lines) if line.startswith("too narrow for the columns ")), -1)
    hidden = (
        " ".join(lines[end:-1]).removeprefix("too narrow for the columns ").replace(",", "").split() if end > 0 else []
    )
    assert {t for t in top.ALL if t not in header.split()} == set(hidden) and bool(hidden) == (width < top.WIDER)
    rows = lines[lines.index(header) + 1 : end]
    assert len(rows) >= 3 and all({"11Gi", "100%"} <= set(row.split()) for row in rows), rows
    assert "degraded" in "".join(lines[:2]) and "is lost" in "".join(lines[:3])
    assert ("no GPUs found" in "".join(lines)) == (gpus == 0)
    assert ("more GPUs" in "".join(lines)) == (gpus == 32 and height == 24)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("many", [2, 12])
def test_labels_never_run_together(busy: Install, width: int, many: int) -> None:
    """Names that fill their parts of the bar, next to each other: each word in the bar is (the beginning of) one name."""
    names = [f"{'abcdefghijkl'[i]}{'x' * 40}" for i in range(many)]
    node = node_now.node(busy.settings)
    c, gpu = node["containers"][0], {**node["gpus"][0], "granted_compute": 96}
    share = {**c["gpus"][0], "uuid": gpu["uuid"], "memory_mib": gpu["memory_mib"] // many, "compute": 96 // many}
    for i, other in enumerate(names):
        one = {**c, "key": str(i), "id": other, "namespace": "", "pod": "", "name": other, "gpus": [share]}
        node["containers"].append(one)
    node["containers"], node["gpus"] = node["containers"][-many:], [gpu]
    lines = drawn(top.Screen(node), width).splitlines()
    for title in ("  memory  ", "  compute "):
        bar = next(line for line in lines if line.startswith(title))[10:].partition("·")[0]
        words = [word for word in bar.split() if word[0] in "abcdefghijkl"]
        assert all(any(n.startswith(word.rstrip("…")) for n in names) for word in words), bar
        assert width < 200 or len(words) == many


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(1, " "), (2, "  "), (4, "    "), (5, "tra… "), (7, "train… "), (8, "trainer "), (9, "trainer  ")],
)
def test_a_name_in_a_part_of_a_bar(columns: int, expected: str) -> None:
    assert inside("trainer", columns) == expected


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (200, 50), (40, 5)])
def test_the_help(busy: Install, width: int, height: int) -> None:
    screen = top.Screen(node_now.node(busy.settings))
    assert "? help" in drawn(screen, width)
    assert screen.press("?")
    lines = drawn(screen, width, height).splitlines()
    assert len(lines) <= height and max(map(len, lines)) <= width and lines[-1] == "any key: back"
    named = {key for line in lines for key in line[:13].split()}
    assert height < 24 or named >= {"s", "p", "f", "r", "i", "q", *top.SORT_KEYS, "MEMORY", "BUSY", "SHORT"}
    order = screen.sort
    assert screen.press("n") and screen.sort == order and "CONTAINER" in drawn(screen, width)  # it only closes the help
    assert screen.press("?") and not screen.press("q")


def process(pid: int | None, key: str, uuid: str, used: int | None, busy: int | None = None) -> dict[str, Any]:
    return {"pid": pid, "start": 0, "key": key, "uuid": uuid, "used_mib": used, "utilization": busy}


@pytest.fixture
def processes(busy: Install) -> top.Screen:
    node = node_now.node(busy.settings)
    keys = {c["id"][:3]: c["key"] for c in node["containers"]}
    screen = top.Screen(node, processes=True)
    found = [
        process(os.getpid(), keys["one"], "GPU-0", 3072, 40),
        process(os.getppid(), keys["two"], "GPU-0", 1000, 50),
        process(1, "", "GPU-1", 2048, 7),  # of no container
        process(None, keys["one"], "GPU-0", 364),
        process(2**22 + 1, keys["thr"], "GPU-1", None, 0),  # has ended meanwhile
    ]
    screen.known.refresh(found, node, 10)
    return screen


def test_processes(processes: top.Screen) -> None:
    text = drawn(processes, 160)
    lines = text.splitlines()
    assert next(line for line in lines if "PID" in line).split() == [
        "PID",
        "USER",
        "CONTAINER",
        "GPU",
        "MEMORY",
        "OF",
        "LIMIT",
        "BUSY",
        "COMMAND",
    ]
    rows = {line.split()[0]: line for line in lines if line.split() and line.split()[0] in ("-", "1", str(os.getpid()))}
    mine = rows[str(os.getpid())]
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert mine.split()[:8] == [str(os.getpid()), user, "■", "ml/p/train", "0", "3Gi", "25%", "40%"]
    assert os.path.basename(sys.executable) in mine and str(Path(sys.executable).parent) not in mine
    assert rows["1"].split()[2:6] == ["-", "1", "2Gi", "-"]
    assert "364Mi" in rows["-"] and "a child keeps its memory" in rows["-"]
    assert "■ three" in text and "\x1b" not in text


def test_the_keys_of_a_process_are_those_on_the_page(processes: top.Screen) -> None:
    page = (REPO / "docs/reference/json.md").read_text()
    (line,) = [part for part in page.split("\n- ") if part.startswith("With `--processes`")]
    named = set(re.findall(r"`([a-z_]+)`", line.partition("\n\n")[0])) - {"processes", "null"}
    assert all(set(p) == named for p in processes.known.rows) and len(processes.known.rows) == 5


@pytest.mark.parametrize(
    ("key", "expected"), [("m", [3072, 2048, 1000, 364, None]), ("b", [1000, 3072, 2048, 364, None])]
)
def test_processes_in_order(processes: top.Screen, key: str, expected: list[int | None]) -> None:
    processes.press(key)
    got = [p["used_mib"] for _, p in processes.rows()]
    assert got[:3] == expected[:3] and set(got[3:]) == set(expected[3:])
    processes.press("i")
    assert [p["used_mib"] for _, p in processes.rows()][-3:] == expected[2::-1]
    before = processes.sort
    assert processes.press("c") and processes.sort == before  # processes have no share of their own
    for _ in range(len(top_processes.SORTS)):
        processes.press("s")
    assert processes.sort == before


def test_the_container_of_the_selected_process(processes: top.Screen) -> None:
    assert (processes.chosen() or {})["name"] == "train"
    processes.press("j")
    assert processes.chosen() is None and processes.press("f") and processes.message == ""  # of no container
    processes.press("j")
    assert (processes.chosen() or {})["id"].startswith("two")
    processes.press("p")
    assert not processes.processes and "CONTAINER" in drawn(processes) and processes.chosen()


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (200, 50)])
@pytest.mark.parametrize("many", [0, 1, 500])
def test_processes_fit_the_terminal(processes: top.Screen, width: int, height: int, many: int) -> None:
    first = processes.known.rows[0]
    long = {**first, "name": LONG, "user": LONG, "command": "x" * 400}
    processes.known.rows = [{**long, "pid": 4_000_000 + i, "used_mib": 11265} for i in range(many)]
    for _ in range(many):
        processes.press("j")
    lines = drawn(processes, width, height).splitlines()
    assert max(map(len, lines)) <= width and len(lines) <= height, "\n".join(lines)
    shown = [line for line in lines if line.startswith("4") and {"11265Mi", "40%"} <= set(line.split())]
    assert len(shown) >= min(many, 5) and (not many or shown[-1].startswith(str(4_000_000 + many - 1)))
    assert many or "no process uses a GPU, as far as accoun" in "".join(lines)


def test_a_command_line_that_cannot_be_read_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = threading.Event()
    read = proc.read_once

    def hang(path: str, limit: int) -> bytes:
        if path.endswith("/cmdline"):
            blocked.wait(60)
        return read(path, limit)

    monkeypatch.setattr(proc, "read_once", hang)
    commands = Commands()
    try:
        name = Path("/proc/self/comm").read_text().strip()
        assert commands.get(os.getpid(), 0.05) == commands.get(os.getpid()) == f"[{name}]"
        assert commands.get(1).startswith("[") and commands.get(2**22 + 1) == ""
    finally:
        blocked.set()


def test_whom_it_waits_for(busy: Install) -> None:
    node = node_now.node(busy.settings)
    by = {c["id"]: c for c in node["containers"]}
    by["one"]["state"] = "running"
    by["one"]["gpus"][0].update(gate={"mode": "frozen"}, waits_for=by["three"]["id"])
    assert any("ml/p/train" in line and "waits for three" in line for line in drawn(top.Screen(node)).splitlines())


def test_without_a_terminal_it_is_printed_once(busy: Install) -> None:
    assert "ml/p/train" in busy.text("top") and "quit" not in busy.text("top", "--once")
    assert len(busy.data("top")["containers"]) == 3 and "processes" not in busy.data("top")
    assert busy.data("top", "--processes")["processes"] == []
    assert "no process uses a GPU, as far as account pages show" in busy.text("top", "-p")


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
    call("send-keys", "?")
    assert shows("any key: back")
    call("send-keys", "x", "p")
    assert shows("no process uses a GPU")
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
