"""`gpu-hook suspend` and `resume` of real containers on simulated GPUs: their memory, their GPUs, what cannot be suspended, and
what a crash leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oci_hook.ledger import store
from oci_hook.linux import proc
from oci_hook.suspend.hold import Hold, cut_off
from testbed import REPO
from testbed.stage import Stage
from testbed.suspend import ENV, FIVE, Node, Program, Tenant
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture(scope="module")
def module_node(stage: Stage) -> Node:
    return Node(stage)


@pytest.fixture
def node(module_node: Node) -> Iterator[Node]:
    yield module_node
    module_node.clean()


def test_its_gpu_is_free_for_others_and_its_memory_comes_back_as_it_was(node: Node) -> None:
    first = node.tenant()
    assert [first.program("begin"), first.program("alloc 300 mine"), first.program("alloc 40 more")] == ["0", "0", "0"]
    before, used = first.program("digest"), node.stage.used_mib()
    node.stage.refused(node.root, "GH-201", annotations=FIVE)

    said = node.data("suspend", first.id)
    assert said["changed"] and said["in_effect"] and said["suspended_since"] and said["host_mib"] >= 340
    assert node.stage.used_mib() == 0 and used >= 340
    second = node.tenant()  # has the same GPU
    assert [second.program("begin"), second.program("alloc 4600 other")] == ["0", "0"]
    (shown,) = (c for c in node.data("ps")["containers"] if c["id"] == first.id)
    assert (shown["state"], shown["host_mib"]) == ("suspended", said["host_mib"]) and shown["suspended_since"]
    assert "suspended since" in node.say("ps") and "is suspended since" in node.say("why", first.id)

    refused = node.say("resume", first.id, status=1)
    assert "GH-201" in refused and "of 8192 MiB are free, 5120 needed" in refused
    assert first.grant.suspended == said["suspended_since"] and not first.grant.moving
    node.stage.runc("delete", "--force", second.id, program=node.stage.program)
    assert node.data("resume", first.id)["changed"]
    assert first.program("digest") == before and not first.grant.off_gpu and not first.grant.host_mib
    assert first.program("alloc 4900") == "2" and first.program("alloc 4000") == "0"  # the limit of 5 GiB holds
    log = [json.loads(line)["event"] for line in (node.stage.state / "events").read_text().splitlines()]
    assert [e for e in log if e in ("suspended", "resumed", "not-resumed")][-2:] == ["suspended", "resumed"]


def test_what_it_asks_of_its_gpu_meanwhile_waits(node: Node) -> None:
    """Also in processes that start then: the room is somebody else's."""
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 100"), tenant.program("child late")] == ["0", "0", "0"]
    late = Program(node, "late")
    assert node.data("suspend", tenant.id)["changed"]
    tenant.program.tell("alloc 200 two")
    late.tell("begin")
    time.sleep(0.5)
    assert not tenant.program.answers() and not late.answers() and node.stage.used_mib() == 0
    assert node.data("resume", tenant.id)["changed"]
    assert tenant.program.hear() == late.hear() == "0"


def test_a_run_in_the_foreground(node: Node) -> None:
    """Its creator, the runtime, lives as long as the container."""

    def mounts(spec: dict[str, Any]) -> None:
        spec["mounts"].extend(node.mounts)

    stage, id = node.stage, node.stage.runc.new_id()
    program = (sys.executable, "/clients/tenant.py", "front")
    bundle = stage.bundle(node.root, program, annotations=FIVE, env=ENV, edit=mounts)
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with stage.runc.popen("run", "--bundle", str(bundle), id, program=stage.program, **nothing) as run:
        try:
            front = Program(node, "front")
            assert [front("begin"), front("alloc 300 mine")] == ["0", "0"]
            before = front("digest")
            assert [c["state"] for c in node.data("ps")["containers"] if c["id"] == id] == ["running"]
            assert node.data("suspend", id)["changed"] and stage.used_mib() == 0
            assert node.data("resume", id)["changed"] and front("digest") == before
            assert node.data("set", id, "--memory", "4Gi")["in_effect"] and run.poll() is None
        finally:
            stage.runc("delete", "--force", id, program=stage.program)
    assert not [c for c in node.data("ps")["containers"] if c["id"] == id]


