"""The edits of the NVIDIA runtime's CDI mode, narrowed to the grant."""

from typing import Any

import pytest

from oci_hook.apply import bundle_plan
from oci_hook.config.settings import Settings
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.plan import DeviceNode
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
