"""A GPU of 8 GiB whose containers may have more than that together: the agent makes room for who waits."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed import REPO
from testbed.agent import Agent, events, running
from testbed.stage import CONTEXT_MIB, GPU_MIB, Stage
from testbed.suspend import Node, Tenant
from testbed.until import until
from tests.e2e.test_suspend import CRASH

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
KEY = "gpu-hook.io/"
TRAINER = {KEY + "devices": "0", KEY + "memory": "6Gi", KEY + "memory-request": "1Gi", KEY + "class": "offline"}
SERVER = {KEY + "devices": "0", KEY + "memory": "5Gi", KEY + "class": "online"}


@pytest.fixture(scope="module")
def module_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    stage = Stage(tmp_path_factory.mktemp("lending"), "--driver", "580")
    yield Node(stage)
    stage.close()


@pytest.fixture
def node(module_node: Node) -> Iterator[Node]:
    module_node.say("settings", "set", "oversubscribe=3.0", "memory_turn=60", "memory_wait=120")
    yield module_node
    module_node.clean()


@pytest.fixture
def agent(node: Node) -> Iterator[Agent]:
    with running(node.stage) as agent:
        yield agent


def trainer(node: Node, mib: int, **more: str) -> Tenant:
    """It has so much, of which 20 MiB are known by their pattern."""
    tenant = node.tenant({**TRAINER, **{KEY + k.replace("_", "-"): v for k, v in more.items()}})
    assert [tenant.program("begin"), tenant.program(f"alloc 20 {tenant.name}")] == ["0", "0"]
    tenant.program.tell(f"hold {mib - 20}")
    return tenant


def crowded(node: Node) -> tuple[Tenant, Tenant, Tenant]:
    """A server, the one of two trainers that was moved for it, and the other one, for the next minute at least."""
    both = trainer(node, 3500), trainer(node, 3500)
    assert [tenant.program.hear() for tenant in both] == ["0", "0"]
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("hold 4200")] == ["0", "0"]
    away, there = sorted(both, key=lambda tenant: not tenant.grant.off_gpu)
    assert not there.grant.off_gpu
    until(lambda: away.grant.suspended)
    return server, away, there


def moved(node: Node, what: str) -> "list[str]":
    return [e["id"] for e in events(node.stage) if e["event"] == what]


def test_what_is_booked(node: Node) -> None:
    """Requests are never booked twice, limits three times at most, and none is above the GPU."""
    first = [node.tenant(TRAINER) for _ in range(3)]
    (gpu,) = (g for g in node.data("gpus")["gpus"] if str(g["index"]) == "0")
    assert gpu["granted_mib"] == 3 * 1024
    assert node.say("ps").count("6Gi (1Gi booked)") == 3
    said = node.stage.refused(node.root, "GH-201", annotations={**TRAINER, KEY + "memory-request": "5121Mi"})
    assert "requests of 5120" in said
    said = node.stage.refused(node.root, "GH-201", annotations={**TRAINER, KEY + "memory": "8193Mi"})
    assert "8192 MiB to grant" in said
    last = node.tenant({**TRAINER, KEY + "memory-request": "5Gi"})
    assert "8Gi (limits 24Gi)" in node.say("gpus") and "6Gi (5Gi booked) (took" in node.say("events")
    node.stage.refused(node.root, "GH-201", annotations={**TRAINER, KEY + "memory": "2Gi"})
    assert first[0].grant.shares[0].booked_mib == 1024 and first[0].grant.memory_wait == 120
    node.say("set", first[0].id, "--memory", "2Gi")
    assert (first[0].grant.shares[0].memory_mib, first[0].grant.shares[0].booked_mib) == (2048, 1024)
    said = node.say("set", first[0].id, "--memory-request", "1025Mi", status=1)
    assert "GH-201" in said and "has 1024 of 8192 MiB for requests beside the others, 1025 asked" in said
    assert "is above the limit of 6144" in node.say("set", last.id, "--memory-request", "6145Mi", status=1)
    assert "memory 6Gi (4Gi booked)" in node.say("set", last.id, "--memory-request", "4Gi")
    node.say("set", first[0].id, "--memory-request", "2Gi")
    assert first[0].grant.shares[0].booked_mib == 2048 and "booked 1024 MiB -> 2048 MiB" in node.say("events")
    node.say("set", first[0].id, "--memory", "512Mi")
    assert first[0].grant.shares[0].booked_mib == 512


def test_without_the_setting_all_is_booked(node: Node) -> None:
    node.say("settings", "set", "oversubscribe=1.0")
    tenant = node.tenant(TRAINER)
    assert tenant.grant.shares[0].booked_mib == 6 * 1024 and not tenant.grant.memory_wait
    assert "this node lends nothing" in node.say("set", tenant.id, "--memory-request", "1Gi", status=1)
    node.stage.refused(node.root, "GH-201", annotations=TRAINER)
    assert "belongs beside it" in node.stage.refused(node.root, "GH-103", annotations={KEY + "memory-request": "1Gi"})


def test_who_has_waited_has_a_turn(node: Node, agent: Agent) -> None:
    """However long it was there before. Then the other one has its own, and at last there is room for both."""
    server, away, one = crowded(node)  # the agent learns how long a move takes
    for tenant in (server, away):
        node.stage.runc("delete", "--force", tenant.id, program=node.stage.program)
    node.say("settings", "set", "memory_turn=4")
    late = node.tenant(TRAINER)
    assert [late.program("begin"), late.program("alloc 20 late")] == ["0", "0"]
    agent.looks(25)
    assert late.program("hold 5500") == "0"
    until(lambda: late.grant.suspended and not one.grant.off_gpu, seconds=600)  # turns are as long as moves take
    left = {e["id"]: e["at"] for e in events(node.stage) if e["event"] == "suspended"}
    assert left[late.id] - left[one.id] > 4
    node.stage.runc("delete", "--force", one.id, program=node.stage.program)
    until(lambda: not late.grant.off_gpu)
    assert len(late.program("digest")) == 64


def test_a_request_has_room_made_at_once(node: Node, agent: Agent) -> None:
    one, two = trainer(node, 3500), trainer(node, 3500)
    assert one.program.hear() == two.program.hear() == "0"
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("alloc 4200 server")] == ["0", "0"]
    away = [t for t in (one, two) if t.grant.lent_to]
    assert len(away) == 1 and away[0].grant.lent_to == server.id
    until(lambda: away[0].grant.suspended)
    assert f"for {server.id[:12]}" in node.say("ps") and "the agent brings it back" in node.say("why", away[0].id)
    assert node.data("gpus")["gpus"][0]["granted_mib"] == 2 * 1024 + 5 * 1024  # it keeps its booking
    node.stage.refused(node.root, "GH-201", annotations={**TRAINER, KEY + "memory-request": "2Gi"})
    node.stage.runc("delete", "--force", server.id, program=node.stage.program)
    until(lambda: not away[0].grant.off_gpu)
    assert len(one.program("digest")) == len(two.program("digest")) == 64


def test_all_get_their_turns(node: Node, agent: Agent) -> None:
    """Each of three has half of what the GPU has; nobody is told that there is no memory."""
    node.say("settings", "set", "memory_turn=1")
    before = len(moved(node, "suspended"))
    tenants = [trainer(node, 3800) for _ in range(3)]
    assert [tenant.program.hear() for tenant in tenants] == ["0", "0", "0"]
    until(lambda: moved(node, "suspended")[before:])
    for tenant in tenants:
        tenant.program.tell("digest")
    until(
        lambda: all(tenant.program.answers() for tenant in tenants), seconds=600
    )  # each once it is there; slow moves, long turns
    digests = [tenant.program.hear() for tenant in tenants]
    assert len(set(digests)) == 3 and all(len(d) == 64 for d in digests)
    # One of an earlier test may have been deleted on its way back.
    assert node.stage.used_mib() <= GPU_MIB and not {tenant.id for tenant in tenants}.intersection(
        moved(node, "not-resumed")
    )


def test_a_container_with_two_gpus_comes_back_once_both_have_room(node: Node, agent: Agent) -> None:
    both, before = trainer(node, 4000, devices="0,1"), moved(node, "not-resumed")
    assert both.program.hear() == "0"
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("hold 4500")] == ["0", "0"]
    until(lambda: not both.grant.moving)
    agent.looks(20)  # the second GPU has room all the time
    assert both.grant.suspended and moved(node, "not-resumed") == before
    node.stage.runc("delete", "--force", server.id, program=node.stage.program)
    until(lambda: not both.grant.off_gpu)
    assert len(both.program("digest")) == 64 and moved(node, "not-resumed") == before


def test_two_that_wait_for_each_other(node: Node, agent: Agent) -> None:
    node.say("settings", "set", "memory_turn=1")
    one, two = trainer(node, 3500), trainer(node, 3500)
    assert one.program.hear() == two.program.hear() == "0"
    one.program.tell("hold 1500")
    two.program.tell("hold 1500")
    assert one.program.hear() == two.program.hear() == "0"


def test_what_cannot_be_moved_stays_within_the_request(node: Node) -> None:
    tenant = trainer(node, 1500)
    assert tenant.program.hear() == "0"
    assert tenant.program("managed 10") == "2"  # beyond the request already
    other = trainer(node, 200)
    assert other.program.hear() == "0"
    assert other.program("managed 100") == "0" and other.program("hold 800") == "2" and other.program("hold 300") == "0"
    full = node.tenant({**TRAINER, KEY + "memory-request": "2Gi"})
    assert [full.program("begin"), full.program("managed 100"), full.program("hold 1600")] == ["0", "0", "0"]


def test_who_keeps_lent_memory_ends_for_who_requests_it(node: Node, agent: Agent) -> None:
    """Memory that processes share is not moved by this driver: it was only lent."""
    keeper = trainer(node, 5000)
    assert [keeper.program.hear(), keeper.program("share")] == ["0", "0"]
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("hold 4500")] == ["0", "0"]
    (found,) = until(lambda: [e for e in events(node.stage) if e.get("kind") == "keeps-lent-memory"])  # after the kill
    assert (found["action"], found["id"]) == ("killed", keeper.id)


def test_who_says_that_it_has_less_is_moved_all_the_same(node: Node, agent: Agent) -> None:
    liar = trainer(node, 5000)
    assert [liar.program.hear(), liar.program("lie")] == ["0", "0"]
    agent.looks(2)
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("hold 4500")] == ["0", "0"]
    assert liar.grant.lent_to == server.id


def test_a_page_that_its_container_has_damaged_keeps_nothing(node: Node, agent: Agent) -> None:
    """NVML still says how much it has."""
    keeper = trainer(node, 5000)
    assert [keeper.program.hear(), keeper.program("damage")] == ["0", "0"]
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("hold 4500")] == ["0", "0"]


def test_nobody_within_its_request_is_moved(node: Node, agent: Agent) -> None:
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("hold 4900")] == ["0", "0"]
    node.say("settings", "set", "memory_wait=10")
    late = trainer(node, 4000)
    until(lambda: "an allocation of 3980 MiB waits for room" in node.say("why", late.id))
    assert late.program.hear() == "2" and not server.grant.off_gpu  # after its seconds of waiting
    assert server.id not in moved(node, "suspended")


def test_without_an_agent_why_says_that_nobody_makes_room(node: Node) -> None:
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("hold 4900")] == ["0", "0"]
    node.say("settings", "set", "memory_wait=10")
    late = trainer(node, 4000)
    text = "an allocation of 3980 MiB waits for room, and no agent runs to make it; start one by `gpu-hook agent`"
    until(lambda: text in node.say("why", late.id))
    assert late.program.hear() == "2" and "waits for room" not in node.say("why", late.id)


def test_without_waiting_it_fails_at_once(node: Node) -> None:
    node.say("settings", "set", "memory_wait=0")
    one, two = trainer(node, 5000), trainer(node, 5000)
    assert sorted([one.program.hear(), two.program.hear()]) == ["0", "2"]


def test_an_agent_that_is_killed_while_somebody_is_away(node: Node) -> None:
    with running(node.stage) as agent:
        server, away, _ = crowded(node)
        agent.kill()
    node.stage.runc("delete", "--force", server.id, program=node.stage.program)
    time.sleep(0.5)
    assert away.grant.off_gpu
    with running(node.stage):
        until(lambda: not away.grant.off_gpu)
        assert node.stage.used_mib() == 2 * (3500 + CONTEXT_MIB)


def test_room_is_made_for_what_a_crash_has_left_half_moved(node: Node) -> None:
    """A neighbour has taken its room meanwhile; the command that moved it was a person's."""
    server = node.tenant(SERVER)
    assert [server.program("begin"), server.program("alloc 20 server"), server.program("hold 4480")] == ["0"] * 3
    command = [sys.executable, "-c", CRASH, str(node.stage.prefix), server.grant.key, "sent", "suspend"]
    assert subprocess.run(command, cwd=REPO).returncode == -signal.SIGKILL
    late = trainer(node, 5500)
    assert late.program.hear() == "0"
    with running(node.stage) as agent:
        until(lambda: not server.grant.off_gpu)
        assert late.grant.lent_to == server.id and len(server.program("digest")) == 64
        until(lambda: not agent.node()["agent"]["problems"])


