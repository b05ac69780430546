"""MIG devices as GPUs, from NVML to the program in the container: GPU 0 of the simulated driver is split."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.config import settings as node_settings
from oci_hook.core.inventory import Gpu, GpuNode, Inventory
from oci_hook.install import settings_edit
from oci_hook.ledger import inventory, store
from testbed.stage import Stage, compile_client, glibc_image, stopped_at_the_limit
from tests.e2e.test_nvidia_runtime import mknod

pytestmark = [pytest.mark.root, pytest.mark.slow]


class Split(Stage):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--mig", "3g.4gb,1g.1gb")
        self.inventory: Inventory = inventory.load(node_settings.load(str(self.prefix)))

    def gpu(self, address: str) -> Gpu:
        return next(gpu for gpu in self.inventory.gpus if gpu.address == address)

    def nodes(self, address: str) -> list[GpuNode]:
        return [node for node in self.inventory.nodes if node.uuid == self.gpu(address).uuid]


@pytest.fixture(scope="module")
def stage(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    made = Split(tmp_path_factory.mktemp("mig"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def image(stage: Split) -> Path:
    root = glibc_image(stage.folder / "image")
    shutil.copy(compile_client(stage.folder / "route", "route.c", "-ldl"), root / "bin/route")
    return root


def test_the_split_gpu_is_offered_by_its_parts_alone(stage: Split) -> None:
    gpus = stage.inventory.gpus
    assert [gpu.address for gpu in gpus] == ["0:0", "0:1", "1"]
    assert [gpu.memory_mib for gpu in gpus] == [4096, 1024, 8192]
    big, small, whole = gpus
    assert big.uuid.startswith("MIG-") and big.parent == small.parent and big.parent.startswith("GPU-")
    assert (big.minor, small.minor, whole.minor, whole.parent) == (0, 0, 1, "")
    assert "MIG 3g.4gb" in big.name
    paths = [[node.path for node in stage.nodes(address)] for address in ("0:0", "0:1")]
    assert paths == [[f"/dev/nvidia-caps/nvidia-cap{n}" for n in pair] for pair in ((12, 13), (21, 22))]
    shown = CliRunner().invoke(cli, ["gpus", "--prefix", str(stage.prefix)]).output
    assert re.search(r"^0:1 +MIG-", shown, re.M)


@pytest.mark.parametrize("by", ["address", "uuid"])
def test_a_container_has_its_device_and_nothing_of_the_other(stage: Split, image: Path, by: str) -> None:
    ask = {"NVIDIA_VISIBLE_DEVICES": getattr(stage.gpu("0:1"), by), "gpu-hook.io/memory": "512Mi"}
    theirs = stage.nodes("0:0")[0]
    mine = stage.nodes("0:1")[0]
    script = f"""env | grep VISIBLE; ls /dev /dev/nvidia-caps /dev/nvidia-sim
    for n in 195:0 195:1 {mine.major}:{mine.minor} {theirs.major}:{theirs.minor}; do
        mknod /p-$n c ${{n%:*}} ${{n#*:}}; cat /p-$n 2>&1 | grep -q 'not permitted' && echo $n closed || echo $n open
        rm -f /p-$n
    done"""
    done = stage.run(image, "/bin/sh", "-c", script, annotations=ask, edit=mknod)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert f"NVIDIA_VISIBLE_DEVICES={stage.gpu('0:1').uuid}\n" in said
    assert re.findall(r"^nvidia-cap\d+$", said, re.M) == ["nvidia-cap21", "nvidia-cap22"]
    assert "nvidia0\n" in said and "nvidia1\n" not in said
    assert "195:0 open" in said and "195:1 closed" in said
    assert f"{mine.major}:{mine.minor} open" in said and f"{theirs.major}:{theirs.minor} closed" in said


def test_the_limit_is_of_the_device(stage: Split, image: Path) -> None:
    """The shim finds its policy by what cuDeviceGetUuid_v2 says, which is the device's and not its GPU's."""
    for address, limit in (("0:1", 512), ("0:0", 2048)):
        ask = {"gpu-hook.io/devices": address, "gpu-hook.io/memory": f"{limit}Mi"}
        held = stage.fill(image, "/bin/route", "libcuda.so.1", "cuMemAlloc_v2", annotations=ask)
        assert held.code == 2 and limit * 8 // 10 <= held.granted <= limit, held


def test_the_whole_device_and_no_room_beside_it(stage: Split, image: Path) -> None:
    ask = {"gpu-hook.io/devices": "0:1", "gpu-hook.io/exclusive": "true"}
    id = stage.start(image, annotations=ask)
    said = stage.refused(image, "GH-201", annotations={"gpu-hook.io/devices": "0:1", "gpu-hook.io/memory": "1Gi"})
    assert "GPU 0:1 MIG-" in said
    held = stage.exec(id, "/bin/route", "libcuda.so.1", "cuMemAlloc_v2")
    assert held.code == 2 and 800 < held.granted < 1024, held
    stage.runc("delete", "--force", id)
    assert store.snapshot(str(stage.state)) == ()


def test_what_is_refused(stage: Split, image: Path) -> None:
    share = {"gpu-hook.io/memory": "512Mi"}
    said = stage.refused(image, "GH-202", annotations={**share, "gpu-hook.io/devices": "0:7"})
    assert "0:7" in said and "which has 0:0, 0:1, 1;" in said
    other = stage.nodes("0:0")[0]

    def node_of_the_other(spec: dict[str, Any]) -> None:
        rule = {"allow": True, "type": "c", "major": other.major, "minor": other.minor, "access": "rw"}
        spec["linux"]["resources"]["devices"].append(rule)

    ask = {**share, "gpu-hook.io/devices": "0:1"}
    assert f"{other.major}:{other.minor}" in stage.refused(image, "GH-403", annotations=ask, edit=node_of_the_other)


@pytest.mark.parametrize("profiles", ["3g", "9g.1gb", "3g.4gb,3g.4gb,3g.4gb", "1g.9gb", "0g.1gb"])
def test_profiles_that_no_gpu_has(stage: Split, profiles: str) -> None:
    command = ["sim", "up", "--memory", "8Gi", "--prefix", str(stage.prefix), "--mig", profiles, "--json"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code != 0 and "GH-101" in done.output
    assert json.loads(CliRunner().invoke(cli, ["gpus", "--prefix", str(stage.prefix), "--json"]).output)


def test_what_the_node_reserves_is_kept_from_a_whole_device(stage: Split, image: Path) -> None:
    """As gpu-manager's deviceMemoryScaling: who has the GPU alone is held to the rest of it."""
    settings_edit.change(str(stage.prefix), memory_reserve="50%")
    try:
        ask = {"gpu-hook.io/devices": "0:1", "gpu-hook.io/exclusive": "true"}
        held = stage.fill(image, "/bin/route", "libcuda.so.1", "cuMemAlloc_v2", annotations=ask)
    finally:
        settings_edit.change(str(stage.prefix), memory_reserve="0")
    assert held.code == 2 and 400 < held.granted < 512, held


@pytest.mark.parametrize("name", ["0", "parent"])
def test_a_split_gpu_is_all_of_its_devices(stage: Split, image: Path, name: str) -> None:
    gpus = json.loads(CliRunner().invoke(cli, ["gpus", "--prefix", str(stage.prefix), "--json"]).output)
    mig = [gpu for gpu in gpus["gpus"] if gpu["parent"]]
    device = mig[0]["parent"] if name == "parent" else name
    ask = ["-a", f"gpu-hook.io/devices={device}", "-a", "gpu-hook.io/memory=512Mi"]
    answer = CliRunner().invoke(cli, ["explain", "--prefix", str(stage.prefix), "--json", *ask]).output
    assert [gpu["uuid"] for gpu in json.loads(answer)["gpus"] if gpu["share"]] == [gpu["uuid"] for gpu in mig]
    old = [f"MIG-{gpu['parent']}/{gpu['gi']}/{gpu['ci']}" for gpu in mig]
    assert len(set(old)) == len(mig)
    ask[1] = f"gpu-hook.io/devices={old[1]}"
    answer = CliRunner().invoke(cli, ["explain", "--prefix", str(stage.prefix), "--json", *ask]).output
    assert [gpu["uuid"] for gpu in json.loads(answer)["gpus"] if gpu["share"]] == [mig[1]["uuid"]]


def test_several_devices_of_one_gpu(stage: Split, image: Path) -> None:
    ask = {"gpu-hook.io/devices": "0:0,0:1", "gpu-hook.io/memory": "512Mi"}
    done = stage.run(image, "/bin/ls", "/dev", "/dev/nvidia-caps", annotations=ask)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split().count("nvidia0") == 1 and done.stdout.count("nvidia-cap") == 6
    stopped_at_the_limit(stage.fill(image, "/bin/route", "libcuda.so.1", "cuMemAlloc_v2", annotations=ask), 512)
