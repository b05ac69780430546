"""Mounts by descriptor, in a mount namespace of the test's own."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.linux import mount
from oci_hook.linux.libc import SyscallError

pytestmark = pytest.mark.root
REPOSITORY = Path(__file__).resolve().parents[2]


def in_own_namespace(code: str, *arguments: object) -> str:
    """Run Python code (with os, sys, mount) after `unshare -m`; what it prints."""
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-c"]
    head = "import os, sys; from oci_hook.linux import mount\n"
    done = subprocess.run(
        [*command, head + code, *map(str, arguments)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BIND = """
source, target = sys.argv[1:3]
options = tuple(sys.argv[3].split(","))
fd = os.open(source, os.O_PATH)
tree = mount.open_tree(fd, source)
mount.mount_setattr(tree, options, source)
mount.move_mount(tree, os.open(target, os.O_PATH), target)
[m] = [m for m in mount.mountinfo() if m.point == target]
assert mount.statx_mount(tree) == (m.id, True)
print(open("/proc/self/mountinfo").read().split(target + " ")[1].split(" ")[0], m.shared)
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "source").write_text("source")
    (tmp_path / "target").write_text("target")
    return tmp_path / "source", tmp_path / "target"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("ro,nosuid,nodev,noexec", "ro,nosuid,nodev,noexec,relatime"),
        ("ro,nosuid,nodev", "ro,nosuid,nodev,relatime"),
        ("rw,nosuid,nodev,noexec", "rw,nosuid,nodev,noexec,relatime"),
    ],
)
def test_a_bind_has_its_flags_and_is_private(files, options, shown):
    assert in_own_namespace(BIND, *files, options) == f"{shown} False\n"


def test_read_only_holds(files):
    code = BIND + "\ntry: open(target, 'w')\nexcept OSError as e: print(e.errno)\n"
    assert in_own_namespace(code, *files, "ro").splitlines()[-1] == str(errno.EROFS)


def test_the_host_does_not_see_it(files):
    in_own_namespace(BIND, *files, "ro")
    assert files[1].read_text() == "target"


def test_unknown_option():
    with pytest.raises(KeyError):
        mount.attributes(("ro", "suid"))


def test_tmpfs_is_bounded(tmp_path):
    code = """
path = sys.argv[1]
tree = mount.new_tmpfs({"size": "65536", "nr_inodes": "4", "mode": "1777"}, ("nosuid", "nodev", "noexec"), path)
mount.move_mount(tree, os.open(path, os.O_PATH), path)
fd = os.open(path, os.O_PATH)
print(hex(mount.fstatfs_type(fd)), oct(os.fstat(fd).st_mode), mount.statx_mount(fd)[1])
print(open(path + "/big", "wb", 0).write(bytes(65537)))
try:
    for i in "1234":
        open(f"{path}/{i}", "w")
except OSError as e:
    print(i, e.errno)
"""
    assert in_own_namespace(code, tmp_path).split() == ["0x1021994", "0o41777", "True", "65536", "3", "28"]


def test_mountinfo_unescapes(tmp_path):
    strange = tmp_path / "a b\tc\\d\ne"
    strange.mkdir()
    code = """
path = sys.argv[1]
mount.move_mount(mount.new_tmpfs({}, (), path), os.open(path, os.O_PATH), path)
print([m.fstype for m in mount.mountinfo() if m.point == path])
"""
    assert in_own_namespace(code, strange) == "['tmpfs']\n"


def test_statx_tells_a_mount_from_a_directory_in_it():
    proc, inner = os.open("/proc", os.O_PATH), os.open("/proc/sys", os.O_PATH)
    try:
        assert mount.statx_mount(proc)[1] and not mount.statx_mount(inner)[1]
        assert mount.fstatfs_type(proc) == mount.PROC_SUPER_MAGIC
    finally:
        os.close(proc)
        os.close(inner)


def test_errors_name_call_and_path():
    with pytest.raises(SyscallError, match="^open_tree: Bad file descriptor: x$"):
        mount.open_tree(-1, "x")
