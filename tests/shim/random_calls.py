"""A program of the differential test: one call by every route there is, at random, each told by its seed.

Reads lines and answers each with one. `one SEED` makes one call and answers "ROUTE NEED RESULT BEYOND" (NEED: bytes
that the driver would take for it; BEYOND: bytes that are charged to this process though the GPU does not count them:
external memory). `many SEED N plain|all` makes N calls and answers with BEYOND and the codes that are neither success
nor out of memory. `share KIND PID` exports something to that process, whose `take` imports it. `look` synchronises,
which is when the shim looks at what the driver's pools gave back by themselves, and answers with the result and BEYOND.
`full` takes what cuMemGetInfo calls free, tries one piece more, gives both back; answers with the figures and results.
`exec` runs this program anew in the same process.
"""

import ctypes
import os
import random
import socket
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import client as cu

lib, MIB, CHUNK = cu.lib, cu.MIB, 32 << 20
UNKNOWN = 1 << 60  # a need that nobody judges
Held = tuple[str, int, tuple[int, ...]]
held: list[Held] = []  # route, what it is known by, what else is needed to free it
context_bytes = int(sys.argv[1])
external_bytes = 0


def up(n: int, to: int) -> int:
    return (n + to - 1) // to * to


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: goes by value."""

    _fields_ = [("bytes", ctypes.c_char * 64)]


PLAIN = ("alloc", "pitch", "managed", "create", "map", "array", "shape", "mipmap", "context", "external")
POOLED = ("async", "ptsz", "pool", "shared", "doomed", "graph", "upload", "captured", "within")


def reserved(handle: int) -> int:
    figure = c_uint64()
    assert lib.cuMemPoolGetAttribute(c_void_p(handle), 5, byref(figure)) == 0
    return figure.value


def default_pool() -> int:
    handle = c_void_p()
    assert lib.cuDeviceGetDefaultMemPool(byref(handle), 0) == 0
    return handle.value or 0


grain: dict[int, int] = {}  # of pools that were seen to grow by less than 32 MiB


def growth(n: int, handle: int = 0) -> int:
    """What a pool needs room for: docs/internals/account-page.md."""
    return max(CHUNK, up(n, grain.get(handle, CHUNK)))


def from_pool(route: str, n: int) -> "tuple[int, int, int, tuple[int, ...]]":
    handle = {"pool": pool, "shared": shared_pool}.get(route, 0) or default_pool()
    if route == "doomed":  # destroyed while a piece of it is handed out
        handle = cu.pool()
        r, p = cu.pool_alloc(handle, n)
        assert lib.cuMemPoolDestroy(c_void_p(handle)) == 0
        return growth(n), r, p, ()
    need = growth(n, handle)
    r, p = cu.async_alloc(n, suffix="_ptsz" if route == "ptsz" else "") if route in ("async", "ptsz") \
        else cu.pool_alloc(handle, n)  # fmt: skip
    if total := reserved(handle):
        grain[handle] = min(grain.get(handle, CHUNK), max(total & -total, 2 * MIB))
    return need, r, p, ()


def captured(n: int) -> int:
    stream, graph, exec_, p = c_void_p(), c_void_p(), c_void_p(), c_uint64()
    assert lib.cuStreamCreate(byref(stream), 1) == 0
    assert lib.cuStreamBeginCapture_v2(stream, 2) == 0
    assert lib.cuMemAllocAsync(byref(p), c_size_t(n), stream) == 0
    assert lib.cuStreamEndCapture(stream, byref(graph)) == 0
    assert lib.cuGraphInstantiateWithFlags(byref(exec_), graph, c_uint64(1)) == 0
    assert lib.cuGraphDestroy(graph) == 0 and lib.cuStreamDestroy_v2(stream) == 0
    cu.graph_addresses[exec_.value or 0] = p.value
    return exec_.value or 0


def graphed(route: str, n: int) -> "tuple[int, int, int, tuple[int, ...]]":
    r = 0
    if route == "captured":
        e = captured(n)
    elif route == "upload":
        r, e = cu.graph_upload(n)
    else:
        e = cu.graph(n, flags=1, within=route == "within")
    if r == 0:
        r = cu.launch(e)
        if r and e:
            lib.cuGraphExecDestroy(c_void_p(e))
    return growth(n), r, e, ()


def arrayed(rng: random.Random, route: str) -> "tuple[int, int, int, tuple[int, ...]]":
    w, h = rng.randrange(1, 2000), rng.randrange(1, 2000)
    if route == "shape":
        depth, flags = rng.choice(((0, 0), (rng.randrange(1, 40), 0), (rng.randrange(1, 9), 1), (6, 4)))
        flat = flags == 1 or not depth
        size = {"height": w if flags == 4 else rng.choice((0, h // 8 + 1)) if flat else h // 8 + 1}
        kind = rng.choice(
            ({"format": 1, "channels": 1}, {"format": 0x10, "channels": 2}, {"format": 0x20, "channels": 4})
        )
        r, p = cu.array(w, depth=depth, flags=flags, **size, **kind)
        return UNKNOWN, r, p, ()
    if route == "array":
        r, p = cu.array(w, h)
        return up(up(w * 16, 64) * up(h, 8), 65536), r, p, ()
    r, p = cu.array(w, h, levels=3)
    need = 0
    for i in range(3):
        need += up(up(max(w >> i, 1) * 16, 64) * up(max(h >> i, 1), 8), 512)
        if (w >> i) <= 1 and (h >> i) <= 1:
            break
    return up(need, 65536), r, p, ()


def created(n: int, mapped: bool) -> "tuple[int, int, int, tuple[int, ...]]":
    n = up(n, 2 * MIB)
    r, h = cu.create(n)
    if r or not mapped:
        return n, r, h, (n,)
    at = c_uint64()
    assert lib.cuMemAddressReserve(byref(at), c_size_t(n), c_size_t(0), c_uint64(0), c_uint64(0)) == 0
    assert lib.cuMemMap(at, c_size_t(n), c_size_t(0), c_uint64(h), c_uint64(0)) == 0
    assert lib.cuMemRelease(c_uint64(h)) == 0
    return n, r, at.value, (n,)


def take(rng: random.Random, routes: "tuple[str, ...]" = PLAIN + POOLED) -> "tuple[str, int, int]":
    """Allocate by some route: (route, bytes the driver takes, result)."""
    global external_bytes
    route = rng.choice(routes)
    n = rng.choice((rng.randrange(1, 4096), rng.randrange(1, 40 * MIB), rng.randrange(1, 120) * MIB))
    p, q, more, need, r = c_uint64(), c_size_t(), (), up(n, 512), 0
    if route == "alloc":
        r, p.value = cu.alloc(n)
    elif route == "managed":
        r = lib.cuMemAllocManaged(byref(p), c_size_t(n), c_uint(1))
    elif route == "pitch":
        width, height = rng.randrange(1, 3000), n // 3000 + 1
        r = lib.cuMemAllocPitch_v2(byref(p), byref(q), c_size_t(width), c_size_t(height), c_uint(4))
        need = up(width, 512) * height
    elif route in ("async", "ptsz", "pool", "shared", "doomed"):
        need, r, p.value, more = from_pool(route, n)
    elif route in ("graph", "upload", "captured", "within"):
        need, r, p.value, more = graphed(route, n)
    elif route in ("create", "map"):
        need, r, p.value, more = created(n, route == "map")
    elif route in ("array", "shape", "mipmap"):
        need, r, p.value, more = arrayed(rng, route)
    elif route == "external":
        fd = os.memfd_create("external")
        r, p.value = cu.external(fd, n)
        if r:
            os.close(fd)
        else:
            external_bytes += need
            more = (need,)
    else:
        ctx, old = c_void_p(), c_void_p()
        r = lib.cuCtxCreate_v2(byref(ctx), c_uint(0), c_int(0))
        if r == 0:
            assert lib.cuCtxPopCurrent_v2(byref(old)) == 0
        p.value = ctx.value or 0
        need = context_bytes
    if r == 0:
        held.append((route, p.value, more))
    return route, need, r


DROPS = {"shape": "cuArrayDestroy", "array": "cuArrayDestroy", "mipmap": "cuMipmappedArrayDestroy",
         "context": "cuCtxDestroy_v2", "ipc": "cuIpcCloseMemHandle", "imported": "cuMemRelease"}  # fmt: skip


def give(rng: random.Random) -> int:
    """Free something held."""
    global external_bytes
    route, p, more = held.pop(rng.randrange(len(held)))
    if route in ("async", "ptsz", "pool", "shared", "doomed", "pointer"):
        return cu.async_free(p, suffix="_ptsz" if route == "ptsz" else "")
    if route in ("graph", "upload", "captured", "within"):
        first = rng.random() < 0.5
        r = int(lib.cuGraphExecDestroy(c_void_p(p))) if first else 0
        if route != "within":
            freed = cu.async_free(cu.graph_addresses[p])
            r = r or (0 if freed == 1 else freed)  # a relaunch that was refused may have freed it
        return r or (0 if first else int(lib.cuGraphExecDestroy(c_void_p(p))))
    if route == "create":
        return int(lib.cuMemRelease(c_uint64(p)))
    if route == "map":
        return int(lib.cuMemUnmap(c_uint64(p), c_size_t(more[0])))
    if route == "external":
        external_bytes -= more[0]
        return int(lib.cuDestroyExternalMemory(c_void_p(p)))
    return int(getattr(lib, DROPS.get(route, "cuMemFree_v2"))(c_void_p(p)))


def reset() -> int:
    """The primary context and what lives in it go."""
    global external_bytes
    r = int(lib.cuDevicePrimaryCtxReset_v2(0))
    held[:] = [h for h in held if h[0] in ("create", "map", "context", "imported")]
    external_bytes = 0
    return r or retain()


def retain() -> int:
    """The primary context, current; after a reset it may have to wait for room."""
    global lost
    r = int(lib.cuDevicePrimaryCtxRetain(byref(ctx_), 0))
    lost = r != 0
    return r or int(lib.cuCtxSetCurrent(ctx_))


def other(rng: random.Random) -> "tuple[str, int]":
    """What allocates nothing and may give memory back, or must be forwarded and refused by the driver."""
    what = rng.choice(("unknown", "unknown handle", "sync", "trim", "graph trim", "info", "fork", "threshold",
                       "relaunch", "relaunch", "reset"))  # fmt: skip
    if what == "unknown":
        return what, 0 if cu.free(rng.randrange(1 << 20, 1 << 40)) == 1 else 99
    if what == "unknown handle":
        return what, 0 if lib.cuMemRelease(c_uint64(rng.randrange(1 << 20, 1 << 40))) == 1 else 99
    if what == "sync":
        return what, int(lib.cuCtxSynchronize())
    if what == "trim":
        return what, int(lib.cuMemPoolTrimTo(c_void_p(rng.choice((pool, shared_pool, default_pool()))), c_size_t(0)))
    if what == "graph trim":
        return what, int(lib.cuDeviceGraphMemTrim(c_int(0)))
    if what == "threshold":
        keep = c_uint64(rng.choice((0, 100 * MIB, 2**63)))
        return what, int(lib.cuMemPoolSetAttribute(c_void_p(rng.choice((pool, default_pool()))), 4, byref(keep)))
    if what == "relaunch":  # what the last launch left is freed first, or was freed by hand
        fits = [v for route, v, _ in held if route in ("graph", "captured", "within")]
        return what, cu.launch(rng.choice(fits)) if fits else 0
    if what == "reset":
        return what, reset() if rng.random() < 0.2 else 0
    if what == "fork":
        child = os.fork()
        if not child:
            os._exit(0 if cu.alloc(1)[0] == 3 else 1)  # CUDA does not survive a fork
        return what, os.waitpid(child, 0)[1]
    free, total = cu.info()
    return what, 0 if free <= total else 99


def step(rng: random.Random, routes: "tuple[str, ...]" = PLAIN + POOLED) -> "tuple[str, int, int]":
    n = rng.random()
    if lost:
        return "retain", context_bytes, retain()
    if n < 0.2:
        what, r = other(rng)
        return what, UNKNOWN, r
    if held and n < 0.2 + 0.8 * min(len(held), 40) / 60:
        return "free", 0, give(rng)
    return take(rng, routes)


def share(kind: str, pid: int) -> int:
    """Send something held to another process."""
    payload, fds, r = b"none", [], 0
    route = {"ipc": "alloc", "vmm": "create", "pool": "shared"}[kind]
    at = next((i for i, h in enumerate(held) if h[0] == route), None)
    if at is not None:
        _, p, more = held[at]
        data, fd = ctypes.create_string_buffer(64), c_int(-1)
        if kind == "ipc":
            r = lib.cuIpcGetMemHandle(data, c_uint64(p))
        elif kind == "vmm":
            r = lib.cuMemExportToShareableHandle(byref(fd), c_uint64(p), 1, c_uint64(0))
        else:
            r = lib.cuMemPoolExportToShareableHandle(byref(fd), c_void_p(shared_pool), 1, c_uint64(0))
            r = r or lib.cuMemPoolExportPointer(data, c_uint64(p))
        payload, fds = kind.encode().ljust(4) + data.raw, [fd.value] if kind != "ipc" and r == 0 else []
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(f"\0gpu-hook-test-{pid}")
        socket.send_fds(s, [payload if r == 0 else b"none"], fds)
    for fd_ in fds:
        os.close(fd_)
    return r


def receive() -> "tuple[str, int]":
    """Import what another process sent."""
    with listener.accept()[0] as s:
        payload, fds, _, _ = socket.recv_fds(s, 256, 1)
    kind, data, p, r = payload[:4].decode().strip(), payload[4:], c_uint64(), 0
    if lost:
        kind = "none"
    if kind == "ipc":
        r = lib.cuIpcOpenMemHandle_v2(byref(p), IpcHandle.from_buffer_copy(data), c_uint(1))
        route = "ipc"
    elif kind == "vmm":
        r = lib.cuMemImportFromShareableHandle(byref(p), c_void_p(fds[0]), 1)
        route = "imported"
    elif kind == "pool":
        imported = c_void_p()
        r = lib.cuMemPoolImportFromShareableHandle(byref(imported), c_void_p(fds[0]), 1, c_uint64(0))
        buffer = ctypes.create_string_buffer(data, 64)
        r = r or lib.cuMemPoolImportPointer(byref(p), imported, buffer)
        route = "pointer"
    for fd in fds:
        os.close(fd)
    if kind == "none":
        return kind, 0
    if r == 0 and not (route == "ipc" and any(h[:2] == (route, p.value) for h in held)):
        held.append((route, p.value, ()))
    elif r == 0:  # opened twice at one address
        assert lib.cuIpcCloseMemHandle(p) == 0
    return f"import {kind}", int(r)


def full() -> str:
    lib.cuCtxSynchronize()
    free, total = cu.info()
    r, p = cu.alloc(free) if free else (0, 0)
    more, q = cu.alloc(1)
    ends = [cu.free(x) for x, ok in ((p, r), (q, more)) if ok == 0 and x]
    return f"{free} {total} {r} {more} {cu.info()[0]} {int(any(ends))}"


ctx_, lost = c_void_p(), True
assert lib.cuInit(0) == 0
while True:  # the container may be full just now
    if (result := retain()) == 0:
        break
    print("full", result, flush=True)
    sys.stdin.readline()
pool, shared_pool = cu.pool(), cu.pool(handles=1)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"\0gpu-hook-test-{os.getpid()}")
listener.listen()
print("ready", flush=True)
while line := sys.stdin.readline():
    word, *numbers = line.split()
    if word == "one":
        print(*step(random.Random(int(numbers[0]))), external_bytes, flush=True)
    elif word == "look":
        result = lib.cuCtxSynchronize()
        if not lost:
            cu.info()  # looks at exports, too
        print(result, external_bytes, flush=True)
    elif word == "full":
        print(full(), flush=True)
    elif word == "share":
        print("export", UNKNOWN, share(numbers[0], int(numbers[1])), external_bytes, flush=True)
    elif word == "take":
        what, result = receive()
        print(what, UNKNOWN, result, external_bytes, flush=True)
    elif word == "exec":
        os.execv(sys.executable, [sys.executable, *sys.argv])
    else:
        rng = random.Random(int(numbers[0]))
        odd = []
        for _ in range(int(numbers[1])):
            route, _, r = step(rng, PLAIN if numbers[2] == "plain" else PLAIN + POOLED)
            if r not in (0, cu.OOM):
                odd.append(f"{route}:{r}")
        print(external_bytes, *odd, flush=True)
