"""The socket that commands ask at: who may, and who may not stand in the agent's place."""

import grp
import json
import os
import selectors
import socket
import stat
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oci_hook.agent.node_state import NodeState
from oci_hook.agent.options import AgentOptions
from oci_hook.agent.serve import http
from oci_hook.agent.serve.listeners import SOCKET, Listeners
from oci_hook.cli import node_now
from oci_hook.config.settings import Settings
from oci_hook.linux import unix_socket

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to become another user")
NOBODY = 65534
PAGES: dict[str, http.Page] = {"/api/node": lambda: ("application/json", json.dumps({"is": "ours"}).encode())}


class Box:
    """Listeners with a loop of their own; `node` is what they know of an agent."""

    def __init__(self, state_dir: str, given: AgentOptions) -> None:
        self.problems: dict[str, str] = {}
        self.node = SimpleNamespace(state_dir=state_dir, options=given, page="", problem=self.problem)
        self.selector = selectors.DefaultSelector()
        self.listeners = Listeners(as_node(self.node), self.selector, "", PAGES, lambda: True)
        self.listeners.open()
        self.stop = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def problem(self, name: str, what: str) -> None:
        self.problems[name] = what

    def run(self) -> None:
        while not self.stop:
            for key, _ in self.selector.select(0.02):
                key.data(time.monotonic())
            self.listeners.check(time.monotonic())

    def close(self) -> None:
        self.stop = True
        self.thread.join()
        self.listeners.close()
        self.selector.close()


def as_node(found: Any) -> NodeState:
    return found  # type: ignore[no-any-return]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """Longer than a socket's address can be; others may write beside it."""
    folder = tmp_path / ("long" * 30)
    (folder / "state").mkdir(mode=0o700, parents=True)
    for above in (folder, *list(folder.parents)[:4]):
        if above != Path("/tmp"):
            above.chmod(0o777 if above == folder else 0o755)
    yield folder / "state"


@contextmanager
def box(state: Path, **given: Any) -> Iterator[Box]:
    made = Box(str(state), AgentOptions(**{"address": "127.0.0.1:0", **given}))
    try:
        yield made
    finally:
        made.close()
    assert not os.path.lexists(f"{state}.sock")


