"""A C program of the driver API, compiled against the CUDA toolkit's headers."""

import subprocess
from pathlib import Path

from tests.clients import fetch
from tests.clients.frame import Case, Client, Limit
from tests.clients.pair import PROGRAMS
from tests.e2e.stage import CONTEXT_MIB, GPU_MIB, LIMIT_MIB


def compile_it(root: Path, driver: Path) -> None:
    """By the system's gcc; linked with the simulated driver's library, in place of the toolkit's stub of it."""
    (include,) = fetch.wheels("cuda-12-headers").glob("nvidia/cuda_runtime/include")
    words = ["gcc", "-std=gnu11", "-Wall", "-Werror", "-O1", f"-I{include}", str(PROGRAMS / "driver_api.c")]
    subprocess.run([*words, "-o", str(root / "bin/driver_api"), str(driver / "libcuda.so.1"), "-pthread"], check=True)


# Where free memory is said, and how much of the GPU or the share is taken then, the context aside.
TAKEN = {
    "at the start": 0,
    "after the largest": 0,
    "with an array": 64,
    "with managed memory": 64,
    "after all of it": 0,
}
CLIENT = Client(
    "CUDA toolkit",
    "headers 12.9",
    (
        Case(
            "driver API",
            ("/bin/driver_api",),
            "driver API from C: memory of every kind, pools, graphs, threads, contexts, IPC, fork",
            1,
        ),
    ),
    pins=("cuda-12-headers",),
    prepare=compile_it,
)
