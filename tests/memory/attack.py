"""For the programs that attack: calls by ctypes from client.py, threads, and lines to and from the test."""

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import client as cu

MIB, lib = cu.MIB, cu.lib


def say(*words: object) -> None:
    """A line for the test."""
    print(*words, flush=True)


def wait() -> None:
    """Until the test answers."""
    if not sys.stdin.readline():
        sys.exit(0)


def at_once(*calls: "Callable[[], Any]") -> "list[Any]":
    """Make calls in threads that begin together, in the same context; their results."""
    context, results = c_void_p(), [None] * len(calls)
    lib.cuCtxGetCurrent(byref(context))
    begin = threading.Barrier(len(calls))

    def run(i: int) -> None:
        lib.cuCtxSetCurrent(context)
        begin.wait()
        results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def later(seconds: float, call: "Callable[[], Any]") -> "Callable[[], Any]":
    """The same call, so much later."""

    def run() -> Any:
        time.sleep(seconds)
        return call()

    return run


def reserve(size: int) -> c_uint64:
    """cuMemAddressReserve."""
    at = c_uint64()
    assert lib.cuMemAddressReserve(byref(at), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)) == 0
    return at


def create(size: int) -> c_uint64:
    """cuMemCreate."""
    result, handle = cu.create(size)
    assert result == 0
    return c_uint64(handle)


def map_(at: c_uint64, size: int, handle: c_uint64) -> int:
    """cuMemMap."""
    return int(lib.cuMemMap(at, c_size_t(size), c_size_t(0), handle, c_uint64(0)))


def stream() -> c_void_p:
    """A stream."""
    s = c_void_p()
    assert lib.cuStreamCreate(byref(s), 1) == 0
    return s


__all__ = [
    "MIB", "at_once", "byref", "c_int", "c_size_t", "c_uint", "c_uint64", "c_void_p", "create", "ctypes", "cu", "later",
    "lib", "map_", "reserve", "say", "stream", "sys", "threading", "time", "wait",
]  # fmt: skip
