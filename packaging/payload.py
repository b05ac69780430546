"""The contents of the packages: files as bytes with their mode, the same for every builder and at any time."""

import functools
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
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

Files = dict[str, tuple[bytes, int]]  # relative path -> contents, permissions; of a link: where it leads, S_IFLNK

# The command line, as the Python that packages carry runs it: with -I -S, so that only packages beside it are found.
COMMAND = b"""\
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
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


# What `gpu-hook` imports. PyYAML works without its compiled part, and `top` uses nothing of what rich requires.
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


def link(target: str) -> tuple[bytes, int]:
    return target.encode(), stat.S_IFLNK | 0o777


LINK = re.compile(r"!?\[([^\]]*)\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")


def pages(root: Path, paths: Iterable[Path]) -> Files:
    """These files of a checkout; in Markdown, a link to a file that is not among them becomes its text."""
    files = {str(path.relative_to(root)): read(path) for path in paths}

    def shown(page: str, found: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page), found[2]))
        return found[0] if any(name == target or name.startswith(f"{target}/") for name in files) else found[1]

    for name, (data, mode) in files.items():
        if name.endswith(".md"):
            files[name] = LINK.sub(functools.partial(shown, name), data.decode()).encode(), mode
    return files


def below(folder: str, files: Files) -> Files:
    return {f"{folder}/{name}": file for name, file in files.items()}


def lay(root: Path, files: Files) -> None:
    """Write files and folders below `root`, all with the same time, whatever the umask is."""
    for name, (data, mode) in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(mode):
            path.symlink_to(data.decode())
        else:
            path.write_bytes(data)
            path.chmod(mode)
        os.utime(path, (epoch(), epoch()), follow_symlinks=False)
    for path, _, _ in os.walk(root, topdown=False):
        os.chmod(path, 0o755)
        os.utime(path, (epoch(), epoch()))


def archive(files: Files) -> bytes:
    """A tar of files and their folders; all owned by root and with the same time."""
    folders = {str(folder) for name in files for folder in Path(name).parents} - {"."}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted({*files, *folders}):
            member = tarfile.TarInfo(name)
            member.mtime, member.mode = epoch(), 0o755
            data = None
            if name in folders:
                member.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(files[name][1]):
                member.type, member.linkname = tarfile.SYMTYPE, files[name][0].decode()
            else:
                data, member.mode = files[name]
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data) if data is not None else None)
    return stream.getvalue()
