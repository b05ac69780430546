"""JAX: its CUDA 12 build from PyPI, with the simulator's CUDA runtime, ptxas, and a cuDNN that only hands out handles."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.clients.frame import Case, Client
from tests.clients.pair import PROGRAMS
from tests.conftest import REPO
from tests.e2e.stage import ARCH, MULTIARCH

CC = [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared"]
ENV = {
    "JAX_PLATFORMS": "cuda,cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # of the versions of cuBLAS, cuFFT and others, which are not there
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
MEMORY = ("python", "/programs/jax_memory.py")


def prepare(root: Path, driver: Path) -> None:
    libraries = root / f"usr/lib/{MULTIARCH}"
    shutil.copy(REPO / f"build/{ARCH}/sim/runtime/libcudart.so.12", libraries)
    cudnn = libraries / "libcudnn.so.9"
    subprocess.run([*CC, f"-Wl,-soname,{cudnn.name}", "-o", str(cudnn), str(PROGRAMS / "cudnn_handle.c")], check=True)


CLIENT = Client(
    "jax",
    "0.10.2",
    (
        Case("preallocated", MEMORY, "memory taken at the start: 75 % of what the GPU has", 1, {}, ENV),
        Case(
            "half",
            MEMORY,
            "the same with `XLA_PYTHON_CLIENT_MEM_FRACTION=.5`",
            1,
            {},
            ENV | {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"},
        ),
        Case(
            "growing",
            MEMORY,
            "the same with `XLA_PYTHON_CLIENT_PREALLOCATE=false`",
            1,
            {},
            ENV | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        ),
        Case(
            "platform",
            MEMORY,
            "the same without an allocator of its own (`platform`)",
            1,
            {},
            ENV | {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
        ),
        Case("async", MEMORY, "the same with `cuda_async`", 1, {}, ENV | {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
        Case(
            "compute",
            ("python", "/programs/jax_compute.py"),
            "compiled functions, graphs of kernels, a function beyond the limit",
            1,
            {},
            ENV,
        ),
        Case("two-gpus", ("python", "/programs/jax_compute.py"), "the same with two GPUs", 1, {}, ENV, gpus=2),
    ),
    pins=("jax",),
    heavy=True,
    prepare=prepare,
)