def test_a_person_brings_it_back(node: Node, agent: Agent) -> None:
    """Where there is no room it stays away, whoever asks."""
    _, away, _ = crowded(node)
    said = node.say("resume", away.id, status=1)
    assert "GH-201" in said and "it stays suspended, and an agent that runs brings it back once there is room" in said
    assert away.grant.lent_to


def test_a_person_keeps_it_away(node: Node, agent: Agent) -> None:
    """Who suspends what is away for another has it stay so, its booking free."""
    server, away, _ = crowded(node)
    since = away.grant.suspended
    assert node.data("suspend", away.id)["changed"] and not away.grant.booked and away.grant.suspended == since
    assert not node.data("suspend", away.id)["changed"]
    assert node.data("gpus")["gpus"][0]["granted_mib"] == 1024 + 5 * 1024
    node.stage.runc("delete", "--force", server.id, program=node.stage.program)
    agent.looks(2)
    assert away.grant.suspended and node.data("resume", away.id)["changed"] and not away.grant.off_gpu


def test_a_full_gpu_is_not_tried(node: Node) -> None:
    """A restore that fails for want of memory cannot be repeated (driver 580)."""
    one = trainer(node, 3500)
    assert one.program.hear() == "0"
    before = one.program("digest")
    node.say("suspend", one.id)
    others = [trainer(node, mib) for mib in (5000, 2500)]
    assert [tenant.program.hear() for tenant in others] == ["0", "0"]
    said = node.say("resume", one.id, status=1)
    assert "GH-201" in said and "MiB free" in said and "it stays suspended" in said and one.grant.suspended
    for tenant in others:
        node.stage.runc("delete", "--force", tenant.id, program=node.stage.program)
    node.say("resume", one.id)
    assert not one.grant.off_gpu and one.program("digest") == before


