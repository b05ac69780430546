"""scripts/demo as a visitor runs it: it says what it shows, and leaves the machine as it was."""

import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def traces() -> dict[str, object]:
    """What a careless run would leave: mounts, cgroups, state directories, processes."""
    names = [p.name for d in ("/tmp", "/run") for p in Path(d).iterdir()]
    groups = [
        p
        for p in subprocess.run(["find", "/sys/fs/cgroup", "-type", "d"], capture_output=True, text=True).stdout.split()
    ]
    return {
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "directories": sorted(n for n in names if "gpu-hook-demo" in n),
        "cgroups": sorted(g for g in groups if "gpu-hook-demo" in g),
        "processes": subprocess.run(["pgrep", "-f", "gpu-probe alloc"], capture_output=True, text=True).stdout,
    }


@pytest.mark.root
@pytest.mark.slow
def test_demo_tells_its_story_and_cleans_up() -> None:
    before = traces()
    r = subprocess.run([REPO / "scripts/demo"], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    assert "FAIL" not in r.stdout
    assert r.stdout.count("   ok  ") >= 6
    assert "CUDA_ERROR_OUT_OF_MEMORY" in r.stdout
    assert "GH-201" in r.stdout
    if not os.path.exists("/proc/driver/nvidia/version"):
        assert "simulated" in r.stdout
    assert traces() == before
