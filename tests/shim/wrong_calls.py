"""Calls every allocating function with one wrong argument, and with two, in each state that a program can be in; says
each answer as a line of JSON. Runs in a box, over the simulated driver alone and through the shim.
"""

import ctypes
import itertools
import json
import os
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import client as cu

lib = cu.lib
SIZE = 2 * cu.MIB
DEVICE = (c_int(0), c_int(-1), c_int(5), c_int(64))


class Out:
    """A place for an answer."""


OUT = (Out, None)


def struct(length: int, *fields: "tuple[int, bytes]") -> bytes:
    """A structure of so many bytes. fields: each an offset and its bytes."""
    raw = bytearray(length)
    for at, value in fields:
        raw[at : at + len(value)] = value
    return bytes(raw)


def i32(value: int) -> bytes:
    """An int of C."""
    return value.to_bytes(4, "little", signed=True)


def i64(value: int) -> bytes:
    """A size_t of C."""
    return value.to_bytes(8, "little")


def prop(kind: int = 1, handles: int = 0, where: int = 1, place: int = 0) -> bytes:
    """CUmemAllocationProp, and the head of CUmemPoolProps."""
    return struct(88, (0, i32(kind)), (4, i32(handles)), (8, i32(where)), (12, i32(place)))


def flat(width: int, height: int = 64, form: int = 0x20, channels: int = 4, word: int = 8) -> bytes:
    """CUDA_ARRAY_DESCRIPTOR; word 4: of version 1."""
    size = i64 if word == 8 else i32
    return size(width) + size(height) + i32(form) + i32(channels)


def solid(width: int, form: int = 0x20, channels: int = 4, flags: int = 0, word: int = 8) -> bytes:
    """CUDA_ARRAY3D_DESCRIPTOR; word 4: of version 1."""
    size = i64 if word == 8 else i32
    return size(width) + size(64) + size(0) + i32(form) + i32(channels) + i32(flags) + bytes(4)


