"""All C of the repository has one style: .clang-format."""

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
CLANG_FORMAT = Path(sys.executable).parent / "clang-format"  # the version that pyproject.toml pins


def test_all_c_is_formatted() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "*.c", "*.h"], cwd=REPO, capture_output=True, check=True)
    files = [name for name in listed.stdout.decode().split("\0") if name and (REPO / name).is_file()]
    assert len(files) > 100
    r = subprocess.run([CLANG_FORMAT, "--dry-run", "-Werror", *files], cwd=REPO, capture_output=True, text=True)
    assert r.returncode == 0, f"run clang-format -i on:\n{r.stderr[:4000]}"
