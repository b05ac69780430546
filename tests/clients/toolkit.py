"""A C program of the driver API, compiled against the CUDA toolkit's headers."""

import subprocess
from pathlib import Path

from testbed import pinned as fetch
from testbed.stage import CONTEXT_MIB, GPU_MIB, LIMIT_MIB
from tests.clients.frame import Case, Client, Limit
from tests.clients.pair import PROGRAMS


def compile_it(root: Path, driver: Path) -> None:
    """By the system's gcc; linked with the simulated driver's library, in place of the toolkit's stub of it."""
    (include,) = fetch.wheels("cuda-12-runtime").glob("nvidia/cuda_runtime/include")
    words = ["gcc", "-std=gnu11", "-Wall", "-Werror", "-O1", f"-I{include}", str(PROGRAMS / "driver_api.c")]
    subprocess.run([*words, "-o", str(root / "bin/driver_api"), str(driver / "libcuda.so.1"), "-pthread"], check=True)


# Where free memory is said, and how many MiB are taken then besides the context.
TAKEN = {
    "at the start": 0,
    "after the largest": 0,
    "with an array": 64,
    "with managed memory": 64,
    "after all of it": 0,
    "released but mapped": 16,
    "unmapped": 2,
    "after virtual memory": 0,
    "after a pool was trimmed": 0,
    "a pool keeps 200 MiB": 200,
    "trimmed": 0,
    "after graphs": 0,
    "after threads": 0,
    "in a second context": 100 + CONTEXT_MIB,
    "after the context": 0,
    "after the child": 0,
}
ROOM, SHARE_ROOM = GPU_MIB - CONTEXT_MIB, LIMIT_MIB - CONTEXT_MIB
LIMITS = {"total MiB": Limit(GPU_MIB, LIMIT_MIB), "largest cuMemAlloc, MiB": Limit(ROOM, SHARE_ROOM)}
for when, mib in TAKEN.items():
    LIMITS[f"{when}: free MiB"] = Limit(ROOM - mib, SHARE_ROOM - mib)
    LIMITS[f"{when}: total MiB"] = Limit(GPU_MIB, LIMIT_MIB)

CLIENT = Client(
    "CUDA toolkit",
    "headers 12.9",
    tuple(
        Case(
            name,
            ("/bin/driver_api",),
            f"driver API from C{who}",
            149,
            LIMITS,
            uid=uid,
        )
        for name, uid, who in (("driver API", 0, ""), ("plain user", 1000, ", as a plain user"))
    ),
    pins=("cuda-12-runtime",),
    prepare=compile_it,
)