def external(kind: int, fd: int, size: int = SIZE) -> bytes:
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC."""
    return struct(104, (0, i32(kind)), (8, i32(fd)), (24, i64(size)))


SOLID = (solid(64), None, solid(0), solid(64, form=77), solid(64, channels=3), solid(1 << 31))
FLAGS = (c_uint(0), c_uint(1 << 30))
ROWS = (c_size_t(64), c_size_t(0))
# Each function: the good value of each argument, and wrong ones. POOL, GRAPH and others stand for what the program makes.
CALLS: "dict[str, tuple[tuple[Any, ...], ...]]" = {
    "cuMemAlloc_v2": (OUT, (c_size_t(SIZE), c_size_t(0))),
    "cuMemAlloc": (OUT, (c_uint(SIZE), c_uint(0))),
    "cuMemAllocPitch_v2": (OUT, OUT, (c_size_t(4096), c_size_t(0)), ROWS, (c_uint(4), c_uint(0), c_uint(3))),
    "cuMemAllocPitch": (OUT, OUT, (c_uint(4096), c_uint(0)), (c_uint(64), c_uint(0)), (c_uint(4), c_uint(3))),
    "cuMemAllocManaged": (OUT, (c_size_t(SIZE), c_size_t(0)), (c_uint(1), c_uint(0), c_uint(3), c_uint(64))),
    "cuMemAllocAsync": (OUT, (c_size_t(SIZE), c_size_t(0)), ("STREAM", "DEAD STREAM")),
    "cuMemAllocAsync_ptsz": (OUT, (c_size_t(SIZE), c_size_t(0)), ("STREAM", "DEAD STREAM")),
    "cuMemAllocFromPoolAsync": (OUT, (c_size_t(SIZE), c_size_t(0)), ("POOL", None, "NO POOL"), ("STREAM", "DEAD STREAM")),
    "cuMemAllocFromPoolAsync_ptsz": (OUT, (c_size_t(SIZE), c_size_t(0)), ("POOL", None, "NO POOL"), ("STREAM",)),
    "cuMemCreate": (
        OUT,
        (c_size_t(SIZE), c_size_t(0), c_size_t(SIZE + 1)),
        (prop(), None, prop(handles=8), prop(0), prop(2), prop(3), *(prop(place=d) for d in (-1, 5, 64, 1 << 30)),
         prop(where=0), prop(where=5), prop(where=9), prop(where=3, place=-1)),
        (c_uint64(0), c_uint64(1)),
    ),
    "cuArrayCreate": (OUT, (flat(64, word=4), None, flat(0, word=4), flat(64, form=77, word=4))),
    "cuArrayCreate_v2": (OUT, (flat(64), None, flat(0), flat(64, form=77), flat(64, channels=3), flat(1 << 31))),
    "cuArray3DCreate": (OUT, (solid(64, word=4), None, solid(0, word=4), solid(64, form=77, word=4))),
    "cuArray3DCreate_v2": (OUT, SOLID),
    "cuMipmappedArrayCreate": (OUT, SOLID, (c_uint(1), c_uint(0), c_uint(99))),
    "cuImportExternalMemory": (
        OUT, ("FILE", None, external(0, 0), external(99, 0), external(1, -1), external(1, 999), external(1, 0, 0)),
    ),
    "cuCtxCreate": (OUT, FLAGS, DEVICE),
    "cuCtxCreate_v2": (OUT, FLAGS, DEVICE),
    "cuCtxCreate_v3": (OUT, (None,), (c_int(0), c_int(1)), FLAGS, DEVICE),
    "cuCtxCreate_v4": (OUT, (None,), FLAGS, DEVICE),
    "cuDevicePrimaryCtxRetain": (OUT, DEVICE),
    "cuGreenCtxCreate": (OUT, ("RESOURCES", None), DEVICE, (c_uint(1), c_uint(0), c_uint(9))),
    "cuCtxSetLimit": ((c_int(2), c_int(-1), c_int(3), c_int(99)), (c_size_t(64 << 20),)),
    "cuGraphInstantiate": (OUT, ("GRAPH", None), (None,), (None,), (c_size_t(0),)),
    "cuGraphInstantiate_v2": (OUT, ("GRAPH", None), (None,), (None,), (c_size_t(0),)),
    "cuGraphInstantiateWithFlags": (OUT, ("GRAPH", None), (c_uint64(0), c_uint64(1 << 40))),
    "cuGraphInstantiateWithParams": (OUT, ("GRAPH", None), (i64(2) + bytes(24), None, i64(1 << 40) + bytes(24))),
    "cuGraphInstantiateWithParams_ptsz": (OUT, ("GRAPH", None), (i64(2) + bytes(24), None)),
    "cuGraphLaunch": (("EXEC", None), ("STREAM", "DEAD STREAM")),
    "cuGraphLaunch_ptsz": (("EXEC", None), ("STREAM", "DEAD STREAM")),
    "cuGraphUpload": (("EXEC", None), ("STREAM", "DEAD STREAM")),
    "cuGraphUpload_ptsz": (("EXEC", None), ("STREAM", "DEAD STREAM")),
    "cuMemPoolCreate": (OUT, (prop(), None, prop(handles=8), prop(place=-1), prop(place=5), prop(where=9))),
    # These take nothing, or what somebody was charged for: a wrong argument is the driver's all the same.
    "cuCtxFromGreenCtx": (OUT, (None,)),
    "cuGraphAddMemAllocNode": (OUT, ("GRAPH", None), (None,), (c_size_t(0),), (None,)),
    "cuGraphAddNode": (OUT, ("GRAPH", None), (None,), (c_size_t(0),), (None,)),
    "cuGraphAddNode_v2": (OUT, ("GRAPH", None), (None,), (None,), (c_size_t(0),), (None,)),
    "cuGraphAddNode_v3": (OUT, ("GRAPH", None), (None,), (None,), (c_size_t(0),), (None,)),
    "cuGraphExecChildGraphNodeSetParams": (("EXEC", None), (None,), ("GRAPH", None)),
    "cuGraphExecNodeSetParams": (("EXEC", None), (None,), (None,)),
    "cuGraphExecUpdate": (("EXEC", None), (None,), OUT, OUT),
    "cuGraphExecUpdate_v2": (("EXEC", None), (None,), OUT),
    "cuIpcGetMemHandle": (OUT, (c_uint64(0), c_uint64(0xDEAD000))),
    "cuIpcOpenMemHandle": (OUT, ("IPC",), (c_uint(1), c_uint(0))),
    "cuIpcOpenMemHandle_v2": (OUT, ("IPC",), (c_uint(1), c_uint(0))),
    "cuMemExportToShareableHandle": (OUT, (c_uint64(0), c_uint64(77)), (c_int(1), c_int(0)), (c_uint64(0), c_uint64(1))),
    "cuMemGetHandleForAddressRange": (OUT, (c_uint64(0),), (c_size_t(SIZE),), (c_int(1), c_int(0)), (c_uint64(0),)),
    "cuMemImportFromShareableHandle": (OUT, (c_void_p(0), c_void_p(999)), (c_int(1), c_int(0))),
    "cuMemMap": ((c_uint64(0),), (c_size_t(SIZE), c_size_t(0)), (c_size_t(0),), (c_uint64(0), c_uint64(77)), FLAGS),
    "cuMemMapArrayAsync": ((None, bytes(96)), (c_uint(1), c_uint(0)), ("STREAM", "DEAD STREAM")),
    "cuMemMapArrayAsync_ptsz": ((None, bytes(96)), (c_uint(1), c_uint(0)), ("STREAM", "DEAD STREAM")),
    "cuMemPoolImportFromShareableHandle": (OUT, (c_void_p(0), c_void_p(999)), (c_int(1), c_int(0)), (c_uint64(0),)),
    "cuMemRetainAllocationHandle": (OUT, (None, c_void_p(0xDEAD000))),
    "cuMulticastBindMem": ((c_uint64(0), c_uint64(77)), (c_size_t(0),), (c_uint64(0),), (c_size_t(0),), (c_size_t(SIZE),), (c_uint64(0),)),
    "cuMulticastBindMem_v2": (
        (c_uint64(0), c_uint64(77)), DEVICE, (c_size_t(0),), (c_uint64(0),), (c_size_t(0),), (c_size_t(SIZE),), (c_uint64(0),),
    ),
    "cuMulticastBindAddr": ((c_uint64(0), c_uint64(77)), (c_size_t(0),), (c_uint64(0),), (c_size_t(SIZE),), (c_uint64(0),)),
    "cuMulticastBindAddr_v2": ((c_uint64(0), c_uint64(77)), DEVICE, (c_size_t(0),), (c_uint64(0),), (c_size_t(SIZE),), (c_uint64(0),)),
    "cuLogicalEndpointBindMem": ((c_uint(7),), DEVICE, (c_uint64(0),), (c_uint64(0),), (c_uint64(0),), (c_uint64(SIZE),), (c_uint64(0),)),
    "cuLogicalEndpointBindAddr": ((c_uint(7),), DEVICE, (c_uint64(0),), (c_uint64(0),), (c_uint64(SIZE),), (c_uint64(0),)),
    "cuCheckpointProcessRestore": ((c_int(0), c_int(-1)), (None, bytes(64))),
}  # fmt: skip

FREED: "dict[str, Callable[[int], int]]" = {
    "cuMemCreate": lambda h: lib.cuMemRelease(c_uint64(h)),
    "cuImportExternalMemory": lambda h: lib.cuDestroyExternalMemory(c_void_p(h)),
    "cuMemPoolCreate": lambda h: lib.cuMemPoolDestroy(c_void_p(h)),
    "cuDevicePrimaryCtxRetain": lambda h: lib.cuDevicePrimaryCtxRelease_v2(0),
    "cuGreenCtxCreate": lambda h: lib.cuGreenCtxDestroy(c_void_p(h)),
    "cuMipmappedArrayCreate": lambda h: lib.cuMipmappedArrayDestroy(c_void_p(h)),
}
for name, free in {
    "cuMemAlloc": lambda h: lib.cuMemFree_v2(c_uint64(h)),
    "cuArray": lambda h: lib.cuArrayDestroy(c_void_p(h)),
    "cuCtxCreate": lambda h: lib.cuCtxDestroy_v2(c_void_p(h)),
    "cuGraphInstantiate": lambda h: lib.cuGraphExecDestroy(c_void_p(h)),
}.items():
    FREED |= {call: free for call in CALLS if call.startswith(name)}

things: "dict[str, Any]" = {
    "NO POOL": ctypes.create_string_buffer(256),
    "DEAD STREAM": ctypes.create_string_buffer(4096),
}


def thing(word: str) -> Any:
    """What a word of CALLS stands for; NULL before there is such a thing."""
    if word in ("NO POOL", "DEAD STREAM"):  # memory that is neither, behind which the simulated driver may look
        return c_void_p(ctypes.addressof(things[word]) + 2048 * (word == "DEAD STREAM"))
    return things.get(word, (c_uint64 * 8)() if word == "IPC" else None)


class Ipc(ctypes.Structure):
    """CUipcMemHandle goes by value."""

    _fields_ = [("bytes", ctypes.c_char * 64)]


def call(name: str, values: "tuple[Any, ...]") -> int:
    """Call the function; what it made is freed again."""
    outs = [(c_uint64 * 64)() for _ in values]
    given = []
    for value, out in zip(values, outs, strict=True):
        if value is Out:
            given.append(out)
        elif value == "IPC":
            given.append(Ipc())
        elif value == "FILE":  # the driver closes it
            given.append(ctypes.create_string_buffer(external(1, os.memfd_create("external"))))
        elif isinstance(value, str):
            given.append(thing(value))
        elif isinstance(value, bytes):
            given.append(ctypes.create_string_buffer(value, len(value) + 64))
        else:
            given.append(value)
    r = int(getattr(lib, name)(*given))
    if r == 0 and name in FREED and outs[0][0]:
        FREED[name](outs[0][0])
    return r


def state(word: str) -> None:
    """Each function with all that is right, with one wrong argument, and with each two."""
    for name, arguments in CALLS.items():
        if not hasattr(lib, name):  # the shim exports newer names as well
            continue
        good = tuple(choices[0] for choices in arguments)
        said: dict[str, int] = {"right": call(name, good)}
        wrong = [(i, k) for i, choices in enumerate(arguments) for k in range(1, len(choices))]
        for some in (*((w,) for w in wrong), *itertools.combinations(wrong, 2)):
            if len({i for i, _ in some}) < len(some):
                continue
            values = list(good)
            for i, k in some:
                values[i] = arguments[i][k]
            said[" ".join(f"{i}:{k}" for i, k in some)] = call(name, tuple(values))
        print(json.dumps([word, name, said]), flush=True)


state("before cuInit")
assert lib.cuInit(0) == 0
state("without a context")
cu.use(0)
stream, graph, exec_ = c_void_p(), c_void_p(), c_void_p()
assert lib.cuStreamCreate(byref(stream), 1) == 0
resources = (c_uint64 * 18)()
assert lib.cuDeviceGetDevResource(0, resources, 1) == 0
things |= {"STREAM": stream, "POOL": c_void_p(cu.pool()), "RESOURCES": resources}
made, at = cu._memory_graph(SIZE, True)
things["GRAPH"] = made
things["EXEC"] = c_void_p(cu.graph(SIZE, flags=1, within=True))
before = cu.used()
state("with a context")
lib.cuCtxSynchronize()
lib.cuCtxSetLimit(2, c_size_t(8 << 20))
lib.cuDeviceGraphMemTrim(0)
lib.cuMemPoolTrimTo(things["POOL"], c_size_t(0))
print(json.dumps(["left", "", {"MiB": (cu.used() - before) >> 20}]))
full = cu.alloc(cu.info()[0])[0] if cu.info()[1] <= 1024 * cu.MIB else 0
before = cu.used()
state("full")
lib.cuCtxSynchronize()
print(json.dumps(["left", "when full", {"MiB": (cu.used() - before) >> 20, "filled": full}]))
