"""The image of `gpu-hook controller`: Debian's Python, the packages of the extra [cluster], ours. No shell, nothing else.

All of it is pinned by version and checksum, in controller/. Built without an engine, like the install image.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import image
from payload import COMMAND, REGISTRY, ROOT, VERSION, Files, below, package

from testbed.debian import CannotFetch, apt, unpack

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
    files, links = tree(base / "root")
    files |= below("gpu-hook", tree(base / "site")[0] | own(arch))
    links["usr/bin/python3"] = f"python{PYTHON}"
    run: dict[str, object] = {
        "Entrypoint": ["/usr/bin/python3", "-I", "/gpu-hook/gpu-hook", "controller"],
        "Env": ["PATH=/usr/bin", "LC_ALL=C.UTF-8"],
        "User": "65532:65532",
        "StopSignal": "SIGTERM",
    }
    name = image.ARCHITECTURES[arch]
    return image.write(out, NAME, name, image.archive(files, links), run, "scripts/package controller-image")


def fetched(arch: str) -> Path:
    """What the pins name, unpacked in root/ and site/; kept in build/ until they change."""
    pins = b"".join((PINS / name).read_bytes() for name in ("debian.txt", "requirements.txt"))
    kept = ROOT / "build" / arch / f"controller-{sha256(pins).hexdigest()[:12]}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            half = Path(scratch) / "half"
            debian(Path(scratch), half / "root", arch)
            python_packages(half / "site", arch)
            half.rename(kept)
    return kept


def own(arch: str) -> Files:
    """Our Python, without what only runs on nodes."""
    ours = {name: file for name, file in package(arch).items() if name.endswith((".py", ".json", ".html"))}
    return ours | {"gpu-hook": (COMMAND.format(folder="/gpu-hook").encode(), 0o755)}


def debian(scratch: Path, root: Path, arch: str) -> None:
    """The pinned packages, unpacked."""
    debs = scratch / "debs"
    debs.mkdir()
    architecture = image.ARCHITECTURES[arch]
    lines = [line.split() for line in (PINS / "debian.txt").read_text().splitlines()]
    pins = [line[1:] for line in lines if line[0] == architecture]
    try:
        with apt(architecture="" if arch == platform.machine() else architecture) as get:
            get(debs, "download", *(f"{name}={version}" for name, version, _ in pins))
    except CannotFetch as e:
        raise SystemExit(f"scripts/package: Debian bookworm's Python cannot be had: {e}") from None
    for name, _, digest in pins:
        (file,) = debs.glob(f"{name}_*.deb")
        if sha256(file.read_bytes()).hexdigest() != digest:
            raise SystemExit(
                f"scripts/package: {file.name} has another sha256 than packaging/controller/debian.txt says"
            )
        unpack([file], root)
    for name in LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)


def python_packages(site: Path, arch: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    wanted = ["--only-binary=:all:", "--require-hashes", f"--python-version={PYTHON}", "--target", str(site)]
    platforms = [f"--platform={name}_{arch}" for name in WHEELS]
    subprocess.run([*pip, *wanted, *platforms, "-r", str(PINS / "requirements.txt")], check=True)
    shutil.rmtree(site / "bin", ignore_errors=True)
    for record in site.glob("*.dist-info/RECORD"):  # also lists what is in bin/
        record.unlink()


def tree(root: Path) -> tuple[Files, dict[str, str]]:
    """(files, symbolic links) below a folder; of documentation only licences."""
    files: Files = {}
    links = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            links[name] = os.readlink(path)
        elif path.is_file() and not (name.startswith("usr/share/doc/") and path.name != "copyright"):
            files[name] = path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644
    return files, links
