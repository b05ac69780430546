"""Compiles the simulated driver and gpu-probe into OUT for one architecture. Called by scripts/build."""

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
GLIBC_FLOOR = "2.17"  # what CUDA's own libraries ask for on x86-64 and arm64
FLAGS = ["-std=c11", "-O2", "-g0", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread"]
LIBRARY = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete"]
PARTS: dict[str, list[str]] = {  # output: flags and C files
    "libcuda.so.1": [*LIBRARY, "card.c", "device.c", "memory.c", "launch.c", "proc_address.c"],
    "libnvidia-ml.so.1": [*LIBRARY, "card.c", "nvml.c"],
    "gpu-probe": ["gpu-probe.c", "-ldl"],
    "gpu-probe-linked": ["-DLINKED", "gpu-probe.c", "libcuda.so.1"],
}


def build(out: Path, arch: str, cc: list[str]) -> None:
    """Make OUT/{libcuda.so.1,libnvidia-ml.so.1,gpu-probe,gpu-probe-linked}; what is newer than its sources stays.

    arch: as `uname -m` says. cc: the `zig cc` command. Raises subprocess.CalledProcessError when the compiler fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    newest = max(p.stat().st_mtime_ns for p in HERE.iterdir() if p.suffix in (".c", ".h", ".def", ".py"))
    for name, parts in PARTS.items():
        made = out / name
        if made.exists() and made.stat().st_mtime_ns > newest:
            continue
        words = [str(HERE / w) if w.endswith(".c") else str(out / w) if w in PARTS else w for w in parts]
        soname = [f"-Wl,-soname,{name}"] if "-shared" in parts else []
        partial = out / f".{name}.new"
        subprocess.run(
            [*cc, "-target", f"{arch}-linux-gnu.{GLIBC_FLOOR}", *FLAGS, *soname, "-o", str(partial), *words],
            check=True,
        )
        partial.rename(made)
