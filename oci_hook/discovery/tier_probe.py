"""Tries what a GPU's driver offers for preemption and prints what happens. A program of its own, since drivers hang.

usage: python -m oci_hook.discovery.tier_probe LIBCUDA SCALE  one line of JSON: {"memops": ...} or {"error": ...}
       python -m oci_hook.discovery.tier_probe LIBCUDA load   keeps the GPU busy and answers on standard input (`load`)

The GPU is the first of CUDA_VISIBLE_DEVICES. The probe holds only streams of its own. core/tiers.py says what the
answers mean. Numbers and names are the CUDA driver API's. Times are the GPU's own: SCALE says how many times slower
than real time a simulated GPU runs, 1 on a real one.
"""

import ctypes
import json
import mmap
import os
import select
import statistics
import subprocess
import sys
import threading
import time
from ctypes import byref, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import IO, Any

NOT_READY = 600
ATTRIBUTES = (92, 122)  # CAN_USE_STREAM_MEM_OPS before CUDA 12, CAN_USE_64_BIT_STREAM_MEM_OPS since
ROUNDS = 15
PATIENCE = 10.0  # seconds to wait for what should take milliseconds
KERNEL_NS, QUEUED = 500_000, 8
WINDOW, WINDOW_OF_GPU = 0.3, 0.06  # a throughput is measured over at least so many seconds, and so much GPU time
# Spins until the GPU's clock has moved on by its parameter; a simulated driver reads the comment instead.
KERNEL = b""".version 6.3
.target %s
.address_size 64
// sim_param
.visible .entry work(.param .u64 ns) {
.reg .u64 %%t<4>;
.reg .pred %%p;
mov.u64 %%t0, %%globaltimer;
ld.param.u64 %%t1, [ns];
again: mov.u64 %%t2, %%globaltimer;
sub.u64 %%t3, %%t2, %%t0;
setp.lt.u64 %%p, %%t3, %%t1;
@%%p bra again;
ret;
}
"""


class Failed(Exception):
    pass


class Cuda:
    """A context on the GPU, current in the calling thread."""

    def __init__(self, library: str) -> None:
        self.api = ctypes.CDLL(library)
        self.device = ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(self.device), 0)
        self.context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), self.device)
        self.enter()

    def enter(self) -> None:
        self.call("cuCtxSetCurrent", self.context)

    def call(self, function: str, *arguments: Any) -> None:
        if code := getattr(self.api, function)(*arguments):
            raise Failed(f"{function}: CUDA error {code}")

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, self.device)
        return value.value

    def stream(self) -> c_void_p:
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), 1)  # NON_BLOCKING
        return stream

    def event(self) -> c_void_p:
        event = c_void_p()
        self.call("cuEventCreate", byref(event), 3)  # BLOCKING_SYNC | DISABLE_TIMING
        return event

    def kernel(self) -> c_void_p:
        module, function = c_void_p(), c_void_p()
        for target in (b"sm_75", b"sm_50", b"sm_30"):
            if not self.api.cuModuleLoadData(byref(module), KERNEL % target):
                self.call("cuModuleGetFunction", byref(function), module, b"work")
                return function
        raise Failed("cuModuleLoadData refused the kernel")

    def launch(self, function: c_void_p, stream: c_void_p) -> None:
        ns = c_uint64(KERNEL_NS)
        parameters = (c_void_p * 1)(ctypes.cast(byref(ns), c_void_p))
        one = c_uint(1)
        self.call("cuLaunchKernel", function, one, one, one, one, one, one, c_uint(0), stream, parameters, None)

    def done(self, event: c_void_p) -> bool:
        code = self.api.cuEventQuery(event)
        if code not in (0, NOT_READY):
            raise Failed(f"cuEventQuery: CUDA error {code}")
        return not code


class Words:
    """Host memory that the GPU can read and write: 32-bit words."""

    def __init__(self, cuda: Cuda) -> None:
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.word = (c_uint32 * 2).from_buffer(self.memory)
        at = ctypes.addressof(self.word)
        self.device = c_uint64()
        cuda.call("cuMemHostRegister_v2", c_void_p(at), c_size_t(mmap.PAGESIZE), 2)  # DEVICEMAP
        cuda.call("cuMemHostGetDevicePointer_v2", byref(self.device), c_void_p(at), 0)

    def at(self, i: int) -> c_uint64:
        return c_uint64(self.device.value + 4 * i)


