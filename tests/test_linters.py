"""Style, types, floors and the things a reader must never meet, as tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["importlinter.cli"],
    ],
    ids=lambda c: " ".join(c),
)
def test_tool_finds_nothing(command: list[str]) -> None:
    if command == ["importlinter.cli"]:
        argv = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    else:
        argv = [sys.executable, "-m", *command]
    r = subprocess.run(argv, cwd=REPO, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


def test_programs_and_tests_use_what_is_there(tmp_path: Path) -> None:
    """Those on a cluster run seldom: a parameter that was renamed, or a name that moved, is found here. Names are those of the
    oldest Python that we support."""
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\npython_version = 3.10\nmypy_path = .:simulator\nexplicit_package_bases = True\n"
        "check_untyped_defs = True\nignore_missing_imports = True\n"
    )
    files = ["git", "ls-files", "-z", "--", "tests/*.py", "scripts/*.py"]
    names = subprocess.run(files, cwd=REPO, capture_output=True, text=True, check=True).stdout.split("\0")
    argv = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    found = subprocess.run([*argv, *filter(None, names)], cwd=REPO, capture_output=True, text=True)
    assert re.search(r"^(Found \d+ error.* \(checked|Success)", found.stdout, re.MULTILINE), found.stdout + found.stderr
    seen = [line for line in found.stdout.splitlines() if line.endswith(("[attr-defined]", "[call-arg]"))]
    assert seen == []


def tracked_text() -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [REPO / n for n in names.split("\0") if n and (REPO / n).is_file()]


def test_shell_scripts_parse() -> None:
    for path in [*(REPO / "scripts").iterdir(), REPO / ".ci/run"]:
        if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash"):
            assert subprocess.run(["bash", "-n", str(path)]).returncode == 0, path


def test_relative_links_in_documents_lead_somewhere() -> None:
    broken = []
    for path in tracked_text():
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
                if not (path.parent / target).exists():
                    broken.append(f"{path.name}: {target}")
    assert broken == []
