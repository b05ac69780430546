"""Plans OUT/share-model: the compute-sharing model, with the shipped decide(). Called by scripts/build."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_c.native_build import Plan

HERE = Path(__file__).resolve().parent
SHIM = HERE.parent.parent / "oci_hook" / "shim"
SOURCES = ("main.c", "sim.c", "shim.c", "gpu.c", "rng.c")
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


def plan(plan: "Plan", out: Path) -> None:
    """Plan OUT/share-model."""
    target = f"{plan.arch}-linux-musl"
    sources = [*(HERE / name for name in SOURCES), SHIM / "gate/decide.c"]
    plan.link(out / "share-model", target, FLAGS, plan.objects(out / ".objects", target, FLAGS, sources))
