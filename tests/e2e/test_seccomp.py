"""A seccomp profile of just what docs/guide/environments.md lists: what the shim calls, and what runc and the C library need to start."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from testbed import REPO
from testbed.stage import Stage, glibc_image

pytestmark = [pytest.mark.root, pytest.mark.slow]

ENOSYS = 38


def test_a_profile_of_just_these(stage: Stage, native: Path, tmp_path: Path) -> None:
    page = (REPO / "docs/guide/environments.md").read_text()
    section = page.partition("\n## seccomp\n")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z0-9_]+)`", section)
    assert len(names) > 30

    def closed(spec: dict[str, Any]) -> None:
        allowed = [{"names": names, "action": "SCMP_ACT_ALLOW"}]
        spec["linux"]["seccomp"] = {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": ENOSYS,
            "syscalls": allowed,
        }

    image = glibc_image(tmp_path / "rootfs")
    shutil.copy(native / "sim/gpu-probe", image / "bin/gpu-probe")
    done = stage.run(image, "gpu-probe", "alloc", "64", "launch", "100", "50", "run", "1000", "1", edit=closed)
    assert done.returncode == 0 and "alloc 64 MiB: ok" in done.stdout, done
    assert "GH-" not in done.stderr
