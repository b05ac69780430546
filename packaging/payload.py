"""The contents of the packages: files as bytes with their mode, the same for every builder and at any time."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import distribution
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "wheel"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import compiled
from compiled import ROOT

from oci_hook import __version__ as VERSION  # noqa: F401

REGISTRY = "your-registry.invalid"  # nobody can own such a name (RFC 6761); users put their own in its place

Files = dict[str, tuple[bytes, int]]  # relative path -> contents, permissions

# The command line. -I: independent of the user's environment; packages in `folder` come first.
COMMAND = """#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "{folder}")
from oci_hook.cli.main import main

main()
"""


@functools.cache
def epoch() -> int:
    """SOURCE_DATE_EPOCH, else the time of the checkout's last commit; seconds since 1970."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    git = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True)
    return int(git.stdout) if git.returncode == 0 else int((ROOT / "pyproject.toml").stat().st_mtime)


def commit() -> str:
    """The checkout's commit, with + where files differ from it; "" where nobody can tell."""
    said = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"],
        capture_output=True,
        text=True,
    )
    return said.stdout.strip() if said.returncode == 0 else ""


def read(path: Path, mode: int = 0o644) -> tuple[bytes, int]:
    return path.read_bytes(), mode


def package(arch: str, name: str = "oci_hook", folder: Path = ROOT) -> Files:
    """The Python package in this folder with its compiled parts, without what only compiles them."""
    files = {}
    for path in (folder / name).rglob("*"):
        if path.suffix in (".py", ".json", ".html") and path.name != "build.py":
            files[str(path.relative_to(folder))] = read(path)
    if name == "oci_hook":
        made = {"commit": commit(), "date": datetime.fromtimestamp(epoch(), timezone.utc).strftime("%Y-%m-%d")}
        files[f"{name}/made.json"] = (json.dumps(made).encode() + b"\n", 0o644)
    for place, path in compiled.parts(name, arch).items():
        files[place] = read(path, compiled.mode(place))
    return files


# The machine's Python may lack these. PyYAML works without its compiled part, and `top` uses nothing of what rich requires.
MODULES = ("click", "PyYAML", "tomlkit", "nvidia-ml-py", "rich", "h2", "hpack", "hyperframe")


def vendored(*names: str) -> Files:
    """These distributions of the Python that builds, pure Python only, with their licences.

    They go beside oci_hook, where the processes that it starts find them, too.
    """
    files = {}
    for name in names:
        for path in distribution(name).files or ():
            source = Path(str(path.locate()))
            if path.suffix == ".py" and ".." not in path.parts:
                files[str(path)] = read(source)
            elif "licenses" in path.parts or path.name == "METADATA":
                files[f"licences/{name}/{path.name}"] = read(source)
    return files


LINK = re.compile(r"!?\[([^\]]*)\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")


def pages(root: Path, paths: Iterable[Path]) -> Files:
    """These files of a checkout; in Markdown, a link to a file that is not among them becomes its text."""
    files = {str(path.relative_to(root)): read(path) for path in paths}

    def link(page: str, found: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page), found[2]))
        return found[0] if any(name == target or name.startswith(f"{target}/") for name in files) else found[1]

    for name, (data, mode) in files.items():
        if name.endswith(".md"):
            files[name] = LINK.sub(functools.partial(link, name), data.decode()).encode(), mode
    return files


def below(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": file for name, file in files.items()}


def lay(root: Path, files: Files) -> None:
    """Write files and folders below `root`, all with the same time, whatever the umask is."""
    for name, (data, mode) in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
        os.utime(path, (epoch(), epoch()))
    for path, _, _ in os.walk(root, topdown=False):
        os.chmod(path, 0o755)
        os.utime(path, (epoch(), epoch()))
