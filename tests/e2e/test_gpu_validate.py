"""The script for a real GPU runs to its end on the simulated one, and refuses politely where there is none."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_hook_simulator import driver_root
from validation import syscalls

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "scripts/gpu-validate"
CALIBRATION = Path(driver_root.__file__).with_name("calibration.json")


@pytest.mark.root
@pytest.mark.slow
def test_runs_to_its_end_on_a_simulated_gpu(native: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    r = subprocess.run(
        [sys.executable, SCRIPT, "--simulated", "--out", out], capture_output=True, text=True, timeout=300
    )
    assert r.returncode == 0, r.stdout + r.stderr
    results = json.loads(out.read_text())
    assert results["simulated"] is True
    phases = results["phases"]
    assert list(phases)[:3] == ["environment", "inventory", "container"]
    assert phases["limit"]["total_mib"] == 4096
    assert phases["limit"]["filled_mib"] == phases["limit"]["free_mib"] == 4096 - driver_root.CONTEXT_MIB
    assert all(
        f <= t for f, t in zip(phases["two tenants"]["filled_mib"], phases["two tenants"]["total_mib"], strict=True)
    )
    assert set(phases["overhead"]["added_ns"]) == {"launch", "alloc+free", "meminfo"}


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    "run, first, last",
    [
        ("physics", "calibrate", "calibration"),
        ("shares", "calibrate", "verdict"),
        ("priority", "calibrate", "verdict"),
    ],
)
def test_measurements_run_to_their_end(native: Path, tmp_path: Path, run: str, first: str, last: str) -> None:
    """Their figures are judged on a GPU only; here nothing may fail but the GPU's own properties."""
    out = tmp_path / "result.json"
    argv = [sys.executable, SCRIPT, "--simulated", "--short", "--run", run, "--out", out]
    r = subprocess.run(argv, capture_output=True, text=True, timeout=240, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert r.returncode == 0, r.stdout + r.stderr
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
    results = json.loads(out.read_text())
    phases = results["phases"]
    assert (results["run"], results["simulated"]) == (run, True)
    assert list(phases)[:3] == ["environment", "inventory", first] and list(phases)[-1] == last
    if run == "shares":
        assert abs(phases["native: 70/30"]["efficiency"] - 0.92) < 0.1  # both sharers are on one GPU
        assert phases["gpu-hook: 70/30"]["error"] < 8 < phases["native: 70/30"]["error"]
        assert phases["gpu-hook: 1 ms, graphs made anew, beside 0.5 ms, 70/30"]["error"] < 8
        assert phases["verdict"]["rows"] == 7
    if run == "physics":
        committed = json.loads(CALIBRATION.read_text())
        assert results["calibration"].keys() == committed.keys()
        assert set(phases["slices"]) == {"ok", "skipped", "seconds"}


@pytest.mark.root
def test_boundary_says_what_an_old_driver_lacks(native: Path, tmp_path: Path) -> None:
    """Before R615 there is nothing to try, which is a result; the driver's calls are counted all the same."""
    out = tmp_path / "result.json"
    argv = [sys.executable, SCRIPT, "--simulated", "--short", "--run", "boundary", "--driver", "550", "--out", out]
    r = subprocess.run(argv, capture_output=True, text=True, timeout=240, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert r.returncode == 0, r.stdout + r.stderr
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
    results = json.loads(out.read_text())
    phases = results["phases"]
    assert results["predictions"]["answers"].keys() >= set(phases["verdict"]["not_tried"])
    assert "the NVML of driver 550.0.0 has no memory limits; they came with 615" in phases["driver"]["boundary"]
    assert phases["alloc"]["skipped"] == phases["driver"]["boundary"]
    assert set(phases["ioctls"]) & {"ioctls", "skipped"}
    assert "alloc: stopped" in phases["verdict"]["not_tried"]


def simulated(tmp_path: Path, *flags: str) -> Any:
    """The phases of a short run on simulated GPUs, which leaves nothing but its result."""
    out = tmp_path / "result.json"
    argv = [sys.executable, SCRIPT, "--simulated", "--short", *flags, "--out", out]
    r = subprocess.run(argv, capture_output=True, text=True, timeout=240, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert r.returncode == 0, r.stdout + r.stderr
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
    return json.loads(out.read_text())["phases"]


@pytest.mark.root
def test_the_simulated_driver_answers_as_a_real_one(native: Path, tmp_path: Path) -> None:
    """And a program in a container gets the same answers. The rest: host functions run in the thread that launches them, so
    such a free waits; and a context's end kills what runs."""
    phases = simulated(tmp_path, "--run", "rules")
    rest = {"free in the stream: waits", "free in the stream: freed before its turn", "end of a context: waits"}
    assert {": ".join(said.split(": ")[:2]) for said in phases["driver"]["not_as_predicted"]} == rest
    assert len(phases["ceiling"]) == 8  # with "ok" and "seconds"


@pytest.mark.root
@pytest.mark.parametrize("limits", ["dmem", "dmem-keeps", "misc"])
def test_boundary_tries_everything_on_the_simulated_driver_615(native: Path, tmp_path: Path, limits: str) -> None:
    """The simulated back-ends differ in what the documents leave open."""
    phases = simulated(tmp_path, "--run", "boundary", "--limits", limits)
    for way in ("alloc", "own library", "create", "pool", "graph", "array"):
        assert phases[way]["answers"] == {"stopped": True} and phases[way]["filled"]["mib"] == 2048 - 64
    missed = {"soft limit: stays_above_when_removed"} if limits != "dmem-keeps" else set()
    if limits == "misc":
        missed |= {"made elsewhere: limit_of_the_parent_holds", "path again: a_new_cgroup_inherits_the_limit"}
        missed |= {"soft limit: is_added_above"}
    assert set(phases["verdict"]["not_as_predicted"]) == missed
    assert set(phases["verdict"]["not_tried"]) <= {"static program: stopped", "ioctls: launches_need_ioctls"}


def test_ioctls_are_counted_by_part() -> None:
    mark = 0x47480000
    program = (
        "import ctypes, threading\n"
        "c = ctypes.CDLL(None)\n"
        "def many(n):\n"
        "    for _ in range(n): c.ioctl(2, 1, 0)\n"
        f"c.ioctl(0, {mark + 1}, 0); many(7)\n"
        f"c.ioctl(0, {mark + 2}, 0)\n"
        "t = threading.Thread(target=many, args=(5,)); t.start(); t.join()\n"
    )
    counts = syscalls.count_ioctls([sys.executable, "-c", program], dict(os.environ), mark, b"")
    assert counts["1"] == {syscalls.OTHER: 7} and counts["2"] == {syscalls.OTHER: 5}


def test_predictions_are_of_the_committed_calibration() -> None:
    """Else they are no predictions: scripts/gpu-validate --predict makes them anew."""
    predictions = json.loads((REPO / "data/validation/predictions.json").read_text())
    assert predictions["calibration"] == hashlib.sha256(CALIBRATION.read_bytes()).hexdigest()
    assert len(predictions["shares"]) > 30 and len(predictions["priority"]) > 15


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has a GPU")
def test_refuses_politely_without_a_gpu(tmp_path: Path) -> None:
    r = subprocess.run([sys.executable, SCRIPT, "--out", tmp_path / "x"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 2
    assert "no NVIDIA driver is loaded here" in r.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/driver/nvidia/version").exists(), reason="needs a real NVIDIA driver and GPU")
def test_holds_on_a_real_gpu(native: Path, tmp_path: Path) -> None:
    r = subprocess.run([sys.executable, SCRIPT, "--out", tmp_path / "x"], capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stdout + r.stderr


@pytest.mark.root
@pytest.mark.parametrize("driver", ["550", "570"])
def test_suspend_runs_to_its_end(native: Path, tmp_path: Path, driver: str) -> None:
    """What differs from the predictions is what the simulation makes easier; before 570 there is nothing to try."""
    verdict = simulated(tmp_path, "--run", "suspend", "--driver", driver)["verdict"]
    if driver == "550":
        assert list(verdict["not_as_predicted"]) == ["driver: has_the_calls"]
        return
    assert verdict["not_tried"] == [] and set(verdict["not_as_predicted"]) == {
        "moved: it_is_in_the_processs_own_memory",
        "full: it_succeeds_later",  # as on an H200
        "moved: at_least_2_gb_per_s",
        "shared: refused_before_610",
        "two: both_run_again",
    }


@pytest.mark.root
@pytest.mark.parametrize("end", ["exit 1", "kill $PPID; sleep 2", "kill -9 $PPID; sleep 2"])
def test_however_it_ends_the_files_it_mounted_stay_and_no_mount_is_left(native: Path, tmp_path: Path, end: str) -> None:
    """It ends while a container's root is made, in which this machine's file systems are; here only one folder is."""
    kept, folder, bin = (tmp_path / name for name in ("kept", "folder", "bin"))
    for new in (kept, folder, bin):
        new.mkdir()
    (kept / "thesis").write_text("all of it")
    (bin / "runc").write_text(
        f'#!/bin/sh\n[ "$1" != spec ] || {{ ls {folder}/*/*/*/rootfs{kept} >{tmp_path}/seen; {end}; }}\n'
    )
    (bin / "runc").chmod(0o755)
    program = tmp_path / "program"
    program.write_text(
        f"import sys; sys.path[:0] = ['{REPO}']\n"
        "from validation import boxes, containers\n"
        f"boxes.REPO, boxes.own_mounts = '{kept}', lambda driver: []\n"
        f"exec(compile(open('{SCRIPT}').read(), '', 'exec'), {{'__name__': '__main__', '__file__': '{SCRIPT}'}})\n"
    )
    words = ["--simulated", "--run", "containers", "--only", "starts", "--out"]
    argv = [sys.executable, str(program), *words, str(tmp_path / "x")]
    environment = {**os.environ, "TMPDIR": str(folder), "PATH": f"{bin}:{os.environ['PATH']}"}
    r = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
    assert r.returncode, r.stdout
    assert (tmp_path / "seen").read_text() == "thesis\n", r.stderr
    assert (kept / "thesis").exists()
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert list(folder.iterdir()) == []
