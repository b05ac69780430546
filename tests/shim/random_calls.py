"""A program of the differential test: one call by every route there is, at random, each told by its seed.

Reads lines. `one SEED` makes one call and answers "ROUTE NEED RESULT" (NEED: bytes that the driver would take for it).
`many SEED N plain|all` makes N calls and answers with the codes that are neither success nor out of memory. `look`
synchronises, which is when the stand-in looks at what the driver's pools gave back by themselves. `full` takes what
cuMemGetInfo calls free, tries one piece more, gives both back; answers with the figures and results.
"""

import ctypes
import os
import random
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import client as cu

lib, MIB, CHUNK = cu.lib, cu.MIB, 32 << 20
held: "list[tuple[str, tuple[int, ...]]]" = []
context_bytes = int(sys.argv[1])


def up(n: int, to: int) -> int:
    return (n + to - 1) // to * to


PLAIN = ("alloc", "pitch", "managed", "create", "map", "array", "mipmap", "context")
POOLED = ("async", "ptsz", "pool", "graph")


def take(rng: random.Random, routes: "tuple[str, ...]" = PLAIN + POOLED) -> "tuple[str, int, int]":
    """Allocate by some route: (route, bytes the driver takes, result)."""
    route = rng.choice(routes)
    n = rng.choice((rng.randrange(1, 4096), rng.randrange(1, 40 * MIB), rng.randrange(1, 120) * MIB))
    p, q, r = c_uint64(), c_size_t(), 0
    if route == "alloc":
        r, p.value = cu.alloc(n)
        need = up(n, 512)
    elif route == "managed":
        r = lib.cuMemAllocManaged(byref(p), c_size_t(n), c_uint(1))
        need = up(n, 512)
    elif route == "pitch":
        width, height = rng.randrange(1, 3000), n // 3000 + 1
        r = lib.cuMemAllocPitch_v2(byref(p), byref(q), c_size_t(width), c_size_t(height), c_uint(4))
        need = up(width, 512) * height
    elif route in ("async", "ptsz", "pool"):
        if route == "pool":
            r, p.value = cu.pool_alloc(pool, n)
        else:
            r, p.value = cu.async_alloc(n, suffix="_ptsz" if route == "ptsz" else "")
        need = up(n, CHUNK)  # what pools of known drivers grow by; until one is seen to do with less
    elif route in ("create", "map"):
        need = n = up(n, 2 * MIB)
        r, p.value = cu.create(n)
        if r == 0 and route == "map":
            at = c_uint64()
            assert lib.cuMemAddressReserve(byref(at), c_size_t(n), c_size_t(0), c_uint64(0), c_uint64(0)) == 0
            assert lib.cuMemMap(at, c_size_t(n), c_size_t(0), p, c_uint64(0)) == 0
            assert lib.cuMemRelease(p) == 0
            held.append((route, (at.value, n)))
            return route, need, r
    elif route in ("array", "mipmap"):
        w, h = rng.randrange(1, 2000), rng.randrange(1, 2000)
        if route == "array":
            r, p.value = cu.array(w, h)
            need = up(up(w * 16, 64) * up(h, 8), 65536)
        else:
            r, p.value = cu.array(w, h, levels=3)
            need = 0
            for i in range(3):
                need += up(up(max(w >> i, 1) * 16, 64) * up(max(h >> i, 1), 8), 512)
                if (w >> i) <= 1 and (h >> i) <= 1:
                    break
            need = up(need, 65536)
    elif route == "graph":
        p.value = cu.graph(n, flags=1)
        r = cu.launch(p.value)
        need = up(n, CHUNK)  # what pools of known drivers grow by; until one is seen to do with less
        held.append((route, (p.value,)))
        return route, need, r
    else:
        ctx, old = c_void_p(), c_void_p()
        r = lib.cuCtxCreate_v2(byref(ctx), c_uint(0), c_int(0))
        if r == 0:
            assert lib.cuCtxPopCurrent_v2(byref(old)) == 0
        p.value = ctx.value or 0
        need = context_bytes
    if r == 0:
        held.append((route, (p.value,)))
    return route, need, r


