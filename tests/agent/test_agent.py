"""The agent beside real containers: it may come, go and be killed; nothing of the dead stays; who cheats is found."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from oci_hook.agent.serve import whereabouts
from oci_hook.cli import agent_check, node_now, top, why
from oci_hook.cli.main import cli
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import load
from oci_hook.core.gpu_page import COUNTS_OFFSET, SIZE
from oci_hook.core.layout import REAL_LIBCUDA
from oci_hook.ledger.deliver import page_file
from oci_hook.observe import account
from testbed.agent import Agent, events, grant, running, surcharge
from testbed.stage import CONTEXT_MIB, LIMIT_MIB, SHARE, Stage
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
HOLD = ("/bin/gpu-probe", "alloc", "300", "hold", "600")


def test_containers_come_and_go_and_so_does_the_agent(stage: Stage, root: Path) -> None:
    first = stage.start(root, *HOLD)
    with running(stage) as agent:
        seen = until(lambda: (c := agent.container(first)) and c["gpus"][0]["peak_mib"] and c)
        assert (seen["state"], seen["gpus"][0]["used_mib"]) == ("running", 300 + CONTEXT_MIB)
        assert agent.node()["agent"]["state"] == "ok"
        second = stage.start(root)
        until(lambda: agent.container(second))

        other = CliRunner().invoke(cli, ["agent", "--prefix", str(stage.prefix), "--address", "none"])
        assert other.exit_code == 1 and f"GH-320: process {agent.process.pid} is the agent" in other.output

        key = grant(stage, first).key  # type: ignore[union-attr]
        stage.runc("kill", first, "KILL")
        # Nobody looks at the ledger but the agent.
        until(lambda: not (stage.state / f"ledger/{key}.json").exists())
        until(lambda: agent.container(first) is None)
        assert not (stage.state / "pages" / key).exists()
        assert [e["id"] for e in events(stage) if e["event"] == "ended"] == [first]

        agent.kill()
    with running(stage) as again:  # its lock died with it
        assert again.container(second) and stage.runc.living() == {second}
    assert stage.runc.living() == {second} and grant(stage, second)


def test_it_goes_with_its_state_directory(stage: Stage) -> None:
    """Commands find it there, and it stays the only one."""
    moved = f"{stage.folder}/moved"
    with running(stage) as agent:
        for folder in (moved, str(stage.state)):
            done = CliRunner().invoke(cli, ["settings", "set", f"state_dir={folder}", "--prefix", str(stage.prefix)])
            assert done.exit_code == 0, done.output
            until(lambda folder=folder: whereabouts.holder(f"{folder}/agent.lock") == agent.process.pid)  # type: ignore[misc]
            answered = until(lambda: node_now.ask(node_settings.load(str(stage.prefix))))
            assert answered["agent"]["state_dir"] == folder and answered["agent"]["page"] == f"127.0.0.1:{agent.port}"
            other = CliRunner().invoke(cli, ["agent", "--prefix", str(stage.prefix), "--address", "none"])
            assert other.exit_code == 1 and f"GH-320: process {agent.process.pid} is the agent" in other.output
        until(lambda: not os.path.exists(moved))


def test_many_short_containers(stage: Stage, root: Path) -> None:
    """No descriptor, no memory of them stays."""
    with running(stage) as agent:
        process = psutil.Process(agent.process.pid)
        before = process.num_fds()
        ledger = stage.state / "ledger"
        for _ in range(5):
            ids = [stage.start(root, "/bin/sleep", "600") for _ in range(3)]
            for id in ids:
                stage.runc("kill", id, "KILL")
            for id in ids:
                stage.runc("delete", "--force", id)
        until(lambda: not list(ledger.glob("*.json")) and not agent.node()["containers"])
        until(lambda: process.num_fds() <= before + 1)


@pytest.mark.parametrize("policy", ["report", "freeze", "kill"])
def test_a_tenant_that_goes_past_the_shim(stage: Stage, root: Path, policy: str) -> None:
    honest = stage.start(root, *HOLD)
    with running(stage, "--policy", policy, "--tolerance", "16Mi") as agent:
        cheat = stage.start(root, "/bin/bypass", str(LIMIT_MIB + 200))
        found = until(lambda: [e for e in events(stage) if e["event"] == "finding" and e["id"] == cheat])
        until(lambda: len([e for e in events(stage) if e["event"] == "finding" and e["id"] == cheat]) >= 2)
        assert {e["kind"] for e in events(stage) if e["event"] == "finding"} == {"no-shim", "over-memory"}
        assert "(bypass)" in " ".join(e["evidence"] for e in events(stage) if e["event"] == "finding")
        assert found[0]["action"] == {"report": "reported", "freeze": "frozen", "kill": "killed"}[policy]
        log = agent.log.read_text()
        assert f"container {cheat}: " in log and f"container {honest}: " not in log
        if policy == "report":
            assert agent.kinds(cheat) == {"no-shim", "over-memory"} and stage.runc.living() == {honest, cheat}
            (bypass,) = [e for e in events(stage) if e["event"] == "finding" and e["kind"] == "no-shim"]
            assert bypass["evidence"].endswith(f"; libcuda: {REAL_LIBCUDA})"), bypass
            told = "\n".join(why.running(agent.container(cheat), agent.node(), []).lines)
            assert " more than its limit, past the shim" in told and "used up" not in told
            text = agent.get("/metrics").decode()
            assert 'gpu_hook_findings_total{kind="no-shim"} 1\n' in text
            assert "gpu_hook_container_findings{" in text and cheat in text
        elif policy == "freeze":
            state = stage.runc("state", cheat).stdout
            assert '"status": "paused"' in state
            assert agent.container(cheat)["state"] == "frozen"
            assert stage.runc("resume", cheat).returncode == 0
            until(lambda: agent.container(cheat)["state"] == "running")
            until(lambda: (agent.container(cheat)["gpus"][0]["used_mib"] or 0) > LIMIT_MIB)
            assert '"status": "running"' in stage.runc("state", cheat).stdout  # not again for what stands
        else:
            until(lambda: stage.runc.living() == {honest})
            until(lambda: agent.container(cheat) is None)
    assert honest in stage.runc.living()


def test_a_tenant_that_claims_the_gpu_and_does_not_use_it(stage: Stage, root: Path) -> None:
    """It only writes its slot file: always waiting, so its equals wait for half of the time. Whatever the policy, it is named
    and goes on; honest ones are never named."""
    ask = {**SHARE, "gpu-hook.io/compute": "50"}
    honest = stage.start(root, "/bin/gpu-probe", "run", "500", "600", annotations=ask)
    other = stage.start(root, "/bin/gpu-probe", "run", "500", "600", annotations={**SHARE})
    with running(stage, "--policy", "kill", "--interval", "0.5") as agent:
        agent.looks(40)  # two spans, and a look
        assert not [e for e in events(stage) if e["event"] == "finding"]
        stage.runc("delete", "--force", other)
        until(lambda: agent.container(other) is None)
        liar = stage.start(root, "/bin/liar", "held", "0", "--out", "/dev/null", "--scale", "1", annotations=ask)
        until(lambda: agent.kinds(liar) == {"hogs-gate"})
        (told,) = (e for e in events(stage) if e["event"] == "finding")
        assert (told["id"], told["action"]) == (liar, "reported")
        assert told["evidence"].startswith(honest[:12]) and "its share is 50 %" in told["evidence"]
        assert {honest, liar} <= stage.runc.living() and not agent.kinds(honest)


def test_a_tenant_that_writes_records_of_processes(stage: Stage, root: Path) -> None:
    """It uses no GPU, and NVML lists none of its processes. Whatever the policy, it is named and goes on."""
    ask = {**SHARE, "gpu-hook.io/compute": "50"}
    honest = stage.start(root, "/bin/gpu-probe", "run", "500", "600", annotations=ask)
    with running(stage, "--policy", "kill", "--interval", "0.5") as agent:
        forger = ("/bin/liar", "forged-8-busy-most", "0", "--out", "/dev/null", "--scale", "1")
        liar = stage.start(root, *forger, annotations=ask)
        until(lambda: "forged-records" in agent.kinds(liar))
        assert {honest, liar} <= stage.runc.living() and not agent.kinds(honest)


def test_each_container_is_told_how_many_processes_the_others_have_on_the_gpu(stage: Stage, root: Path) -> None:
    """By NVML: whatever records they write, its gate believes no more. Without an agent, the count ends soon."""
    two = stage.start(root, "/bin/gpu-probe", "run", "500", "600", annotations=SHARE)
    none = stage.start(root, *HOLD, annotations=SHARE)
    grants = [found for id in (two, none) if (found := grant(stage, id))]

    def told() -> list[list[int]]:
        """What each of them is told of both; nothing where that holds no more."""
        said = []
        for of in grants:
            page = Path(page_file(str(stage.state), of.key)).read_bytes()[SIZE:]
            until = int.from_bytes(page[COUNTS_OFFSET:][:8], "little")
            counts = page[COUNTS_OFFSET + 8 :]
            holds = until > time.monotonic_ns()
            said.append([counts[g.shares[0].slot - 1] for g in grants] if holds else [])
        return said

    assert told() == [[], []]
    with running(stage, "--interval", "0.5") as agent:
        assert stage.runc("exec", "--detach", two, "/bin/gpu-probe", "run", "500", "600").returncode == 0
        until(lambda: told() == [[2, 1], [2, 1]])
        agent.looks(2)
        assert told() == [[2, 1], [2, 1]]
    until(lambda: told() == [[], []])


@pytest.mark.parametrize(
    ("policy", "how", "done"),
    [
        ("report", "own", "reported"),
        ("freeze", "own", "frozen"),
        ("kill", "own", "killed"),
        ("protect", "own", "reported"),
        ("protect", "alone", "killed"),
    ],
)
def test_a_tenant_that_computes_past_the_gate(stage: Stage, root: Path, policy: str, how: str, done: str) -> None:
    """Its kernels bypass the gate and its ceiling, and its neighbour has less than it was guaranteed. Where its process is on the
    account page ("own"), that may be allocations and copies, and by default it is only reported."""
    ask = {**SHARE, "gpu-hook.io/policy": "fixed-share", "gpu-hook.io/compute": "30"}
    honest = stage.start(root, "/bin/gpu-probe", "run", "500", "600", annotations={**ask, "gpu-hook.io/compute": "70"})
    with running(stage, "--policy", policy, "--interval", "0.5") as agent:
        cheat = stage.start(root, "/bin/bypass", "1", how, "500", annotations=ask)

        def findings() -> list[dict[str, Any]]:
            return [e for e in events(stage) if e["event"] == "finding" and e["kind"] != "no-shim"]

        told = until(findings)
        if how == "alone":
            until(lambda: findings()[-1]["action"] == "killed")
            told = findings()[-1:]
        assert {(e["id"], e["kind"]) for e in told} == {(cheat, "over-compute")}, told
        assert "ceiling 30 %, tolerance 15 points" in told[0]["evidence"]
        assert ("that are not on its account page" in told[0]["evidence"]) == (how == "alone")
        assert told[0]["action"] == done
        if done == "reported":
            until(lambda: agent.container(honest)["gpus"][0]["compute_shortfall"] > 3)
            agent.looks(4)
            assert len(findings()) == 1 and cheat in stage.runc.living()
            assert agent.kinds(cheat) == {"over-compute"}
            assert 'gpu_hook_findings_total{kind="over-compute"} 1\n' in agent.get("/metrics").decode()
        elif done == "frozen":
            assert '"status": "paused"' in stage.runc("state", cheat).stdout
            assert stage.runc("resume", cheat).returncode == 0
        else:
            until(lambda: stage.runc.living() == {honest})
        assert honest in stage.runc.living() and {e["id"] for e in findings()} == {cheat}


def test_compute_past_the_gate_that_harms_nobody_is_reported(stage: Stage, root: Path) -> None:
    """A ceiling alone: its neighbour has a guarantee and does not want it."""
    ask = {**SHARE, "gpu-hook.io/policy": "fixed-share", "gpu-hook.io/compute": "10"}
    idle = stage.start(root, *HOLD, annotations=ask)
    with running(stage, "--policy", "protect", "--interval", "0.5") as agent:
        cheat = stage.start(root, "/bin/bypass", "1", "own", "500", annotations=ask)
        until(lambda: agent.kinds(cheat) == {"over-compute"})
        looks = agent.container(cheat)["gpus"][0]
        until(lambda: agent.container(cheat)["gpus"][0] != looks)
        (told,) = (e for e in events(stage) if e["event"] == "finding")
        assert (told["id"], told["action"]) == (cheat, "reported") and "ceiling 10 %" in told["evidence"]
        assert {cheat, idle} <= stage.runc.living()


def test_the_last_minutes_are_remembered(stage: Stage, root: Path) -> None:
    busy, idle = stage.start(root, "/bin/gpu-probe", "run", "500", "600"), stage.start(root, *HOLD)
    began = time.time() - 1
    with running(stage, "--interval", "0.5") as agent:
        keys = {id: grant(stage, id).key for id in (busy, idle)}  # type: ignore[union-attr]

        def lines() -> dict[str, list[list[float]]] | None:
            told = json.loads(agent.get("/api/history"))
            assert set(told) <= set(keys.values())
            found = {id: next(iter(told.get(key, {}).values()), []) for id, key in keys.items()}
            return found if all(len(line) >= 5 for line in found.values()) else None

        told = until(lines)
        for line in told.values():
            times = [at for at, _, _ in line]  # a look that was slow is near the next one
            assert times == sorted(set(times)) and len(times) <= (times[-1] - times[0]) / 0.5 + 2, line
            assert began < times[0] and times[-1] < time.time() + 1, line
        assert told[idle][-1][1:] == [300 + CONTEXT_MIB, 0]
        assert told[busy][-1][1] == CONTEXT_MIB and max(percent for _, _, percent in told[busy]) > 50
        stage.runc("kill", busy, "KILL")
        until(lambda: set(json.loads(agent.get("/api/history"))) == {keys[idle]})


def test_what_the_shim_does_not_see_is_charged(stage: Stage, root: Path) -> None:
    """A process that uses both ways: its neighbours in the container get less by what it took without being charged."""
    with running(stage, "--tolerance", "2Gi"):
        id = stage.start(root, "/bin/bypass", "500", "own")
        # One context is shared by both ways and booked; 16 MiB are booked as well.
        until(lambda: surcharge(stage, id) == 500)
        said = stage.runc.exec(id, "/bin/gpu-probe", "info").stdout
        free = LIMIT_MIB - 500 - 16 - 2 * CONTEXT_MIB
        assert f"{free} MiB free" in said or f"{free + CONTEXT_MIB} MiB free" in said, said
        refused = stage.runc.exec(id, "/bin/gpu-probe", "alloc", str(free + CONTEXT_MIB + 1))
        assert "OUT_OF_MEMORY" in refused.stdout + refused.stderr
        # Written over by the tenant, it is there again after the next look.
        found = grant(stage, id)
        assert found and found.life.init
        with account.Account(*found.life.init) as page:
            page.surcharge(0, 0)
        # Less what is still booked for the two programs that have ended.
        until(lambda: surcharge(stage, id) >= 500 - 2 * CONTEXT_MIB)


def test_what_the_gate_tells_and_who_is_frozen(stage: Stage, root: Path) -> None:
    """Two containers that want the GPU: their shares by what the gate charged; then one is frozen from `top`."""
    share = {**SHARE, "gpu-hook.io/memory": "1Gi"}
    busy = ("/bin/gpu-probe", "launch", "2000", "100000")
    ids = [stage.start(root, *busy, annotations={**share, "gpu-hook.io/compute": n}) for n in ("60", "30")]
    with running(stage, "--interval", "1") as agent:

        def gpu(id: str) -> Any:
            return agent.container(id)["gpus"][0]

        until(lambda: all(gpu(id)["compute_used"] and gpu(id)["gate"]["launches"] > 0 for id in ids))
        text = agent.get("/metrics").decode()
        assert "gpu_hook_container_compute_charged_seconds_total{" in text and 'mode="' in text
        settings = load(str(stage.prefix))
        screen = top.Screen(agent.node(), settings)
        screen.selected = agent.container(ids[0])["key"]
        screen.press("f")
        assert screen.message.startswith("froze ")
        until(lambda: agent.container(ids[0])["state"] == "frozen" and gpu(ids[0])["gate"]["mode"] == "frozen")
        assert agent.container(ids[0])["frozen_since"] and not agent.kinds(ids[0])
        until(lambda: agent.container(ids[0])["frozen_seconds"] > 0.5)
        screen.press("r")
        until(lambda: agent.container(ids[0])["state"] == "running" and gpu(ids[0])["gate"]["mode"] != "frozen")
        assert agent.container(ids[1])["frozen_seconds"] == 0


PAST_THE_GATE = (
    "mkdir -p /tmp/past; ln -sf /run/gpu-hook/driver/cuda /tmp/past/libcuda.so.1;"
    " LD_LIBRARY_PATH=/tmp/past exec /bin/gpu-probe run 500 600"
)


def watch(agent: Agent, ids: list[str], seconds: float) -> list[tuple[float, float]]:
    """(NVML's utilization by the container's processes on average, its shortfall at the end)."""
    seen: list[dict[float, int]] = [{} for _ in ids]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        node = agent.node()
        for id, one in zip(ids, seen, strict=True):
            gpu = next(c for c in node["containers"] if c["id"] == id)["gpus"][0]
            one[node["at"]] = gpu["utilization"] or 0
        time.sleep(0.1)
    return [
        (sum(one.values()) / len(one), agent.container(id)["gpus"][0]["compute_shortfall"])
        for id, one in zip(ids, seen, strict=True)
    ]


def test_the_shortfall_is_what_the_gpu_saw(stage: Stage, root: Path) -> None:
    """Two that keep to the gate; then one beside them that passes it by, and takes from both."""
    ask = {**SHARE, "gpu-hook.io/policy": "burst-share"}
    guarantees = (60, 30)
    busy = ("/bin/gpu-probe", "run", "2000", "600")
    ids = [stage.start(root, *busy, annotations={**ask, "gpu-hook.io/compute": str(n)}) for n in guarantees]
    lost: list[float] = []
    for cheat in (False, True):
        if cheat:
            stage.start(root, "/bin/sh", "-c", PAST_THE_GATE)
        with running(stage, "--policy", "report", "--interval", "0.5") as agent:
            until(lambda: all(agent.container(id)["gpus"][0]["compute_shortfall"] is not None for id in ids))
            figures = watch(agent, ids, 10)  # before some seconds have passed, the driver's figures say nothing
            for n, (had, error) in zip(guarantees, figures, strict=True):
                # At most all the time it wanted work; less where the machine gave it no processor.
                assert 0.6 * n - had - 15 < error < n - had + 15, figures
            lost.append(figures[0][1])
            text = agent.get("/metrics").decode()
            assert text.count("gpu_hook_container_compute_shortfall_ratio{") == 2
    assert lost[1] > lost[0] + 8, lost


def test_harvest_is_what_offline_containers_had(stage: Stage, root: Path) -> None:
    offline = {**SHARE, "gpu-hook.io/class": "offline"}
    stage.start(root, "/bin/sleep", "600", annotations={**SHARE, "gpu-hook.io/class": "online"})
    id = stage.start(root, "/bin/gpu-probe", "run", "2000", "600", annotations=offline)
    with running(stage, "--interval", "0.5") as agent:
        until(lambda: (agent.container(id)["gpus"][0]["harvested"] or 0) > 1)
        ((busy, error),) = watch(agent, [id], 4)
        (gpu, other), harvest = agent.node()["gpus"], agent.container(id)["gpus"][0]["harvested"]
        assert abs(harvest - busy) < 25 and error is None and busy > 50, (harvest, busy)
        assert abs(gpu["harvested"] - harvest) < 10 and other["harvested"] is None
        assert "gpu_hook_container_harvested_seconds_total{" in agent.get("/metrics").decode()


HOSTILE = (
    "mkfifo page",
    "mkdir page",
    "ln -s /dev/zero page",
    "ln -s ../../../../etc/passwd page",
    "echo short >page",
    "dd if=/dev/zero of=page bs=1 count=1 seek=544767",
    "mknod page c 1 5",
)


def test_a_page_that_is_anything_but_a_page(stage: Stage, root: Path) -> None:
    for applet in ("mkfifo", "mkdir", "ln"):
        if not (root / "bin" / applet).is_symlink():
            (root / "bin" / applet).symlink_to("busybox")
    with running(stage) as agent:
        ids = []
        for setup in HOSTILE:
            script = f"cd /run/gpu-hook/account && {setup}; sleep 600"
            ids.append(stage.start(root, "/bin/sh", "-c", script))
        until(lambda: {"bad-account-page"} == agent.kinds(ids[0]) == agent.kinds(ids[1]) == agent.kinds(ids[2]))
        agent.looks(3)
        assert agent.node()["agent"]["state"] == "ok"
        assert [agent.kinds(id) for id in ids[:5]] == [{"bad-account-page"}] * 5
        assert agent.kinds(ids[5]) == set()  # all zero: nothing is booked yet


def test_nvml_that_dies_comes_back(stage: Stage, root: Path) -> None:
    with running(stage) as agent:
        (nvml,) = psutil.Process(agent.process.pid).children()
        nvml.kill()
        until(lambda: agent.node()["agent"]["state"] == "degraded" and "nvml" in agent.node()["agent"]["problems"])
        assert agent.node()["gpus"][0]["used_mib"] is None  # not known is not as before
        assert b'gpu_hook_agent_problem{problem="nvml"} 1\n' in agent.get("/metrics")
        id = stage.start(root)
        until(lambda: agent.container(id))  # the rest goes on
        until(lambda: agent.node()["agent"]["nvml"] == "ok" and agent.node()["agent"]["state"] == "ok")


def test_a_ledger_that_is_held_does_not_hold_the_agent(stage: Stage, root: Path) -> None:
    id = stage.start(root)
    with running(stage) as agent, subprocess.Popen(["flock", str(stage.state / "ledger/lock"), "sleep", "2"]) as holder:
        time.sleep(0.2)
        stage.runc("kill", id, "KILL")
        assert agent.node()["agent"]["state"] == "ok"  # it answers meanwhile
        holder.wait()
        until(lambda: agent.container(id) is None)


def test_the_driver_changes(stage: Stage) -> None:
    """The inventory is made anew, and NVML is asked through the new library."""
    library = next((stage.prefix / "sim/root").rglob("libcuda.so.550*"))
    with running(stage) as agent:
        os.utime(library)
        until(lambda: "GPUs found: 2" in agent.log.read_text())
        until(lambda: agent.node()["agent"]["state"] == "ok" and agent.node()["agent"]["nvml"] == "ok")
        assert len(agent.node()["gpus"]) == 2


def test_the_driver_goes_and_comes_back(stage: Stage, root: Path) -> None:
    """Unloaded while containers run: said, nobody new is let on, and what was there is known again afterwards."""
    held = stage.start(root, *HOLD)
    library = next((stage.prefix / "sim/root").rglob("libcuda.so.550*"))
    away = stage.folder / "libcuda.away"
    with running(stage) as agent:
        until(lambda: (c := agent.container(held)) and c["gpus"][0]["used_mib"])
        library.rename(away)
        try:
            problem = until(lambda: agent.node()["agent"]["problems"].get("inventory", ""))
            assert "GH-302" in problem and "is gone" in problem
            node = agent.node()
            assert node["agent"]["state"] == "degraded" and node["gpus"] == []
            assert [c["id"] for c in node["containers"]] == [held] and stage.runc.living() == {held}
            assert b'gpu_hook_agent_problem{problem="inventory"} 1\n' in agent.get("/metrics")
            stage.refused(root, "GH-302")
        finally:
            away.rename(library)
        until(lambda: agent.node()["agent"]["state"] == "ok" and len(agent.node()["gpus"]) == 2)
        until(lambda: agent.container(held)["gpus"][0]["used_mib"])
        assert "inventory: well again" in agent.log.read_text()


def test_metrics_without_a_port(stage: Stage, root: Path, tmp_path: Path) -> None:
    """As a file for node_exporter: replaced while it is read, always a whole one; a kill leaves the last."""
    id = stage.start(root)
    file = tmp_path / "gpu-hook.prom"
    agent = Agent(stage, "--address", "none", "--textfile", str(file), "--interval", "0.1")
    try:
        until(lambda: file.exists() and id in file.read_text())
        seen = set()
        end = time.monotonic() + 120
        while len(seen) < 3 and time.monotonic() < end:
            with open(file, "rb") as f:
                seen.add(os.fstat(f.fileno()).st_ino)
                text = f.read().decode()
            assert text.endswith("\n")
            names = {family.name for family in text_string_to_metric_families(text)}
            assert {"gpu_hook_build_info", "gpu_hook_container_info", "gpu_hook_create_duration_seconds"} <= names
        assert len(seen) == 3 and file.stat().st_mode & 0o777 == 0o644
        assert "http://" not in agent.log.read_text()
        listening = Path(f"/proc/{agent.process.pid}/net/tcp").read_text()
        sockets = {os.readlink(f) for f in Path(f"/proc/{agent.process.pid}/fd").iterdir() if f.is_symlink()}
        inodes = {line.split()[9] for line in listening.splitlines()[1:] if line.split()[3] == "0A"}
        assert not {f"socket:[{inode}]" for inode in inodes} & sockets
    finally:
        agent.kill()
    assert id in file.read_text()
    again = Agent(stage, "--address", "none", "--textfile", str(file))
    try:
        inode = file.stat().st_ino
        until(lambda: file.stat().st_ino != inode)
    finally:
        again.kill()
    assert {path.name for path in tmp_path.iterdir()} <= {file.name, f"{file.name}.new"}


def test_beyond_loopback_only_with_a_token(stage: Stage, tmp_path: Path) -> None:
    refused = CliRunner().invoke(cli, ["agent", "--prefix", str(stage.prefix), "--address", "0.0.0.0:0"])
    assert refused.exit_code == 1 and "GH-501: agent.address 0.0.0.0:0 is not loopback" in refused.output
    token = tmp_path / "token"
    token.write_text("a-token-of-twenty-odd\n")
    token.chmod(0o600)
    agent = Agent(stage, "--address", "0.0.0.0:0", "--token-file", str(token))
    try:
        said = until(lambda: agent.log.read_text().partition("http://0.0.0.0:")[2])
        agent.port = int(said.partition("/")[0])
        for path in ("/", "/metrics", "/api/node", "/api/history", "/api/events", "/api/processes"):
            with pytest.raises(urllib.error.HTTPError) as error:
                agent.get(path)
            assert error.value.code == 401
            error.value.close()
            url = f"http://127.0.0.1:{agent.port}{path}"
            request = urllib.request.Request(url, headers={"Authorization": "Bearer a-token-of-twenty-odd"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200 and answer.read()
        assert "a-token-of" not in agent.log.read_text()
    finally:
        agent.kill()


def test_whoever_has_its_port_keeps_it_from_nothing_else(stage: Stage, root: Path, tmp_path: Path) -> None:
    """Any user may be first on a port above 1023. A container that goes past the shim is found all the same."""
    metrics = tmp_path / "gpu_hook.prom"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        agent = Agent(stage, "--address", f"127.0.0.1:{port}", "--textfile", str(metrics))
        try:
            problem = 'gpu_hook_agent_problem{problem="page"} '
            until(lambda: metrics.exists() and f"{problem}1\n" in metrics.read_text())
            assert "GH-321: nothing is served at agent.address" in agent.log.read_text()
            r = CliRunner().invoke(cli, ["doctor", "--json", "--prefix", str(stage.prefix)], catch_exceptions=False)
            (said,) = [f for f in json.loads(r.output)["findings"] if f["check"] == "agent"]
            assert said["state"] == "warn" and said["message"].startswith(
                "degraded: page: GH-321: nothing is served at"
            )
            assert "Address already in use" in said["message"] and said["fix"] == "ss -ltnp"
            for command in ("ps", "top"):
                line = [command, *(["--once"] if command == "top" else []), "--prefix", str(stage.prefix)]
                r = CliRunner().invoke(cli, line, catch_exceptions=False)
                assert r.exit_code == 0 and "no agent" not in r.output, r.output
            other.setblocking(False)
            with pytest.raises(BlockingIOError):  # no command has asked there
                other.accept()
            stage.start(root, "/bin/bypass", "300")
            until(lambda: 'gpu_hook_findings_total{kind="no-shim"} 1\n' in metrics.read_text())
            other.close()
            agent.port = port
            until(lambda: f"{problem}0\n" in metrics.read_text())
            assert agent.node()["agent"]["state"] == "ok"
        finally:
            agent.kill()


def test_doctor_has_a_line_on_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    file = stage.prefix / "etc/settings.yaml"
    before = file.read_text()

    def said(state: str) -> list[dict[str, str]]:
        r = CliRunner().invoke(cli, ["doctor", "--json", "--prefix", str(stage.prefix)], catch_exceptions=False)
        return [f for f in json.loads(r.output)["findings"] if f["check"] == "agent" and f["state"] == state]

    try:
        with running(stage) as agent:  # at another address than the settings say
            (there,) = said("ok")
            where = f"web page http://127.0.0.1:{agent.port}/"
            assert there["message"].endswith(f"runs (process {agent.process.pid}), {where}")
        file.write_text(before.replace("127.0.0.1:9409", address))
        assert "does not run" in said("note")[0]["message"]
        with running(stage, "--address", address) as agent:
            pid = agent.process.pid
            assert f"runs (process {pid}), web page http://{address}/" in said("ok")[0]["message"]
            CliRunner().invoke(cli, ["sim", "fault", "--gpu", "1", "--lost", "--prefix", str(stage.prefix)])
            (degraded,) = until(lambda: said("warn"))
            assert "is lost" in degraded["message"] and degraded["fix"] == "dmesg | grep -i xid"
            CliRunner().invoke(cli, ["sim", "fault", "--prefix", str(stage.prefix)])
            until(lambda: said("ok"))
            with monkeypatch.context() as patch:
                patch.setattr(agent_check, "__version__", "9.9")
                (old,) = said("warn")
                assert "the install is 9.9" in old["message"] and "gpu-hook" in old["fix"]
            agent.process.send_signal(signal.SIGSTOP)
            (silent,) = said("warn")
            agent.process.send_signal(signal.SIGCONT)
            assert (
                f"runs (process {pid}), but does not answer at {stage.state}.sock" in silent["message"]
                and silent["fix"]
            )
    finally:
        file.write_text(before)
        for words in (["sim", "fault"], ["gpus", "--refresh"]):
            CliRunner().invoke(cli, [*words, "--prefix", str(stage.prefix)], catch_exceptions=False)
        (stage.state / "events").unlink(missing_ok=True)


def test_on_mig_devices_an_honest_container_is_left_and_a_cheat_found(tmp_path: Path, root: Path) -> None:
    """NVML lists a device's processes both by the device and by its GPU, which nobody was granted."""
    stage = Stage(tmp_path, "--mig", "3g.4gb,1g.1gb")
    try:
        on = {"gpu-hook.io/memory": "512Mi"}
        honest = stage.start(root, *HOLD, annotations={**on, "gpu-hook.io/devices": "0:0"})
        with running(stage, "--policy", "freeze") as agent:
            seen = until(lambda: (c := agent.container(honest)) and c["gpus"][0]["peak_mib"] and c)
            agent.looks(3)
            assert (seen["state"], seen["gpus"][0]["used_mib"]) == ("running", 300 + CONTEXT_MIB)
            assert not agent.kinds(honest) and not agent.node()["agent"]["problems"]
            cheat = stage.start(root, "/bin/bypass", "800", annotations={**on, "gpu-hook.io/devices": "0:1"})
            until(lambda: agent.kinds(cheat) == {"no-shim", "over-memory"})
            until(lambda: (c := agent.container(cheat)) and c["state"] == "frozen")
            assert not agent.kinds(honest) and not agent.node()["agent"]["problems"]
    finally:
        stage.close()