def test_all_of_its_processes_or_none(node: Node) -> None:
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 100"), tenant.program("child two")] == ["0", "0", "0"]
    two = Program(node, "two")
    assert [two("begin"), two("alloc 50 two"), two("managed 10")] == ["0", "0", "0"]
    said = node.say("suspend", tenant.id, status=1)
    assert (
        "GH-415" in said
        and "(python" in said
        and "managed or multicast memory" in said
        and "nothing is changed" in said
    )
    assert not tenant.grant.off_gpu and tenant.program("alloc 10") == two("alloc 10") == "0"


def test_what_cannot_be_moved_may_come_late(node: Node) -> None:
    """After the first look at what it has: it is seen before anything is moved."""
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 100")] == ["0", "0"]
    code = LATE.format(ask=str(tenant.program.ask))
    command = [sys.executable, "-c", code, str(node.stage.prefix), tenant.grant.key]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert "managed or multicast memory" in done.stdout and "['look', 'lock', 'resume']" in done.stdout, done
    assert tenant.program.hear() == "0" and not tenant.grant.off_gpu and tenant.program("alloc 10") == "0"


LATE = """
import sys, time
from oci_hook.config import settings
from oci_hook.suspend import gpu_processes, mover
call, alter, calls = gpu_processes.call, mover.admit.alter, []
def altered(*a):
    if not calls[1:]:
        with open({ask!r}, "w") as file:
            file.write("managed 10\\n")
        time.sleep(0.5)
    return alter(*a)
def called(inventory, what, *a):
    calls.append(what)
    return call(inventory, what, *a)
gpu_processes.call, mover.admit.alter = called, altered
try:
    mover.suspend(settings.load(sys.argv[1]), sys.argv[2])
except Exception as e:
    print(e)
print(calls)
"""


def test_memory_that_processes_share_is_not_moved(node: Node) -> None:
    tenant = node.tenant()
    assert [tenant.program(line) for line in ("begin", "alloc 100", "share")] == ["0", "0", "0"]
    said = node.say("suspend", tenant.id, status=1)
    assert "GH-415" in said and "shares memory with other processes" in said
    assert not tenant.grant.off_gpu and tenant.program("alloc 10") == "0"


def test_its_cgroup_must_have_room(node: Node) -> None:
    def small(spec: dict[str, Any]) -> None:
        spec["linux"]["resources"]["memory"] = {"limit": 600 << 20}

    tenant = node.tenant(edit=small)
    assert [tenant.program("begin"), tenant.program("alloc 100"), tenant.program("digest")][:2] == ["0", "0"]
    assert node.data("suspend", tenant.id)["changed"] and node.data("resume", tenant.id)["changed"]
    at = tenant.program  # it holds more than its cgroup has left, without touching it
    assert at("hold 700") == "0"
    said = node.say("suspend", tenant.id, status=1)
    assert "GH-415" in said and "until its cgroup's limit" in said and not tenant.grant.off_gpu
    assert at("alloc 10") == "0"


def test_a_freeze_is_one_thing_and_a_suspend_another(node: Node) -> None:
    tenant = node.tenant()
    assert tenant.program("begin") == "0"
    assert "is suspended already" not in node.say("suspend", tenant.id)
    assert "is suspended already" in node.say("suspend", tenant.id)
    assert "GH-411" in node.say("set", tenant.id, "--memory", "2Gi", status=1)
    assert "GH-411" in node.say("release", tenant.id, "--force", status=1)
    node.say("freeze", tenant.id)
    node.say("resume", tenant.id)
    assert not tenant.grant.stopped
    assert "is not frozen" in node.say("resume", tenant.id)
    told = node.say("events")
    assert told.count("its GPU work is stopped") == told.count("its GPU work goes on") == 1


