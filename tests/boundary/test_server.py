"""The boundary's server: who may ask, what it believes, and that nobody keeps others waiting."""

import json
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oci_hook.boundary import protocol
from oci_hook.boundary.nvml_limits import LimitError
from testbed.boundary import ASK, DRIVER, Node, Stub
from testbed.containers import Bundle

pytestmark = pytest.mark.root
LONG = 60.0  # seconds; this machine may be busy


def ask(node: Node, request: object) -> dict[str, object]:
    return protocol.ask(str(node.state), request, LONG)  # type: ignore[arg-type]


def connect(node: Node) -> socket.socket:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(LONG)
    s.connect(protocol.path(str(node.state)))
    return s


def refused(node: Node, request: object) -> str:
    with pytest.raises(LimitError) as e:
        ask(node, request)
    return str(e.value)


def test_what_it_answers(node: Node, bundle: Bundle) -> None:
    node.serve()
    id = node.start(bundle(ASK))
    [grant] = node.grants()
    assert ask(node, {"do": "list"})["grants"] == [grant.key]
    cgroup, size = node.cgroup(id), 1 << 30
    assert ask(node, {"do": "get", "grant": grant.key})["figures"] == [[node.uuids[0], cgroup, 0, size, 0]]
    assert ask(node, {"do": "check", "grant": grant.key})["repaired"] is False
    assert ask(node, {"do": "sweep"})["grants"] == []
    assert "still runs" in refused(node, {"do": "clear", "grant": grant.key})
    ask(node, {"do": "clear", "grant": grant.key, "force": True})
    assert node.limits(cgroup) == [-1] and node.records() == []


def test_a_limit_that_somebody_changed_is_set_again(node: Node, bundle: Bundle) -> None:
    stub = Stub(node)
    node.serve()
    node.start(bundle(ASK))
    [file] = (stub.folder / "limits").iterdir()
    [grant] = node.grants()
    for wrong in ("0 99", None):
        file.unlink() if wrong is None else file.write_text(wrong)
        assert ask(node, {"do": "check", "grant": grant.key})["repaired"] is True
        assert stub.limits() == [f"{node.uuids[0]} 1024"]
        assert ask(node, {"do": "check", "grant": grant.key})["repaired"] is False


def test_it_believes_the_ledger_only(node: Node, bundle: Bundle) -> None:
    """Neither another container's process nor one of the node, and no grant that is not there."""
    node.serve()
    first, second = node.start(bundle(ASK)), node.start(bundle({**ASK, "gpu-hook.io/memory": "2Gi"}))
    one, two = (next(g for g in node.grants() if g.who.id == id) for id in (first, second))
    for pid in (node.pid(second), os.getpid(), 1, 1 << 22, 0, -1):
        assert refused(node, {"do": "set", "grant": one.key, "pid": pid})
    for key in ("0" * 32, "../" + one.key, "", "lock", one.key + "0"):
        assert refused(node, {"do": "set", "grant": key, "pid": node.pid(first)})
        assert refused(node, {"do": "get", "grant": key})
    assert "GPUs" in refused(node, {"do": "change", "grant": two.key, "limits": [["GPU-x", 1, 1]]})
    assert node.limits(node.cgroup(first)) == [1024] and node.limits(node.cgroup(second)) == [2048]


def test_only_root_is_served(node: Node) -> None:
    node.serve()
    path = protocol.path(str(node.state))
    assert os.stat(path).st_mode & 0o077 == 0
    code = (
        "import socket, sys, os; os.chdir(sys.argv[1]); os.setgid(65534); os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "try: s.connect('boundary.sock')\n"
        "except OSError as e: print(e.errno); sys.exit()\n"
        "s.settimeout(60)\n"
        'try: s.send(b\'{"do":"list"}\'); print(s.recv(100))\n'
        "except OSError: print(b'')\n"
    )

    def tried() -> str:
        return subprocess.run(
            [*node.python[:1], "-c", code, str(node.state)], capture_output=True, text=True
        ).stdout.strip()

    assert tried() == "13"
    for place in (node.state, Path(path)):  # also if somebody opened them to all
        place.chmod(0o777)
    assert tried() == "b''"


