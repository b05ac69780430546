"""Each boundary against each way past a memory limit, in real containers; security-rules.md has the same table."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed import REPO
from testbed import agent as box
from testbed.boundary import ASK, GPU_MIB, Node
from testbed.containers import Bundle

pytestmark = pytest.mark.root
LIMIT, CONTEXT = 1024, 64
REAL = "export LD_LIBRARY_PATH=/real; "
# A program that allocates this much, forks, and ends; its child holds the memory meanwhile.
# On a loaded machine the simulated driver now and then refuses the first allocation; then the attack begins again.
HOLD = (
    "while : >/tmp/held; do gpu-probe alloc 600 fork hold 600 >/tmp/held & "
    "while ! busybox grep -q child /tmp/held; do sleep 0.1; done; "
    "busybox grep -q CUDA_ERROR /tmp/held || break; busybox killall -9 gpu-probe; sleep 1; done; "
)
CHILD_CGROUP = "busybox mkdir /sys/fs/cgroup/mine && echo $$ > /sys/fs/cgroup/mine/cgroup.procs && "
# In the words of security-rules.md: the attack (its last program prints what it got), and who stops it: the shim,
# the driver's back-end dmem, and misc.
ATTACKS = {
    "the mounted libcuda, linked": ("gpu-probe-linked fill 8", True, True, True),
    "the mounted libcuda, by dlopen": ("gpu-probe fill 8", True, True, True),
    "a libcuda that the image brings under another name": (
        "export LD_LIBRARY_PATH=/mine; gpu-probe fill 8",
        False,
        True,
        True,
    ),
    "the driver's own library by its private path": (REAL + "gpu-probe fill 8", False, True, True),
    "a static program": ("gpu-probe-static fill 8", False, True, True),
    "a forked child that holds memory, through the shim": (HOLD + "gpu-probe fill 8", True, True, True),
    "a forked child that holds memory, past the shim": (REAL + HOLD + "gpu-probe fill 8", False, True, True),
    "a cgroup of its own below the container's": (REAL + CHILD_CGROUP + "gpu-probe fill 8", False, True, False),
}
BOUNDARIES = {"shim": ("dmem", "shim"), "driver (dmem)": ("dmem", "auto"), "driver (misc)": ("misc", "auto")}
CASES = [
    pytest.param({"limits": limits}, setting, attack, id=f"{name}: {attack}")
    for name, (limits, setting) in BOUNDARIES.items()
    for attack in ATTACKS
]


@pytest.fixture(scope="module")
def image(native: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = box.image(tmp_path_factory.mktemp("image"))
    for name in ("gpu-probe-static", "gpu-probe-linked"):
        shutil.copy(native / "sim" / name, root / "bin" / name)
    (root / "real").mkdir()
    (root / "real/libcuda.so.1").symlink_to("/run/gpu-hook/driver/cuda")
    return root


def stopped(setting: str, limits: str, attack: str) -> bool:
    _, shim, dmem, misc = ATTACKS[attack]
    return shim if setting == "shim" else {"dmem": dmem, "misc": misc}[limits]


def with_cgroups(spec: dict[str, Any]) -> None:
    """As an engine gives a container that is to run systemd: its cgroups are its own to write."""
    if {"type": "cgroup"} not in spec["linux"]["namespaces"]:  # it is there on a node with cgroup v2
        spec["linux"]["namespaces"].append({"type": "cgroup"})
    spec["mounts"] = [m for m in spec["mounts"] if m["destination"] != "/sys/fs/cgroup"]
    spec["mounts"].append({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]})


@pytest.mark.parametrize("node, setting, attack", CASES, indirect=["node"])
def test_attack(node: Node, bundle: Bundle, image: Path, setting: str, attack: str, request: Any) -> None:
    node.set(boundary=setting)
    mine = image / "mine/libcuda.so.1"
    mine.parent.mkdir(exist_ok=True)
    shutil.copy(next((node.prefix / "sim/root").rglob("libcuda.so.1")), mine.with_name("libmine.so"))
    mine.unlink(missing_ok=True)
    mine.symlink_to("libmine.so")
    edit: Callable[[dict[str, Any]], None] = with_cgroups if CHILD_CGROUP in ATTACKS[attack][0] else lambda spec: None
    script = "export PATH=/bin; " + ATTACKS[attack][0]
    done = node.runtime(
        "run", "--bundle", str(bundle(ASK, (), ("/bin/sh", "-c", script), image, edit)), node.runc.new_id()
    )
    said = re.search(r"fill: (\d+) MiB allocated in pieces of 8, then (\w+)", done.stdout)
    assert said and said[2] == "CUDA_ERROR_OUT_OF_MEMORY", done
    held = 600 + CONTEXT if HOLD in ATTACKS[attack][0] else 0
    got = int(said[1]) + CONTEXT + held
    if stopped(setting, request.node.callspec.params["node"]["limits"], attack):
        assert LIMIT - 8 <= got <= LIMIT, done
    else:
        assert got >= GPU_MIB - 8, done


def test_security_has_the_same_table() -> None:
    rows = {}
    for line in (REPO / "docs/internals/security-rules.md").read_text().splitlines():
        if line.startswith("| "):
            attack, *results = [cell.strip() for cell in line.strip("|").split("|")]
            rows[attack] = results
    words = {True: "stopped", False: "not stopped"}
    for attack, (_, *results) in ATTACKS.items():
        assert rows.get(attack) == [words[result] for result in results], attack
