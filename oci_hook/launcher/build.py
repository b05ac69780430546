"""Plans the launcher: two static programs from one source, gpu-hook-runtime and oci-gpu-hook; gpu-hook-boundary; gpu-hook-probe;
and gpu-hook-python, which starts the Python that packages carry.

What the launcher shares with the Python code is compiled in: the words of core/dialects without which a config.json
asks for nothing, the defaults of the settings that it reads, and the folder of that Python.
"""

import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_c.native_build import Plan

HERE = Path(__file__).resolve().parent
SOURCES = (
    "launcher",
    "flags",
    "flat_yaml",
    "owner",
    "grant_folder",
    "exec_env",
    "keep_state",
    "end_limits",
    "process_json",
    "blake2b",
    "own_python",
)
PACKAGE = HERE.parent
PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # program: flags and C files
    "gpu-hook-runtime": ((), SOURCES),
    "oci-gpu-hook": (("-DHOOK",), SOURCES),
    "gpu-hook-boundary": ((), ("boundary_client",)),
    "gpu-hook-python": (("-DPROGRAM",), ("own_python",)),
}
PROBE = "gpu-hook-probe"
GLIBC = "2.17"
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", "-fstack-protector-strong"]


def plan(plan: "Plan", out: Path) -> None:
    """Plan the programs in `out`."""
    target = f"{plan.arch}-linux-musl"
    words = shared()
    for name, (flags, sources) in PROGRAMS.items():
        options = [*FLAGS, *flags, *words]
        objects = plan.objects(out / "launcher", target, options, [HERE / f"{source}.c" for source in sources])
        plan.link(out / name, target, FLAGS, objects)
    target = f"{plan.arch}-linux-gnu.{GLIBC}"  # it opens the driver, a shared library
    dynamic = [flag for flag in FLAGS if flag != "-static"]
    objects = plan.objects(out / "launcher", target, dynamic, [HERE / "probe.c"])
    plan.link(out / PROBE, target, dynamic, objects, ["-ldl"])


def own_python_folder() -> str:
    """The name of the folder of the Python that packages carry: another one for each version of its packages, so that an
    install is renewed while the old one still starts."""
    return f"python-{sha256((PACKAGE.parent / 'packaging/python/debian.txt').read_bytes()).hexdigest()[:8]}"


def shared() -> list[str]:
    """The compiler's options that define what the Python code says."""
    if str(PACKAGE.parent) not in sys.path:
        sys.path.insert(0, str(PACKAGE.parent))
    from oci_hook.config.settings import Settings
    from oci_hook.core import dialects
    from oci_hook.core.layout import MARKER, PAGES_DIR, SYSTEM_PYTHON

    defaults = Settings("/")
    words = {"ASKS": dialects.triggers(), "NEAR_KEYS": dialects.NEAR_KEYS, "NEAR_MOUNTS": dialects.NEAR_MOUNTS}
    lists = [f"-D{name}=" + ", ".join(f'"{word}"' for word in found) for name, found in words.items()]
    paths = {
        "RUNTIME": defaults.runtime,
        "PYTHON": SYSTEM_PYTHON,
        "OWN_PYTHON": own_python_folder(),
        "STATE_DIR": defaults.state_dir,
        "PAGES_DIR": PAGES_DIR,
        "MARKER": MARKER,
    }
    return [*lists, *(f'-D{name}="{path}"' for name, path in paths.items())]
