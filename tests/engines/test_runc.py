"""runc and crun called directly, with gpu-hook-runtime in their place, on cgroup v1 and v2."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.engines import box
from testbed.engines.box import LOOK, Place

pytestmark = [pytest.mark.root, pytest.mark.slow]

CGROUPS = {
    "v1": "! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified",  # crun 1.8 wants v1 alone
    "v2": "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup",
}


# crun on v2 raises its limit of locked memory, which root of a test machine may not do.


class Machine:
    """gpu-hook-runtime above one runtime, on one version of cgroups."""

    def __init__(self, place: Place, system: Path | None, runtime: str, version: str) -> None:
        self.place = place
        self.dir = place.dir / f"{runtime}-{version}"
        self.dir.mkdir()
        self.prefix = self.dir / "prefix"
        self.hideout = box.Hideout(system, CGROUPS[version])
        path = self.hideout.run("sh", "-c", f"command -v {runtime}").stdout.strip()
        self.gpu_hook("install", "--no-engines", "--runtime", path, "--state-dir", str(self.dir / "state"))
        self.gpu_hook("sim", "up", "--gpus", "2", "--memory", f"{box.MEMORY_MIB}Mi")

    def gpu_hook(self, *args: str) -> str:
        return self.hideout.gpu_hook(*args, "--prefix", str(self.prefix))

    def __call__(self, *args: str) -> "subprocess.CompletedProcess[str]":
        flags = ("--root", str(self.dir / "root"))
        return self.hideout.run(str(self.prefix / "bin/gpu-hook-runtime"), *flags, *args)

    def bundle(self, name: str, annotations: dict[str, str], *args: str) -> Path:
        folder = self.dir / name
        folder.mkdir()
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        spec: dict[str, Any] = json.loads((folder / "config.json").read_text())
        spec["process"].update(terminal=False, args=list(args))
        del spec["process"]["rlimits"]
        spec["root"] = {"path": str(self.place.rootfs), "readonly": False}
        spec["annotations"] = annotations
        spec["linux"]["cgroupsPath"] = f"/{self.place.cgroup}/{name}"
        for kind in ("bounding", "effective", "permitted"):
            spec["process"]["capabilities"][kind].append("CAP_MKNOD")
        (folder / "config.json").write_text(json.dumps(spec))
        return folder


@pytest.fixture(params=[("runc", "v1"), ("runc", "v2"), ("crun", "v1")], ids="-".join)
def machine(place: Place, request: pytest.FixtureRequest) -> Iterator[Machine]:
    machine = Machine(place, place.system, *request.param)
    yield machine
    machine.hideout.close()


def test_run(machine: Machine) -> None:
    asked = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"}
    bundle = machine.bundle("one", asked, "sh", "-c", f"exec 2>&1; rm -f /tmp/gpu1; {LOOK}")
    done = machine("run", "--bundle", str(bundle), "gh-one")
    assert done.returncode == 0, done.stdout + done.stderr
    box.saw_its_share(done.stdout, 1024)
    bad = machine.bundle("two", {**asked, "gpu-hook.io/memory": "99Gi"}, "true")
    done = machine("run", "--bundle", str(bad), "gh-two")
    assert done.returncode != 0 and "GH-201: " in done.stderr
