"""Style, types, floors and the things a reader must never meet, as tests."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).resolve().parent.parent
AROUND = ("tests", "scripts", "testbed", "benchmarks", "validation", "build_c")  # the product and the simulator

HOOKS = yaml.safe_load((REPO / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_tool_finds_nothing(hook: dict[str, Any]) -> None:
    """What also runs before a commit, over all files."""
    program, *arguments = hook["entry"].split()
    argv = [Path(sys.executable).parent / Path(program).name, *arguments]
    if "files" in hook:
        argv += [path for path in tracked_text() if re.search(hook["files"], path.name)]
        assert len(argv) > 100
    r = subprocess.run(argv, cwd=REPO, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr[:4000]


@pytest.mark.slow
def test_programs_and_tests_use_what_is_there(tmp_path: Path) -> None:
    """Those on a cluster run seldom: a parameter that was renamed, or a name that moved, is found here. Names are those of the
    oldest Python that we support."""
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\npython_version = 3.10\nmypy_path = .:simulator\nexplicit_package_bases = True\n"
        "check_untyped_defs = True\nignore_missing_imports = True\n"
    )
    files = ["git", "ls-files", "-z", "--", *(f"{folder}/*.py" for folder in AROUND)]
    names = subprocess.run(files, cwd=REPO, capture_output=True, text=True, check=True).stdout.split("\0")
    cache = REPO / ".mypy_cache/tests"  # of its own: mypy begins anew where the settings differ
    argv = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache)]
    found = subprocess.run([*argv, *filter(None, names)], cwd=REPO, capture_output=True, text=True)
    assert re.search(r"^(Found \d+ error.* \(checked|Success)", found.stdout, re.MULTILINE), found.stdout + found.stderr
    seen = [line for line in found.stdout.splitlines() if line.endswith(("[attr-defined]", "[call-arg]"))]
    assert seen == []


def test_nobody_imports_tests() -> None:
    """Not even by a path: what others need of them belongs into testbed/. Packages are held to it by import-linter, too."""
    found = []
    for path in tracked_text():
        name = str(path.relative_to(REPO))
        if path.suffix == ".py" and not name.startswith(("tests/", "simulator/tests/")):
            found += [
                f"{name}: {m[0]}"
                for m in re.finditer(r"^\s*(from|import) (simulator\.)?tests\b.*", path.read_text(), re.M)
            ]
        elif path.suffix == ".py" and name.startswith("simulator/"):
            found += [f"{name}: {m[0]}" for m in re.finditer(r"^\s*(from|import) tests\b.*", path.read_text(), re.M)]
    assert found == []


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
