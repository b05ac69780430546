"""Which cgroups the limit is set on: real ones, made as runtimes make them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.linux.mount import mountinfo
from testbed import REPO
from testbed.boundary import SCRIPT
from testbed.namespaces import Namespaces

pytestmark = pytest.mark.root
PLACES = """
import sys
from oci_hook.boundary import cgroups
try:
    print(*[path for path, inode in cgroups.places(int(sys.argv[1]), sys.argv[2])])
except cgroups.NoCgroup as e:
    print("none:", e)
"""


class Groups:
    """Cgroups below one of its own; a process that sleeps in each that `enter` names."""

    def __init__(self, name: str) -> None:
        self.space = Namespaces(SCRIPT)
        top = next(Path(m.point) for m in mountinfo() if m.fstype == "cgroup2" and m.root == "/")
        self.host, self.seen = top / name, f"/sys/fs/cgroup/{name}"
        self.host.mkdir()
        self.children: list[subprocess.Popen[bytes]] = []

    def enter(self, name: str) -> int:
        (self.host / name).mkdir(parents=True, exist_ok=True)
        child = subprocess.Popen(["sleep", "1000"])
        self.children.append(child)
        (self.host / name / "cgroup.procs").write_text(str(child.pid))
        return child.pid

    def places(self, pid: int, planned: str = "", space: bool = True) -> list[str]:
        command = [sys.executable, "-c", PLACES, str(pid), planned]
        command = self.space.enter(*command) if space else command
        said = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout.strip()
        return [said] if said.startswith("none:") else [path.removeprefix(self.seen + "/") for path in said.split()]

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
        for folder in sorted(self.host.rglob("*"), key=lambda path: -len(path.parts)):
            if folder.is_dir():
                folder.rmdir()
        self.host.rmdir()
        self.space.close()


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    if not any(m.fstype == "cgroup2" and m.root == "/" for m in mountinfo()):
        pytest.skip("cgroup v2 is not mounted")
    made = Groups(f"gh-{tmp_path.name}")
    yield made
    made.close()


def test_the_containers_own(groups: Groups) -> None:
    assert groups.places(groups.enter("system.slice/docker-1.scope")) == ["system.slice/docker-1.scope"]
    assert groups.places(groups.enter("kubepods/pod1/c1")) == ["kubepods/pod1/c1"]
    assert groups.places(groups.enter("kubepods/pod1/c2")) == ["kubepods/pod1/c2"], "beside another of its pod"


def test_crun_below_a_scope(groups: Groups) -> None:
    inner = groups.enter("machine.slice/libpod-1.scope/container")
    both = ["machine.slice/libpod-1.scope", "machine.slice/libpod-1.scope/container"]
    assert groups.places(inner) == both


def test_below_what_the_spec_names(groups: Groups) -> None:
    inner = groups.enter("mine/sub")
    assert groups.places(inner) == ["mine/sub"]
    assert groups.places(inner, f"{groups.seen}/mine") == ["mine", "mine/sub"]
    assert groups.places(inner, f"{groups.seen}/other") == ["mine/sub"]


def test_what_others_use_is_not_limited(groups: Groups) -> None:
    inner = groups.enter("a.scope/container")
    groups.enter("a.scope/other")
    assert groups.places(inner) == ["a.scope/container"], "another cgroup is in the scope"
    groups.enter("b.scope")
    assert groups.places(groups.enter("b.scope/container")) == ["b.scope/container"], "a process is in the scope itself"


def test_a_cgroup_with_other_processes_is_refused(groups: Groups) -> None:
    groups.enter("user.slice")
    assert "other processes" in groups.places(groups.enter("user.slice"))[0]


def test_no_containers_cgroup(groups: Groups) -> None:
    assert "no container's" in groups.places(1)[0] or "other processes" in groups.places(1)[0]
    assert "has gone" in groups.places(1 << 22)[0]
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        assert "not mounted" in groups.places(groups.enter("a"), space=False)[0]
