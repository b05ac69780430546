"""Holds memory of the first GPU in this process, through libcuda itself, so that monitors have something to show."""

import ctypes

HELD = 236  # MiB; 300 with the simulated driver's context
cuda = ctypes.CDLL("libcuda.so.1")


def hold() -> None:
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    for call in (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        lambda: cuda.cuCtxSetCurrent(context),
        lambda: cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(HELD << 20)),
    ):
        assert call() == 0
