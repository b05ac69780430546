"""The limits of driver 615 in real containers on cgroup v2: they hold for programs that go around the shim."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_hook_simulator import driver_root
from simulator.tests import cgroups
from simulator.tests.cgroups import Groups
from simulator.tests.conftest import CONTEXT_MIB, Sim
from tests.agent import box
from tests.e2e.stage import GPU_MIB, Stage

pytestmark = pytest.mark.root
TOP = cgroups.top()
if TOP is None:
    pytest.skip("cgroup v2 is not mounted", allow_module_level=True)
LIMIT_MIB, SHARE_MIB = 300, 1024
SHARE = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": f"{SHARE_MIB}Mi"}


class OfStage(Sim):
    """The simulated GPUs of an install."""

    def __init__(self, stage: Stage, native: Path) -> None:
        self.prefix, self.state = stage.prefix, stage.state
        self.root = driver_root.root_of(str(stage.prefix))
        self.gpus = driver_root.gpus_of(str(stage.state))
        self.libraries = stage.driver
        self.probe = str(native / "sim/gpu-probe")
        self.started = []


@pytest.fixture(scope="module", params=["dmem", "misc"])
def stage(request: pytest.FixtureRequest, native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    place = Stage(tmp_path_factory.mktemp(request.param), "--driver", "615", "--limits", request.param)
    yield place
    place.close()


@pytest.fixture(scope="module")
def image(stage: Stage, native: Path) -> Path:
    root = box.image(stage.folder)
    shutil.copy(native / "sim/gpu-probe-static", root / "bin/gpu-probe-static")
    (root / "mine").mkdir()
    (root / "real").mkdir()
    (root / "real/libcuda.so.1").symlink_to("/run/gpu-hook/driver/cuda")
    shutil.copy(stage.driver / "libcuda.so.1", root / "mine/libcuda.so.1")
    return root


@pytest.fixture
def groups(stage: Stage, native: Path) -> Iterator[Groups]:
    assert TOP
    made = Groups(OfStage(stage, native), TOP)
    yield made
    made.close()


# gpu-probe finds the library by its name: LD_LIBRARY_PATH says where. /real leads to the driver's own, which the shim uses.
ROUTES = {
    "the shim": "gpu-probe fill 8",
    "a library of its own": "LD_LIBRARY_PATH=/mine gpu-probe fill 8",
    "the driver's library by its private path": "LD_LIBRARY_PATH=/real gpu-probe fill 8",
    "a static program": "gpu-probe-static fill 8",
}


def run(stage: Stage, groups: Groups, image: Path, script: str, namespace: bool) -> str:
    def edit(spec: dict[str, Any]) -> None:
        spec["linux"]["cgroupsPath"] = f"{groups.name}/box"
        if namespace:
            spec["linux"]["namespaces"].append({"type": "cgroup"})

    folder = stage.bundle(image, ("/bin/sh", "-c", script), annotations=SHARE, edit=edit)
    command = (stage.program, "--root", str(stage.runc.root), "run", "--bundle", str(folder), stage.runc.new_id())
    out = folder / "out"
    with open(out, "w") as f:
        subprocess.run(groups.command(None, *command), stdout=f, stderr=f, stdin=subprocess.DEVNULL, check=False)
    return out.read_text()


@pytest.mark.parametrize("namespace", [False, True], ids=["no namespace", "cgroup namespace"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_program_is_stopped_at_the_drivers_limit(
    stage: Stage, groups: Groups, image: Path, route: str, namespace: bool
) -> None:
    """Without it, only the shim stops anybody: what goes around the shim gets the whole GPU."""
    fill = f"{LIMIT_MIB - CONTEXT_MIB - (LIMIT_MIB - CONTEXT_MIB) % 8} MiB"
    said = run(stage, groups, image, ROUTES[route], namespace)
    got = int(said.split()[1])
    assert said.endswith("CUDA_ERROR_OUT_OF_MEMORY\n"), said
    assert got <= SHARE_MIB if route == "the shim" else got > GPU_MIB - 2 * CONTEXT_MIB, said
    groups.make("box")  # runc takes it as it is, and removes it with the container
    groups.set("box", LIMIT_MIB)
    said = run(stage, groups, image, ROUTES[route], namespace)
    assert said.startswith(f"fill: {fill} "), said
