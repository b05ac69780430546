"""scripts/demo as a visitor runs it: it says what it shows, and leaves the machine as it was."""

import json
import os
import re
import subprocess
import sys
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
def test_demo_tells_its_story_and_cleans_up(tmp_path: Path) -> None:
    """Also where /tmp takes no device nodes, as on Debian 13."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # no other demo leaves anything there
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nosuid,nodev", "tmpfs", tmp_path], check=True)
    try:
        r = subprocess.run([REPO / "scripts/demo"], capture_output=True, text=True, timeout=300, env=env)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert r.returncode == 0, r.stdout + r.stderr
    assert "FAIL" not in r.stdout
    assert r.stdout.count("   ok  ") >= 8
    assert "CUDA_ERROR_OUT_OF_MEMORY" in r.stdout
    assert "GH-201" in r.stdout
    if not os.path.exists("/proc/driver/nvidia/version"):
        assert "simulated" in r.stdout
    (name,) = set(re.findall(r"gpu-hook-demo-\w+", r.stdout))
    assert not any(traces(name).values()), traces(name)


SWEEP = [
    sys.executable,
    "-c",
    "from testbed import demo_folder; print(*[folder.name for folder in demo_folder.sweep()])",
]


def sweep(folder: Path) -> list[str]:
    """Whose leftovers a next demo, with the same TMPDIR, takes away as its first deed."""
    env = {**os.environ, "PYTHONPATH": f"{REPO / 'scripts'}:{REPO}", "TMPDIR": str(folder)}
    return subprocess.run(SWEEP, env=env, capture_output=True, text=True, check=True, timeout=60).stdout.split()


@pytest.mark.root
@pytest.mark.slow
def test_what_a_killed_demo_left_goes_with_the_next_one_and_what_a_living_one_has_stays(
    native: Path, tmp_path: Path
) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    story = [sys.executable, str(REPO / "scripts/demo_story.py")]
    with subprocess.Popen(story, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as demo:
        assert demo.stdout
        said = b""
        while b"\n== 3." not in said:  # two containers run, and a third is being made
            line = demo.stdout.readline()
            assert line, said.decode()
            said += line
        (folder,) = tmp_path.glob("gpu-hook-demo-*")
        assert sweep(tmp_path) == []
        assert json.loads((folder / "runc/sixty/state.json").read_text())["init_process_pid"] > 0
        demo.kill()
    left = traces(folder.name)
    assert folder.exists() and all(left[what] for what in ("mounts", "directories", "cgroups")), left
    assert sweep(tmp_path) == [folder.name]
    assert list(tmp_path.iterdir()) == []
    assert not any(traces(folder.name).values()), traces(folder.name)


@pytest.mark.root
def test_what_looks_like_a_demos_folder_but_is_not_known_to_be_one_stays(tmp_path: Path) -> None:
    unmarked, others, link = (tmp_path / f"gpu-hook-demo-{name}" for name in ("unmarked", "others", "link"))
    for folder in (unmarked, others):
        folder.mkdir()
    (others / "owner").touch()
    os.chown(others, 65534, 65534)
    link.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/owner").touch()
    os.chown(link, 65534, 65534, follow_symlinks=False)
    assert sweep(tmp_path) == []
    assert unmarked.exists() and others.exists() and (tmp_path / "elsewhere/owner").exists()
