"""The compiled parts that packages carry, and their compiler. Standard library only: pip imports it."""

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv/bin/python"
PACKAGES = {  # Python package: parts of scripts/build, their folder below build/ARCH, files
    "oci_hook": (
        ("shim", "launcher"),
        "",
        (
            "gpu-hook-runtime",
            "oci-gpu-hook",
            "gpu-hook-boundary",
            "gpu-hook-probe",
            "libcuda.so.1",
            "libnvidia-ml.so.1",
        ),
    ),
    "gpu_hook_simulator": (
        ("sim", "sim/model", "sim/runtime"),
        "sim",
        ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ml.so.1-615", "gpu-probe", "share-model")
        + ("runtime/libcudart.so.12", "runtime/libcudart.so.13"),
    ),
}


def parts(package: str, arch: str = platform.machine()) -> dict[str, Path]:
    """Compile what is older than its sources; each part's place in the package and its file."""
    python, environment = sys.executable, dict(os.environ)
    if importlib.util.find_spec("ziglang") is None and VENV.exists():
        python = str(VENV)
        environment.pop("PYTHONPATH", None)  # pip sets it, and hides .venv's packages by it
    words, folder, names = PACKAGES[package]
    command = [python, str(ROOT / "scripts/build"), "--arch", arch]
    command += [option for word in words for option in ("--part", word)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return {f"{package}/native/{arch}/{name}": ROOT / "build" / arch / folder / name for name in names}


def mode(name: str) -> int:
    return 0o644 if ".so." in os.path.basename(name) else 0o755
