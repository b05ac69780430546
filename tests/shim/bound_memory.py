"""Binds memory to multicast objects and takes all apart again in each order; says each answer, and what is in use then, as a
line of JSON. Runs in a box, bare and through the shim.
"""

import ctypes
import itertools
import json
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64

import client as cu

lib = cu.lib
SIZE = 64 * cu.MIB


class Props(ctypes.Structure):
    """CUmulticastObjectProp."""

    _fields_ = [("devices", ctypes.c_uint), ("size", c_size_t), ("handles", c_uint64), ("flags", c_uint64)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("kind", c_int), ("place", c_int), ("flags", c_int)]


def multicast(size: int) -> c_uint64:
    """An object of one device."""
    h = c_uint64()
    assert lib.cuMulticastCreate(byref(h), byref(Props(1, size, 1, 0))) == 0
    assert lib.cuMulticastAddDevice(h, 0) == 0
    return h


def mapped(handle: c_uint64, size: int) -> c_uint64:
    """Where it is mapped."""
    at = c_uint64()
    assert lib.cuMemAddressReserve(byref(at), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)) == 0
    assert lib.cuMemMap(at, c_size_t(size), c_size_t(0), handle, c_uint64(0)) == 0
    assert lib.cuMemSetAccess(at, c_size_t(size), byref(Access(1, 0, 3)), c_size_t(1)) == 0
    return at


def bind(way: str, mc: c_uint64, memory: c_uint64, at: c_uint64, offset: int = 0) -> int:
    """By the memory's handle, or its address."""
    if way == "handle":
        call = lib.cuMulticastBindMem
        return int(call(mc, c_size_t(offset), memory, c_size_t(0), c_size_t(SIZE), c_uint64(0)))
    return int(lib.cuMulticastBindAddr(mc, c_size_t(offset), at, c_size_t(SIZE), c_uint64(0)))


def unbind(mc: c_uint64, offset: int = 0, size: int = SIZE, device: int = 0) -> int:
    """cuMulticastUnbind."""
    return int(lib.cuMulticastUnbind(mc, device, c_size_t(offset), c_size_t(size)))


def unmap(at: c_uint64) -> int:
    """cuMemUnmap of one piece."""
    return int(lib.cuMemUnmap(at, c_size_t(SIZE)))


def used() -> int:
    """MiB in use since the beginning."""
    return (cu.used() - before) >> 20


def each_order(name: str, steps: "dict[str, Callable[[], int]]", order: "tuple[str, ...]") -> None:
    """Take the steps, and say what they answer and leave."""
    print(json.dumps([name, [(step, steps[step](), used()) for step in order]]), flush=True)


cu.init()
before = cu.used()
for way in ("handle", "address"):
    for order in itertools.permutations(("unbind", "unmap object", "release object", "unmap", "release")):
        object_, memory = multicast(SIZE), c_uint64(cu.create(SIZE)[1])
        at, there = mapped(memory, SIZE), mapped(object_, SIZE)
        assert bind(way, object_, memory, at) == 0
        steps: "dict[str, Callable[[], int]]" = {
            "unbind": lambda o=object_: unbind(o),  # type: ignore[misc]
            "unmap object": lambda a=there: unmap(a),  # type: ignore[misc]
            "release object": lambda o=object_: int(lib.cuMemRelease(o)),  # type: ignore[misc]
            "unmap": lambda a=at: unmap(a),  # type: ignore[misc]
            "release": lambda m=memory: int(lib.cuMemRelease(m)),  # type: ignore[misc]
        }
        each_order(way, steps, order)

# Again and again, as libraries of collectives do
for turn in range(12):
    object_, memory = multicast(SIZE), c_uint64(cu.create(SIZE)[1])
    answers = [bind("handle", object_, memory, memory), unbind(object_)]
    answers += [int(lib.cuMemRelease(memory)), int(lib.cuMemRelease(object_))]
    print(json.dumps([f"round {turn}", answers, used()]))

# One piece bound twice, and two pieces in one object, unbound one by one
object_ = multicast(2 * SIZE)
one, two = c_uint64(cu.create(SIZE)[1]), c_uint64(cu.create(SIZE)[1])
print(
    json.dumps(
        ["twice", [bind("handle", object_, one, one, n * SIZE) for n in range(2)], int(lib.cuMemRelease(one)), used()]
    )
)
print(json.dumps(["first", unbind(object_), used()]))
print(json.dumps(["first again", unbind(object_), used()]))
print(json.dumps(["beside", bind("handle", object_, two, two), int(lib.cuMemRelease(two)), used()]))
print(json.dumps(["another device", unbind(object_, 0, SIZE, 5), used()]))
print(json.dumps(["second", unbind(object_, SIZE), used()]))
print(json.dumps(["object", int(lib.cuMemRelease(object_)), used()]))

# An object that was retained by its mapping keeps what is bound
object_, memory, again = multicast(SIZE), c_uint64(cu.create(SIZE)[1]), c_uint64()
there = mapped(object_, SIZE)
print(json.dumps(["bound", bind("handle", object_, memory, memory), int(lib.cuMemRelease(memory)), used()]))
print(
    json.dumps(["retained", int(lib.cuMemRetainAllocationHandle(byref(again), there)), int(lib.cuMemRelease(object_))])
)
print(json.dumps(["unmapped", unmap(there), used()]))
print(json.dumps(["unbound", unbind(again), used()]))
print(json.dumps(["released", int(lib.cuMemRelease(again)), int(lib.cuMemRelease(again)), used()]))
