"""Compiles the load generator into OUT/load for one architecture. Called by scripts/build."""

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[2] / "simulator" / "model"
SOURCES = [HERE / "load.c", HERE / "cuda.c", HERE / "physics.c", MODEL / "rng.c"]
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread", "-s"]


def build(out: Path, arch: str, cc: list[str]) -> None:
    """Make OUT/load unless it is newer than its sources.

    arch: as `uname -m` says. cc: the `zig cc` command. Raises subprocess.CalledProcessError when the compiler fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    made = out / "load"
    inputs = [*SOURCES, HERE / "cuda.h", MODEL / "rng.h", Path(__file__)]
    if made.exists() and made.stat().st_mtime_ns > max(p.stat().st_mtime_ns for p in inputs):
        return
    partial = out / ".load.new"
    words = [*FLAGS, "-o", str(partial), *map(str, SOURCES), "-ldl", "-lm"]
    subprocess.run([*cc, "-target", f"{arch}-linux-gnu.2.17", *words], check=True)
    partial.rename(made)
