"""What /proc says of processes: start times, zombies, names that look like other fields, cgroups."""

import ctypes
import os
import subprocess
import time
from pathlib import Path

import pytest

from oci_hook.linux import proc


def test_a_process_by_its_start_time() -> None:
    pid, start = proc.process_life(os.getpid())
    assert proc.is_running((pid, start)) and not proc.is_running((pid, start + 1)) and not proc.is_running(None)
    assert proc.parent(pid) == os.getppid() and proc.inner_pid(pid) == pid
    assert proc.pid_namespace(pid) == proc.pid_space() and pid in set(proc.pids())
    ended = subprocess.Popen(["true"])
    while proc.start_time(ended.pid):  # then it is a zombie
        time.sleep(0.01)
    assert proc.has_ended(proc.stat(ended.pid)) and proc.stat(ended.pid)[0] == b"Z"
    ended.wait()
    with pytest.raises(ProcessLookupError):
        proc.process_life(ended.pid)
    with pytest.raises(FileNotFoundError):
        proc.stat(ended.pid)


@pytest.mark.parametrize("name", [b") R 1 1", b"a b", b"()"])
def test_a_name_that_looks_like_other_fields(name: bytes) -> None:
    libc = ctypes.CDLL(None)
    before = Path("/proc/thread-self/comm").read_bytes().rstrip(b"\n")
    try:
        libc.prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        assert proc.parent(os.getpid()) == os.getppid()
    finally:
        libc.prctl(15, before, 0, 0, 0)


def test_cgroups_are_read_whole() -> None:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    assert [":".join(pair) for pair in proc.cgroups(os.getpid())] == [line.partition(":")[2] for line in lines]


def test_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    assert len(proc.read_file(f"{tmp_path}/f")) == 1 << 16 and proc.read_once(f"{tmp_path}/f", 3) == b"xxx"
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert len(proc.read_file("f", 1 << 20, folder)) == 100_000
    finally:
        os.close(folder)


def test_a_monotonic_time_as_a_start_time() -> None:
    with subprocess.Popen(["sleep", "0.2"]) as p:
        _, start = proc.process_life(p.pid)
    assert start - 2 * os.sysconf("SC_CLK_TCK") <= proc.ticks(time.monotonic_ns() - 200_000_000) <= start
    assert proc.ticks(0) == 0
