"""Builds the compiled parts that every package has. Standard library only, because pip imports it."""

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv/bin/python"
PARTS = (  # below build/ARCH in a checkout, below oci_hook/native/ARCH in a package
    "gpu-hook-runtime",
    "oci-gpu-hook",
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1",
    "sim/gpu-probe",
    "sim/share-model",
)


def parts(arch: str = platform.machine()) -> dict[str, Path]:
    """Compile the parts that are older than their sources; returns each part's path in a package and its file."""
    python, environment = sys.executable, dict(os.environ)
    if importlib.util.find_spec("ziglang") is None and VENV.exists():
        python = str(VENV)
        environment.pop("PYTHONPATH", None)  # pip sets it, and hides .venv's packages by it
    command = [python, str(ROOT / "scripts/build"), "--arch", arch]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return {f"oci_hook/native/{arch}/{name}": ROOT / "build" / arch / name for name in PARTS}


def mode(name: str) -> int:
    return 0o644 if ".so." in os.path.basename(name) else 0o755
