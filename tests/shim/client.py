"""What a program of the tests does with libcuda, by ctypes: runs inside a box."""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

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


class D3(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = [
        ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
        ("format", c_int), ("channels", c_uint), ("flags", c_uint),
    ]  # fmt: skip


class Prop(ctypes.Structure):
    """CUmemAllocationProp; CUmemPoolProps begins the same way."""

    _fields_ = [
        ("type", c_int), ("handles", c_int), ("where", c_int), ("id", c_int),
        ("security", c_void_p), ("max", c_size_t), ("rest", ctypes.c_char * 56),
    ]  # fmt: skip


def prop(device: int = 0, where: int = 1) -> Prop:
    """Pinned memory of a device."""
    return Prop(type=1, where=where, id=device)


def create(size: int, device: int = 0, where: int = 1) -> "tuple[int, int]":
    """cuMemCreate: (result, handle)."""
    h, props = c_uint64(), prop(device, where)
    props.handles = 1  # it may be exported
    r = lib.cuMemCreate(byref(h), c_size_t(size), byref(props), c_uint64(0))
    return r, h.value


def async_alloc(size: int, stream: int = 0, suffix: str = "") -> "tuple[int, int]":
    """cuMemAllocAsync."""
    p = c_uint64()
    return getattr(lib, "cuMemAllocAsync" + suffix)(byref(p), c_size_t(size), c_void_p(stream)), p.value


def async_free(pointer: int, suffix: str = "", stream: int = 0) -> int:
    """cuMemFreeAsync."""
    return getattr(lib, "cuMemFreeAsync" + suffix)(c_uint64(pointer), c_void_p(stream))


def pool(device: int = 0, where: int = 1, handles: int = 0) -> int:
    """cuMemPoolCreate."""
    h, props = c_void_p(), prop(device, where)
    props.handles = handles
    assert lib.cuMemPoolCreate(byref(h), byref(props)) == 0
    return h.value or 0


def pool_alloc(handle: int, size: int, suffix: str = "") -> "tuple[int, int]":
    """cuMemAllocFromPoolAsync."""
    p = c_uint64()
    call = getattr(lib, "cuMemAllocFromPoolAsync" + suffix)
    return call(byref(p), c_size_t(size), c_void_p(handle), c_void_p(0)), p.value


def array(width: int, height: int = 0, depth: int = 0, levels: int = 0, **more: int) -> "tuple[int, int]":
    """cuArray3DCreate, or with levels cuMipmappedArrayCreate: (result, handle)."""
    d = D3(width, height, depth, more.get("format", 0x20), more.get("channels", 4), more.get("flags", 0))
    h = c_void_p()
    if levels:
        return lib.cuMipmappedArrayCreate(byref(h), byref(d), c_uint(levels)), h.value or 0
    return lib.cuArray3DCreate_v2(byref(h), byref(d)), h.value or 0


def used() -> int:
    """Bytes in use, as cuMemGetInfo shows them."""
    f, t = info()
    return t - f


def external(fd: int, size: int) -> "tuple[int, int]":
    """cuImportExternalMemory of a file descriptor: (result, handle)."""
    d = (c_uint64 * 13)(1, fd, 0, size)
    m = c_void_p()
    return lib.cuImportExternalMemory(byref(m), d), m.value or 0


graph_addresses: "dict[int, int]" = {}  # executable graph -> what its memory node allocates


def _memory_graph(size: int, within: bool) -> "tuple[c_void_p, int]":
    g, node, free_node = c_void_p(), c_void_p(), c_void_p()
    params = (c_uint64 * 15)()
    params[1] = 1  # pool properties: location {device, 0}
    params[13] = size
    assert lib.cuGraphCreate(byref(g), 0) == 0
    assert lib.cuGraphAddMemAllocNode(byref(node), g, None, c_size_t(0), params) == 0
    if within:
        after = (c_void_p * 1)(node)
        assert lib.cuGraphAddMemFreeNode(byref(free_node), g, after, c_size_t(1), c_uint64(params[14])) == 0
    return g, params[14]


def graph(size: int, flags: int = 0, within: bool = False) -> int:
    """An executable graph with one memory node; within: and one that frees it again."""
    g, at = _memory_graph(size, within)
    e = c_void_p()
    assert lib.cuGraphInstantiateWithFlags(byref(e), g, c_uint64(flags)) == 0
    graph_addresses[e.value or 0] = at
    return e.value or 0


def graph_upload(size: int) -> "tuple[int, int]":
    """The same, uploaded when it is made: (result, executable graph)."""
    g, at = _memory_graph(size, False)
    e = c_void_p()
    params = (c_uint64 * 4)(1 | 2)  # free at the next launch, upload
    r = lib.cuGraphInstantiateWithParams(byref(e), g, params)
    graph_addresses[e.value or 0] = at
    return r, e.value or 0


def launch(exec_: int, suffix: str = "") -> int:
    """cuGraphLaunch."""
    return getattr(lib, "cuGraphLaunch" + suffix)(c_void_p(exec_), c_void_p(0))
