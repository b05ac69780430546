"""What needs no package manager: a folder that may lie anywhere, with the command gpu-hook and all that it needs."""

import gzip
from pathlib import Path

import interpreter
from payload import COMMAND, MODULES, ROOT, VERSION, Files, archive, below, package, pages, read, vendored


def contents(arch: str) -> Files:
    """The folder: our Python, what it imports, and the interpreter."""
    files = {**package(arch), **vendored(*MODULES), "command.py": (COMMAND, 0o644)}
    files |= {**interpreter.code(files), **interpreter.files(arch, files)}
    return {**files, "gpu-hook": interpreter.program(arch)}


def build(out: Path, arch: str) -> Path:
    """OUT/gpu-hook_VERSION_ARCHITECTURE.tar.gz; the same bytes for the same sources and SOURCE_DATE_EPOCH."""
    name = f"gpu-hook_{VERSION}_{interpreter.ARCHITECTURES[arch]}"
    files = contents(arch) | pages(ROOT, (ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "SECURITY")))
    files["LICENSE"] = read(ROOT / "LICENSE")
    target = out / f"{name}.tar.gz"
    target.write_bytes(gzip.compress(archive(below(name, files)), mtime=0))
    return target
