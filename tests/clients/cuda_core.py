"""cuda-core: NVIDIA's Python objects over the driver API."""

from testbed.stage import GPU_MIB, LIMIT_MIB
from tests.clients.frame import Case, Client, Limit

CLIENT = Client(
    "cuda-core",
    "1.2.2",
    (
        Case(
            "objects",
            ("python", "/programs/core_steps.py"),
            "devices, streams, memory resources, kernels, graphs",
            170,
            {
                "DeviceMemoryResource: MiB until refused": Limit(GPU_MIB - 128, LIMIT_MIB - 128),
                "system memory": Limit([GPU_MIB], [LIMIT_MIB]),
            },
        ),
    ),
    driver="580",  # it is built for CUDA 13
    pins=("cuda-python",),
)