POINTS = (
    ("begun", "suspend"),  # the ledger says that it moves, nobody has been asked
    ("locked", "suspend"),
    ("sent", "suspend"),  # all is in the host's memory, the ledger does not say so
    ("returning", "resume"),
    ("back", "resume"),
)
CRASH = """
import os, sys
from oci_hook.config import settings
from oci_hook.suspend import gpu_processes, mover
prefix, key, point, what = sys.argv[1:]
alter, call = mover.admit.alter, gpu_processes.call
def die(*_): os.kill(os.getpid(), 9)
def altered(*a):
    done = alter(*a)
    if point in ("begun", "returning"): die()
    return done
def called(inventory, what, *a):
    said = call(inventory, what, *a)
    if (what, point) in (("lock", "locked"), ("suspend", "sent"), ("resume", "back")): die()
    return said
mover.admit.alter, gpu_processes.call = altered, called
getattr(mover, what)(settings.load(prefix), key)
"""


@pytest.mark.parametrize(("point", "what"), POINTS)
def test_a_crash_leaves_what_the_next_look_makes_whole(node: Node, point: str, what: str) -> None:
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 200 mine")] == ["0", "0"]
    before, key = tenant.program("digest"), tenant.grant.key
    if what == "resume":
        node.say("suspend", tenant.id)
    command = [sys.executable, "-c", CRASH, str(node.stage.prefix), key, point, what]
    assert subprocess.run(command, cwd=REPO).returncode == -signal.SIGKILL
    assert tenant.grant.moving and cut_off(str(node.stage.state), tenant.grant)
    node.stage.refused(node.root, "GH-201", annotations=FIVE)  # its GPU is still booked, so it can come back
    (shown,) = (c for c in node.data("ps")["containers"] if c["id"] == tenant.id)
    assert shown["state"] == "moving"
    assert "GH-411" in node.say("suspend", tenant.id, status=1)
    assert node.data("resume", tenant.id)["changed"]
    assert not tenant.grant.off_gpu and tenant.program("digest") == before and tenant.program("alloc 10") == "0"


LOST = """
import os, sys, time
from oci_hook.config import settings
from oci_hook.linux import proc
from oci_hook.suspend import gpu_processes, mover
call = gpu_processes.call
def called(inventory, what, there, *a):
    if what != "resume":
        return call(inventory, what, there, *a)
    return {"failed": int(sys.argv[3]), "why": "cuCheckpointProcessRestore: CUDA error 2", "half": False, "lost": True}
gpu_processes.call = called
kill = os.kill
def killed(pid, signal):
    kill(pid, signal)
    while sys.argv[4] == "at once" and proc.start_time(pid):
        time.sleep(0.01)
os.kill = killed
try:
    mover.resume(settings.load(sys.argv[1]), sys.argv[2])
except Exception as e:
    print(e)
"""


@pytest.mark.parametrize("ends", ["at once", "soon"])
def test_a_process_that_the_driver_cannot_bring_back_ends(node: Node, ends: str) -> None:
    """It would wait for ever in its next call; what restarts its container helps. With it the container ends, at once before the
    ledger is told of the failure."""
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 100")] == ["0", "0"]
    node.say("suspend", tenant.id)
    pid = tenant.pid()
    command = [sys.executable, "-c", LOST, str(node.stage.prefix), tenant.grant.key, str(pid), ends]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert "GH-415" in done.stdout and "cannot bring it back any more, and it is killed" in done.stdout
    until(lambda: not proc.start_time(pid), "it has ended")
    until(lambda: not node.data("ps")["containers"], "its share is free")


def last_word(pid: int) -> bytes:
    try:
        return (*proc.read_file(f"/proc/{pid}/cmdline").split(b"\0"), b"")[-3:-1][0]
    except OSError:
        return b""  # it has just ended


