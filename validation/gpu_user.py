"""A program that uses a GPU as it is told: one command a line on standard input, one line of JSON in answer.

usage: gpu_user.py LIBCUDA LIBNVML      each the path of a library; "-" for no NVML

init                 cuInit and the primary context of device 0
contexts MOST        make further contexts until one is refused
fill HOW PIECE MOST  allocate pieces of PIECE MiB by HOW until one is refused or MOST MiB are held
free                 give everything of `fill` back
stamp                write a pattern of its own into each piece of `fill alloc`
digest               of what is in them
share                make an IPC handle of the first of them
info                 cuMemGetInfo, and what NVML says inside this cgroup
join FILE            move this process to another cgroup (the path of its cgroup.procs)
fork                 go on in a forked child; the parent exits
work COUNT           COUNT launches, then COUNT // 10 allocations and frees, then COUNT // 10 copies, each between marks
repeat WHAT SECONDS  alloc: 64 MiB and back; refused: an allocation that is too large, ten times a second; copy: 64 MiB to the
                     GPU; memset: 1 GiB; launch: an empty kernel
HOW: alloc, managed, create, pool, graph, array
"""

import ctypes
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
MARK = 0x47480000  # an ioctl of such a number on descriptor 0 fails; syscalls.py sees it
KERNEL = b".version 6.3\n.target sm_75\n.address_size 64\n// sim_us=1\n.visible .entry work() { ret; }\n\0"
libc = ctypes.CDLL(None)


class Prop(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of device 0."""

    _fields_ = [
        ("type", ctypes.c_uint),
        ("handle_types", ctypes.c_uint),
        ("location_type", ctypes.c_uint),
        ("location", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class ArrayOf(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR: width and height in elements; format 0x20 is float."""

    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_uint),
        ("channels", ctypes.c_uint),
    ]


class Refused(Exception):
    pass


