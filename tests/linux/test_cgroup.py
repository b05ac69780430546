"""A process's version 1 cgroup: found through mountinfo, and only on a cgroup file system."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.linux import cgroup

pytestmark = pytest.mark.root
REPOSITORY = Path(__file__).resolve().parents[2]
TOP = Path("/sys/fs/cgroup/devices")

if not TOP.is_dir():
    pytest.skip("cgroup v1 devices controller is not mounted", allow_module_level=True)


@pytest.fixture
def member():
    folder = TOP / f"gpu-hook-test-{os.getpid()}"
    folder.mkdir()
    process = subprocess.Popen(["sleep", "100"])
    (folder / "cgroup.procs").write_text(str(process.pid))
    yield folder, process.pid
    process.kill()
    process.wait()
    folder.rmdir()


def test_path_and_files(member):
    folder, pid = member
    assert cgroup.v1_path(pid, "devices") == str(folder)
    directory = cgroup.open_v1(pid, "devices")
    assert cgroup.read(directory, "cgroup.procs") == f"{pid}\n"
    cgroup.write(directory, "devices.deny", "a")
    cgroup.write(directory, "devices.allow", "c 195:7 rw")
    assert cgroup.read(directory, "devices.list") == "c 195:7 rw\n"
    with pytest.raises(OSError, match="devices.allow: Invalid argument"):
        cgroup.write(directory, "devices.allow", "c x:7 rw")
    os.close(directory)


def test_unknown_controller(member):
    assert cgroup.v1_path(member[1], "no-such") is None
    assert cgroup.open_v1(member[1], "no-such") is None


IN_NAMESPACE = "from oci_hook.linux import cgroup; print(cgroup.v1_path({pid}, 'devices'))"


def in_namespace(setup: str, pid: int) -> str:
    python = f'{shlex.quote(sys.executable)} -c "{IN_NAMESPACE.format(pid=pid)}"'
    command = ["unshare", "-m", "--propagation", "private", "sh", "-ec", f"{setup}\n{python}"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()


def test_a_hierarchy_that_is_mounted_below_its_top(member):
    """As inside a container that sees only its own part of the tree."""
    folder, pid = member
    setup = f"mount --bind {folder} /mnt; umount {TOP}"
    assert in_namespace(setup, pid) == "/mnt"


def test_version_2_alone(member):
    setup = "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup"
    assert in_namespace(setup, member[1]) == "None"
