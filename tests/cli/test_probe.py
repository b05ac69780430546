"""`gpu-hook probe`: the path of the program, and what the program says. tests/engines/test_pages.py runs it in a container."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.box import Install


def test_the_path_and_a_machine_without_a_driver(install: Install) -> None:
    program = Path(install.prefix, "bin/gpu-hook-probe")
    if program.exists():
        program.unlink()
    answer = install.run("probe")
    assert answer.exit_code == 1 and "GH-501" in answer.output
    program.parent.mkdir(exist_ok=True)
    program.write_bytes(b"")
    assert install.text("probe") == "PREFIX/bin/gpu-hook-probe\n"


@pytest.mark.parametrize("name", ["gpu-hook-probe", "sim/gpu-probe", "sim/gpu-probe-static"])
def test_help_takes_no_memory(native: Path, name: str) -> None:
    for word in ("-h", "--help"):
        done = subprocess.run([native / name, word], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("usage: gpu-")
    if name == "gpu-hook-probe":
        done = subprocess.run([native / name, "512"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("usage: ")


def test_what_the_program_says(native: Path, tmp_path: Path) -> None:
    probe = str(native / "gpu-hook-probe")
    none = subprocess.run([probe], capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(tmp_path)})
    if none.returncode == 3:  # else this machine has a driver
        assert "does this container have a GPU?" in none.stderr
