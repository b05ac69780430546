"""Several GPUs by their distance, from NVML and /sys to the nodes in the container; simulated GPUs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.config import settings as node_settings
from oci_hook.ledger import inventory, store
from testbed import tiny_image
from testbed.stage import Stage

pytestmark = [pytest.mark.root, pytest.mark.slow]
TWO = {"gpu-hook.io/gpus": "2", "gpu-hook.io/memory": "1Gi"}


@pytest.fixture
def stage(native: Path, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "stage", "--gpus", "4", "--numa", "0,1,0,1", "--nvlink", "2-3")
    yield made
    made.close()


def given(stage: Stage, image: Path, annotations: dict[str, str]) -> list[int]:
    """The GPUs of a new container, by the nodes that it has."""
    id = stage.start(image, annotations=annotations)
    names = stage.runc("exec", id, "ls", "/dev").stdout.split()
    return sorted(int(n.removeprefix("nvidia")) for n in names if n.removeprefix("nvidia").isdigit())


def test_nvlink_then_numa(stage: Stage, tmp_path: Path) -> None:
    image = tiny_image.busybox(tmp_path / "image")
    found = inventory.load(node_settings.load(str(stage.prefix)))
    index = {gpu.uuid: gpu.index for gpu in found.gpus}
    assert [gpu.numa for gpu in found.gpus] == [0, 1, 0, 1]
    near = {(index[a], index[b]): d for a, b, d in found.links}
    assert near == {(0, 1): 50, (0, 2): 40, (1, 2): 50, (0, 3): 50, (1, 3): 40, (2, 3): 1}
    assert given(stage, image, TWO) == [2, 3], "an NVLink wins over the NUMA node"
    alone = {"gpu-hook.io/devices": "0", "gpu-hook.io/exclusive": "true"}
    assert given(stage, image, alone) == [0]
    full = {"gpu-hook.io/devices": "2", "gpu-hook.io/memory": "7Gi"}
    assert given(stage, image, full) == [2]
    assert given(stage, image, TWO) == [1, 3], "of what is left, those of one NUMA node"
    assert len(store.snapshot(str(stage.state))) == 4


@pytest.mark.parametrize(
    "words", [("--numa", "0"), ("--numa", "0,x"), ("--nvlink", "0-0"), ("--nvlink", "0-2"), ("--nvlink", "0")]
)
def test_places_that_cannot_be(native: Path, stage: Stage, words: tuple[str, str]) -> None:
    done = CliRunner().invoke(cli, ["sim", "up", "--gpus", "2", "--prefix", str(stage.prefix), "--force", *words])
    assert done.exit_code == 1 and "GH-101" in done.output
