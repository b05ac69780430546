"""numba-cuda: an array to the GPU and back, then device arrays until one is refused."""

import warnings

import numpy as np

warnings.simplefilter("ignore")
from numba import cuda  # noqa: E402
from numba.cuda.cudadrv.driver import CudaAPIError  # noqa: E402

print("gpu", cuda.get_current_device().name)
print("sum", cuda.to_device(np.arange(1000)).copy_to_host().sum())
print("memory", *(n >> 20 for n in cuda.current_context().get_memory_info()))
held = []
try:
    while True:
        held.append(cuda.device_array(64 << 20, dtype=np.uint8))
except CudaAPIError as e:
    print("held", 64 * len(held), "CUDA_ERROR_OUT_OF_MEMORY" in str(e))