class User:
    def __init__(self, cuda: str, nvml: str) -> None:
        self.cuda, self.nvml_path = ctypes.CDLL(cuda), nvml
        self.held: list[tuple[str, Any]] = []
        self.stream = ctypes.c_void_p()
        self.context = ctypes.c_void_p()

    def call(self, name: str, *args: Any) -> None:
        """Raises Refused with the driver's name of the error."""
        code = getattr(self.cuda, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise Refused((text.value or b"error %d" % code).decode())

    def init(self) -> dict[str, Any]:
        mark(1)
        begin = time.monotonic()
        self.call("cuInit", 0)
        inited = time.monotonic()
        mark(2)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        done = time.monotonic()
        return {"init_ms": round((inited - begin) * 1e3, 1), "context_ms": round((done - inited) * 1e3, 1)}

    def contexts(self, most: int) -> dict[str, Any]:
        made, said = 0, ""
        try:
            while made < most:
                self.call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)
                made += 1
        except Refused as e:
            said = str(e)
        return {"made": made, "said": said}

    def alloc(self, size: int) -> int:
        at = ctypes.c_ulonglong()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def managed(self, size: int) -> int:
        at = ctypes.c_ulonglong()
        self.call("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(size), 1)
        self.call("cuMemsetD8_v2", ctypes.c_ulonglong(at.value), 1, ctypes.c_size_t(size))
        self.call("cuCtxSynchronize")
        return at.value

    def create(self, size: int) -> int:
        handle = ctypes.c_ulonglong()
        prop = Prop(type=1, location_type=1)
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_ulonglong(0))
        return handle.value

    def pool(self, size: int) -> int:
        at = ctypes.c_ulonglong()
        self.call("cuMemAllocAsync", ctypes.byref(at), ctypes.c_size_t(size), self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return at.value

    def graph(self, size: int) -> ctypes.c_void_p:
        """An allocation that a graph makes, and that stays after its launch."""
        at, graph, executable = ctypes.c_ulonglong(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, 1)
        try:
            self.call("cuMemAllocAsync", ctypes.byref(at), ctypes.c_size_t(size), self.stream)
        finally:
            self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        self.call("cuGraphLaunch", executable, self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return executable

    def array(self, size: int) -> ctypes.c_void_p:
        array = ctypes.c_void_p()
        wish = ArrayOf(16384, size // (16384 * 4), 0x20, 1)
        self.call("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(wish))
        return array

    def fill(self, how: str, piece: int, most: int) -> dict[str, Any]:
        make: Callable[[int], Any] = getattr(self, how)
        mib, said = 0, ""
        try:
            while mib + piece <= most:
                self.held.append((how, make(piece * MIB)))
                mib += piece
        except Refused as e:
            said = str(e)
        return {"mib": mib, "said": said}

    def free(self) -> dict[str, Any]:
        for how, what in self.held:
            if how == "create":
                self.call("cuMemRelease", ctypes.c_ulonglong(what))
            elif how == "array":
                self.call("cuArrayDestroy", what)
            elif how == "graph":
                self.call("cuGraphExecDestroy", what)
            else:
                self.call("cuMemFree_v2", ctypes.c_ulonglong(what))
        self.held = []
        return {}

    def stamp(self) -> dict[str, Any]:
        for number, at in enumerate(self.pieces()):
            self.call("cuMemcpyHtoD_v2", at, bytes([number & 0xFF, 7]) * (MIB // 2), ctypes.c_size_t(MIB))
        return {}

    def digest(self) -> dict[str, Any]:
        found, data = hashlib.sha256(), ctypes.create_string_buffer(MIB)
        for at in self.pieces():
            self.call("cuMemcpyDtoH_v2", data, at, ctypes.c_size_t(MIB))
            found.update(data)
        return {"digest": found.hexdigest()}

    def share(self) -> dict[str, Any]:
        self.call("cuIpcGetMemHandle", ctypes.create_string_buffer(64), self.pieces()[0])
        return {}

    def pieces(self) -> list[ctypes.c_ulonglong]:
        """The first MiB of each."""
        return [ctypes.c_ulonglong(what) for how, what in self.held if how == "alloc"]

    def info(self) -> dict[str, Any]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        out: dict[str, Any] = {"cuMemGetInfo": {"total": total.value >> 20, "used": (total.value - free.value) >> 20}}
        if self.nvml_path != "-":
            from limits import Nvml, memory_info

            nvml = Nvml(self.nvml_path)
            out.update(memory_info(nvml.lib, nvml.device))
        return out

    def join(self, file: str) -> dict[str, Any]:
        Path(file).write_text("0")
        return {"cgroup": Path("/proc/self/cgroup").read_text().splitlines()[-1]}

    def fork(self) -> dict[str, Any]:
        if os.fork():
            os._exit(0)
        return {"pid": os.getpid()}

    def work(self, count: int) -> dict[str, Any]:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"work")

        def launch() -> None:
            self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, self.stream, None, None)

        def allocate() -> None:
            self.call("cuMemFree_v2", ctypes.c_ulonglong(self.alloc(4096)))

        at, data = ctypes.c_ulonglong(self.alloc(MIB)), ctypes.create_string_buffer(4096)

        def copy() -> None:
            self.call("cuMemcpyHtoD_v2", at, data, ctypes.c_size_t(4096))

        for step in (launch, allocate, copy):  # the first call's set-up is not counted
            step()
        self.call("cuCtxSynchronize")
        for number, (step, times) in enumerate(((launch, count), (allocate, count // 10), (copy, count // 10)), 3):
            mark(number)
            for _ in range(times):
                step()
            self.call("cuCtxSynchronize")
        mark(9)
        return {"launches": count, "allocations": count // 10, "copies": count // 10}

    def repeat(self, what: str, seconds: int) -> dict[str, Any]:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"work")
        at, data = ctypes.c_ulonglong(self.alloc(1024 * MIB)), ctypes.create_string_buffer(64 * MIB)

        def refused() -> None:
            if not self.cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_ulonglong()), ctypes.c_size_t(1 << 40)):
                raise RuntimeError("1 TiB was there")
            time.sleep(0.1)

        def launch() -> None:
            self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, self.stream, None, None)

        steps: dict[str, Callable[[], None]] = {
            "alloc": lambda: self.call("cuMemFree_v2", ctypes.c_ulonglong(self.alloc(64 * MIB))),
            "refused": refused,
            "copy": lambda: self.call("cuMemcpyHtoD_v2", at, data, ctypes.c_size_t(64 * MIB)),
            "memset": lambda: self.call("cuMemsetD8_v2", at, 1, ctypes.c_size_t(1024 * MIB)),
            "launch": launch,
        }
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            steps[what]()
            count += 1
        self.call("cuCtxSynchronize")
        self.call("cuMemFree_v2", at)
        return {"times": count}


def mark(number: int) -> None:
    libc.ioctl(0, ctypes.c_ulong(MARK + number), 0)


def main(cuda: str, nvml: str) -> None:
    user = User(cuda, nvml)
    for line in sys.stdin:
        name, *words = line.split()
        try:
            answer = getattr(user, name)(*(int(w) if w.isdigit() else w for w in words))
        except Refused as e:
            answer = {"refused": str(e)}
        except (AttributeError, OSError, RuntimeError) as e:
            answer = {"problem": f"{type(e).__name__}: {e}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
