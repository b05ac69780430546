"""For the tests' child processes: the driver API by ctypes. `cuda.NAME(...)` must succeed; `code("NAME", ...)` returns
the CUresult."""

import ctypes
import os
import time
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

try:
    import pynvml as nvml
except ImportError:
    nvml = None

MIB = 1 << 20
library = ctypes.CDLL(os.environ.get("CUDA_LIBRARY", "libcuda.so.1"))
NONE = c_void_p(0)


def gpu(index: int) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(index)


def code(name: str, *args: Any) -> int:
    return int(getattr(library, name)(*args))


class Checked:
    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> None:
            result = code(name, *args)
            assert result == 0, (name, result)

        return call


cuda = Checked()


def soon(true: Callable[[], Any]) -> None:
    """Wait until it is true; fails if it never is."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def context(device: int = 0) -> c_void_p:
    """Initialise; make the device's primary context current."""
    ctx = c_void_p()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(byref(ctx), device)
    cuda.cuCtxSetCurrent(ctx)
    return ctx


def alloc(size: int) -> c_uint64:
    at = c_uint64()
    cuda.cuMemAlloc_v2(byref(at), c_size_t(size))
    return at


def free_bytes() -> int:
    free, total = c_size_t(), c_size_t()
    cuda.cuMemGetInfo_v2(byref(free), byref(total))
    return free.value


def kernel(us: int, name: bytes = b"k") -> c_void_p:
    """A kernel of that duration."""
    module, function = c_void_p(), c_void_p()
    cuda.cuModuleLoadData(byref(module), b".entry %s() // sim_us=%d" % (name, us))
    cuda.cuModuleGetFunction(byref(function), module, name)
    return function


def launch(function: c_void_p, stream: Any = NONE) -> None:
    cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NONE, NONE)


def event(stream: Any = NONE) -> c_void_p:
    """A recorded event."""
    e = c_void_p()
    cuda.cuEventCreate(byref(e), 0)
    cuda.cuEventRecord(e, stream)
    return e


def elapsed(a: c_void_p, b: c_void_p) -> float:
    ms = c_float()
    cuda.cuEventElapsedTime(byref(ms), a, b)
    return ms.value


class Prop(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", c_int),
        ("device", c_int),
        ("win32", c_void_p),
        ("flags", c_char_p),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = [("location", c_int), ("device", c_int), ("flags", c_int)]


def map_handle(handle: c_uint64, size: int) -> c_uint64:
    """Reserve an address range, map the handle there, allow access."""
    at = c_uint64()
    cuda.cuMemAddressReserve(byref(at), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    cuda.cuMemMap(at, c_size_t(size), c_size_t(0), handle, c_uint64(0))
    cuda.cuMemSetAccess(at, c_size_t(size), byref(Access(1, 0, 3)), c_size_t(1))
    return at


def set_limit(path: str, hard: int, soft: int = 0, index: int = 0) -> None:
    limits = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=path.encode(), softLimit=soft, hardLimit=hard)
    nvml.nvmlDeviceSetMemoryLimits_v1(gpu(index), limits)


def get_limit(path: str, index: int = 0) -> tuple[int, int, int]:
    """Soft limit, hard limit, use."""
    limits = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=path.encode())
    nvml.nvmlDeviceGetMemoryLimits_v1(gpu(index), limits)
    return limits.softLimit, limits.hardLimit, limits.currentUsed


def nvml_code(call: Any, *args: Any) -> int:
    """The nvmlReturn_t."""
    try:
        call(*args)
    except nvml.NVMLError as e:
        return int(e.value)
    return 0


__all__ = [name for name in dir() if not name.startswith("_")] + ["c_uint"]