class Neighbour:
    """A load in a process of its own."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oci_hook.discovery.tier_probe", sys.argv[1], "load"], stdin=pipe, stdout=pipe
        )
        self.count()

    def count(self) -> tuple[int, int]:
        """The clock in ns, and how many kernels are done."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise Failed("a program that keeps the GPU busy does not answer")
        words = self.process.stdout.readline().split()
        if not words:
            raise Failed("a program that keeps the GPU busy ended")
        return int(words[0]), int(words[1])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def load(cuda: Cuda, commands: IO[str]) -> None:
    """Keeps QUEUED kernels in flight, and answers each line of `commands` by the clock in ns and how many are done."""
    done = 0

    def work() -> None:
        nonlocal done
        cuda.enter()
        function, stream, events = cuda.kernel(), cuda.stream(), [cuda.event() for _ in range(QUEUED)]
        for i in range(1 << 62):
            if i >= QUEUED:
                cuda.call("cuEventSynchronize", events[i % QUEUED])
                done += 1
            cuda.launch(function, stream)
            cuda.call("cuEventRecord", events[i % QUEUED], stream)

    threading.Thread(target=work, daemon=True).start()
    for _ in commands:
        answer(f"{time.monotonic_ns()} {done}")


def rate(neighbour: Neighbour, scale: int) -> float:
    """The neighbour's kernels per second, measured after half a window in which its rate becomes steady."""
    window = max(WINDOW, WINDOW_OF_GPU * scale)
    time.sleep(window / 2)
    before = neighbour.count()
    time.sleep(window)
    after = neighbour.count()
    return (after[1] - before[1]) * 1e9 / (after[0] - before[0])


def memops(cuda: Cuda, scale: int) -> dict[str, Any]:
    """A stream that waits for a word in host memory: does it wait, how soon after a store does it go on, and what does
    a neighbour lose meanwhile?"""
    if not any(cuda.attribute(number) for number in ATTRIBUTES):
        return {"error": "the driver says that it has none"}
    words, stream, event, function = Words(cuda), cuda.stream(), cuda.event(), cuda.kernel()
    neighbour = None

    def hold(n: int) -> None:
        cuda.call("cuStreamWaitValue32_v2", stream, words.at(0), n, 0)  # GEQ
        cuda.call("cuStreamWriteValue32_v2", stream, words.at(1), n, 0)
        cuda.call("cuEventRecord", event, stream)

    def until(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not cuda.done(event):
            if time.monotonic() > end:
                return False
        return True

    times, held, resumed, written = [], True, True, True
    try:
        for n in range(1, ROUNDS + 1):
            hold(n)
            held = held and not until(0.002 * scale)
            begin = time.monotonic()
            words.word[0] = n
            resumed = resumed and until(PATIENCE)
            times.append((time.monotonic() - begin) * 1e6 / scale)
            written = written and words.word[1] == n
        found = {"held": held, "resumed": resumed, "written": written, "resume_us": round(statistics.median(times), 1)}
        if not (held and resumed):
            return found
        neighbour = Neighbour()
        alone = rate(neighbour, scale)
        hold(ROUNDS + 1)
        cuda.launch(function, stream)
        found["beside"] = round(rate(neighbour, scale) / alone, 3) if alone else 0.0
        return found
    finally:
        words.word[0] = ROUNDS + 1
        if neighbour:
            neighbour.end()


def answer(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say(name: str, seen: dict[str, Any]) -> None:
    answer(json.dumps({name: seen}))


def main(library: str, how: str) -> None:
    cuda = Cuda(library)
    if how == "load":
        load(cuda, sys.stdin)
        return
    try:
        say("memops", memops(cuda, max(1, int(how))))
    except (Failed, OSError, AttributeError) as e:
        say("memops", {"error": str(e)})


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (Failed, OSError, AttributeError) as e:
        say("error", {"error": str(e)})
    os._exit(0)  # a thread may wait in the driver for ever
