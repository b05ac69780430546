"""NVIDIA's own Python bindings of the driver API on the simulated libcuda: they have every structure's true layout."""

import pytest

from testbed.sim.gpus import Sim

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

START = """
import ctypes
from cuda.bindings import driver as d
M = 1 << 20
def ok(r):
    assert r[0] == 0, r
    return None if len(r) == 1 else r[1] if len(r) == 2 else r[1:]
ok(d.cuInit(0)); dev = ok(d.cuDeviceGet(0)); ctx = ok(d.cuDevicePrimaryCtxRetain(dev)); ok(d.cuCtxSetCurrent(ctx))
whole = ok(d.cuMemGetInfo())[0]; s = ok(d.cuStreamCreate(1))
def took(): return (whole - ok(d.cuMemGetInfo())[0]) // 1024
place = d.CUmemLocation(); place.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; place.id = 0
pool_props = d.CUmemPoolProps(); pool_props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
pool_props.location = place
m = ok(d.cuModuleLoadData(b".entry k() // sim_us=100\\0")); f = ok(d.cuModuleGetFunction(m, b"k"))
"""


def test_memory_and_launch(sim: Sim) -> None:
    code = """
p = ok(d.cuMemAlloc(10 << 20)); print(took())
ok(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0)); ok(d.cuStreamSynchronize(s)); ok(d.cuMemFree(p))
print(took(), d.cuMemAlloc(2 << 30)[0].name, ok(d.cuDeviceGetName(64, dev)).rstrip(b" \\0").decode())
c = ok(d.cuCtxCreate(None, 0, dev)); print(took()); ok(d.cuCtxDestroy(c)); print(took())
"""
    assert sim.python(START + code).splitlines() == [
        "10240",
        "0 CUDA_ERROR_OUT_OF_MEMORY Simulated GPU 1 GiB",
        "65536",
        "0",
    ]


def test_pool(sim: Sim) -> None:
    code = """
pool = ok(d.cuMemPoolCreate(pool_props)); p = ok(d.cuMemAllocFromPoolAsync(3 * M, pool, s))
attribute = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
print(took(), int(ok(d.cuMemPoolGetAttribute(pool, attribute))) // 1024)
ok(d.cuMemFreeAsync(p, s)); ok(d.cuStreamSynchronize(s)); print(took()); ok(d.cuMemPoolDestroy(pool))
"""
    assert sim.python(START + code).split() == ["32768", "32768", "0"]


def test_array(sim: Sim) -> None:
    code = """
a = d.CUDA_ARRAY3D_DESCRIPTOR(); a.Width = a.Height = 1000; a.NumChannels = 1
a.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT; array = ok(d.cuArray3DCreate(a)); print(took())
data = (ctypes.c_char * 4000)(*b"x" * 4000); c = d.CUDA_MEMCPY2D(); c.WidthInBytes = 4000; c.Height = 1
c.srcMemoryType = d.CUmemorytype.CU_MEMORYTYPE_HOST; c.srcHost = ctypes.addressof(data); c.srcPitch = 4000
c.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_ARRAY; c.dstArray = array; ok(d.cuMemcpy2D(c))
back = bytearray(8); ok(d.cuMemcpyAtoH(back, array, 3992, 8)); ok(d.cuArrayDestroy(array)); print(bytes(back), took())
"""
    # 1000 rows of 4000 bytes, padded to 4032, in pages of 64 KiB
    assert sim.python(START + code).split() == ["3968", "b'xxxxxxxx'", "0"]


def test_graph_with_memory(sim: Sim) -> None:
    code = """
g = ok(d.cuGraphCreate(0)); q = d.CUDA_MEM_ALLOC_NODE_PARAMS(); q.poolProps = pool_props; q.bytesize = 10 * M
n1 = ok(d.cuGraphAddMemAllocNode(g, None, 0, q)); k = d.CUDA_KERNEL_NODE_PARAMS(); k.func = f
k.gridDimX = k.gridDimY = k.gridDimZ = k.blockDimX = k.blockDimY = k.blockDimZ = 1
n2 = ok(d.cuGraphAddKernelNode(g, [n1], 1, k)); ok(d.cuGraphAddMemFreeNode(g, [n2], 1, q.dptr))
any = d.CUgraphNodeParams(); any.type = d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_ALLOC
any.alloc.poolProps = pool_props; any.alloc.bytesize = 5 * M; ok(d.cuGraphAddNode(g, None, None, 0, any))
e = ok(d.cuGraphInstantiate(g, 0)); print(took()); ok(d.cuGraphLaunch(e, s)); ok(d.cuStreamSynchronize(s))
used, reserved = (d.CUgraphMem_attribute(a) for a in (0, 2))
print(took(), *(int(ok(d.cuDeviceGetGraphMemAttribute(dev, a))) // M for a in (used, reserved)))
ok(d.cuMemFreeAsync(any.alloc.dptr, s)); ok(d.cuDeviceGraphMemTrim(dev)); print(took())
"""
    # The free node may run before or after the second allocation: 10 to 15 MiB, in pages of 2 MiB.
    first, after, used, reserved, last = (int(word) for word in sim.python(START + code).split())
    assert (first, used, last) == (0, 5, 0)
    assert after == reserved * 1024 and reserved in (10, 12, 14, 16)


def test_capture(sim: Sim) -> None:
    code = """
ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
ok(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0)); state = ok(d.cuStreamGetCaptureInfo(s)); print(state[0].name)
g = ok(d.cuStreamEndCapture(s)); print(len(ok(d.cuGraphGetNodes(g, 10))[0]))
e = ok(d.cuGraphInstantiate(g, 0)); ok(d.cuGraphLaunch(e, s)); ok(d.cuStreamSynchronize(s))
"""
    out = sim.python(START + code).split()
    assert out[0] == "CU_STREAM_CAPTURE_STATUS_ACTIVE" and int(out[1]) >= 1


def test_virtual_memory(sim: Sim) -> None:
    code = """
prop = d.CUmemAllocationProp(); prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED; prop.location = place
print(ok(d.cuMemGetAllocationGranularity(prop, d.CUmemAllocationGranularity_flags(0))) // 1024)
h = ok(d.cuMemCreate(4 * M, prop, 0)); va = ok(d.cuMemAddressReserve(4 * M, 0, 0, 0))
ok(d.cuMemMap(va, 4 * M, 0, h, 0))
acc = d.CUmemAccessDesc(); acc.location = place; acc.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
ok(d.cuMemSetAccess(va, 4 * M, [acc], 1)); ok(d.cuMemsetD8(va, 5, 4 * M)); print(took())
ok(d.cuMemUnmap(va, 4 * M)); ok(d.cuMemRelease(h)); ok(d.cuMemAddressFree(va, 4 * M)); print(took())
"""
    assert sim.python(START + code).split() == ["2048", "4096", "0"]