def asked(state: Path, user: int = 0, groups: tuple[int, ...] = ()) -> Any:
    """node_now.fetch() as this user, in a process of its own."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            if user:
                os.setgroups(list(groups))
                os.setgid(NOBODY)
                os.setuid(user)
            os.write(write, json.dumps(node_now.fetch(Settings(prefix="", state_dir=str(state)), "/api/node")).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    ("given", "root", "member", "other"),
    [
        ({}, True, True, True),  # as they may read the page
        ({"address": "none"}, True, False, False),
        ({"token_file": "/a/file"}, True, False, False),
        ({"group": "adm"}, True, True, False),
        ({"group": "adm", "address": "none"}, True, True, False),
        ({"group": "adm", "token_file": "/a/file"}, True, True, False),
    ],
    ids=str,
)
def test_who_may_ask(state: Path, given: dict[str, str], root: bool, member: bool, other: bool) -> None:
    adm = grp.getgrnam("adm").gr_gid
    before = os.umask(0o077)  # as systemd starts it
    try:
        with box(state, **given):
            found = asked(state), asked(state, 1000, (4242, adm)), asked(state, NOBODY, (4242,))
            assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert [answer == {"is": "ours"} for answer in found] == [root, member, other]


def test_no_such_group_is_said_and_root_may_ask(state: Path) -> None:
    with box(state, group="gh-none") as made:
        assert made.problems[SOCKET].startswith("GH-321: only root can ask at ")
        assert "there is no group gh-none" in made.problems[SOCKET]
        assert made.node.page and asked(state) == {"is": "ours"} and asked(state, 1000) is None
        made.node.options = made.node.options.replace(group="adm")  # as if it had been made meanwhile
        made.listeners.open()
        assert made.problems[SOCKET] == "" and asked(state, 1000, (grp.getgrnam("adm").gr_gid,)) == {"is": "ours"}


def test_one_that_is_removed_is_made_again(state: Path) -> None:
    with box(state) as made:
        os.unlink(f"{state}.sock")
        assert asked(state) is None
        made.listeners.open()
        assert asked(state) == {"is": "ours"}
        os.rename(f"{state}.sock", f"{state}.aside")
        Path(f"{state}.sock").write_text("theirs")
        made.listeners.open()
        assert "GH-321: no command can ask at" in made.problems[SOCKET]
        assert Path(f"{state}.sock").read_text() == "theirs"
        os.unlink(f"{state}.sock")
        made.listeners.open()
        assert made.problems[SOCKET] == "" and asked(state) == {"is": "ours"}
        os.unlink(f"{state}.aside")


def test_nobody_else_is_believed_in_its_place(state: Path) -> None:
    """Where others may write beside the state directory. The one who waits there without an answer holds nobody up."""
    for silent in (False, True):
        ready, told = os.pipe()
        if not (child := os.fork()):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.chdir(state.parent)
            with socket.socket(socket.AF_UNIX) as impostor:
                impostor.bind("state.sock")
                os.chmod("state.sock", 0o777)
                impostor.listen(8)
                os.write(told, b".")
                while not silent:
                    with impostor.accept()[0] as client:
                        client.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"is": "theirs"}')
                time.sleep(600)
            os._exit(0)
        try:
            assert os.read(ready, 1) == b"."
            assert asked(state) is None and asked(state, 1000) is None
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(ready), os.close(told)
        with box(state):  # what it has left is taken away
            assert asked(state) == {"is": "ours"}


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_stays(state: Path, tmp_path: Path, kind: str) -> None:
    there = Path(f"{state}.sock")
    other = tmp_path / "other"
    other.write_text("theirs")
    if kind == "folder":
        there.mkdir()
    elif kind == "link":
        there.symlink_to(other)
    else:
        there.write_text("theirs")
    made = Box(str(state), AgentOptions(address="none"))
    try:
        assert "GH-321: no command can ask at" in made.problems[SOCKET]
        assert asked(state) is None and other.read_text() == "theirs"
        assert stat.S_IMODE(other.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
        assert os.path.lexists(there)
        there.rmdir() if kind == "folder" else there.unlink()
        made.listeners.open()
        assert made.problems[SOCKET] == "" and asked(state) == {"is": "ours"}
    finally:
        made.close()


def test_it_follows_the_state_directory(state: Path) -> None:
    other = state.parent / "other"
    other.mkdir(mode=0o700)
    with box(state) as made:
        made.node.state_dir = str(other)
        made.listeners.open()
        assert asked(state) is None and asked(other) == {"is": "ours"}
        made.node.state_dir = str(state)
        made.listeners.open()


def test_others_do_not_take_roots_place(state: Path) -> None:
    """Of 32 at once the oldest makes room, but root's last."""
    with box(state) as made:
        mine = unix_socket.connect(f"{state}.sock", 0, 5)
        if not (child := os.fork()):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            held = [socket.socket(socket.AF_UNIX) for _ in range(3 * http.CLIENTS)]
            folder = os.open(state.parent, os.O_PATH)
            for s in held:
                s.connect(f"/proc/self/fd/{folder}/state.sock")
            os._exit(0 if made else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert asked(state) == {"is": "ours"}
        mine.sendall(b"GET /api/node HTTP/1.0\r\n\r\n")
        assert mine.recv(4096).startswith(b"HTTP/1.1 200")
        mine.close()


def test_a_trickle_ends(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then, by a program of root's own, holds a command up for no longer than silence."""
    monkeypatch.setattr(node_now, "SECONDS", 0.5)
    listener = unix_socket.listen(f"{state}.sock", 0o600)
    ended = threading.Event()

    def trickle() -> None:
        client, _ = listener.accept()
        with client:
            while not ended.wait(0.05):
                try:
                    client.send(b"H")
                except OSError:
                    return

    thread = threading.Thread(target=trickle)
    thread.start()
    begun = time.process_time()
    assert node_now.fetch(Settings(prefix="", state_dir=str(state)), "/api/node") is None
    assert time.process_time() - begun < 5
    ended.set()
    thread.join()
    listener.close()
    unix_socket.remove(f"{state}.sock")
