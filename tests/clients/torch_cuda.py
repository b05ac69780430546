"""torch: its CUDA build from PyPI, with the simulator's CUDA runtime and without the GB of libraries it only links."""

import re
import shutil
from pathlib import Path

from tests.clients import empty_libraries, fetch
from tests.clients.frame import Case, Client, Limit
from tests.conftest import REPO
from tests.e2e.stage import ARCH, CONTEXT_MIB, GPU_MIB, LIMIT_MIB, MULTIARCH

ROOM, SHARE_ROOM = GPU_MIB - CONTEXT_MIB, LIMIT_MIB - CONTEXT_MIB
# Which libraries torch links but these programs do not call, and how the names begin that it asks of them.
EMPTY = {
    "libcublas.so.13": "",
    "libcublasLt.so.13": "",
    "libcudnn.so.9": "",
    "libcufft.so.12": "",
    "libcufile.so.0": "cuFile",
    "libcupti.so.13": "",
    "libcurand.so.10": "",
    "libcusolver.so.12": "",
    "libcusparse.so.12": "",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "nccl",
    "libnvrtc.so.13": "",
    "libnvshmem_host.so.3": "nvshmem",
}


def prepare(root: Path, folder: Path) -> None:
    libraries = root / f"usr/lib/{MULTIARCH}"
    shutil.copy(REPO / f"build/{ARCH}/sim/runtime/libcudart.so.13", libraries)
    site = next(fetch.wheels("torch").glob("torch/lib"))
    empty_libraries.make(libraries, sorted(site.glob("*.so")), EMPTY)


CLIENT = Client(
    "torch",
    "2.11.0",
    (
        Case("caching", ("python", "/programs/torch_memory.py"), "allocator with cache: to the limit, texts, threads, copies", 1),
        Case("no-cache", ("python", "/programs/torch_memory.py"), "allocator without cache", 1,
             env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
        Case("expandable", ("python", "/programs/torch_memory.py"), "expandable segments (virtual memory management)", 1,
             env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        Case("async", ("python", "/programs/torch_memory.py"), "back end cudaMallocAsync", 1,
             env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
        Case("graphs", ("python", "/programs/torch_graphs.py"), "CUDA graphs", 1),
        Case("two-gpus", ("python", "/programs/torch_two_gpus.py"), "two GPUs, gloo", 1, gpus=2),
    ),
    pins=("torch",),
    driver="580",
    heavy=True,
    prepare=prepare,
)
