"""The agent on a bad day: clocks that jump, containers by the thousand, a full disk, kills, names that bite."""

import io
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from oci_hook.cli import top, why
from oci_hook.cli.main import cli
from oci_hook.config.settings import load
from oci_hook.core.grant import Identity, Life
from oci_hook.core.request import GpuRequest, Request
from oci_hook.ledger import admit, slot_files, store
from oci_hook.ledger import events as node_events
from oci_hook.linux.proc import boot_id, process_life
from testbed.agent import Agent, events, grant, running
from testbed.long import long
from testbed.stage import CC, GLIBC, SHARE, Stage
from testbed.until import until
from tests.agent.test_agent import HOLD

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
DAY = 86400


def books_are_right(stage: Stage) -> bool:
    """On disk, with nobody asked to tidy up: the living containers' grants and pages, and no others."""
    keys = {store.grant_key(str(stage.runc.root), id) for id in stage.runc.living()}
    files = {p.stem for p in (stage.state / "ledger").iterdir() if p.name != "lock" and p.suffix != ".return"}
    return keys == files == {p.name for p in (stage.state / "pages").iterdir()}


def test_the_wall_clock_jumps(stage: Stage, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, offset = tmp_path / "wall.so", tmp_path / "offset"
    source = Path(__file__).with_name("wall.c")
    subprocess.run([*CC, *GLIBC, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    elsewhen = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(offset)}

    def jump(seconds: int) -> None:
        (tmp_path / "new").write_text(str(seconds))
        (tmp_path / "new").rename(offset)

    jump(0)
    with running(stage, env=elsewhen) as agent:
        first = stage.start(root, *HOLD)
        until(lambda: (c := agent.container(first)) and c["gpus"][0]["used_mib"])
        for days in (3650, -365):
            jump(days * DAY)
            until(lambda days=days: abs(agent.node()["at"] - time.time() - days * DAY) < DAY)  # type: ignore[misc]
            with monkeypatch.context() as patch:
                for name, value in elsewhen.items():
                    patch.setenv(name, value)
                other = stage.start(root)
            made = grant(stage, other)
            assert made and abs(made.created - time.time() - days * DAY) < DAY
            until(lambda other=other: agent.container(other))  # type: ignore[misc]
            stage.runc("kill", other, "KILL")
            # Found by the agent alone, and by its own clock at once.
            until(lambda other=other: agent.container(other) is None)  # type: ignore[misc]
            until(lambda: books_are_right(stage))
            seen = agent.container(first)
            assert seen["gpus"][0]["used_mib"] and agent.node()["agent"]["state"] == "ok"
        log = agent.log.read_text()
    assert "nvml:" not in log and "ledger:" not in log, log
    assert [e["id"] for e in events(stage) if e["event"] == "ended"][-1] == other
    (stage.state / "events").unlink()


SHORT = 2000 if long() else 600
AT_ONCE = 40


def test_containers_by_the_thousand(stage: Stage) -> None:
    """Grants by the way that the runtime takes, of processes that live some milliseconds; nothing of them stays."""
    settings = load(str(stage.prefix))
    request = Request((GpuRequest(memory=("mib", 80), compute=1),))

    def short_lived(n: int) -> None:
        with subprocess.Popen(["sleep", "600"]) as process:
            try:
                life = Life(boot_id(), creator=process_life(process.pid))
                for i in range(AT_ONCE):
                    id = f"short{n}-{i}" + "x" * 300
                    who = Identity("/run/nowhere", id, f"/b{n}-{i}", "ns", "pod", "c")
                    made = admit.admit(request, who, life, settings)
                    node_events.granted(str(stage.state), made.grant, 0.01)
            finally:
                process.kill()

    for _ in range(300):  # so that the events' files change meanwhile
        node_events.record(str(stage.state), "filler", text="x" * 3000)
    with running(stage) as agent:
        short_lived(-1)
        until(lambda: not agent.node()["containers"])
        process = psutil.Process(agent.process.pid)
        descriptors, memory = process.num_fds(), process.memory_info().rss >> 10
        for n in range(SHORT // AT_ONCE):
            short_lived(n)
        until(lambda: not agent.node()["containers"] and books_are_right(stage))
        text = agent.get("/metrics").decode()
        assert f"gpu_hook_grants_total {SHORT + AT_ONCE}" in text
        until(lambda: process.num_fds() <= descriptors + 1)
        after = process.memory_info().rss >> 10
        assert after < memory + max(1536, 2 * SHORT), (memory, after)
        assert agent.node()["agent"]["state"] == "ok"
    sizes = [f.stat().st_size for f in stage.state.glob("events*")]
    assert len(sizes) == 2 and max(sizes) <= node_events.MAX + node_events.LINE_MAX
    for file in stage.state.glob("events*"):
        file.unlink()


@pytest.fixture
def small(tmp_path: Path, native: Path) -> Iterator[Stage]:
    """A stage whose state directory is a tmpfs of 1 MiB."""
    (tmp_path / "state").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(tmp_path / "state")], check=True)
    stage = None
    try:
        stage = Stage(tmp_path)
        yield stage
    finally:
        if stage:
            stage.runc.close()
        slot_files.drop(str(tmp_path / "state"))
        subprocess.run(["umount", str(tmp_path / "state")], check=True)


def test_a_full_disk(small: Stage, root: Path) -> None:
    def fill() -> None:
        with pytest.raises(OSError), open(small.state / "fill", "ab", buffering=0) as f:
            while True:
                f.write(bytes(4096))

    first = small.start(root, *HOLD)
    with running(small) as agent:
        until(lambda: (c := agent.container(first)) and c["gpus"][0]["used_mib"])
        fill()
        until(lambda: "disk" in agent.node()["agent"]["problems"])
        assert agent.node()["agent"]["state"] == "degraded"
        assert b'gpu_hook_agent_problem{problem="disk"} 1' in agent.get("/metrics")
        assert "GH-303" in small.refused(root, "GH-303")
        small.runc("kill", first, "KILL")
        until(lambda: agent.container(first) is None and books_are_right(small))
        agent.kill()
    fill()
    with running(small) as agent:  # it starts there, too
        until(lambda: "disk" in agent.node()["agent"]["problems"])
        (small.state / "fill").unlink()
        until(lambda: agent.node()["agent"]["state"] == "ok")
        second = small.start(root)
        until(lambda: agent.container(second))
        log = agent.log.read_text()
        assert log.count("disk: ") == 2 and "disk: well again" in log, log
        assert f"disk: {small.state} is full" in log and "Traceback" not in log


def test_a_gpu_falls_off_the_bus(stage: Stage, root: Path) -> None:
    """The node says so, gives it to nobody from then on, and has it again when it is back."""
    second = {**SHARE, "gpu-hook.io/devices": "1"}

    def fault(*words: str) -> None:
        CliRunner().invoke(cli, ["sim", "fault", *words, "--prefix", str(stage.prefix)], catch_exceptions=False)

    held = stage.start(root, *HOLD, annotations=second)
    try:
        with running(stage) as agent:
            uuid = until(lambda: (c := agent.container(held)) and c["gpus"][0]["uuid"])
            fault("--gpu", "1", "--lost")
            problem = until(lambda: agent.node()["agent"]["problems"].get("gpus", ""))
            assert f"{uuid} is lost (containers on it: 1)" in problem
            until(lambda: len(agent.node()["gpus"]) == 1)  # found anew without it
            assert agent.node()["agent"]["state"] == "degraded" and "gpus" in agent.node()["agent"]["problems"]
            assert b'gpu_hook_agent_problem{problem="gpus"} 1' in agent.get("/metrics")
            stage.refused(root, "GH-202", annotations=second)
            assert [e["error"] for e in events(stage) if e["event"] == "gpu-error"] == ["GPU is lost"]
            fault()
            until(lambda: agent.node()["agent"]["state"] == "ok" and len(agent.node()["gpus"]) == 2)
            stage.start(root, annotations=second)
    finally:
        fault()
        CliRunner().invoke(cli, ["gpus", "--refresh", "--prefix", str(stage.prefix)], catch_exceptions=False)
    (stage.state / "events").unlink()


def test_a_gpu_without_memory_of_its_own(stage: Stage, root: Path) -> None:
    """As GB10, where NVML does not tell the memory: it is the machine's, containers get parts of it, and the agent is well."""

    def gpu_hook(*words: str) -> str:
        return CliRunner().invoke(cli, [*words, "--prefix", str(stage.prefix)], catch_exceptions=False).output

    try:
        gpu_hook("sim", "fault", "--gpu", "1", "--nvml-without", "memory")
        total = int(gpu_hook("gpus", "--refresh", "--json").split('"memory_mib": ')[2].split(",")[0])
        assert total == int(Path("/proc/meminfo").read_text().split()[1]) >> 10
        assert "GPU 1 uses the machine's memory" in gpu_hook("doctor")
        held = stage.start(root, *HOLD, annotations={**SHARE, "gpu-hook.io/devices": "1"})
        with running(stage) as agent:
            used = until(lambda: (c := agent.container(held)) and c["gpus"][0]["used_mib"])
            assert agent.node()["agent"]["state"] == "ok" and agent.node()["gpus"][1]["used_mib"] == used
    finally:
        gpu_hook("sim", "fault")
        gpu_hook("gpus", "--refresh")
    assert "machine's memory" not in gpu_hook("doctor")


def test_killed_at_any_point(stage: Stage, root: Path) -> None:
    """Containers come and go meanwhile; the next look finds the ledger right."""
    chance = random.Random(7)
    living: list[str] = []
    for n in range(8):
        agent = Agent(stage)
        try:
            if n % 2:
                agent.ready()
            living.append(stage.start(root, "/bin/sleep", "600"))
            if len(living) > 2:
                stage.runc("kill", living.pop(0), "KILL")
            time.sleep(chance.random() * 0.3)
        finally:
            agent.kill()
        until(lambda: {g.who.id for g in store.snapshot(str(stage.state))} == set(living))
    with running(stage) as agent:
        until(lambda: {c["id"] for c in agent.node()["containers"]} == set(living) and books_are_right(stage))
        assert agent.node()["agent"]["state"] == "ok"


BITE = '\x1b[2J"}\n\\ 9'  # as a process's name: within 15 bytes


def test_names_that_bite(stage: Stage, root: Path) -> None:
    """A process's and a container's names, wherever they are shown."""
    (root / "bin" / BITE).write_bytes((root / "bin/bypass").read_bytes())
    (root / "bin" / BITE).chmod(0o755)
    names = {
        "io.kubernetes.cri.sandbox-namespace": BITE,
        "io.kubernetes.cri.container-name": f"{BITE}\udcff" + "y" * 300,
    }
    id = stage.start(root, f"/bin/{BITE}", "200", annotations={**SHARE, **names})
    with running(stage) as agent:
        until(lambda: agent.kinds(id) == {"no-shim"})
        shown = '?[2J"}?\\ 9'
        found = {}
        for family in text_string_to_metric_families(agent.get("/metrics").decode()):
            for sample in family.samples:
                assert all(len(v) <= 64 and v.isprintable() for v in sample.labels.values())
                found[sample.name] = sample.labels
        assert found["gpu_hook_container_findings"]["namespace"] == shown
        assert "(?[2J" in agent.log.read_text()
        commands = (["events"], ["ps"])
        said = [CliRunner().invoke(cli, [*words, "--prefix", str(stage.prefix)]).output for words in commands]
        screen, answer = (
            Console(width=200, file=io.StringIO(), record=True),
            why.running(agent.container(id), agent.node(), []),
        )
        screen.print(top.Screen(agent.node()).draw(200, 50))
        for text in (agent.log.read_text(), screen.export_text(), "\n".join(answer.lines), *said):
            assert all(c.isprintable() or c == "\n" for c in text), text
            assert "[2J" in text and "\n\\ 9" not in text, text
    (stage.state / "events").unlink()