@pytest.mark.parametrize(
    "packet",
    [b"x", b"{}", b"[]", b'{"do":"set"}', b'{"do":"set","grant":5,"pid":"x"}', b'{"do":"change","grant":"","limits":[[1]]}',
     b'{"do":"nothing","grant":""}', b"[" * 5000, b"\xff" * 100, b'{"do":"set","grant":"","pid":1e999}', b"{" * 8192],
)  # fmt: skip
def test_garbage(packet: bytes) -> None:
    from oci_hook.boundary.keeper import Keeper

    def never() -> object:
        raise LimitError("no settings")

    answer = json.loads(protocol.answer(Keeper(never, never), packet))  # type: ignore[arg-type]
    assert answer["ok"] is False and answer["error"]


def test_slow_and_dead_clients_block_nobody(node: Node, bundle: Bundle) -> None:
    server = node.serve()
    silent = [connect(node) for _ in range(50)]
    for s in silent[:10]:
        s.send(b"{" * protocol.REQUEST_MAX)
    with connect(node) as s, pytest.raises(OSError):  # too large: nobody answers it
        s.send(b" " * (protocol.REQUEST_MAX + 1))
        raise OSError if not s.recv(100) else AssertionError
    before = time.monotonic()
    assert ask(node, {"do": "list"})["grants"] == []
    assert time.monotonic() - before < LONG / 3
    node.start(bundle(DRIVER))
    assert len(node.records()) == 1 and server.poll() is None
    for s in silent:
        s.close()


def test_many_at_once(node: Node, bundle: Bundle) -> None:
    """64 containers ask at the same time; each gets its own limit."""
    node.serve()
    folders = [bundle({**DRIVER, "gpu-hook.io/memory": f"{64 + n}Mi"}) for n in range(64)]
    ids = [node.runc.new_id() for _ in folders]
    node.set(default_policy="best-effort")
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(node.create, folders, ids))
    assert [d for d in done if d.returncode] == []
    for n, id in enumerate(ids):
        [record] = [record for record in node.records() if record.id == id]
        assert record.state == "set" and record.limits[0].hard >> 20 == 64 + n
        assert record.cgroups[0][0] == node.cgroup(id)
    for n in (0, 31, 63):
        assert node.limits(node.cgroup(ids[n])) == [64 + n]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(node.delete, ids))
    assert node.records() == [] and node.grants() == ()


def test_a_server_that_is_killed_between_request_and_answer(node: Node, bundle: Bundle) -> None:
    """Its container starts all the same: the helper does it."""
    stub = Stub(node)
    node.serve()
    stub.fault("hang set")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(node.create, bundle(DRIVER))
        deadline = time.monotonic() + LONG
        while "set" not in stub.calls() and time.monotonic() < deadline:
            time.sleep(0.01)
        stub.fault("")
        node.stop_server()
        done = made.result()
    assert done.returncode == 0, done
    assert stub.limits() == [f"{node.uuids[0]} 1024"]
    assert [record.state for record in node.records()] == ["set"]


def test_it_ends_with_its_parent_and_can_be_started_again(node: Node) -> None:
    server = node.serve()
    assert server.stdin is not None
    server.stdin.close()
    server.wait(LONG)
    server.stdin = None
    node.stop_server()
    node.serve()
    assert ask(node, {"do": "list"})["grants"] == []


def test_it_ends_when_the_driver_hangs(node: Node, bundle: Bundle) -> None:
    stub = Stub(node)
    server = node.serve()
    stub.fault("hang get")
    node.start(bundle(ASK))  # falls back
    assert server.wait(LONG) == 3
    node.stop_server()
    stub.fault("")
    node.serve()
    node.start(bundle(DRIVER))


def test_a_stopped_server_keeps_no_container_waiting(node: Node, bundle: Bundle) -> None:
    server = node.serve()
    server.send_signal(signal.SIGSTOP)
    try:
        done = node.create(bundle(DRIVER))
    finally:
        server.send_signal(signal.SIGCONT)
    assert done.returncode == 0, done
    assert node.limits(node.cgroup(node.runc.ids[-1])) == [1024]
