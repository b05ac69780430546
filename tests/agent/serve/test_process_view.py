"""The processes in `top`: of real containers, by the agent's NVML and by the account pages alone."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.agent.judge.audit_rules import TenantProcess
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.serve.process_view import processes as listed
from oci_hook.cli import node_now
from oci_hook.cli.main import cli
from oci_hook.config import settings as node_settings
from oci_hook.core.units import MIB
from oci_hook.observe import processes as observed
from testbed.agent import grant, running
from testbed.stage import SHARE, Stage
from testbed.until import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
HOLD = ("/bin/gpu-probe", "alloc", "100", "hold", "600")


def as_user(spec: dict[str, Any]) -> None:
    spec["process"]["user"] = {"uid": 4242, "gid": 4242}


def accounted(stage: Stage, id: str) -> list[dict[str, Any]]:
    found = grant(stage, id)
    return observed.accounted([found] if found else [])


def test_by_the_account_pages(stage: Stage, root: Path) -> None:
    one = stage.start(root, *HOLD, edit=as_user)
    two = stage.start(root, "/bin/sh", "-c", f"{' '.join(HOLD)} & exec {' '.join(HOLD)}")
    (process,) = until(lambda: accounted(stage, one))
    until(lambda: len(accounted(stage, two)) == 2)
    until(lambda: all(p["used_mib"] > 100 for p in accounted(stage, two) + accounted(stage, one)))
    (process,) = accounted(stage, one)
    found = grant(stage, one)
    assert found and found.life.init and process["pid"] == found.life.init[0] and process["start"] == found.life.init[1]
    assert observed.user(process["pid"]) == "4242"
    assert observed.Commands().get(process["pid"], 10) == "gpu-probe alloc 100 hold 600"
    for p in (process, *accounted(stage, two)):
        assert (p["uuid"], p["utilization"]) == (found.shares[0].uuid, None) and 100 < p["used_mib"] < 1024
    assert len({p["pid"] for p in accounted(stage, two)}) == 2


def test_memory_of_an_exited_process_that_a_child_keeps(stage: Stage, root: Path) -> None:
    """The probe's parent exits; the child keeps 100 MiB by the open file alone. As one row, however many did so."""
    probe = "/bin/gpu-probe alloc 100 fork hold 600"
    id = stage.start(root, "/bin/sh", "-c", f"{probe}; {probe}; exec /bin/sleep 600")
    found = until(lambda: [p for p in accounted(stage, id) if p["pid"] is None and p["used_mib"] >= 2 * 100])
    assert len(found) == 1 and found[0]["start"] == 0 and len(accounted(stage, id)) == 1


def test_by_the_agent(stage: Stage, root: Path) -> None:
    prefix = str(stage.prefix)
    settings = node_settings.load(prefix)
    with running(stage):
        share = {**SHARE, "gpu-hook.io/compute": "30"}
        id, cheat = stage.start(root, *HOLD, annotations=share), stage.start(root, "/bin/bypass", "200")
        (pid, start), (other, _) = (held.life.init for held in (grant(stage, id), grant(stage, cheat)) if held)  # type: ignore[misc]

        def seen() -> dict[int, dict[str, Any]]:
            return {p["pid"]: p for p in node_now.processes(settings, node_now.node(settings))}

        until(lambda: {pid, other} <= set(seen()))
        until(lambda: seen()[pid]["used_mib"] >= 100 and seen()[other]["used_mib"] >= 200)
        found = seen()
        held = grant(stage, id)
        assert held and (found[pid]["key"], found[pid]["start"]) == (held.key, start)
        assert found[pid]["uuid"] == held.shares[0].uuid and found[pid]["utilization"] is not None
        assert not [p for p in observed.accounted([grant(stage, cheat) or pytest.fail()]) if p["pid"] == other]
        screen = CliRunner().invoke(cli, ["top", "--once", "-p", "--prefix", prefix], env={"COLUMNS": "160"})
        row = next(line for line in screen.output.splitlines() if line.startswith(f"{pid} "))
        assert row.split()[1] == "root" and "gpu-probe alloc 100 hold 600" in row
        data = json.loads(CliRunner().invoke(cli, ["top", "--json", "-p", "--prefix", prefix]).output)
        (mine,) = [p for p in data["processes"] if p["pid"] == pid]
        assert set(mine) == {*found[pid], "user", "command", "name", "index", "percent_of_limit"}


def test_a_process_of_no_container_has_no_key() -> None:
    gpu = GpuSample(1, 2, 3, ((7, 5 * MIB + 1, 40), (8, None, 0)))
    mine = TenantProcess(7, 99, "mine", 1)
    found = listed({"GPU-0": gpu}, {7: ("k", mine)})
    assert found == [
        {"pid": 7, "start": 99, "key": "k", "uuid": "GPU-0", "used_mib": 6, "utilization": 40},
        {"pid": 8, "start": 0, "key": "", "uuid": "GPU-0", "used_mib": None, "utilization": 0},
    ]
