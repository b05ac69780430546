"""The agent beside real containers: who takes what a neighbour was granted is killed, and nobody else."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from testbed.agent import Agent, events, grant, running
from testbed.stage import CONTEXT_MIB, GPU_MIB, LIMIT_MIB, SHARE, Stage
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
BIG = {**SHARE, "gpu-hook.io/memory": "4Gi"}  # half of the GPU; another half is the cheat's and nobody's
NEVER = ("--interval", "60")  # within a test, nothing but the watch of free memory finds anything


def findings(stage: Stage, id: str) -> list[dict[str, Any]]:
    return [e for e in events(stage) if e["event"] == "finding" and e["id"] == id]


def killed(stage: Stage, id: str) -> bool:
    return any(e["action"] == "killed" for e in findings(stage, id))


def looked(agent: Agent) -> None:
    """Until the agent knows all containers and has looked at the GPUs once."""
    until(lambda: agent.node()["agent"]["nvml_read"])


@pytest.mark.parametrize("how", [(), ("own",)])
def test_who_takes_what_its_neighbour_was_granted_is_killed_at_once(
    stage: Stage, root: Path, how: tuple[str, ...]
) -> None:
    honest = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    with running(stage, "--interval", "2") as agent:
        looked(agent)
        cheat = stage.start(root, "/bin/bypass", str(GPU_MIB - 1024), *how)
        until(lambda: killed(stage, cheat))
        until(lambda: stage.runc.living() == {honest})
        (told, *_) = [e for e in findings(stage, cheat) if e["action"] == "killed"]
        assert told["kind"] == "over-memory" and f"limit {LIMIT_MIB} MiB" in told["evidence"], told
        assert "others were granted" in told["evidence"] and not findings(stage, honest)
        (ended,) = until(lambda: [e for e in events(stage) if e["event"] == "ended"])
        assert ended["peak_mib"] >= GPU_MIB - 1024
        until(lambda: stage.used_mib() == 300 + CONTEXT_MIB)
        # What it was granted is there again.
        got = stage.runc.exec(honest, "/bin/gpu-probe", "alloc", str(4096 - 300 - 3 * CONTEXT_MIB)).stdout
        assert "OUT_OF_MEMORY" not in got
    (stage.state / "events").unlink()


def test_the_watch_finds_it_between_two_looks(stage: Stage, root: Path) -> None:
    stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    cheat = stage.start(root, "/bin/bypass", str(GPU_MIB - 1024), "wait")
    found = grant(stage, cheat)
    assert found and found.life.init
    with running(stage, *NEVER) as agent:
        looked(agent)
        time.sleep(1)
        os.kill(found.life.init[0], 10)
        until(lambda: killed(stage, cheat))
    (stage.state / "events").unlink()


def test_a_suspended_container_may_have_nothing(stage: Stage, root: Path) -> None:
    """What it had was granted to another one; less than its own limit is too much by then."""
    cheat = stage.start(root, "/bin/bypass", str(LIMIT_MIB - 200), "wait")
    found = grant(stage, cheat)
    assert found and found.life.init
    with running(stage) as agent:
        looked(agent)
        done = CliRunner().invoke(cli, ["suspend", cheat, "--prefix", str(stage.prefix)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        all_of_it = {**SHARE, "gpu-hook.io/memory": f"{GPU_MIB - 200}Mi"}
        honest = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=all_of_it)
        agent.looks(2)
        os.kill(found.life.init[0], 10)
        until(lambda: killed(stage, cheat))
        (told, *_) = [e for e in findings(stage, cheat) if e["action"] == "killed"]
        assert told["kind"] == "over-memory" and "limit 0 MiB" in told["evidence"], told
        assert not findings(stage, honest)
    (stage.state / "events").unlink()


def test_an_excess_that_harms_nobody_is_reported_only(stage: Stage, root: Path) -> None:
    """There is enough for the neighbour beside it."""
    stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=SHARE)
    with running(stage) as agent:
        cheat = stage.start(root, "/bin/bypass", str(4 * LIMIT_MIB))
        until(lambda: agent.kinds(cheat) == {"no-shim", "over-memory"})
        agent.looks(3)
        assert {e["action"] for e in findings(stage, cheat)} == {"reported"}
        assert cheat in stage.runc.living()
    (stage.state / "events").unlink()


@pytest.mark.parametrize(("policy", "action"), [("report", "reported"), ("freeze", "frozen"), ("kill", "killed")])
def test_the_other_policies_stay(stage: Stage, root: Path, policy: str, action: str) -> None:
    stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    with running(stage, "--policy", policy) as agent:
        cheat = stage.start(root, "/bin/bypass", str(GPU_MIB - 1024))
        told = until(lambda: findings(stage, cheat))
        assert {e["action"] for e in told} == {action}
        if policy == "report":
            agent.looks(3)
            assert agent.kinds(cheat) == {"no-shim", "over-memory"} and cheat in stage.runc.living()
            assert {e["action"] for e in findings(stage, cheat)} == {"reported"}
        if policy == "freeze":
            assert stage.runc("resume", cheat).returncode == 0
    (stage.state / "events").unlink()


def test_a_limit_that_was_lowered_kills_nobody(stage: Stage, root: Path) -> None:
    """Neither with the agent there nor with one that comes later, though its neighbour has not what it was promised."""
    first = stage.start(root, "/bin/gpu-probe", "alloc", "3000", "hold", "600", annotations=BIG)

    def lower() -> None:
        words = ["set", first, "--memory", "1Gi", "--prefix", str(stage.prefix)]
        CliRunner().invoke(cli, words, catch_exceptions=False)

    with running(stage) as agent:
        until(lambda: agent.container(first)["gpus"][0]["used_mib"])
        lower()
        other = {**SHARE, "gpu-hook.io/memory": "7Gi"}
        second = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=other)
        until(lambda: agent.kinds(first) == {"over-memory"})
        agent.looks(3)
        assert stage.runc.living() == {first, second}
    with running(stage) as agent:
        until(lambda: agent.kinds(first) == {"over-memory"})
        agent.looks(3)
        assert stage.runc.living() == {first, second} and not killed(stage, first)
    (stage.state / "events").unlink()


def test_of_two_the_worse_is_killed_and_the_other_where_that_is_not_enough(stage: Stage, root: Path) -> None:
    honest = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    small = stage.start(root, "/bin/bypass", str(LIMIT_MIB + 600))
    with running(stage, "--interval", "1") as agent:
        looked(agent)
        worse = stage.start(root, "/bin/bypass", "4500")
        until(lambda: killed(stage, worse))
        until(lambda: worse not in stage.runc.living())
        agent.looks(2)
        assert stage.runc.living() == {honest, small} and not killed(stage, small)
    (stage.state / "events").unlink()


def test_processes_in_the_hosts_pid_namespace_go_as_well(stage: Stage, root: Path) -> None:
    """Its init takes nobody along there."""

    def shared(spec: dict[str, Any]) -> None:
        spec["linux"]["namespaces"] = [n for n in spec["linux"]["namespaces"] if n["type"] != "pid"]

    honest = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    with running(stage) as agent:
        looked(agent)
        script = f"/bin/bypass {GPU_MIB - 1024} & sleep 600"
        cheat = stage.start(root, "/bin/sh", "-c", script, edit=shared)
        until(lambda: killed(stage, cheat))
        until(lambda: stage.used_mib() == 300 + CONTEXT_MIB)
        until(lambda: stage.runc.living() == {honest})
    (stage.state / "events").unlink()


def test_a_paused_container_is_killed_as_well(stage: Stage, root: Path) -> None:
    honest = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    cheat = stage.start(root, "/bin/bypass", str(GPU_MIB - 1024))
    until(lambda: stage.used_mib() > GPU_MIB - 1024)
    assert stage.runc("pause", cheat).returncode == 0
    with running(stage):
        until(lambda: killed(stage, cheat))
        until(lambda: stage.used_mib() == 300 + CONTEXT_MIB)
    assert honest in stage.runc.living()
    (stage.state / "events").unlink()


@pytest.mark.parametrize("policy", ["protect", "kill"])
def test_nobody_is_killed_for_what_somebody_hides(stage: Stage, root: Path, policy: str) -> None:
    """A tenant takes its neighbour's memory and leaves the driver's open files in a socket that nobody reads. No list of
    processes has it, and only the neighbour seems able to. New grants do not get that memory."""
    honest = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    cheat = stage.start(root, "/bin/sleep", "600")
    with running(stage, "--policy", policy) as agent:
        agent.looks(5)  # until it has seen what the driver itself has
        stage.runc("exec", "--detach", cheat, "/bin/bypass", "6500", "hide")
        until(lambda: [e for e in events(stage) if e["event"] == "unlisted-memory" and e["mib"]])
        time.sleep(2)
        assert stage.runc.living() == {honest, cheat} and not agent.kinds(honest)
        assert not agent.container(honest)["gpus"][0]["surcharge_mib"]
        assert "in use by nobody who can be told" in stage.refused(root, "GH-201")
        stage.runc("delete", "--force", cheat)
        until(lambda: [e for e in events(stage) if e["event"] == "unlisted-memory"][-1]["mib"] == 0)
        stage.start(root, "/bin/sleep", "600")
    (stage.state / "events").unlink()


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_what_an_agent_found_counts_while_it_lives(stage: Stage, root: Path, end: str) -> None:
    """What was hidden is free by then, and no agent is there to see it."""
    stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    cheat = stage.start(root, "/bin/sleep", "600")
    with running(stage) as agent:
        agent.looks(5)  # until it has seen what the driver itself has
        stage.runc("exec", "--detach", cheat, "/bin/bypass", "6500", "hide")
        until(lambda: [e for e in events(stage) if e["event"] == "unlisted-memory" and e["mib"]])
        until(lambda: (stage.state / "unlisted.json").exists())
        assert "in use by nobody who can be told" in stage.refused(root, "GH-201")
        agent.killed = True
        getattr(agent.process, end)()
        agent.process.wait()
    stage.runc("delete", "--force", cheat)
    stage.start(root, "/bin/sleep", "600")
    (stage.state / "events").unlink()


def test_hidden_memory_is_there_again_when_its_container_ends(stage: Stage, root: Path) -> None:
    """At once, not at the agent's next look, which would be a minute after it started."""
    stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=BIG)
    cheat = stage.start(root, "/bin/sleep", "600")
    with running(stage, "--interval", "60") as agent:
        looked(agent)
        time.sleep(1)  # until it has seen what the driver itself has
        stage.runc("exec", "--detach", cheat, "/bin/bypass", "6500", "hide")
        until(lambda: (stage.state / "unlisted.json").exists())
        stage.runc("delete", "--force", cheat)
        until(lambda: not (stage.state / "unlisted.json").exists(), seconds=30)
    (stage.state / "events").unlink()
