"""The agent beside containers that are suspended, with no more rights than its unit gives it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from tests.agent.box import REPO, events, grant, running, wait_for
from tests.e2e.stage import CONTEXT_MIB, SHARE, Stage
from tests.e2e.test_suspend import CRASH

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def gpu_hook(stage: Stage, *words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--prefix", str(stage.prefix)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_it_ends_what_a_crash_has_cut_off(stage: Stage, root: Path) -> None:
    id = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=SHARE)
    found = grant(stage, id)
    assert found
    wait_for(lambda: stage.used_mib() == 300 + CONTEXT_MIB)
    command = [sys.executable, "-c", CRASH, str(stage.prefix), found.key, "sent", "suspend"]
    assert subprocess.run(command, cwd=REPO).returncode == -signal.SIGKILL
    assert stage.used_mib() == 0
    with running(stage) as agent:
        wait_for(lambda: (now := grant(stage, id)) and not now.off_gpu)
        assert stage.used_mib() == 300 + CONTEXT_MIB
        assert [e["cut_off"] for e in events(stage) if e["event"] == "resumed"] == [True]
        wait_for(lambda: not agent.node()["agent"]["problems"])


def test_it_shows_who_is_suspended(stage: Stage, root: Path) -> None:
    id = stage.start(root, "/bin/gpu-probe", "alloc", "300", "hold", "600", annotations=SHARE)
    with running(stage) as agent:
        wait_for(lambda: stage.used_mib() == 300 + CONTEXT_MIB)
        gpu_hook(stage, "suspend", id)
        wait_for(lambda: agent.container(id)["state"] == "suspended")
        agent.looks(3)
        seen = agent.container(id)
        assert seen["suspended_since"] and seen["host_mib"] >= 300 and not seen["findings"]
        assert seen["gpus"][0]["used_mib"] == 0 and agent.node()["gpus"][0]["granted_mib"] == 0
        text = agent.get("/metrics").decode()
        assert "gpu_hook_container_suspended_memory_bytes{" in text and 'state="suspended"' in text
        node = json.loads(gpu_hook(stage, "top", "--json"))
        assert [c["state"] for c in node["containers"]] == ["suspended"]
        assert "suspended" in gpu_hook(stage, "top", "--once") and "host's memory" in gpu_hook(stage, "why", id)
        gpu_hook(stage, "resume", id)
        wait_for(lambda: agent.container(id)["state"] == "running")
        agent.looks(3)
        assert not agent.container(id)["findings"] and agent.container(id)["gpus"][0]["used_mib"] >= 300
