"""oci-gpu-hook in plain runc on cgroup v2: the runtime's device program is extended, and its limits still hold."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oci_hook.ledger import slot_files
from testbed.containers import Runc
from testbed.installs import Install
from tests.test_hook import ASK, hooked, nothing_is_booked

pytestmark = pytest.mark.root


@pytest.fixture
def install(prefix: Install) -> Install:
    for name in ("ledger", "pages"):
        (prefix.state / name).mkdir(mode=0o700)
    return prefix


class OnVersion2:
    """runc where only cgroup v2 is mounted. Its output goes to a file, since a container would keep a pipe open."""

    def __init__(self, runc: Runc, folder: Path) -> None:
        self.runc = runc
        self.out = folder / "v2-out"

    def __call__(self, *args: str, setup: str = "true", way: str = "") -> tuple[int, str]:
        """(exit status, output). setup: shell code that is run before. way: a command to run it by."""
        script = (
            "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && "
            f"{setup} && exec {way} runc --root {self.runc.root} {' '.join(args)}"
        )
        with open(self.out, "w") as out:
            command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
            status = subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL).returncode
        return status, self.out.read_text()

    def start(self, folder: Path) -> str:
        id = self.runc.new_id()
        done = self("create", "--bundle", str(folder), id)
        assert done[0] == 0, done
        assert self("start", id) == (0, "")
        return id


@pytest.fixture
def on_v2(runc: Runc, tmp_path: Path) -> Iterator[OnVersion2]:
    runtime = OnVersion2(runc, tmp_path)
    yield runtime
    for id in runc.ids:
        runtime("delete", "--force", id)


@pytest.mark.parametrize("stages", [("prestart",), ()], ids=["prestart", "all"])
def test_cgroup_v2(install, bundle, on_v2, tmp_path, stages):
    """The runtime's device program is extended: the granted GPU opens, another does not, also after an update."""
    nothing = tmp_path / "resources.json"
    nothing.write_text("{}")  # runc cannot set controllers of version 1 here, but may replace the device program
    id = on_v2.start(bundle(ASK, edit=hooked(install, *stages)))
    [grant] = install.grants()
    assert grant.who.id == id
    for _ in ("before", "after update"):
        assert "No such device or address" in on_v2("exec", id, "cat", "/dev/nvidia0")[1]
        assert on_v2("exec", id, "mknod", "/dev/stolen", "c", "195", "1")[0] == 0
        assert "Operation not permitted" in on_v2("exec", id, "cat", "/dev/stolen")[1]
        assert on_v2("exec", id, "rm", "/dev/stolen")[0] == 0
        assert on_v2("exec", id, "dd", "if=/dev/zero", "of=/dev/null", "count=1")[0] == 0  # what the spec permits
        assert on_v2("update", "--resources", str(nothing), id) == (0, "")
    on_v2("delete", "--force", id)
    assert install.grants() == ()
    if not stages:
        nothing_is_booked(install)


@pytest.mark.parametrize(
    "rule",
    [
        {"allow": True, "access": "rwm"},
        {"allow": True, "type": "c", "major": 195, "access": "rw"},
        {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "r"},
    ],
)
def test_cgroup_v2_other_gpus(install, bundle, on_v2, rule):
    def edit(spec: dict[str, Any]) -> None:
        spec["linux"]["resources"]["devices"] = [{"allow": False, "access": "rwm"}, rule]

    id = on_v2.runc.new_id()
    status, said = on_v2("create", "--bundle", str(bundle(ASK, edit=hooked(install, "prestart", edit=edit))), id)
    assert status == 1 and "stderr: GH-403: " in said, said
    nothing_is_booked(install)


def test_a_kernel_without_device_programs(install, bundle, on_v2, tmp_path):
    """bpf(2) is forbidden to the hook (as by a security module): it says so, and the container does not start."""
    for gpu in install.inventory.gpus:  # what else it would need rights for
        slot_files.ready(str(install.state), gpu.uuid)
    launcher = tmp_path / "without-bpf"
    launcher.write_text(
        f"#!/bin/sh\nexec setpriv --bounding-set=-sys_admin,-bpf,-net_admin --inh-caps=-all -- "
        f'{install.prefix}/bin/oci-gpu-hook "$@"\n'
    )
    launcher.chmod(0o755)

    def edit(spec: dict[str, Any]) -> None:
        for entry in spec["hooks"]["prestart"]:
            entry["path"] = str(launcher)

    folder = bundle(ASK, edit=hooked(install, "prestart", edit=edit))
    status, said = on_v2("create", "--bundle", str(folder), on_v2.runc.new_id())
    assert status == 1 and "stderr: GH-404: " in said, said
    nothing_is_booked(install)
