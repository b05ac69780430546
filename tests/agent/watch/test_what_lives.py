"""What is shown as used is what lives, and what is shown as running runs: by `ps`, `top`, `why`, metrics and page."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.observe import account
from testbed.agent import grant, running
from testbed.stage import CONTEXT_MIB, LIMIT_MIB, SHARE, Stage
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
ALLOC = ("/bin/gpu-probe", "alloc", "700", "hold", "600")


def said(stage: Stage, *words: str) -> Any:
    done = CliRunner().invoke(cli, [*words, "--json", "--prefix", str(stage.prefix)], catch_exceptions=False)
    return json.loads(done.stdout)


def used(stage: Stage, id: str) -> int | None:
    (entry,) = [g for g in said(stage, "ps")["containers"] if g["id"] == id]
    return entry["gpus"][0]["used_mib"]  # type: ignore[no-any-return]


def inside(stage: Stage, id: str, *args: str) -> int:
    """A process beside the container's first one; its pid here."""
    file = stage.folder / f"pid{time.monotonic_ns()}"
    done = stage.runc("exec", "--detach", "--pid-file", str(file), id, *args)
    assert done.returncode == 0, done.stderr
    return int(file.read_text())


@pytest.mark.parametrize("agent", [False, True])
def test_memory_of_those_who_ended_is_not_shown(stage: Stage, root: Path, agent: bool) -> None:
    id = stage.start(root)
    pids = [inside(stage, id, *ALLOC), inside(stage, id, "/bin/gpu-probe", "alloc", "100", "hold", "600")]
    both, one = 800 + 2 * CONTEXT_MIB, 100 + CONTEXT_MIB
    until(lambda: used(stage, id) == both)
    os.kill(pids[0], 9)
    until(lambda: used(stage, id) == one)
    top = lambda: said(stage, "top")["containers"][0]["gpus"][0]["used_mib"]  # noqa: E731
    assert top() == one
    assert "nearly used up" not in json.dumps(said(stage, "why", id))
    if agent:
        with running(stage) as one_agent:
            until(lambda: one_agent.container(id)["gpus"][0]["used_mib"] == one)
            os.kill(pids[1], 9)
            until(lambda: one_agent.container(id)["gpus"][0]["used_mib"] == 0)
            text = one_agent.get("/metrics").decode()
            (line,) = [n for n in text.splitlines() if n.startswith("gpu_hook_container_memory_used_bytes{")]
            assert line.endswith(" 0") and one_agent.kinds(id) == set()
    else:
        os.kill(pids[1], 9)
        until(lambda: used(stage, id) == 0 == top())
    # What the container itself counts agrees.
    assert f"{LIMIT_MIB - CONTEXT_MIB} MiB free" in stage.runc.exec(id, "/bin/gpu-probe", "info").stdout


def test_a_process_that_another_program_took_over_does_not_live(stage: Stage, root: Path) -> None:
    """Its pid and start are those of the one that allocated."""
    id = stage.start(root, "/bin/sh", "-c", f"{' '.join(ALLOC[:3])} hold 2; exec sleep 600")
    until(lambda: used(stage, id) == 700 + CONTEXT_MIB)
    until(lambda: used(stage, id) == 0)


@pytest.mark.parametrize("agent", [False, True])
def test_memory_of_an_exited_process_that_a_child_keeps_is_shown(stage: Stage, root: Path, agent: bool) -> None:
    id = stage.start(root)
    file = stage.folder / "fork.pid"
    words = ["--detach", "--pid-file", str(file), id, "/bin/gpu-probe", "alloc", "700", "fork", "hold", "600"]
    assert stage.runc("exec", *words).returncode == 0
    both = 700 + CONTEXT_MIB
    until(lambda: not Path(f"/proc/{file.read_text()}").exists())
    (entry,) = said(stage, "ps")["containers"]
    assert (entry["gpus"][0]["used_mib"], entry["gpus"][0]["kept_mib"]) == (both, both)
    text = CliRunner().invoke(cli, ["ps", "--prefix", str(stage.prefix)]).stdout
    assert f"{id}: {both}Mi on GPU 0 is memory of an exited process, kept by a child" in text
    # The limit holds beside it.
    assert "OUT_OF_MEMORY" in stage.runc.exec(id, "/bin/gpu-probe", "alloc", "300").stdout
    if agent:
        with running(stage) as one_agent:
            until(lambda: one_agent.container(id)["gpus"][0]["kept_mib"] == both)
            line = "gpu_hook_container_memory_kept_bytes{"
            (value,) = [n for n in one_agent.get("/metrics").decode().splitlines() if n.startswith(line)]
            assert value.endswith(f" {both << 20}")
            one_agent.looks(4)
            assert one_agent.kinds(id) == set() and one_agent.container(id)["gpus"][0]["surcharge_mib"] == 0
    stage.runc("exec", id, "/bin/sh", "-c", "kill -9 -1")  # all but its first process
    until(lambda: used(stage, id) == 0)


def test_only_the_lock_says_who_lives(stage: Stage, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id = stage.start(root, *ALLOC)
    found = grant(stage, id)
    assert found and found.life.init
    until(lambda: used(stage, id) == 700 + CONTEXT_MIB)

    def read(answer: Any, pids: Any) -> Any:
        with account.Account(*found.life.init) as page:
            monkeypatch.setattr(account.fcntl, "fcntl", answer)
            monkeypatch.setattr(account.inside, "pids", pids)
            usage = page.read(1, by_process=True)
            assert usage
            return usage.totals[0] >> 20, usage.kept[0] >> 20, len(usage.owners)

    def unclear(*_: object) -> bytes:
        raise OSError

    known, all = account.inside.pids, 700 + CONTEXT_MIB
    lock = lambda kind: lambda *_: account.FLOCK.pack(kind, 0, 0, 0, 0)  # noqa: E731
    assert read(lock(account.fcntl.F_WRLCK), known) == (all, 0, 1)
    assert read(lock(account.fcntl.F_UNLCK), known) == (0, 0, 0)
    assert read(unclear, known) == (all, 0, 1)  # in doubt it is held
    assert read(lock(account.fcntl.F_WRLCK), lambda *_: None) == (all, 0, 1)  # and its process runs
    assert read(lock(account.fcntl.F_WRLCK), lambda *_: []) == (all, all, 1)


def test_a_container_that_is_created_and_not_started(stage: Stage, root: Path) -> None:
    folder = stage.bundle(root, ["/bin/sleep", "600"], SHARE)
    id = stage.runc.new_id()
    # Detached from our pipes: its init keeps them.
    words = [stage.program, "--root", str(stage.runc.root), "create", "--bundle", str(folder), id]
    null = subprocess.DEVNULL
    subprocess.run(words, check=True, stdin=null, stdout=null, stderr=null)
    state = lambda: [g["state"] for g in said(stage, "ps")["containers"]]  # noqa: E731
    assert state() == ["starting"] and said(stage, "top")["containers"][0]["state"] == "starting"
    with running(stage) as agent:
        assert agent.container(id)["state"] == "starting"
        assert ',state="starting"} 1' in agent.get("/metrics").decode()
        assert stage.runc("start", id).returncode == 0
        until(lambda: agent.container(id)["state"] == "running")
    assert state() == ["running"] and said(stage, "why", id)["state"] == "running"
