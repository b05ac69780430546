"""cuda-bindings: NVIDIA's Python bindings of the driver API, with nvidia-ml-py beside it."""

from testbed.stage import CONTEXT_MIB, GPU_MIB, LIMIT_MIB
from tests.clients.frame import Case, Client, Limit

ROOM, SHARE_ROOM = GPU_MIB - CONTEXT_MIB, LIMIT_MIB - CONTEXT_MIB
WAYS = ("cuMemAlloc", "cuMemAllocManaged", "cuMemCreate", "cuMemAllocAsync")

LIMITS = {
    "cuDeviceTotalMem MiB": Limit(GPU_MIB, LIMIT_MIB),
    "NVML: total, free, used MiB": Limit([GPU_MIB, 0, GPU_MIB], [LIMIT_MIB, 0, LIMIT_MIB]),
    "NVML: total, free MiB, version 2": Limit([GPU_MIB, 0], [LIMIT_MIB, 0]),
}
for way in WAYS:
    LIMITS[f"{way}: MiB until refused"] = Limit(ROOM, SHARE_ROOM)
    LIMITS[f"{way}: free and total MiB then"] = Limit([0, GPU_MIB], [0, LIMIT_MIB])
    LIMITS[f"{way}: free and total MiB after"] = Limit([ROOM, GPU_MIB], [SHARE_ROOM, LIMIT_MIB])

CLIENT = Client(
    "cuda-bindings",
    "13.5.0",
    (
        Case(
            "driver",
            ("python", "/programs/bindings.py"),
            "driver API and nvidia-ml-py in one process",
            150,
            LIMITS,
        ),
    ),
    pins=("cuda-python",),
)
