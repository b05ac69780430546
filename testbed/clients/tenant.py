"""Holds and checks GPU memory as it is told. usage: tenant.py NAME

Commands are lines of the FIFO /tmp/NAME.ask; each answer is a line of /tmp/NAME.said.
"""

import ctypes
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from ctypes import byref, c_char, c_size_t, c_uint, c_uint64, c_void_p

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
name = sys.argv[1]
held: list[tuple[int, int]] = []  # address, MiB
untouched: list[int] = []


def begin() -> int:
    context = c_void_p()
    code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(byref(context), 0)
    return int(code or cuda.cuCtxSetCurrent(context))


def alloc(mib: str, seed: str = "1") -> int:
    """Filled with a pattern of this seed."""
    at = c_uint64()
    if code := cuda.cuMemAlloc_v2(byref(at), c_size_t(int(mib) * MIB)):
        return int(code)
    held.append((at.value, int(mib)))
    pattern = hashlib.sha256(seed.encode()).digest() * (MIB // 32)
    for i in range(int(mib)):
        cuda.cuMemcpyHtoD_v2(c_uint64(at.value + i * MIB), pattern, c_size_t(MIB))
    return 0


def hold(mib: str) -> int:
    """Without touching it."""
    at = c_uint64()
    code = int(cuda.cuMemAlloc_v2(byref(at), c_size_t(int(mib) * MIB)))
    untouched.append(at.value)
    return code


def insist(mib: str) -> int:
    """As hold, again and again until there is room."""
    end = time.monotonic() + 200
    while (code := hold(mib)) == 2 and time.monotonic() < end:
        pass
    return code


def free() -> int:
    """What it held last without touching it."""
    return int(cuda.cuMemFree_v2(c_uint64(untouched.pop())))


def digest() -> str:
    """Of all that it holds."""
    found, piece = hashlib.sha256(), (c_char * MIB)()
    for at, mib in held:
        for i in range(mib):
            if code := cuda.cuMemcpyDtoH_v2(piece, c_uint64(at + i * MIB), c_size_t(MIB)):
                return f"error {code}"
            found.update(piece)
    return found.hexdigest()


def managed(mib: str) -> int:
    at = c_uint64()
    return int(cuda.cuMemAllocManaged(byref(at), c_size_t(int(mib) * MIB), c_uint(1)))


def share() -> int:
    """By an IPC handle."""
    handle = (c_char * 64)()
    return int(cuda.cuIpcGetMemHandle(handle, c_uint64(held[0][0])))


def child(other: str) -> int:
    """Start another such program."""
    subprocess.Popen([sys.executable, __file__, other])
    return 0


def fork() -> int:
    """A child that does nothing, and keeps what it has inherited."""
    if not os.fork():
        time.sleep(600)
        os._exit(0)
    return 0


def leave() -> int:
    os._exit(0)


def lease() -> int:
    """On the policy page, which then cannot be opened for writing."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open("/run/gpu-hook/policy", os.O_RDONLY)
    os.setuid(os.fstat(fd).st_uid)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return 0


def lie() -> int:
    """Its account page says all the time that it has nothing."""
    if not os.fork():
        fd = os.open("/run/gpu-hook/account/page", os.O_WRONLY)
        while True:
            os.pwrite(fd, bytes(16), 1024)  # total and surcharge of the first GPU
            time.sleep(0.01)
    return 0


def damage() -> int:
    """Its own account page."""
    fd = os.open("/run/gpu-hook/account/page", os.O_WRONLY)
    return os.pwrite(fd, b"damage", 0) - 6


COMMANDS = {
    f.__name__: f
    for f in (begin, alloc, hold, insist, free, digest, managed, share, child, fork, lease, leave, lie, damage)
}
ask = f"/tmp/{name}.ask"
os.mkfifo(ask)
lines = os.fdopen(os.open(ask, os.O_RDWR))  # for writing as well: no writer's end is an end of file
with open(f"/tmp/{name}.said", "w") as said:
    while line := lines.readline():
        command, *words = line.split()
        print(COMMANDS[command](*words), file=said, flush=True)
