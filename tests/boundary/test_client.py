"""gpu-hook-boundary, the hook's program: what it asks the server, and when it leaves the work to the helper."""

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.boundary import protocol
from oci_hook.core.layout import BOUNDARY_DIR

KEY = "0123456789abcdef" * 2
OK, BAD = b'{"ok":true,"limited":true}', b'{"ok":false,"error":"x","code":0}'


class Served:
    """A prefix with the program and a helper that only says that it was called; a server that answers as it is told."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.bin, self.state = folder / "bin", folder / "state"
        self.bin.mkdir()
        self.state.mkdir()
        shutil.copy(program, self.bin)
        helper = self.bin / "oci-gpu-hook"
        helper.write_text('#!/bin/sh\necho "helper $*"\nexit 7\n')
        helper.chmod(0o755)
        self.asked: list[bytes] = []
        self.listener: socket.socket | None = None

    def answer(self, data: bytes | None) -> None:
        """None: it takes the request and never answers."""
        listener = self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(protocol.path(str(self.state)))
        listener.listen(8)
        self.thread = threading.Thread(target=self._serve, args=(listener, data), daemon=True)
        self.thread.start()

    def _serve(self, listener: socket.socket, data: bytes | None) -> None:
        kept: list[socket.socket] = []
        while True:
            try:
                client, _ = listener.accept()
                self.asked.append(client.recv(9000))
                if data is None:
                    kept.append(client)
                else:
                    client.send(data)
                    client.close()
            except OSError:
                for client in kept:
                    client.close()
                return

    def __call__(self, *args: str, state: object = None) -> "subprocess.CompletedProcess[str]":
        text = state if isinstance(state, str) else json.dumps(state)
        program = str(self.bin / "gpu-hook-boundary")
        return subprocess.run([program, *args], input=text, capture_output=True, text=True, timeout=60)

    def set(self, state: object) -> "subprocess.CompletedProcess[str]":
        return self("set", str(self.state), KEY, state=state)

    def close(self) -> None:
        if self.listener is not None:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.thread.join()
            self.listener.close()


@pytest.fixture
def served(tmp_path: Path, native: Path) -> Iterator[Served]:
    made = Served(tmp_path, native / "gpu-hook-boundary")
    yield made
    made.close()


@pytest.mark.parametrize(
    "state",
    [
        {"pid": 42},
        {"annotations": {"pid": "7", "x": '"pid": 8', "y": '\\"pid\\":9', "{": "}"}, "list": [{"pid": 5}], "pid": 42},
        {"pid": 42, "annotations": {"pid": "7"}},
        '\n{ "id" : "pid" , "pid"\t:\r\n 42 , "a": {} }',
        {"id": "a" * 500_000, "pid": 42},
        '{"annotations": {"a": "'
        + "\\u003c" * (1 << 20)
        + '"}, "pid": 42}',  # as runc writes the largest annotation of "<"
    ],
)
def test_it_asks_for_the_containers_process(served: Served, state: object) -> None:
    served.answer(OK)
    done = served.set(state)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [json.loads(data) for data in served.asked] == [{"do": "set", "grant": KEY, "pid": 42}]


@pytest.mark.parametrize("recorded", [True, False])
def test_it_reads_what_the_runtime_writes_at_the_end_too(served: Served, recorded: bool) -> None:
    """crun writes the whole state, and SIGPIPE ends it where nobody reads that: the container could never be deleted."""
    if recorded:
        served.answer(OK)
        (served.state / BOUNDARY_DIR).mkdir(exist_ok=True)
        (served.state / BOUNDARY_DIR / KEY).touch()
    command = [str(served.bin / "gpu-hook-boundary"), "clear", str(served.state), KEY]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        program.stdin.write(b" " * (1 << 20))
        program.stdin.close()
    assert program.returncode == 0 and len(served.asked) == recorded


@pytest.mark.parametrize(
    "state",
    ["", "{}", "[]", '{"pid": "42"}', '{"pid": -1}', '{"pid": 0}', '{"pid": 99999999999999999999}', '{"a": {"pid": 42}}',
     '"pid": 42', '{"pid', '{"a":"\\', {"annotations": {"pid": "7"}}, " " * (1 << 24) + '{"pid": 42}'],
)  # fmt: skip
def test_a_state_without_a_process(served: Served, state: object) -> None:
    served.answer(OK)
    done = served.set(state)
    assert done.returncode == 1 and "GH-406" in done.stderr and served.asked == []


@pytest.mark.parametrize("answer", ["none", "bad", "empty", "other", "silent"])
def test_the_helper_does_what_the_server_did_not(served: Served, answer: str) -> None:
    if answer != "none":
        served.answer({"bad": BAD, "empty": b"", "other": b'{"ok":tru', "silent": None}[answer])
    done = served.set({"pid": 42})
    assert (done.returncode, done.stdout) == (7, f"helper boundary set {KEY} 42\n")


def test_clear_asks_only_where_a_limit_was_recorded(served: Served) -> None:
    assert served("clear", str(served.state), KEY).returncode == 0
    (served.state / BOUNDARY_DIR).mkdir()
    (served.state / BOUNDARY_DIR / KEY).touch()
    done = served("clear", str(served.state), KEY)
    assert (done.returncode, done.stdout) == (7, f"helper boundary clear {KEY}\n")
    served.answer(OK)
    assert served("clear", str(served.state), KEY).returncode == 0
    assert [json.loads(data) for data in served.asked] == [{"do": "clear", "grant": KEY}]


@pytest.mark.parametrize(
    "args", [(), ("set",), ("set", "/x"), ("get", "/x", KEY), ("set", "/x", "../k"), ("set", "/x", KEY, "1")]
)
def test_other_arguments(served: Served, args: tuple[str, ...]) -> None:
    done = served(*args, state={"pid": 42})
    assert done.returncode == 1 and "GH-406" in done.stderr


def test_a_state_directory_that_is_too_long_for_a_socket(served: Served) -> None:
    done = served("set", "/" + "a" * 200, KEY, state={"pid": 42})
    assert done.returncode == 7 and os.path.exists(served.bin)
