"""Requests by mount, by `request` and in other systems' words, in real containers, by the wrapper and by the hook."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.layout import MARKER, REQUEST_DIR, VISIBLE_DIR
from testbed import REPO, tiny_image
from testbed.containers import Bundle, Runc
from testbed.installs import UUIDS, Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
WAYS = ["wrapper", "hook", "both"]


def null(*destinations: str, source: str = "/dev/null") -> list[dict[str, Any]]:
    return [{"destination": d, "type": "bind", "source": source, "options": ["rbind", "ro"]} for d in destinations]


class Start:
    """Creates containers by the wrapper or by the hook."""

    def __init__(self, way: str, install: Install, bundle: Bundle, runc: Runc) -> None:
        self.way, self.install, self.bundle, self.runc = way, install, bundle, runc
        install.set(driver_root=str(install.driver))
        snippet = (REPO / "runtime-config/runc/config.json").read_text().replace("/opt/gpu-hook", str(install.prefix))
        self.hooks = {"prestart": json.loads(snippet)["hooks"]["prestart"]}

    def make(
        self, annotations: dict[str, str], mounts: list[dict[str, Any]], rootfs: Path | None = None, **more: Any
    ) -> Path:
        def edit(spec: dict[str, Any]) -> None:
            spec["mounts"] += mounts
            if self.way != "wrapper":
                spec["hooks"] = self.hooks

        image = {"rootfs": rootfs} if rootfs else {}
        return self.bundle(annotations, edit=edit, **image, **more)

    def __call__(self, folder: Path, id: str | None = None) -> "subprocess.CompletedProcess[str]":
        return self.runc.create(folder, None if self.way == "hook" else self.install, id=id)

    def shares(self) -> list[tuple[str, int, int, bool]]:
        [grant] = self.install.grants()
        return [(share.uuid, share.memory_mib, share.compute, share.whole) for share in grant.shares]


@pytest.fixture(params=WAYS)
def create(request: pytest.FixtureRequest, prefix: Install, bundle: Bundle, runc: Runc) -> Start:
    return Start(request.param, prefix, bundle, runc)


ASK = (f"{REQUEST_DIR}/memory=4Gi", f"{REQUEST_DIR}/compute=30", f"{REQUEST_DIR}/devices=1")


def test_mounts_of_dev_null_ask(create: Start, runc: Runc) -> None:
    folder = create.make({}, null(*ASK))
    done = create(folder)
    assert done.returncode == 0, done.stderr
    assert create.shares() == [(UUIDS[1], 4096, 30, False)]
    id = runc.ids[-1]
    assert runc("start", id).returncode == 0
    # The mounts that asked are hidden by our directory; by the wrapper they were never made.
    assert "request" not in runc.exec(id, "ls", "/run/gpu-hook").stdout
    lines = Path(f"/proc/{runc.pid(id)}/mountinfo").read_text().splitlines()
    assert any(REQUEST_DIR in line for line in lines) == (create.way == "hook")
    assert "No such device or address" in runc.exec(id, "cat", "/dev/nvidia1").stderr  # let in, to find no driver


def test_the_same_bundle_again(create: Start, runc: Runc) -> None:
    folder = create.make({"gpu-hook.io/policy": "fs"}, null(*ASK))
    assert create(folder).returncode == 0
    first, shares, id = json.loads((folder / "config.json").read_text()), create.shares(), runc.ids[-1]
    runc("delete", "--force", id)
    done = create(folder, id)  # the mount points of the first are in the image now
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "config.json").read_text()) == first
    assert create.shares() == shares
    assert (MARKER in first["annotations"]) == (create.way != "hook")


def test_an_image_cannot_ask_by_files(create: Start, tmp_path: Path) -> None:
    image = tiny_image.busybox(tmp_path / "asking")
    for name in ("memory=4Gi", "gpus=all"):
        (image / "run/gpu-hook/request").mkdir(parents=True, exist_ok=True)
        (image / "run/gpu-hook/request" / name).touch()
    assert create(create.make({}, [], image)).returncode == 0
    assert create.install.grants() == ()


@pytest.mark.parametrize(
    ("mounts", "code"),
    [
        (null(f"{REQUEST_DIR}/memory=4G"), "GH-101"),
        (null(f"{REQUEST_DIR}/memory"), "GH-102"),
        (null(f"{REQUEST_DIR}/memory=4Gi", source="/etc/hostname"), "GH-102"),
        (null(f"{REQUEST_DIR}/memory=4Gi", f"{REQUEST_DIR}/memory=2Gi"), "GH-103"),
        (null(f"{REQUEST_DIR}/../request//gpus=9"), "GH-203"),
        (null(f"{VISIBLE_DIR}/cdi"), "GH-101"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_mounts_that_are_refused(create: Start, mounts: list[dict[str, Any]], code: str) -> None:
    done = create(create.make({}, mounts))
    assert done.returncode == 1 and code in done.stderr, done.stderr
    assert create.install.grants() == ()


def test_nvidias_mounts(create: Start) -> None:
    folder = create.make({"gpu-hook.io/memory": "1Gi"}, null(f"{VISIBLE_DIR}/{UUIDS[1]}"))
    done = create(folder)
    assert done.returncode == 0, done.stderr
    assert create.shares() == [(UUIDS[1], 1024, 0, False)]
    kept = [m["destination"] for m in json.loads((folder / "config.json").read_text())["mounts"]]
    assert f"{VISIBLE_DIR}/{UUIDS[1]}" in kept


def test_unequal_shares_on_two_gpus(create: Start, runc: Runc) -> None:
    cri = {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "train"}
    asked = {"train": [{"memory": "4Gi", "compute": 60, "device": 1}, {"memory": 1024, "device": 0}]}
    done = create(create.make({**cri, "gpu-hook.io/request": json.dumps(asked)}, []))
    assert done.returncode == 0, done.stderr
    assert create.shares() == [(UUIDS[1], 4096, 60, False), (UUIDS[0], 1024, 0, False)]


@pytest.mark.parametrize(
    ("words", "shares"),
    [
        ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}, [(UUIDS[0], 1024, 30, False)]),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, [(UUIDS[0], 3000, 0, False)]),
        ({"tke.cloud.tencent.com/qgpu-memory": "2"}, [(UUIDS[0], 2048, 0, False)]),
    ],
    ids=str,
)
def test_other_systems_annotations(prefix: Install, bundle: Bundle, runc: Runc, words, shares) -> None:
    start = Start("wrapper", prefix, bundle, runc)
    prefix.set(dialects=["gpu-manager", "hami", "qgpu"], qgpu_memory_unit="GiB")
    done = start(start.make(words, []))
    assert done.returncode == 0, done.stderr
    assert start.shares() == shares
