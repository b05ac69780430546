"""linux/memory_room.py, on files as the kernel shows them, and on this process's own cgroup."""

import os
from pathlib import Path

import pytest

from oci_hook.linux import cgroup, memory_room

MIB = 1 << 20


def group(path: Path, version: int, most: str, used: int, files: int) -> Path:
    path.mkdir()
    limit, usage, stat = memory_room.FILES[version - 1]
    for name, text in (
        ("cgroup.procs", ""),
        (limit, f"{most}\n"),
        (usage, f"{used * MIB}\n"),
        ("memory.stat", f"anon 5\n{stat.decode()} {files * MIB}\n"),
    ):
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_limit_on_the_way_up_counts(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = "max" if version == 2 else str((1 << 63) - 4096)
    top = group(tmp_path / "top", version, str(1000 * MIB), 900, 20)
    inner = group(group(top / "pod", version, none, 0, 0) / "box", version, str(500 * MIB), 100, 0)
    own = {1: inner if version == 1 else None, 2: inner if version == 2 else None}
    monkeypatch.setattr(cgroup, "v1_path", lambda pid, controller: own[1] and str(own[1]))
    monkeypatch.setattr(cgroup, "v2_path", lambda pid: own[2] and str(own[2]))
    its, unknown = (str(inner),) * 2, (None, None)
    # What files have of it goes when memory is short. Without the others above, it would have all of its own limit.
    assert memory_room.of_cgroup(1, its) == memory_room.of_cgroup(1, unknown) == (120 * MIB, 400 * MIB)
    assert memory_room.of_cgroup(1, (str(top),) * 2) == (120 * MIB, 120 * MIB)
    (top / memory_room.FILES[version - 1][0]).write_text(str(450 * MIB))
    assert memory_room.of_cgroup(1, its) == (0, 350 * MIB)
    (top / memory_room.FILES[version - 1][0]).write_text(none)
    assert memory_room.of_cgroup(1, its) == (400 * MIB, 400 * MIB)
    (inner / memory_room.FILES[version - 1][0]).write_text(none)
    assert memory_room.of_cgroup(1, its) == (None, None)


def test_the_node_and_this_process() -> None:
    free, total = memory_room.of_node()
    assert 0 < free <= total
    assert all(room is None or room >= 0 for room in memory_room.of_cgroup(os.getpid(), (None, None)))
