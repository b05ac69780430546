"""The edits of the NVIDIA runtime's CDI mode, narrowed to the grant."""

from typing import Any

import pytest

from oci_hook.apply import bundle_plan
from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, GpuNode, Inventory
from oci_hook.core.plan import DeviceNode
from oci_hook.errors import refuse
from oci_hook.oci import nvidia_edits

CHANNEL = "/dev/nvidia-caps-imex-channels/channel"


def test_imex_channels_that_only_the_image_asked_for_go() -> None:
    """NVIDIA_IMEX_CHANNELS of an image makes the NVIDIA runtime inject channels: those not granted are taken out."""
    inventory = Inventory("b", "550", "/", False, (Gpu("GPU-0", 0, 0, 8),), (), (), "/c", "/m", imex_major=237)
    grant = Grant("k", Identity("/r", "c", "/b"), Life("b"), (Share("GPU-0", 8, whole=True),), exclusive=True)
    nodes = [DeviceNode("/dev/nvidia0", 195, 0), DeviceNode(f"{CHANNEL}3", 237, 3)]
    there = [("/dev/nvidia0", 195, 0), (f"{CHANNEL}0", 237, 0), (f"{CHANNEL}3", 237, 3)]
    spec: dict[str, Any] = {
        "linux": {
            "devices": [{"path": p, "type": "c", "major": a, "minor": i} for p, a, i in there],
            "resources": {
                "devices": [{"allow": True, "type": "c", "major": a, "minor": i, "access": "rw"} for _, a, i in there]
            },
        }
    }
    linux = nvidia_edits.narrow(spec, grant, inventory, nodes, lambda a, b: False).spec["linux"]
    assert [node["path"] for node in linux["devices"]] == ["/dev/nvidia0", f"{CHANNEL}3"]
    assert [(rule["major"], rule["minor"]) for rule in linux["resources"]["devices"]] == [(195, 0), (237, 3)]


@pytest.mark.parametrize("by", ["hook", "mount", ""])
def test_void_is_cdis_own_word_where_cdi_has_acted(by: str) -> None:
    """Its specs set that variable, so that no other program of NVIDIA's serves the container; in an image, it declines GPUs."""
    env = ["A=1", "NVIDIA_VISIBLE_DEVICES=void", "B=2"]
    spec: dict[str, Any] = {"process": {"env": env}, "mounts": [], "hooks": {}}
    if by == "hook":
        spec["hooks"] = {
            "createContainer": [{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "chmod"]}]
        }
    elif by == "mount":
        spec["mounts"] = [{"destination": "/usr/lib64/libcuda.so.580.1", "source": "/usr/lib64/libcuda.so.580.1"}]
    for mode in ("below", "standalone"):
        found = bundle_plan.unedited(spec, Settings("/opt/gpu-hook", mode=mode))
        assert found["process"]["env"] == (["A=1", "B=2"] if by and mode == "below" else env)
        assert found["hooks"] == spec["hooks"] and env == spec["process"]["env"]


@pytest.mark.parametrize("listed", [True, False])
def test_who_asks_for_nothing_keeps_no_node_of_a_gpu(listed: bool) -> None:
    """Also its node in /dev/dri, whose number the inventory knows; without one, all that CDI has put there."""
    ours, others = ("/dev/dri/renderD128", 226, 128), ("/dev/dri/renderD129", 226, 129)
    nodes = [("/dev/nvidia0", 195, 0), ours, others, ("/dev/fuse", 10, 229)]
    rules = [{"allow": True, "type": "c", "major": a, "minor": i, "access": "rwm"} for _, a, i in nodes]
    spec: dict[str, Any] = {
        "mounts": [{"destination": "/usr/lib64/libcuda.so.580.1", "source": "/usr/lib64/libcuda.so.580.1"}],
        "linux": {
            "devices": [{"path": p, "type": "c", "major": a, "minor": i} for p, a, i in nodes],
            "resources": {"devices": [*rules, {"allow": True, "type": "c", "major": 195, "access": "rw"}]},
        },
    }
    inventory = Inventory(
        "b", "580.1", "/", False, (), (), (), "/c", "/m", nodes=(GpuNode("GPU-0", "graphics", *ours),)
    )

    def load(settings: Settings) -> Inventory:
        if listed:
            return inventory
        raise refuse("GH-301", "there is none")

    linux = bundle_plan.for_no_request(spec, Settings("/opt/gpu-hook", mode="below"), load)["linux"]
    left = [others, nodes[3]] if listed else [nodes[3]]
    assert [(n["path"], n["major"], n["minor"]) for n in linux["devices"]] == left
    assert [(rule["major"], rule.get("minor")) for rule in linux["resources"]["devices"]] == [node[1:] for node in left]


def test_a_rule_for_every_gpu_goes_by_itself() -> None:
    spec: dict[str, Any] = {"linux": {"resources": {"devices": [{"allow": True, "type": "c", "major": 195}]}}}
    assert nvidia_edits.decline(spec, None)["linux"]["resources"]["devices"] == []


def test_a_node_of_another_makers_gpu_stays() -> None:
    node, rule = {"path": "/dev/dri/renderD128", "major": 226, "minor": 128}, {"allow": True, "type": "c", "major": 226}
    spec: dict[str, Any] = {"linux": {"devices": [node], "resources": {"devices": [{**rule, "minor": 128}]}}}
    assert nvidia_edits.decline(spec, None) is spec
