"""scripts/demo as a visitor runs it: it says what it shows, and leaves the machine as it was."""

import os
import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def traces(name: str) -> dict[str, list[str]]:
    """What a careless run would leave of its own: mounts, cgroups, directories, processes."""
    groups = subprocess.run(["find", "/sys/fs/cgroup", "-type", "d"], capture_output=True, text=True).stdout.split()
    return {
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line],
        "directories": [p.name for d in ("/tmp", "/run") for p in Path(d).iterdir() if name in p.name],
        "cgroups": [group for group in groups if name in group],
        "processes": subprocess.run(["pgrep", "-f", name], capture_output=True, text=True).stdout.split(),
    }


@pytest.mark.root
@pytest.mark.slow
def test_demo_tells_its_story_and_cleans_up() -> None:
    r = subprocess.run([REPO / "scripts/demo"], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stdout + r.stderr
    assert "FAIL" not in r.stdout
    assert r.stdout.count("   ok  ") >= 8
    assert "CUDA_ERROR_OUT_OF_MEMORY" in r.stdout
    assert "GH-201" in r.stdout
    if not os.path.exists("/proc/driver/nvidia/version"):
        assert "simulated" in r.stdout
    (name,) = set(re.findall(r"gpu-hook-demo-\w+", r.stdout))
    assert not any(traces(name).values()), traces(name)