def give(rng: random.Random) -> int:
    """Free something held."""
    route, (p, *more) = held.pop(rng.randrange(len(held)))
    if route in ("async", "ptsz", "pool"):
        return cu.async_free(p, suffix="_ptsz" if route == "ptsz" else "")
    if route == "create":
        return int(lib.cuMemRelease(c_uint64(p)))
    if route == "map":
        return int(lib.cuMemUnmap(c_uint64(p), c_size_t(more[0])))
    name = {"array": "cuArrayDestroy", "mipmap": "cuMipmappedArrayDestroy", "graph": "cuGraphExecDestroy",
            "context": "cuCtxDestroy_v2"}.get(route, "cuMemFree_v2")  # fmt: skip
    return int(getattr(lib, name)(c_void_p(p)))


def other(rng: random.Random) -> "tuple[str, int]":
    """What allocates nothing and may give memory back, or must be forwarded and refused by the driver."""
    what = rng.choice(("unknown", "unknown array", "sync", "trim", "graph trim", "info", "fork", "export"))
    if what == "unknown":
        return what, 0 if cu.free(rng.randrange(1 << 20, 1 << 40)) == 1 else 99
    if what == "unknown array":
        return what, 0 if lib.cuMemRelease(c_uint64(rng.randrange(1 << 20, 1 << 40))) == 1 else 99
    if what == "sync":
        return what, int(lib.cuCtxSynchronize())
    if what == "trim":
        return what, int(lib.cuMemPoolTrimTo(c_void_p(pool), c_size_t(0)))
    if what == "graph trim":
        return what, int(lib.cuDeviceGraphMemTrim(c_int(0)))
    if what == "fork":
        child = os.fork()
        if not child:
            os._exit(0 if cu.alloc(1)[0] == 3 else 1)  # CUDA does not survive a fork
        return what, os.waitpid(child, 0)[1]
    if what == "export":  # a handle for another process; the memory stays the exporter's
        fits = [v[0] for route, v in held if route == "alloc"]
        handle = (ctypes.c_char * 64)()
        return what, int(lib.cuIpcGetMemHandle(handle, c_uint64(rng.choice(fits)))) if fits else 0
    free, total = cu.info()
    return what, 0 if free <= total else 99


def step(rng: random.Random, routes: "tuple[str, ...]" = PLAIN + POOLED) -> "tuple[str, int, int]":
    n = rng.random()
    if n < 0.2:
        what, r = other(rng)
        return what, 0, r
    if held and n < 0.2 + 0.8 * min(len(held), 40) / 60:
        route = "free"
        return route, 0, give(rng)
    return take(rng, routes)


def full() -> str:
    lib.cuCtxSynchronize()
    free, total = cu.info()
    r, p = cu.alloc(free) if free else (0, 0)
    more, q = cu.alloc(1)
    ends = [cu.free(x) for x, ok in ((p, r), (q, more)) if ok == 0 and x]
    return f"{free} {total} {r} {more} {cu.info()[0]} {int(any(ends))}"


while True:  # the container may be full just now
    ctx_ = c_void_p()
    assert lib.cuInit(0) == 0
    result = lib.cuDevicePrimaryCtxRetain(byref(ctx_), 0)
    if result == 0:
        break
    print("full", result, flush=True)
    sys.stdin.readline()
assert lib.cuCtxSetCurrent(ctx_) == 0
pool = cu.pool()
print("ready", flush=True)
for line in sys.stdin:
    word, *numbers = line.split()
    if word == "one":
        print(*step(random.Random(int(numbers[0]))), flush=True)
    elif word == "look":
        print(lib.cuCtxSynchronize(), flush=True)
    elif word == "full":
        print(full(), flush=True)
    else:
        rng = random.Random(int(numbers[0]))
        odd = []
        for _ in range(int(numbers[1])):
            route, _, r = step(rng, PLAIN if numbers[2] == "plain" else PLAIN + POOLED)
            if r not in (0, cu.OOM):
                odd.append(f"{route}:{r}")
        print("done", *odd, flush=True)
