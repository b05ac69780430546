"""Numba-CUDA: the test modules that its wheel ships. Those that compare what kernels computed fail on both sides."""

from testbed.stage import CONTEXT_MIB, GPU_MIB, LIMIT_MIB
from tests.clients.frame import Case, Client, Limit

ROOM, SHARE_ROOM = GPU_MIB - CONTEXT_MIB, LIMIT_MIB - CONTEXT_MIB

DRIVER = """
    array_attr context_stack cuda_array_slicing cuda_auto_context cuda_devicerecord cuda_driver cuda_memory cuda_ndarray
    deallocations emm_plugins events host_alloc is_fp16 linkable_code nvrtc nvvm_driver pinned profiler
    reset_device runtime select_device streams
"""
SLOW = "detect init linker managed_alloc module_callbacks nvjitlink"  # of the same folder
LANGUAGE = """
    alignment array_methods const_string constmem cuda_array_interface debug exception freevar inspect iterators
    launch_config_sensitive localmem multiprocessing multithreads retrieve_autoconverted_arrays serialize stream_api
    typeconv warning
"""


def words(modules: str, folder: str) -> tuple[str, ...]:
    return ("python", "/programs/numba_tests.py", *(f"{folder}.test_{name}" for name in modules.split()))


CLIENT = Client(
    "numba-cuda",
    "0.30.4",
    (
        Case(
            "memory",
            ("python", "/programs/numba_fill.py"),
            "arrays until one is refused",
            7,
            {
                "free and total MiB": Limit([ROOM - 1, GPU_MIB], [SHARE_ROOM - 1, LIMIT_MIB]),
                "MiB until refused": Limit(ROOM, SHARE_ROOM),  # numba has freed the first array by then
            },
        ),
        Case("driver", words(DRIVER, "cudadrv"), "its own tests of its driver layer", 100),
        Case(
            "two GPUs",
            (*words("context_stack select_device", "cudadrv"), "cudapy.test_multigpu", "cudapy.test_ipc"),
            "its own tests of contexts, IPC, two GPUs",
            10,
            gpus=2,
        ),
        Case(
            "driver, slow ones",
            words(SLOW, "cudadrv"),
            "more of these: linking, initialisation",
            30,
            only_clients=True,
        ),
        Case(
            "language",
            words(LANGUAGE, "cudapy"),
            "its own tests of kernels, streams, threads",
            60,
            only_clients=True,
            seconds=900,
        ),
    ),
    pins=("cuda-python-12", "numba-cuda", "cuda-12-runtime", "cuda-12-compilers"),
)
