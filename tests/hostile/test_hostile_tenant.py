"""A tenant with docker's default capabilities does its worst on its own mounts: others do not feel it."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.cli.set import PENDING_STATUS
from oci_hook.ledger import slot_files, store
from testbed import agent as agents
from testbed.hostile import ATTACKS, build, hostile
from testbed.stage import SHARE, Stage
from testbed.until import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
ASK = {**SHARE, "gpu-hook.io/memory": "1Gi", "gpu-hook.io/compute": "10"}
# An open that waits for a lease takes fs.lease-break-time, 45 s. Nothing here takes a tenth of that on an idle machine.
LONG = 40.0


@pytest.fixture(scope="module")
def stage(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    place = Stage(tmp_path_factory.mktemp("hostile"))
    yield place
    place.close()


@pytest.fixture(scope="module")
def image(stage: Stage) -> Path:
    root = agents.image(stage.folder)
    shutil.copy(build(stage.folder / "tenant"), root / "bin/tenant")
    return root


def gpu_hook(stage: Stage, *args: str, statuses: tuple[int, ...] = (0,)) -> object:
    done = CliRunner().invoke(cli, [*args, "--json", "--prefix", str(stage.prefix)], catch_exceptions=False)
    assert done.exit_code in statuses, done.output
    return json.loads(done.output)


@pytest.mark.parametrize("attacks", [*((name,) for name in ATTACKS), ATTACKS], ids=[*ATTACKS, "all"])
def test_others_are_not_kept_waiting(stage: Stage, image: Path, attacks: tuple[str, ...]) -> None:
    neighbour = stage.start(image, "/bin/gpu-probe", "alloc", "32", "hold", "600", annotations=ASK)
    try:
        with hostile(stage, image, attacks, ASK) as attacker:
            took = {}

            def timed(what: str, began: float) -> None:
                took[what] = time.monotonic() - began

            for gpu in ("0", "1"):
                began = time.monotonic()
                done = stage.run(
                    image, "/bin/gpu-probe", "alloc", "200", annotations=ASK | {"gpu-hook.io/devices": gpu}
                )
                assert done.returncode == 0, done.stdout + done.stderr
                timed(f"a container on GPU {gpu}", began)
            began = time.monotonic()
            table = gpu_hook(stage, "ps")
            assert isinstance(table, dict) and {g["id"] for g in table["containers"]} == {neighbour, attacker}
            timed("ps", began)
            for command in (("set", neighbour, "--compute", "20"), ("freeze", neighbour), ("resume", neighbour)):
                began = time.monotonic()
                answer = gpu_hook(stage, *command)
                assert isinstance(answer, dict) and answer["in_effect"]
                timed(command[0], began)
            began = time.monotonic()
            # In effect, or only in the ledger (status 3) since the attacker keeps its page closed: nobody waited for it.
            gpu_hook(stage, "set", attacker, "--compute", "11", statuses=(0, PENDING_STATUS))
            gpu_hook(stage, "freeze", attacker, statuses=(0, PENDING_STATUS))
            gpu_hook(stage, "why", neighbour)
            timed("the attacker's own", began)
            assert not {what: seconds for what, seconds in took.items() if seconds > LONG}, took
        with store.open_ledger(str(stage.state)) as ledger:
            (left,) = ledger.grants
        assert left.who.id == neighbour
        slots = Path(slot_files.folder(str(stage.state), left.shares[0].uuid), "slot")
        assert len(list(slots.iterdir())) == 1
    finally:
        stage.runc("delete", "--force", neighbour)


def test_the_agent_goes_on(stage: Stage, image: Path) -> None:
    neighbour = stage.start(image, "/bin/gpu-probe", "alloc", "32", "hold", "600", annotations=ASK)
    try:
        with agents.running(stage, "--policy", "report") as agent, hostile(stage, image, ATTACKS, ASK):
            for _ in range(20):
                began = time.monotonic()
                assert b"gpu_hook_" in agent.get("/metrics")
                assert time.monotonic() - began < LONG
                time.sleep(0.1)
            assert until(lambda: agent.container(neighbour))["gpus"][0]["used_mib"] >= 32
    finally:
        stage.runc("delete", "--force", neighbour)
