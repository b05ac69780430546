"""What a program of the tests does with libcuda, by ctypes: runs inside a box."""

import ctypes
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

MIB = 1 << 20
OOM = 2
lib = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)


def init(device: int = 0) -> None:
    """A context on a device."""
    assert lib.cuInit(0) == 0
    use(device)


def use(device: int) -> None:
    """Make a device's primary context current."""
    ctx = c_void_p()
    assert lib.cuDevicePrimaryCtxRetain(byref(ctx), device) == 0
    assert lib.cuCtxSetCurrent(ctx) == 0


def alloc(size: int, call: "ctypes._CFuncPtr | None" = None) -> "tuple[int, int]":
    """cuMemAlloc: (result, pointer)."""
    p = c_uint64()
    r = (call or lib.cuMemAlloc_v2)(byref(p), c_size_t(size))
    return r, p.value


def free(pointer: int) -> int:
    """cuMemFree."""
    return lib.cuMemFree_v2(c_uint64(pointer))


def info() -> "tuple[int, int]":
    """cuMemGetInfo: (free, total)."""
    f, t = c_size_t(), c_size_t()
    assert lib.cuMemGetInfo_v2(byref(f), byref(t)) == 0
    return f.value, t.value


def total(device: int = 0) -> int:
    """cuDeviceTotalMem."""
    t = c_size_t()
    assert lib.cuDeviceTotalMem_v2(byref(t), device) == 0
    return t.value


def address(symbol: str, version: int = 12000, flags: int = 0, v2: bool = True) -> int:
    """What cuGetProcAddress says."""
    p, status = c_void_p(), c_int()
    if v2:
        r = lib.cuGetProcAddress_v2(symbol.encode(), byref(p), version, c_uint64(flags), byref(status))
    else:
        r = lib.cuGetProcAddress(symbol.encode(), byref(p), version, c_uint64(flags))
    return p.value or 0 if r == 0 else 0


__all__ = ["MIB", "OOM", "c_float", "c_uint", "address", "alloc", "free", "info", "init", "lib", "total", "use"]
