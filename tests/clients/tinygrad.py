"""tinygrad, from PyPI."""

from testbed.stage import GPU_MIB, LIMIT_MIB
from tests.clients.frame import Case, Client, Limit
from tests.clients.pair import LIBDIR

CLIENT = Client(
    "tinygrad",
    "0.14.0",
    (
        Case(
            "CUDA backend",
            ("python", "/programs/tinygrad_steps.py"),
            "CUDA backend with PTX, graphs of its JIT",
            20,
            {"MiB until refused": Limit(GPU_MIB - 128, LIMIT_MIB - 128)},
            env={
                "CUDA_PATH": LIBDIR
            },  # it looks in /lib, which Debian's images have as a link to /usr/lib, and this one not
        ),
    ),
    pins=("tinygrad",),
)