def test_a_process_that_is_killed_while_suspended(node: Node) -> None:
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 100"), tenant.program("child two")] == ["0", "0", "0"]
    two = Program(node, "two")
    assert [two("begin"), two("alloc 50 two")] == ["0", "0"]
    before = tenant.program("digest")
    node.say("suspend", tenant.id)
    (child,) = (pid for pid in proc.pids() if last_word(pid) == b"two")
    os.kill(child, signal.SIGKILL)
    until(lambda: not proc.start_time(child), "it has ended")
    assert node.data("resume", tenant.id)["changed"] and tenant.program("digest") == before


def test_a_process_that_is_stopped_while_suspended(node: Node) -> None:
    """It stays away until that runs: the driver would wait for it, and others meanwhile for their memory."""
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 100 mine")] == ["0", "0"]
    before = tenant.program("digest")
    node.say("suspend", tenant.id)
    os.kill(tenant.pid(), signal.SIGSTOP)
    said = node.say("resume", tenant.id, status=1)
    assert "GH-417" in said and "is stopped, and the driver needs it to run; it stays suspended" in said
    os.kill(tenant.pid(), signal.SIGCONT)
    assert node.data("resume", tenant.id)["changed"] and tenant.program("digest") == before


def test_a_container_that_is_deleted_while_suspended(node: Node) -> None:
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 100")] == ["0", "0"]
    node.say("suspend", tenant.id)
    node.stage.runc("delete", "--force", tenant.id, program=node.stage.program)
    assert "GH-410" in node.say("resume", tenant.id, status=1)
    with store.open_ledger(str(node.stage.state)) as ledger:
        assert ledger.grants == ()
    assert not list(Path(node.stage.state, "pages").iterdir())


ENDS = """
import os, signal, sys, time
from oci_hook.cli.main import main
from oci_hook.ledger import admit
from oci_hook.linux import proc
from oci_hook.suspend import gpu_processes
module, name, pid = sys.modules[sys.argv.pop(1)], sys.argv.pop(1), int(sys.argv.pop(1))
step = getattr(module, name)
def before_it_ends(*a):
    if proc.start_time(pid):
        os.kill(pid, signal.SIGKILL)
        while proc.start_time(pid):
            time.sleep(0.01)
    return step(*a)
setattr(module, name, before_it_ends)
main()
"""


@pytest.mark.parametrize(
    ("command", "step"),
    [
        (("suspend",), "oci_hook.suspend.gpu_processes listed"),
        (("suspend",), "oci_hook.ledger.admit alter"),
        (("resume",), "oci_hook.suspend.gpu_processes listed"),
        (("freeze",), "oci_hook.ledger.admit alter"),
        (("set", "--compute", "20"), "oci_hook.ledger.admit alter"),
    ],
)
def test_a_container_that_ends_before_this_step(node: Node, command: tuple[str, ...], step: str) -> None:
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 100")] == ["0", "0"]
    if command == ("resume",):
        node.say("suspend", tenant.id)
    words = [*step.split(), str(tenant.pid()), *command, tenant.id, "--prefix", str(node.stage.prefix)]
    done = subprocess.run([sys.executable, "-c", ENDS, *words], cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        f"GH-410: container {tenant.id} has ended; `gpu-hook ps` lists those that live\n",
    )


def test_one_that_is_being_moved_by_another_command(node: Node) -> None:
    tenant = node.tenant()
    with Hold(node.settings(), tenant.grant.key):
        said = node.say("suspend", tenant.id, status=1)
    assert f"GH-411: container {tenant.id} is being suspended or resumed by another command" in said


