"""gpu-hook-runtime and oci-gpu-hook give the same container: mounts, nodes, device rules, files made in the image.

Only the environment differs: no OCI hook can change it.
"""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.ledger import store
from testbed import REPO, tiny_image
from testbed.containers import Bundle, Runc
from testbed.installs import Install
from tests.conftest import ARCH

pytestmark = pytest.mark.root
Image = Callable[[Path], None]


@pytest.fixture
def install(prefix: Install) -> Install:
    prefix.set(driver_root=str(prefix.driver))
    return prefix


def plain(root: Path) -> None:
    """Red Hat's layout, nothing in it."""


def debian(root: Path) -> None:
    (root / "etc/debian_version").write_text("12.1\n")
    (root / f"usr/lib/{ARCH}-linux-gnu").mkdir(parents=True)


def own_driver(root: Path) -> None:
    """Copies of the driver's libraries, links among them, a cuda-compat folder, a left-over mount point."""
    for name in ("libcuda.so.525.1.1", "libnvidia-ml.so.1"):
        (root / "usr/lib64" / name).write_text("the image's own")
    (root / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.525.1.1")
    (root / "usr/lib64/libcuda.so").symlink_to("libcuda.so.1")
    (root / "usr/local/cuda-12.4/compat").mkdir(parents=True)
    (root / "usr/local/cuda-12.4/compat/libcuda.so.1").write_text("the image's own")
    (root / "usr/local/cuda").symlink_to("cuda-12.4")
    (root / "run/gpu-hook").mkdir()


def merged(root: Path) -> None:
    """/lib64 and /var/run are links, and libcuda.so.1 is one to a file that is not there."""
    (root / "lib64").symlink_to("usr/lib64")
    (root / "var").mkdir()
    (root / "var/run").symlink_to("../run")
    (root / "usr/lib64/libcuda.so.1").symlink_to("../lib/driver/libcuda.so.1")


def tmpfs_run(spec: dict[str, Any]) -> None:
    spec["mounts"].append(
        {"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}
    )


def seen(runc: Runc, id: str, root: Path, install: Install) -> dict[str, object]:
    [grant] = install.grants()
    top = f"/proc/{runc.pid(id)}/root"
    mounts = []
    for line in Path(f"/proc/{runc.pid(id)}/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        dash = fields.index("-")
        shared = [f for f in fields[6:dash] if not f.startswith("master:")]
        fstype, source, options = fields[dash + 1 :]
        what = fields[3].replace(str(root), "ROOT").replace(grant.key, "KEY").replace(id, "ID")
        mounts.append(
            (fields[4], what, sorted(fields[5].split(",")), shared, fstype, source, sorted(options.split(",")))
        )
    nodes = []
    for name in os.listdir(f"{top}/dev"):
        st = os.lstat(f"{top}/dev/{name}")
        if stat.S_ISCHR(st.st_mode):
            nodes.append((name, oct(st.st_mode), st.st_uid, st.st_gid, os.major(st.st_rdev), os.minor(st.st_rdev)))
    made = []
    for path in sorted(root.rglob("*")):
        if path.relative_to(root).parts[0] != "bin":
            st = path.lstat()
            made.append((str(path.relative_to(root)), stat.S_IFMT(st.st_mode), st.st_size, st.st_uid))
    rules = Path(f"/sys/fs/cgroup/devices/{id}/devices.list").read_text().splitlines()
    return {
        "mounts": sorted(mounts),
        "order": [m[0] for m in mounts if m[4] not in ("cgroup", "proc")],
        "nodes": sorted(nodes),
        "rules": sorted(rules),
        "image": made,
        "page": Path(f"{top}/run/gpu-hook/policy").read_bytes()[:4096].replace(grant.key.encode(), b"KEY"),
        "shares": [share.fields() for share in grant.shares],
        "grant": (grant.terms, grant.exclusive, grant.driver_version),
    }


@pytest.mark.parametrize("image", [plain, debian, own_driver, merged], ids=lambda image: image.__name__)
@pytest.mark.parametrize("edit", [None, tmpfs_run], ids=["", "tmpfs"])
@pytest.mark.parametrize(
    "ask",
    [
        {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_PERCENT": "30"},
        {"gpu-hook.io/devices": "0,1", "gpu-hook.io/memory": "2Gi", "gpu-hook.io/compute": "20"},
    ],
    ids=["share", "two GPUs"],
)
def test_wrapper_and_hook(install: Install, bundle: Bundle, runc: Runc, tmp_path: Path, image, edit, ask) -> None:
    snippet = (REPO / "runtime-config/runc/config.json").read_text().replace("/opt/gpu-hook", str(install.prefix))
    results = []
    for way in ("wrapper", "hook"):
        root = tiny_image.busybox(tmp_path / way)
        image(root)

        def change(spec: dict[str, Any], way: str = way) -> None:
            if edit:
                edit(spec)
            if way == "hook":
                spec["hooks"] = {"prestart": json.loads(snippet)["hooks"]["prestart"]}

        done = runc.create(bundle(ask, rootfs=root, edit=change), install if way == "wrapper" else None)
        assert done.returncode == 0, done.stderr
        id = runc.ids[-1]
        assert runc("start", id).returncode == 0
        results.append(seen(runc, id, root, install))
        runc("delete", "--force", id)
        with store.open_ledger(str(install.state), seconds=60) as ledger:
            assert not ledger.grants  # so both have the same slot
    wrapper, hook = results
    for what in wrapper:
        assert hook[what] == wrapper[what], what
