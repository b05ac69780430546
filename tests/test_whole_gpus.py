"""Whole GPUs with graphics and a display, in real runc: the same files and nodes from wrapper, hook and precreate."""

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.inventory import DriverFile, GpuNode
from oci_hook.discovery.save import save_inventory
from testbed import tiny_image
from testbed.containers import Bundle, Runc
from testbed.installs import DRIVER, UUIDS, Install
from tests.test_hook import hooked

pytestmark = pytest.mark.root
ASK = {"gpu-hook.io/devices": "0", "gpu-hook.io/capabilities": "compute,utility,graphics,display"}
IMEX_MAJOR = 237
ASK["gpu-hook.io/imex-channels"] = "0,2047"
IMEX = "/dev/nvidia-caps-imex-channels/channel"
NODES = {"/dev/dri/card1": (226, 1), "/dev/dri/renderD129": (226, 129), "/dev/nvidia-modeset": (195, 254)}
NODES |= {f"{IMEX}{n}": (IMEX_MAJOR, n) for n in (0, 2047)}
FILES = {
    "/usr/lib64/libGLX_nvidia.so.0": "GLX",
    "/usr/lib64/libGLX_indirect.so.0": "GLX",
    "/usr/lib64/vdpau/libvdpau_nvidia.so.1": None,  # of video, which was not asked for
    "/etc/vulkan/icd.d/nvidia_icd.json": "vulkan",
    "/usr/lib/xorg/modules/drivers/nvidia_drv.so": "X",
    "/usr/lib64/libnvidia-opencl.so.1": "OpenCL",
}


@pytest.fixture
def install(prefix: Install) -> Install:
    for name in ("ledger", "pages"):
        (prefix.state / name).mkdir(mode=0o700)
    files = []
    for name, kind, capability, names in (
        ("libGLX_nvidia.so", "library", "graphics", ("libGLX_nvidia.so.0", "libGLX_indirect.so.0")),
        ("libvdpau_nvidia.so", "library", "video+whole", ("vdpau/libvdpau_nvidia.so.1",)),
        ("nvidia_icd.json", "data", "graphics", ("/etc/vulkan/icd.d/nvidia_icd.json",)),
        ("nvidia_drv.so", "library", "display", ("/usr/lib/xorg/modules/drivers/nvidia_drv.so",)),
        ("libnvidia-opencl.so", "library", "compute+whole", ("libnvidia-opencl.so.1",)),
    ):
        path = prefix.driver / f"usr/lib64/{name}.{DRIVER}"
        path.write_text(next(text or "" for end, text in FILES.items() if end.endswith(names[0].lstrip("/"))))
        files.append(DriverFile(str(path), kind, capability, names))
    nodes = (
        GpuNode(UUIDS[0], "graphics", "/dev/dri/card1", 226, 1),
        GpuNode(UUIDS[0], "graphics", "/dev/dri/renderD129", 226, 129),
        GpuNode(UUIDS[1], "graphics", "/dev/dri/card2", 226, 2),
        GpuNode("", "display", "/dev/nvidia-modeset", 195, 254),
    )
    prefix.inventory = prefix.inventory.replace(
        files=prefix.inventory.files + tuple(files), nodes=nodes, imex_major=IMEX_MAJOR
    )
    save_inventory(prefix.settings, prefix.inventory)
    return prefix


def by_wrapper(install: Install, bundle: Bundle, runc: Runc, **more: Any) -> "subprocess.CompletedProcess[str]":
    return runc.create(bundle(ASK, **more), install)


def by_hook(install: Install, bundle: Bundle, runc: Runc, **more: Any) -> "subprocess.CompletedProcess[str]":
    return runc.create(bundle(ASK, edit=hooked(install, "createRuntime"), **more))


def by_precreate(install: Install, bundle: Bundle, runc: Runc, **more: Any) -> "subprocess.CompletedProcess[str]":
    folder = bundle(ASK, **more)
    command = [str(install.prefix / "bin/oci-gpu-hook"), "precreate"]
    data = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout)
    return runc.create(folder)


@pytest.mark.parametrize("way", [by_wrapper, by_hook, by_precreate])
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
def test_graphics_and_display(install, bundle, runc, way, again):
    done = way(install, bundle, runc)
    assert done.returncode == 0, done.stderr
    if again:  # the image has the mount points of the first time
        runc("delete", "--force", runc.ids[-1])
        done = way(install, bundle, runc)
        assert done.returncode == 0, done.stderr
    id = runc.ids[-1]
    top = f"/proc/{runc.pid(id)}/root"
    for path, text in FILES.items():
        assert text is None if not os.path.exists(top + path) else Path(top + path).read_text() == text, path
    for path, numbers in NODES.items():
        st = os.stat(top + path)
        assert stat.S_ISCHR(st.st_mode) and (os.major(st.st_rdev), os.minor(st.st_rdev)) == numbers
    assert not os.path.exists(f"{top}/dev/dri/card2")
    rules = Path(f"/sys/fs/cgroup/devices/{id}/devices.list").read_text().splitlines()
    assert {"c 226:1 rw", "c 226:129 rw", "c 195:254 rw", "c 195:0 rw", "c 237:0 rw", "c 237:2047 rw"} <= set(rules)
    assert sorted(os.listdir(os.path.dirname(top + IMEX))) == ["channel0", "channel2047"]
    assert not [
        rule for rule in rules if rule.startswith(("c 237:1 ", "c 237:* ", "c 226:2 ", "c 195:1 ", "c 195:* r"))
    ]


def test_an_edited_bundle_again(install, bundle, runc):
    """When an engine restarts a container, our earlier edit is taken out first, and made once."""
    folder = bundle(ASK)
    assert runc.create(folder, install).returncode == 0
    first = json.loads((folder / "config.json").read_text())
    runc("delete", "--force", runc.ids[-1])
    done = runc.create(folder, install, id=runc.ids[-1])
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "config.json").read_text()) == first


def test_a_share_is_refused_them(install, bundle, runc, tmp_path):
    asked = {**ASK, "gpu-hook.io/memory": "1Gi"}
    done = runc.create(bundle(asked), install)
    assert done.returncode == 1 and done.stderr.count("GH-106: ") == 2
    del asked["gpu-hook.io/imex-channels"]
    less = bundle({**asked, "gpu-hook.io/capabilities": "all"}, rootfs=tiny_image.busybox(tmp_path / "other"))
    assert runc.create(less, install).returncode == 0
    top = f"/proc/{runc.pid(runc.ids[-1])}/root"
    assert not [path for path in (*FILES, *NODES) if os.path.exists(top + path)]