SLOW = """
import os, sys, time
from oci_hook.config import settings
from oci_hook.suspend import gpu_processes, mover
prefix, key, go = sys.argv[1:]
call = gpu_processes.call
def called(inventory, what, *a):
    if what == "resume":
        open(go + ".begun", "w").close()
        while not os.path.exists(go):
            time.sleep(0.01)
    return call(inventory, what, *a)
gpu_processes.call = called
mover.resume(settings.load(prefix), key)
"""


@contextmanager
def slow_return(node: Node, tenant: Tenant, go: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """In the block, it is about to come back; at its end, it goes on."""
    command = [sys.executable, "-c", SLOW, str(node.stage.prefix), tenant.grant.key, str(go)]
    with subprocess.Popen(command, cwd=REPO) as mover:
        try:
            until(Path(f"{go}.begun").exists)
            yield mover
        finally:
            go.touch()
            mover.wait(60)


def test_nobody_takes_the_room_of_what_comes_back(node: Node, tmp_path: Path) -> None:
    """Not even within its request: it waits until the other one is there, or until that cannot be under way any more."""
    one, two = trainer(node, 3500), trainer(node, 100)
    assert one.program.hear() == two.program.hear() == "0"
    before = one.program("digest")
    node.say("suspend", one.id)
    with slow_return(node, one, tmp_path / "go") as mover:
        two.program.tell("hold 300")
        time.sleep(0.5)
        assert two.program.answers() == []
    assert mover.returncode == 0
    assert two.program.hear() == "0" and two.program("hold 300") == "0" and one.program("digest") == before


def test_two_that_come_back_at_once(node: Node, tmp_path: Path) -> None:
    """One after the other, so that both do not count on the same room: the second would be lost."""
    both = []
    for _ in range(2):
        both.append(trainer(node, 5000))
        assert both[-1].program.hear() == "0"
        node.say("suspend", both[-1].id)
    one, two = both
    with slow_return(node, one, tmp_path / "go") as mover:
        second = subprocess.Popen(node.command("resume", two.id), stderr=subprocess.PIPE, text=True, cwd=REPO)
        time.sleep(1)
    assert mover.returncode == 0 and len(one.program("digest")) == 64
    assert "GH-201" in second.communicate()[1] and two.grant.suspended


def test_who_is_beside_two_that_come_back(node: Node, tmp_path: Path) -> None:
    """It waits for both, though one is there sooner."""
    one, two, beside = trainer(node, 100), trainer(node, 3500, devices="1"), trainer(node, 100, devices="0,1")
    for tenant in (one, two, beside):
        assert tenant.program.hear() == "0"
    node.say("suspend", one.id)
    node.say("suspend", two.id)
    with slow_return(node, one, tmp_path / "go"):
        second = subprocess.Popen(node.command("resume", two.id), cwd=REPO)
        time.sleep(1)
        beside.program.tell("hold 300")
        time.sleep(0.5)
        assert beside.program.answers() == []
    assert beside.program.hear() == "0" and second.wait() == 0 and not one.grant.off_gpu


def test_who_starts_while_another_one_comes_back(node: Node, tmp_path: Path) -> None:
    one = trainer(node, 3500)
    assert one.program.hear() == "0"
    node.say("suspend", one.id)
    with slow_return(node, one, tmp_path / "go") as mover:
        late = node.tenant(SERVER)
        late.program.tell("begin")
        time.sleep(0.5)
        assert late.program.answers() == []
    assert mover.returncode == 0 and late.program.hear() == "0" and late.program("hold 300") == "0"


def test_who_does_not_wait_for_room_waits_for_what_comes_back(node: Node, tmp_path: Path) -> None:
    node.say("settings", "set", "memory_wait=0")
    one, two = trainer(node, 3500), trainer(node, 100)
    assert one.program.hear() == two.program.hear() == "0"
    node.say("suspend", one.id)
    with slow_return(node, one, tmp_path / "go"):
        two.program.tell("hold 300")
        time.sleep(0.5)
        assert two.program.answers() == []
    assert two.program.hear() == "0" and not one.grant.off_gpu


def test_who_fills_a_gpu_comes_back_to_it(node: Node) -> None:
    one = trainer(node, 8090, memory="8Gi")
    assert one.program.hear() == "0" and GPU_MIB - node.stage.used_mib() < 64
    node.say("suspend", one.id)
    node.say("resume", one.id)
    assert not one.grant.off_gpu and len(one.program("digest")) == 64


def test_who_says_that_it_has_nothing_on_two_gpus(node: Node) -> None:
    """It comes back where there is room for what the driver moved away, and is not lost."""
    liar = trainer(node, 2000, devices="0,1")
    assert [liar.program.hear(), liar.program("lie")] == ["0", "0"]
    node.say("suspend", liar.id)
    others = [trainer(node, mib) for mib in (5800, 500)]
    assert [tenant.program.hear() for tenant in others] == ["0", "0"]
    assert "MiB free" in node.say("resume", liar.id, status=1) and liar.grant.suspended
    node.stage.runc("delete", "--force", others[0].id, program=node.stage.program)
    node.say("resume", liar.id)
    assert len(liar.program("digest")) == 64
