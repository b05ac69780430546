"""Compiles the simulator's own CUDA runtime into OUT for one architecture. Called by scripts/build.

OUT/libcudart.so.12 and OUT/libcudart.so.13: the same sources, with the version of the API that each stands for.
"""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
GLIBC_FLOOR = "2.17"  # CUDA's own runtime needs this version
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread", "-s"]
FLAGS += ["-fPIC", "-shared", "-fvisibility=hidden"]
SOURCES = ["start.c", "device.c", "memory.c", "stream.c", "kernels.c", "launch.c", "error.c"]
VERSIONS = {
    "libcudart.so.12": 12090,
    "libcudart.so.13": 13000,
}  # soname, which is also the name of the symbols' version


def build(out: Path, arch: str, cc: list[str]) -> None:
    """Make OUT/libcudart.so.{12,13}; a file that is newer than its sources stays.

    arch: as `uname -m` says. cc: the `zig cc` command. Raises subprocess.CalledProcessError when the compiler fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    newest = max(p.stat().st_mtime_ns for p in HERE.iterdir() if p.suffix in (".c", ".h", ".def", ".py"))
    for name, version in VERSIONS.items():
        made = out / name
        if made.exists() and made.stat().st_mtime_ns > newest:
            continue
        script = out / f"{name}.map"
        script.write_text(f"{name} {{ global: cuda*; __cuda*; gpuHook*; local: *; }};\n")
        partial = out / f".{name}.{os.getpid()}"  # several may build at once
        command = [*cc, "-target", f"{arch}-linux-gnu.{GLIBC_FLOOR}", *FLAGS, f"-DRUNTIME_VERSION={version}"]
        command += [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-o", str(partial)]
        subprocess.run([*command, *(str(HERE / source) for source in SOURCES), "-ldl"], check=True)
        partial.rename(made)
