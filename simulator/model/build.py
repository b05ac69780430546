"""Compiles the compute-sharing model, with the shipped decide(), into OUT/share-model. Called by scripts/build."""

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHIM = HERE.parent.parent / "oci_hook" / "shim"
SOURCES = ("main.c", "sim.c", "shim.c", "gpu.c", "rng.c")
DECISION = ("gate/decide.c", "gate/decide.h", "pages/arithmetic.h", "pages/gpu_view.h")
# No fused multiply-add: the same scenario and seed give the same figures on every machine.
FLAGS = (
    "-std=c11",
    "-O2",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-sanitize=undefined",
    "-static",
    "-s",
    f"-I{SHIM}",
)


def build(out: Path, arch: str, cc: list[str]) -> None:
    """Make OUT/share-model unless it is newer than its sources.

    arch: as `uname -m` says. cc: the `zig cc` command. Raises subprocess.CalledProcessError when the compiler fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    made = out / "share-model"
    inputs = [p for p in HERE.iterdir() if p.suffix in (".c", ".h", ".py")] + [SHIM / name for name in DECISION]
    if made.exists() and made.stat().st_mtime_ns > max(p.stat().st_mtime_ns for p in inputs):
        return
    partial = out / ".share-model.new"
    sources = [str(HERE / name) for name in SOURCES] + [str(SHIM / "gate/decide.c")]
    subprocess.run(
        [*cc, "-target", f"{arch}-linux-musl", *FLAGS, f"-I{SHIM}", "-o", str(partial), *sources], check=True
    )
    partial.rename(made)
