"""Plans the simulator's own CUDA runtime in OUT for one architecture. Called by scripts/build.

OUT/libcudart.so.12 and OUT/libcudart.so.13: the same sources, with the version of the API that each stands for.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_c.native_build import Plan

HERE = Path(__file__).resolve().parent
GLIBC_FLOOR = "2.17"  # CUDA's own runtime needs this version
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-pthread", "-s"]
FLAGS += ["-fPIC", "-fvisibility=hidden"]
SOURCES = ["start.c", "device.c", "memory.c", "stream.c", "kernels.c", "launch.c", "error.c"]
VERSIONS = {
    "libcudart.so.12": 12090,
    "libcudart.so.13": 13000,
}  # soname, which is also the name of the symbols' version


def plan(plan: "Plan", out: Path) -> None:
    """Plan OUT/libcudart.so.{12,13}."""
    target = f"{plan.arch}-linux-gnu.{GLIBC_FLOOR}"
    for name, version in VERSIONS.items():
        script = plan.text(out / f"{name}.map", f"{name} {{ global: cuda*; __cuda*; gpuHook*; local: *; }};\n")
        flags = [*FLAGS, f"-DRUNTIME_VERSION={version}"]
        objects = plan.objects(out / ".objects", target, flags, [HERE / source for source in SOURCES])
        link = [*FLAGS, "-shared", f"-Wl,-soname,{name}", f"-Wl,--version-script={script}"]
        plan.link(out / name, target, link, objects, ["-ldl"])
