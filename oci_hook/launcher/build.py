"""Compiles the launcher: two static programs from one source, gpu-hook-runtime and oci-gpu-hook."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "launcher.c"
PROGRAMS = {"gpu-hook-runtime": [], "oci-gpu-hook": ["-DHOOK"]}
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", "-fstack-protector-strong"]


def build(out: Path, arch: str, cc: list[str]) -> None:
    """Compile into `out` for `arch` (as `uname -m` says) with zig's C compiler `cc`, unless newer than the source.

    Raises subprocess.CalledProcessError when it does not compile.
    """
    out.mkdir(parents=True, exist_ok=True)
    newest = max(SOURCE.stat().st_mtime_ns, Path(__file__).stat().st_mtime_ns)
    for name, defines in PROGRAMS.items():
        target = out / name
        if not target.exists() or target.stat().st_mtime_ns < newest:
            subprocess.run(
                [*cc, "-target", f"{arch}-linux-musl", *FLAGS, *defines, "-o", str(target), str(SOURCE)], check=True
            )
