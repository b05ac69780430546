"""The driver's limits beside the memory hook of NVIDIA's toolkit, which sets them as well: it cannot raise one.

The other side is tests/e2e/nvidia/toolkit.py, whose hook calls the simulated driver as NVIDIA's calls NVIDIA's.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from oci_hook.ledger import inventory
from testbed import REPO
from testbed.boundary import ASK, Node
from testbed.containers import Bundle
from testbed.stage import MULTIARCH

pytestmark = pytest.mark.root
LIBDIR = f"/usr/lib/{MULTIARCH}"
HOSTILE = [f"NVIDIA_GPU_MEMORY_{word}=8000" for word in ("REQUEST", "LIMIT", "REQUESTS", "LIMITS")]
UNEQUAL = {"gpu-hook.io/request": json.dumps([{"memory": "1Gi"}, {"memory": "3Gi"}])}
EQUAL = {"gpu-hook.io/gpus": "2", "gpu-hook.io/memory": "1Gi"}
WHOLE = {"gpu-hook.io/devices": "0", "gpu-hook.io/exclusive": "true"}


class Beside:
    def __init__(self, node: Node, mode: str) -> None:
        self.node = node
        self.folder = node.folder / "toolkit"
        self.folder.mkdir()
        for name in ("nvidia-container-runtime", "nvidia-cdi-hook"):
            shutil.copy(REPO / "tests/e2e/nvidia/toolkit.py", self.folder / name)
            (self.folder / name).chmod(0o755)
        self.runtime = str(self.folder / "nvidia-container-runtime")
        node.set(mode=mode, **({"runtime": self.runtime} if mode == "on-top" else {}))
        listed = inventory.load(node.settings)
        conf = {
            "mode": "cdi",
            "lower": "/usr/sbin/runc" if mode == "on-top" else node.program,
            "root": str(node.prefix / "sim/root"),
            "folder": LIBDIR,
            "version": listed.driver_version,
            "gpus": {gpu.uuid: gpu.minor for gpu in listed.gpus},
            "more": [],
            "nvml": [str(node.library), [["GPU_HOOK_SIM_GPUS", str(node.state / "sim/gpus")]]],
            "repo": str(REPO),
        }
        (self.folder / "conf.json").write_text(json.dumps(conf))
        self.program = node.program if mode == "on-top" else self.runtime

    def limits(self, bundle: Path, cgroup: str = "system.slice:runc:{}") -> list[int]:
        """Of each GPU of the node, in MiB, once the container is made. cgroup: cgroupsPath, with the container's name."""
        id = self.node.runc.new_id()
        file = bundle / "config.json"
        spec = json.loads(file.read_text())
        spec["linux"]["cgroupsPath"] = cgroup.format(id)
        file.write_text(json.dumps(spec))
        done = self.node.runtime("create", "--bundle", str(bundle), id, program=self.program)
        assert done.returncode == 0, done
        found = self.node.limits(self.node.cgroup(id), *self.node.uuids)
        assert self.node.delete(id).returncode == 0
        assert self.node.grants() == () and self.node.records() == []
        return found

    def asked(self) -> list[str]:
        """The limit that each call of the toolkit's hook found, and the one that was set before."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.partition(" ")[2] for line in lines]


@pytest.mark.parametrize("said", [[], HOSTILE[:2], HOSTILE[2:], HOSTILE[:1], HOSTILE[3:], HOSTILE], ids=len)
def test_on_top_the_hook_sets_what_is_set(node: Node, bundle: Bundle, said: Sequence[str]) -> None:
    """It runs after ours."""
    beside = Beside(node, "on-top")
    assert beside.limits(bundle(ASK, env=said)) == [1024, -1]
    assert beside.asked() == ["1024 1024"]


def test_on_top_with_what_the_node_adds(node: Node, bundle: Bundle) -> None:
    node.set(driver_limit_extra="300Mi")
    beside = Beside(node, "on-top")
    assert beside.limits(bundle(ASK, env=HOSTILE)) == [1324, -1]
    assert beside.asked() == ["1324 1324"]


def test_on_top_with_several_gpus(node: Node, bundle: Bundle) -> None:
    """The hook has one pair of variables for all GPUs. Where shares differ, it has none, and sets nothing."""
    beside = Beside(node, "on-top")
    assert beside.limits(bundle(EQUAL, env=HOSTILE)) == [1024, 1024]
    assert beside.asked() == ["1024 1024"] * 2
    assert sorted(beside.limits(bundle(UNEQUAL, env=HOSTILE))) == [1024, 3072]
    assert sorted(beside.asked()[2:]) == ["None 1024", "None 3072"]


def test_on_top_without_a_cgroup_of_systemds(node: Node, bundle: Bundle) -> None:
    """The hook fails there, if it has its variables."""
    beside = Beside(node, "on-top")
    assert beside.limits(bundle(ASK, env=HOSTILE), "/{}") == [1024, -1]
    assert beside.asked() == ["None 1024"]


@pytest.mark.parametrize("how", ["whole", "shim"])
def test_on_top_without_a_limit_of_the_drivers(node: Node, bundle: Bundle, how: str) -> None:
    """A whole GPU, or a node whose limits are the shim's: the image's words set none either."""
    beside = Beside(node, "on-top")
    if how == "shim":
        node.set(boundary="shim")
    assert beside.limits(bundle(WHOLE if how == "whole" else ASK, env=HOSTILE)) == [-1, -1]
    assert beside.asked() == [f"None {2**44 - 1}"]


def test_below_the_hook_goes(node: Node, bundle: Bundle) -> None:
    beside = Beside(node, "below")
    env = ["NVIDIA_VISIBLE_DEVICES=all", *HOSTILE]
    assert beside.limits(bundle(ASK, env=env)) == [1024, -1]
    assert sorted(beside.limits(bundle(UNEQUAL, env=env))) == [1024, 3072]
    assert beside.asked() == []
