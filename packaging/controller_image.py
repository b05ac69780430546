"""The image of `gpu-hook controller`: Debian's Python, the packages of the extra [cluster], ours. No shell, nothing else.

All of it is pinned by version and checksum, in controller/. Built without an engine, like the install image.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import image
import interpreter
from payload import COMMAND, REGISTRY, ROOT, VERSION, Files, archive, below, link, package

NAME = f"{REGISTRY}/gpu-hook/controller:{VERSION}"
PINS = ROOT / "packaging/controller"
PYTHON = "3.11"  # bookworm's
WHEELS = ("manylinux_2_28", "manylinux2014", "manylinux_2_17")
# Of Debian's packages; licences stay.
LEFT_OUT = (
    "usr/share/man",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/share/binfmts",
    *(f"usr/lib/{arch}-linux-gnu/{name}" for arch in image.ARCHITECTURES for name in ("gconv", "audit")),
    *("usr/lib/valgrind", "etc", "DEBIAN"),
)
LEFT_OUT += tuple(
    f"usr/lib/python{PYTHON}/{name}" for name in ("pydoc_data", "unittest", "lib2to3", "ensurepip", "idlelib")
)


def build(out: Path, arch: str) -> Path:
    """OUT/gpu-hook-controller_VERSION_ARCHITECTURE.tar"""
    base = fetched(arch)
    files = tree(base / "root")
    files |= below("gpu-hook", tree(base / "site") | own(arch))
    files["usr/bin/python3"] = link(f"python{PYTHON}")
    run: dict[str, object] = {
        "Entrypoint": ["/usr/bin/python3", "-I", "/gpu-hook/command.py", "controller"],
        "Env": ["PATH=/usr/bin", "LC_ALL=C.UTF-8"],
        "User": "65532:65532",
        "StopSignal": "SIGTERM",
    }
    name = image.ARCHITECTURES[arch]
    return image.write(out, NAME, name, archive(files), run, "scripts/package controller-image")


def fetched(arch: str) -> Path:
    """What the pins name, unpacked in root/ and site/; kept in build/ until they change."""

    def make(half: Path) -> None:
        interpreter.pinned(PINS / "debian.txt", "", arch, half / "root")
        for name in LEFT_OUT:
            shutil.rmtree(half / "root" / name, ignore_errors=True)
        python_packages(half / "site", arch)

    pins = [(PINS / name).read_bytes() for name in ("debian.txt", "requirements.txt")]
    return interpreter.kept("controller", arch, pins, make)


def own(arch: str) -> Files:
    """Our Python, without what only runs on nodes."""
    ours = {name: file for name, file in package(arch).items() if name.endswith((".py", ".json", ".html"))}
    return ours | {"command.py": (COMMAND, 0o644)}


def python_packages(site: Path, arch: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    wanted = ["--only-binary=:all:", "--require-hashes", f"--python-version={PYTHON}", "--target", str(site)]
    platforms = [f"--platform={name}_{arch}" for name in WHEELS]
    subprocess.run([*pip, *wanted, *platforms, "-r", str(PINS / "requirements.txt")], check=True)
    shutil.rmtree(site / "bin", ignore_errors=True)
    for record in site.glob("*.dist-info/RECORD"):  # also lists what is in bin/
        record.unlink()


def tree(root: Path) -> Files:
    """The files below a folder; of documentation only licences."""
    files: Files = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            files[name] = link(os.readlink(path))
        elif path.is_file() and not (name.startswith("usr/share/doc/") and path.name != "copyright"):
            files[name] = path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644
    return files
