"""A container that is suspended has nothing on its GPUs, whatever its processes call: those that are there, and those that start."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.ledger import store
from testbed import REPO
from testbed.agent import Agent, events, running
from testbed.stage import CC, CONTEXT_MIB, GLIBC, Stage
from testbed.suspend import FIVE, Node, Tenant
from testbed.until import until
from tests.agent.act.test_lending import SERVER, trainer

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
HERE = Path(__file__).resolve().parent
BACK = ("restore", "unlock")
ALL = ("lock", "checkpoint", *BACK)


@pytest.fixture(scope="module")
def module_node(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    stage = Stage(tmp_path_factory.mktemp("takesback"), "--driver", "580")
    node = Node(stage)
    subprocess.run(
        [*CC, *GLIBC, "-o", str(node.root / "clients/takes_back"), str(HERE / "takes_back.c"), "-ldl"], check=True
    )
    yield node
    stage.close()


@pytest.fixture
def node(module_node: Node) -> Iterator[Node]:
    yield module_node
    module_node.clean()


class Attack:
    """Processes of a container that call for its memory, from now to its end."""

    def __init__(self, tenant: Tenant, *calls: str, user: int = 0, processes: int = 1) -> None:
        node = tenant.node
        self.file = node.root / f"tmp/{tenant.name}.calls"
        self.file.touch()
        self.file.chmod(0o666)
        words = ["/clients/takes_back", f"/tmp/{self.file.name}", str(processes), *calls]
        done = node.stage.runc("exec", "--detach", "--user", str(user), tenant.id, *words, program=node.stage.program)
        assert done.returncode == 0, done.stderr
        until(lambda: self.lines("ready") == processes)

    def lines(self, word: str) -> int:
        """How often it said so."""
        return sum(line.startswith(word) for line in self.file.read_text().splitlines())


def begun(node: Node, mib: int, annotations: dict[str, str] = FIVE) -> Tenant:
    tenant = node.tenant(annotations)
    assert [tenant.program("begin"), tenant.program("alloc 20 mine"), tenant.program(f"hold {mib - 20}")] == ["0"] * 3
    return tenant


@pytest.mark.parametrize(
    ("calls", "user", "processes", "when"),
    [
        (BACK, 0, 1, "after"),
        (BACK, 65534, 1, "after"),
        (BACK, 0, 8, "before"),
        (("unlock",), 65534, 2, "before"),
        (ALL, 0, 2, "after"),
    ],
)
def test_its_memory_stays_away(node: Node, calls: tuple[str, ...], user: int, processes: int, when: str) -> None:
    """What it had is another one's by then. The calls wait, and so do those that were being made again and again all the time."""
    tenant = begun(node, 4500)
    before = tenant.program("digest")
    attack = Attack(tenant, *calls, user=user, processes=processes) if when == "before" else None
    assert node.data("suspend", tenant.id)["changed"]
    attack = attack or Attack(tenant, *calls, user=user, processes=processes)
    other = node.tenant()
    assert [other.program("begin"), other.program("hold 4900")] == ["0", "0"]
    assert node.stage.used_mib() == 4900 + CONTEXT_MIB and not attack.lines("restore")
    node.stage.runc("delete", "--force", other.id, program=node.stage.program)
    assert node.data("resume", tenant.id)["changed"]
    if calls != ALL:  # which has its processes come and go by itself from now on
        assert tenant.program("digest") == before and tenant.program("hold 100") == "0"


def test_who_checkpoints_its_own_processes_all_the_time_is_moved_as_others_are(node: Node) -> None:
    """Between two moves it does so as before."""
    tenant = begun(node, 1500)
    before = tenant.program("digest")
    attack = Attack(tenant, *ALL, processes=2)
    for _ in range(3):
        assert node.data("suspend", tenant.id)["changed"]
        restored = attack.lines("restore")
        assert node.stage.used_mib() == 0
        assert attack.lines("restore") == restored
        assert node.data("resume", tenant.id)["changed"]
        until(lambda n=restored: attack.lines("restore") > n + 10)  # type: ignore[misc]
    assert tenant.program("digest") == before


@pytest.fixture
def agent(node: Node) -> Iterator[Agent]:
    with running(node.stage) as agent:
        yield agent


def answers(node: Node, tenant: Tenant) -> "list[str]":
    return [e["action"] for e in events(node.stage) if e["event"] == "finding" and e["id"] == tenant.id]


