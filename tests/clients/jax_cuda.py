"""JAX: its CUDA 12 build from PyPI, with the simulator's CUDA runtime, ptxas, and a cuDNN that only hands out handles."""

import shutil
import subprocess
from pathlib import Path

from testbed import REPO
from testbed.compiled import ZIG
from testbed.stage import ARCH, GPU_MIB, LIMIT_MIB, MULTIARCH
from tests.clients.frame import Case, Client, Limit
from tests.clients.pair import PROGRAMS
from tests.clients.torch_cuda import both, room

CC = [*ZIG, "-std=c11", "-Wall", "-Wextra", "-fPIC", "-shared"]
ENV = {
    "JAX_PLATFORMS": "cuda,cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # of the versions of cuBLAS, cuFFT and others, which are not there
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def prepare(root: Path, driver: Path) -> None:
    libraries = root / f"usr/lib/{MULTIARCH}"
    shutil.copy(REPO / f"build/{ARCH}/sim/runtime/libcudart.so.12", libraries)
    cudnn = libraries / "libcudnn.so.9"
    subprocess.run([*CC, f"-Wl,-soname,{cudnn.name}", "-o", str(cudnn), str(PROGRAMS / "cudnn_handle.c")], check=True)


def limits(share_of_it: float) -> dict[str, Limit]:
    """An allocator of its own has this part of the GPU's memory; arrays of 32 MiB and a small one have room in it."""
    own = {all: int(all * share_of_it) for all in (GPU_MIB, LIMIT_MIB)}
    return {
        "free and total MiB at first": both(lambda all: [room(all), all]),
        "the allocator's own limit in MiB": both(lambda all: own[all]),
        "arrays of 32 MiB until refused": both(lambda all: own[all] // 32 - 1),
        "free and total MiB then": both(lambda all: [room(all) - own[all], all]),
        "free and total MiB at the end": both(lambda all: [room(all) - own[all], all]),
    }


ASYNC = limits(0.75) | {  # its pool holds 75 % from the start, and grows to the limit
    "free and total MiB at first": both(lambda all: [room(all) - all * 3 // 4, all]),
    "arrays of 32 MiB until refused": both(lambda all: room(all) // 32 - 1),
    "free and total MiB then": both(lambda all: [0, all]),
}


def memory(name: str, what: str, limits: dict[str, Limit], **env: str) -> Case:
    return Case(name, ("python", "/programs/jax_memory.py"), what, 13, limits, ENV | env)


CLIENT = Client(
    "jax",
    "0.10.2",
    (
        memory("preallocated", "memory taken at the start: 75 % of what the GPU has", limits(0.75)),
        memory(
            "half",
            "the same with `XLA_PYTHON_CLIENT_MEM_FRACTION=.5`",
            limits(0.5),
            XLA_PYTHON_CLIENT_MEM_FRACTION=".5",
        ),
        memory(
            "growing",
            "the same with `XLA_PYTHON_CLIENT_PREALLOCATE=false`",
            limits(0.75),
            XLA_PYTHON_CLIENT_PREALLOCATE="false",
        ),
        memory("async", "the same with the allocator `cuda_async`", ASYNC, XLA_PYTHON_CLIENT_ALLOCATOR="cuda_async"),
        Case(
            "compute",
            ("python", "/programs/jax_compute.py"),
            "compiled functions, graphs of kernels, a function beyond the limit",
            17,
            env=ENV,
        ),
    ),
    pins=("jax",),
    heavy=True,
    prepare=prepare,
)
