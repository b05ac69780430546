"""Processes as a finding describes them."""

import os
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from oci_hook.agent.act import facts

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_a_finding_says_who_a_process_is() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            told = facts.describe(process.pid)
            assert told.startswith(f"user {os.geteuid()}, 0 s old, parent {os.getpid()}") or " s old" in told
            assert told.endswith(": sleep 600")
        finally:
            process.kill()
    assert facts.describe(process.pid) == ""


def test_a_wrong_clock_makes_no_process_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set while the agent runs."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e9)
    age = int(facts.describe(os.getpid()).partition(" s old")[0].rpartition(" ")[2])
    assert age < 1e6


MAPPED = """
import mmap, sys, time
for path in sys.argv[1:]:
    with open(path) as file:
        held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        globals()[path] = held
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "names", [(), ("libcuda.so.1",), ("libcuda.so.1", "libcuda.so.5", "libcuda.so.7", "libcuda.so.9")]
)
def test_a_finding_says_which_driver_library_a_process_has(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Three of them at most, however a path is written."""
    folder = tmp_path / "odd \n ; name"
    folder.mkdir()
    paths = [folder / name for name in (*names, "other.so")]
    for path in paths:
        path.write_text("x")
    command = [sys.executable, "-c", MAPPED, *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            told = facts.describe(process.pid)
        finally:
            process.kill()
    head, _, tail = told.partition("; libcuda: ")
    assert "\n" not in told and head and tail.count("/libcuda.so.") == min(len(names), 3) and "other.so" not in tail


def test_mappings_that_never_come_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    never = tmp_path / "never"
    os.mkfifo(never)
    monkeypatch.setattr(facts, "MAPS", str(never))
    for _ in range(3):
        told = facts.describe(os.getpid())
        assert " s old" in told and "libcuda" not in told
    assert sum(t.name == "patience" for t in threading.enumerate()) == 1
    fd = os.open(never, os.O_WRONLY)
    os.close(fd)


# Moves where the kernel finds its arguments to 64 MiB of its memory: prctl(2), PR_SET_MM_MAP, which asks for no right.
# It shows more than a page of them only where they end with a zero.
LONG = """
import ctypes, struct, time
libc, size = ctypes.CDLL(None, use_errno=True), 64 << 20
libc.sbrk.restype = ctypes.c_void_p
place = ctypes.create_string_buffer(b"x" * size)
at = ctypes.addressof(place)
f = [int(n) for n in open("/proc/self/stat").read().rpartition(")")[2].split()[1:]]
code, end, stack, data, end_data, heap = f[22], f[23], f[24], f[41], f[42], f[43]
words = (code, end, data, end_data, heap, libc.sbrk(0), stack, at, at + size + 1, f[46], f[47], 0)
map = struct.pack("=12QIi", *words, 0, -1)
if libc.prctl(35, 14, map, ctypes.c_ulong(len(map)), 0):
    print(ctypes.get_errno(), flush=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.root
@root_only
def test_a_command_line_as_long_as_a_process_likes_costs_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            if (said := process.stdout.readline()) != "ready\n":
                pytest.skip(f"this kernel moves no arguments: error {said}")
            facts.describe(os.getpid())  # what it loads is not counted
            tracemalloc.start()
            try:
                told = facts.describe(process.pid)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert told.endswith(": " + "x" * facts.COMMAND_MAX) and peak < 1 << 20
        finally:
            process.kill()


def test_a_command_line_that_never_comes_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page of it may be of a file system that never answers, which a reader of it waits for."""
    never = tmp_path / "never"
    os.mkfifo(never)
    monkeypatch.setattr(facts, "CMDLINE", str(never))
    for _ in range(3):
        told = facts.describe(os.getpid())
        assert " s old" in told
    assert sum(t.name == "patience" for t in threading.enumerate()) == 1  # no more wait with the first
    fd = os.open(never, os.O_WRONLY)
    os.close(fd)
