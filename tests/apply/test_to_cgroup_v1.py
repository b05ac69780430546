"""Device rules of a live process's cgroup: added where missing, verified, refused where they would open too much."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from oci_hook.apply import to_cgroup_v1
from oci_hook.core.plan import DeviceRule
from oci_hook.errors import GhError
from oci_hook.linux import cgroup

pytestmark = pytest.mark.root
TOP = Path("/sys/fs/cgroup/devices")

if not TOP.is_dir():
    pytest.skip("cgroup v1 devices controller is not mounted", allow_module_level=True)


class Group:
    """A devices cgroup with one process, and rules as runc sets them."""

    def __init__(self, path: Path, *rules: str) -> None:
        self.path = path
        path.mkdir()
        self.process = subprocess.Popen(["sleep", "100"])
        self.add(self.process.pid)
        (path / "devices.deny").write_text("a")
        for rule in rules:
            (path / "devices.allow").write_text(rule)

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def rules(self) -> list[str]:
        return (self.path / "devices.list").read_text().splitlines()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.path.rmdir()


@pytest.fixture
def group():
    group = Group(TOP / f"gpu-hook-test-{os.getpid()}", "c 1:3 rwm", "c *:* m")
    yield group
    group.close()


@pytest.fixture
def directory(group):
    fd = to_cgroup_v1.open_devices(group.process.pid)
    yield fd
    os.close(fd)


def can_open(group: Group, major: int, minor: int, folder: Path) -> str:
    node = folder / f"node-{major}-{minor}"
    os.mknod(node, 0o20666, os.makedev(major, minor))
    script = f"echo $$ > {group.path}/cgroup.procs; cat {node}"
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True).stderr.rpartition(": ")[2].strip()


def test_rules_are_added(group, directory, tmp_path):
    assert can_open(group, 195, 3, tmp_path) == "Operation not permitted"
    to_cgroup_v1.apply((DeviceRule(195, 3), DeviceRule(195, 255), DeviceRule(1, 3)), directory)
    assert group.rules() == ["c 1:3 rwm", "c *:* m", "c 195:3 rw", "c 195:255 rw"]
    (tmp_path / "node-195-3").unlink()
    assert can_open(group, 195, 3, tmp_path) == "No such device or address"
    assert can_open(group, 195, 4, tmp_path) == "Operation not permitted"
    to_cgroup_v1.apply((DeviceRule(195, 3),), directory)
    assert len(group.rules()) == 4  # no rule is added twice


def test_a_cgroup_above_forbids_it(group, directory, tmp_path):
    inner = Group(group.path / "inner")
    try:
        fd = to_cgroup_v1.open_devices(inner.process.pid)
        with pytest.raises(GhError, match="^GH-405: .*devices.allow: Operation not permitted.* cgroup above"):
            to_cgroup_v1.apply((DeviceRule(195, 3),), fd)
        os.close(fd)
        assert inner.rules() == []
    finally:
        inner.close()


def test_a_cgroup_that_cannot_be_written_to(directory, monkeypatch):
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, f"devices.allow: {os.strerror(errno.EROFS)}")

    monkeypatch.setattr(cgroup, "write", read_only)
    with pytest.raises(GhError, match="^GH-405: .*devices.allow: Read-only file system; start the container through"):
        to_cgroup_v1.apply((DeviceRule(195, 3),), directory)


@pytest.mark.parametrize(
    ("rule", "reached"),
    [
        ("a *:* rwm", True),
        ("c *:* r", True),
        ("c 195:* w", True),
        ("c 195:1 rw", True),
        ("c 195:1 m", False),
        ("b 195:1 rw", False),
        ("c 195:0 rw", False),
        ("c 195:255 rw", False),
        ("c 226:* rw", True),
        ("c 226:129 rw", True),
        ("c 226:129 m", False),
        ("c 226:128 rw", False),
    ],
)
def test_gpus_that_are_not_granted(group, directory, rule, reached):
    (group.path / "devices.allow").write_text(rule)
    if reached:
        with pytest.raises(GhError, match="^GH-403: "):
            to_cgroup_v1.check(directory, (0,), {(226, 129)})
    else:
        to_cgroup_v1.check(directory, (0,), {(226, 129)})


def test_somebody_else_in_the_cgroup(group):
    with subprocess.Popen(["sleep", "100"]) as other:
        group.add(other.pid)
        try:
            with pytest.raises(GhError, match=f"^GH-403: .* process {other.pid};"):
                to_cgroup_v1.open_devices(group.process.pid)
        finally:
            other.kill()


def test_nobody(group):
    with pytest.raises(GhError, match="^GH-405: "):
        to_cgroup_v1.open_devices(4_000_000)


def test_the_top_cgroup_is_never_changed(group):
    """A container without a cgroup of its own is in the top one, with all the node's processes."""
    with pytest.raises(GhError, match="^GH-403: "):
        to_cgroup_v1.open_devices(os.getpid())