def test_a_whole_gpu(node: Node) -> None:
    tenant = node.tenant({"gpu-hook.io/devices": "0", "gpu-hook.io/exclusive": "true"})
    assert [tenant.program("begin"), tenant.program("alloc 100 mine")] == ["0", "0"]
    before = tenant.program("digest")
    node.stage.refused(node.root, "GH-201", annotations=FIVE)
    node.say("suspend", tenant.id)
    tenant.program.tell("alloc 10")
    second = node.tenant()
    assert second.program("begin") == "0" and not tenant.program.answers()
    assert "1 container has it, and only one may" in node.say("resume", tenant.id, status=1)
    node.say("suspend", second.id)
    node.say("resume", tenant.id)
    assert tenant.program.hear() == "0" and tenant.program("digest") != before
    assert "GH-201" in node.say("resume", second.id, status=1)


def test_memory_of_a_process_that_has_exited_is_not_moved(node: Node) -> None:
    tenant = node.tenant()
    assert tenant.program("child two") == "0"
    two = Program(node, "two")
    assert [two("begin"), two("alloc 50 two"), two("fork"), tenant.program("begin")] == ["0", "0", "0", "0"]
    two.tell("leave")
    until(lambda: "kept" in node.say("ps"), "its child keeps its memory")
    said = node.say("suspend", tenant.id, status=1)
    assert "GH-415" in said and "of a process that has exited" in said and not tenant.grant.off_gpu


def setuid(spec: dict[str, Any]) -> None:
    for kind in ("bounding", "effective", "permitted"):
        spec["process"]["capabilities"][kind] += ["CAP_SETUID", "CAP_LEASE"]


def test_a_lease_on_its_page(node: Node) -> None:
    tenant = node.tenant(edit=setuid)
    assert [tenant.program("begin"), tenant.program("alloc 50"), tenant.program("lease")] == ["0", "0", "0"]
    said = node.say("suspend", tenant.id, status=1)
    assert "GH-415" in said and "file lease" in said and not tenant.grant.off_gpu
    assert tenant.program("alloc 10") == "0"


def suspended_by(program: str, node: Node, tenant: Tenant) -> "subprocess.CompletedProcess[str]":
    """`program` suspends the tenant in a Python of its own, where it replaces a part of ours."""
    command = [sys.executable, "-c", program, str(node.stage.prefix), tenant.grant.key]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True)


def test_a_tenant_that_starts_processes_past_the_shim(node: Node) -> None:
    """Each time that all have been moved there is another one: in the end all run again."""
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 50")] == ["0", "0"]
    before = tenant.program("digest")
    done = suspended_by(NEWCOMERS, node, tenant)
    assert "GH-415" in done.stdout and "starts new processes" in done.stdout, done
    assert not tenant.grant.off_gpu and tenant.program("digest") == before


NEWCOMERS = """
import sys
from oci_hook.config import settings
from oci_hook.suspend import gpu_processes, mover
call = gpu_processes.call
def called(inventory, what, there, *a):
    said = call(inventory, what, there, *a)
    if what == "look":
        said["states"][str(there[0][0])] = 0
    return said
gpu_processes.call = called
try:
    mover.suspend(settings.load(sys.argv[1]), sys.argv[2])
except Exception as e:
    print(e)
"""


def test_a_helper_that_is_killed(node: Node) -> None:
    """The command has the driver asked once more, and all run again."""
    tenant = node.tenant()
    assert [tenant.program("begin"), tenant.program("alloc 50")] == ["0", "0"]
    done = suspended_by(KILLED, node, tenant)
    assert "GH-417" in done.stdout and "no answer" in done.stdout, done
    assert not tenant.grant.off_gpu and tenant.program("alloc 10") == "0"


KILLED = """
import sys
from oci_hook.config import settings
from oci_hook.suspend import gpu_processes, mover
call = gpu_processes.call
def called(inventory, what, *a):
    said = call(inventory, what, *a)
    return {"error": "no answer within 1 s"} if what == "suspend" else said
gpu_processes.call = called
try:
    mover.suspend(settings.load(sys.argv[1]), sys.argv[2])
except Exception as e:
    print(e)
"""