@pytest.mark.parametrize(
    ("calls", "user", "processes"),
    [(("restore",), 0, 1), (BACK, 65534, 1), (ALL, 65534, 4)],
)
def test_past_the_shim_it_is_killed(
    node: Node, agent: Agent, calls: tuple[str, ...], user: int, processes: int
) -> None:
    """Also where its memory comes and goes all the time, and whoever was granted its room asks for that all the time."""
    tenant = begun(node, 4500)
    assert node.data("suspend", tenant.id)["changed"]
    other = node.tenant()
    assert other.program("begin") == "0"
    agent.looks(2)
    attack = Attack(tenant, "driver", *calls, user=user, processes=processes)
    until(lambda: attack.lines("restore"))
    assert other.program("insist 4900") == "0"
    assert not answers(node, other)
    if calls != ALL:  # else its process may be lost in a restore without room, and then it harms nobody
        until(lambda: tenant.id not in node.stage.runc.living())
        assert any(
            answer.startswith("killed") for answer in answers(node, tenant)
        )  # one that is long in ending is told, too


# Functions that may bring memory to the GPU, or have a process keep some, and are charged nothing themselves.
ROWS = (REPO / "oci_hook/shim/intercepts.def").read_text()
UNCHARGED = (
    *re.findall(r", (\w+)\)$", ROWS.partition("memory/cuda_checkpoint.c")[2].partition("/*")[0], re.MULTILINE),
    *re.findall(r", (\w+)\)$", ROWS.partition("memory/cuda_unasked.c")[2].partition("/*")[0], re.MULTILINE),
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemImportFromShareableHandle",
    "cuMemPoolImportFromShareableHandle",
)
CALLS = """
import ctypes, os, sys, threading
from ctypes import byref, c_int, c_void_p
cuda, out = ctypes.CDLL("libcuda.so.1"), os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
assert not cuda.cuInit(0)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
def call(name):
    first = c_int(1 << 22) if "Process" in name else byref(c_void_p()) if "Retain" in name else None
    more = (Handle(), 0) if "IpcOpen" in name else (None,) * 7
    getattr(cuda, name)(first, *more)
    os.write(out, (name + "\\n").encode())
for name in sys.argv[2:]:
    threading.Thread(target=call, args=(name,)).start()
os.write(out, b"ready\\n")
"""


def hold(node: Node, tenant: Tenant, until: int) -> None:
    key = tenant.grant.key
    with store.open_ledger(str(node.stage.state)) as ledger:
        ledger.hold([key], until)


@pytest.mark.parametrize("away", [True, False])
def test_what_a_new_process_may_call_without_a_charge_waits(node: Node, away: bool) -> None:
    """With whatever arguments, in a process that was started while the container is suspended, or while another one's memory comes
    back. One of them is charged."""
    tenant, file = begun(node, 40), node.root / "tmp/calls"
    names = {*UNCHARGED, "cuDevicePrimaryCtxRetain"}
    assert len(names) == 24
    file.write_text("")
    if away:
        node.say("suspend", tenant.id)
    else:
        hold(node, tenant, time.monotonic_ns() + 10**12)
    words = [sys.executable, "-c", CALLS, "/tmp/calls", *sorted(names)]
    done = node.stage.runc("exec", "--detach", tenant.id, *words, program=node.stage.program)
    assert done.returncode == 0, done.stderr
    until(lambda: "ready" in file.read_text())
    time.sleep(0.5)
    assert file.read_text() == "ready\n"
    if away:
        node.say("resume", tenant.id)
    else:
        hold(node, tenant, 0)
    until(lambda: set(file.read_text().split()) == {"ready", *names})


@pytest.mark.parametrize("past", [False, True])
def test_where_memory_is_lent_nobody_waits_for_who_calls_for_it(node: Node, past: bool) -> None:
    """Past the shim, it is killed, or its process is lost in a restore for which there was no room."""
    node.say("settings", "set", "oversubscribe=3.0", "memory_turn=60", "memory_wait=200")
    with running(node.stage):
        tenant = trainer(node, 5000)
        assert tenant.program.hear() == "0"
        attack = Attack(tenant, *(("driver",) if past else ()), *BACK)
        server = node.tenant(SERVER)
        assert [server.program("begin"), server.program("hold 4500")] == ["0", "0"]
        assert not answers(node, server)
        if past:
            return
        until(lambda: tenant.grant.suspended)
        assert not attack.lines("unlock") and not attack.lines("restore") and not answers(node, tenant)
        node.stage.runc("delete", "--force", server.id, program=node.stage.program)
        until(lambda: not tenant.grant.off_gpu)
        assert len(tenant.program("digest")) == 64
