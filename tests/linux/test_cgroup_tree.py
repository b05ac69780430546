"""The walk through a container's cgroups, here through folders that look like them."""

from pathlib import Path
from typing import Any

import pytest

from oci_hook.linux import cgroup_tree, proc


def make(top: Path, *names: str) -> None:
    for name in ("", *names):
        (top / name).mkdir(parents=True, exist_ok=True)
    for folder in (top, *(p for p in top.rglob("*") if p.is_dir())):
        (folder / "cgroup.procs").write_text("7\n0\n" if folder.name == "deep" else "")


def test_all_processes_of_the_tree(tmp_path: Path) -> None:
    make(tmp_path, "a/deep", "b")
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    found = list(cgroup_tree.processes(str(tmp_path), 3))
    assert sorted(map(sorted, found)) == [[], [], [0, 7], [1, 2]]


def test_its_bounds(tmp_path: Path) -> None:
    make(tmp_path / "wide", *map(str, range(5)))
    make(tmp_path / "deep", "/".join(["d"] * (cgroup_tree.DEEPEST + 1)))
    for name, most in (("wide", 4), ("deep", 1000)):
        with pytest.raises(cgroup_tree.TooManyCgroups):
            list(cgroup_tree.processes(str(tmp_path / name), most))
    assert len(list(cgroup_tree.processes(str(tmp_path / "wide"), 5))) == 6


def test_a_cgroup_that_is_removed_meanwhile(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    walk = cgroup_tree.processes(str(tmp_path), 10)
    next(walk)
    for name in ("a", "b"):
        (tmp_path / name / "cgroup.procs").unlink()
    assert list(walk) == []
    with pytest.raises(FileNotFoundError):
        next(cgroup_tree.processes(str(tmp_path / "none"), 10))


def test_the_top_of_a_hierarchy_is_no_container(tmp_path: Path) -> None:
    make(tmp_path / "top", "one")
    top, one = str(tmp_path / "top"), tmp_path / "top/one"
    assert not cgroup_tree.is_container(top, 0) and cgroup_tree.is_container(str(one), 0)
    assert cgroup_tree.is_container(str(one), one.stat().st_ino) and not cgroup_tree.is_container(str(one), 1)


def test_a_hierarchy_that_is_not_mounted_has_no_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel names cgroups of version 1 also where version 2 alone is mounted: a path there would look like one that is
    gone, and prove that a container has ended."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b/cgroup.procs").touch()
    monkeypatch.setattr(cgroup_tree, "MOUNTED", str(tmp_path))
    monkeypatch.setattr(cgroup_tree, "cgroups", lambda pid: [("devices", "/a"), ("", "/b")])
    assert cgroup_tree.directory_of(1) == f"{tmp_path}/b"
    (tmp_path / "devices").mkdir()
    assert cgroup_tree.directory_of(1) == f"{tmp_path}/devices/a"


@pytest.mark.parametrize(("cpu", "wall", "doubts"), [(0.0, 0.4, False), (0.0, 0.6, True), (0.2, 0.2, True)])
def test_a_look_may_take_longer_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: float, wall: float, doubts: bool
) -> None:
    """Seconds of processor time, and five times as many in all."""
    for name, took in (("thread_time", cpu), ("monotonic", wall)):
        times = iter([0.0])
        monkeypatch.setattr(proc.time, name, lambda times=times, took=took: next(times, took))
    assert cgroup_tree.any_belongs(str(tmp_path), 0.1) == doubts


class Many(frozenset):  # type: ignore[type-arg]
    """Directories that are too many to go through for each process."""

    def __iter__(self) -> Any:
        raise AssertionError("gone through")


@pytest.mark.parametrize(
    ("path", "belongs"),
    [("/a/b", True), ("/a/b/c/d", True), ("/a", False), ("/a/bc", False), ("/x/a/b", False), ("/", False)],
)
def test_a_process_belongs_to_a_directory_or_one_above_it(
    monkeypatch: pytest.MonkeyPatch, path: str, belongs: bool
) -> None:
    monkeypatch.setattr(cgroup_tree, "cgroups", lambda pid: [("cpu,cpuacct", path), ("", "/")])
    for where in ("cpu", "cpuacct"):
        assert cgroup_tree.belongs(1, Many((f"{cgroup_tree.MOUNTED}/{where}/a/b", "/other"))) == belongs
    assert not cgroup_tree.belongs(1, Many((f"{cgroup_tree.MOUNTED}/a/b",)))
