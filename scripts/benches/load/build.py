"""Compiles the programs of the benchmarks into OUT for one architecture: load, and liar. Called by scripts/build."""

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[2] / "simulator" / "model"
SHIM = HERE.parents[2] / "oci_hook" / "shim"
PROGRAMS = {
    "load": [HERE / "load.c", HERE / "cuda.c", HERE / "physics.c", MODEL / "rng.c"],
    "liar": [HERE / "liar.c"],
}
HEADERS = [HERE / "cuda.h", MODEL / "rng.h", *SHIM.glob("pages/*.h")]
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread", "-s", f"-I{SHIM}"]


def build(out: Path, arch: str, cc: list[str]) -> None:
    """Make each program unless it is newer than its sources.

    arch: as `uname -m` says. cc: the `zig cc` command. Raises subprocess.CalledProcessError when the compiler fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, sources in PROGRAMS.items():
        made = out / name
        newest = max(p.stat().st_mtime_ns for p in [*sources, *HEADERS, Path(__file__)])
        if made.exists() and made.stat().st_mtime_ns > newest:
            continue
        partial = out / f".{name}.new"
        words = [*FLAGS, "-o", str(partial), *map(str, sources), "-ldl", "-lm"]
        subprocess.run([*cc, "-target", f"{arch}-linux-gnu.2.17", *words], check=True)
        partial.rename(made)
