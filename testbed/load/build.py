"""Plans the programs of the benchmarks in OUT for one architecture: load, and liar. Called by scripts/build."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_c.native_build import Plan

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "simulator" / "model"
SHIM = HERE.parents[1] / "oci_hook" / "shim"
PROGRAMS = {
    "load": [HERE / "load.c", HERE / "cuda.c", HERE / "physics.c", MODEL / "rng.c"],
    "liar": [HERE / "liar.c"],
}
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread", "-s", f"-I{SHIM}"]


def plan(plan: "Plan", out: Path) -> None:
    """Plan each program in `out`."""
    target = f"{plan.arch}-linux-gnu.2.17"
    for name, sources in PROGRAMS.items():
        plan.link(out / name, target, FLAGS, plan.objects(out / ".objects", target, FLAGS, sources), ["-ldl", "-lm"])
