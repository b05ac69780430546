"""What a driver answers where the shim or the simulated driver rests on an assumption, each rule in a process of its own.

usage: driver_rules.py [NAME ...]     prints one line of JSON: {rule: {what: answer}}
       driver_rules.py --one NAME

An answer is the driver's name of an error, or one of a few words; `us` and `count` hold figures, which nobody predicts.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from gpu_user import MIB, Prop

SLOW = 0.1  # seconds of the kernel `slow`
# On a real GPU `slow` looks at the GPU's clock; the simulated one reads the comment.
PTX = b"""
.version 6.3
.target sm_75
.address_size 64
// sim_us quick=1
.visible .entry quick() { ret; }
// sim_us slow=100000
.visible .entry slow()
{
    .reg .u64 %begin, %now;
    .reg .pred %p;
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %p, %now, 100000000;
    @%p bra again;
    ret;
}
\0"""
cuda = ctypes.CDLL("libcuda.so.1")
Ptr, Size, Address = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NON_BLOCKING, GLOBAL_CAPTURE = 1, 0
RULES: dict[str, Callable[[], dict[str, Any]]] = {}


def rule(work: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    RULES[work.__name__.replace("_", " ")] = work
    return work


def said(name: str, *args: Any) -> str:
    """The driver's name of what the call answers."""
    try:
        function = getattr(cuda, name)
    except AttributeError:
        return "no such function"
    text = ctypes.c_char_p()
    code = function(*args)
    cuda.cuGetErrorName(code, ctypes.byref(text))
    return (text.value or b"error %d" % code).decode().removeprefix("CUDA_")


def call(name: str, *args: Any) -> None:
    answer = said(name, *args)
    if answer != "SUCCESS":
        raise RuntimeError(f"{name}: {answer}")


def made(name: str, kind: Any, *args: Any) -> Any:
    """What the call stores at its first argument."""
    value = kind()
    call(name, ctypes.byref(value), *args)
    return value


def primary() -> Any:
    call("cuInit", 0)
    context = made("cuDevicePrimaryCtxRetain", Ptr, 0)
    call("cuCtxSetCurrent", context)
    return context


def another() -> Any:
    """A context that is current afterwards."""
    return made("cuCtxCreate_v2", Ptr, 0, 0)


def stream() -> Any:
    return made("cuStreamCreate", Ptr, NON_BLOCKING)


def event() -> Any:
    return made("cuEventCreate", Ptr, 0)


def kernel(name: bytes) -> Any:
    return made("cuModuleGetFunction", Ptr, made("cuModuleLoadData", Ptr, PTX), name)


def memory(size: int = MIB) -> Any:
    return made("cuMemAlloc_v2", Address, Size(size))


def launch(function: Any, on: Any, grid: int = 1, block: int = 1, shared: int = 0) -> str:
    return said("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, on, None, None)


def free_mib() -> int:
    free, total = Size(), Size()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value // MIB


def settle() -> None:
    """First uses load code and take memory."""
    on, at = stream(), memory()
    for name in (b"quick", b"slow"):
        launch(kernel(name), on)
    call("cuMemsetD8Async", at, 1, Size(MIB), on)
    call("cuCtxSynchronize")
    call("cuMemFree_v2", at)


def without(currently: Any) -> dict[str, str]:
    """Calls for objects of the primary context, with `currently` as the current one while they are made."""
    home = primary()
    on, at, there, mark, done = stream(), memory(), memory(), event(), event()
    function, graph = kernel(b"quick"), made("cuGraphCreate", Ptr, 0)
    executable = made("cuGraphInstantiateWithFlags", Ptr, graph, Address(0))
    call("cuEventRecord", done, on)
    call("cuCtxSynchronize")
    context, calls = Ptr(), HOST_FUNCTION(lambda _: None)
    currently()
    out = {
        "launch": launch(function, on),
        "set": said("cuMemsetD8Async", at, 1, Size(4096), on),
        "copy": said("cuMemcpyDtoDAsync_v2", there, at, Size(4096), on),
        "any copy": said("cuMemcpyAsync", there, at, Size(4096), on),
        "copy at once": said("cuMemcpyDtoD_v2", there, at, Size(4096)),
        "graph": said("cuGraphLaunch", executable, on),
        "host function": said("cuLaunchHostFunc", on, calls, None),
        "record": said("cuEventRecord", mark, on),
        "wait": said("cuStreamWaitEvent", on, done, 0),
        "event query": said("cuEventQuery", done),
        "stream query": said("cuStreamQuery", on).replace("ERROR_NOT_READY", "SUCCESS"),
        "stream's context": said("cuStreamGetCtx", on, ctypes.byref(context)),
        "synchronize": said("cuStreamSynchronize", on),
        "free in the stream": said("cuMemFreeAsync", there, on),
        "free": said("cuMemFree_v2", at),
        "memory information": said("cuMemGetInfo_v2", ctypes.byref(Size()), ctypes.byref(Size())),
        "new event": said("cuEventCreate", ctypes.byref(Ptr()), 0),
    }
    if context:
        out["it is"] = "the stream's own" if context.value == home.value else "another"
    return out


@rule
def no_context_current() -> dict[str, str]:
    return without(lambda: call("cuCtxSetCurrent", None))


@rule
def another_context_current() -> dict[str, str]:
    return without(another)


@rule
def objects_of_two_contexts() -> dict[str, str]:
    home = primary()
    function, mark, at = kernel(b"quick"), event(), memory()
    another()
    on = stream()
    out = {
        "launch of a foreign function": launch(function, on),
        "record of a foreign event": said("cuEventRecord", mark, on),
        "set of foreign memory": said("cuMemsetD8Async", at, 1, Size(4096), on),
        "free of foreign memory in the stream": said("cuMemFreeAsync", at, on),
    }
    call("cuCtxSetCurrent", home)
    out["launch with the function's context current"] = launch(function, on)
    return out


@rule
def free_in_the_stream() -> dict[str, Any]:
    """Of cuMemAlloc's memory, behind a kernel that runs."""
    primary()
    settle()
    on, function, at = stream(), kernel(b"slow"), memory(512 * MIB)
    held = free_mib()
    launch(function, on)
    begin = time.monotonic()
    answer = said("cuMemFreeAsync", at, on)
    took = time.monotonic() - begin
    before = free_mib()
    call("cuStreamSynchronize", on)
    return {
        "answer": answer,
        "waits": took > SLOW / 2,
        "freed before its turn": before - held > 256,
        "freed after it": free_mib() - held > 256,
        "us": {"call": round(took * 1e6)},
    }


@rule
def free_while_a_kernel_runs() -> dict[str, Any]:
    primary()
    settle()
    on, function, at = stream(), kernel(b"slow"), memory(512 * MIB)
    launch(function, on)
    begin = time.monotonic()
    answer = said("cuMemFree_v2", at)
    took = time.monotonic() - begin
    return {"answer": answer, "waits": took > SLOW / 2, "us": {"call": round(took * 1e6)}}


@rule
def host_functions() -> dict[str, Any]:
    """One that sleeps, beside one of another stream; and calls inside of one."""
    primary()
    settle()
    first, second, mark = stream(), stream(), event()
    call("cuEventRecord", mark, second)
    times: dict[str, float] = {}
    inside: dict[str, Any] = {}

    def sleeps(_: Any) -> None:
        times["first begins"] = time.monotonic()
        time.sleep(0.3)
        times["first ends"] = time.monotonic()

    def asks(_: Any) -> None:
        inside.update(
            {
                "event query": said("cuEventQuery", mark),
                "stream query": said("cuStreamQuery", first),
                "current context": said("cuCtxGetCurrent", ctypes.byref(Ptr())),
                "memory information": said("cuMemGetInfo_v2", ctypes.byref(Size()), ctypes.byref(Size())),
                "new event": said("cuEventCreate", ctypes.byref(Ptr()), 0),
            }
        )

    calls = [HOST_FUNCTION(sleeps), HOST_FUNCTION(lambda _: times.update(second=time.monotonic())), HOST_FUNCTION(asks)]
    call("cuLaunchHostFunc", first, calls[0], None)
    time.sleep(0.05)
    call("cuLaunchHostFunc", second, calls[1], None)
    call("cuStreamSynchronize", second)
    waited = time.monotonic()
    call("cuCtxSynchronize")
    call("cuLaunchHostFunc", second, calls[2], None)
    call("cuCtxSynchronize")
    return {
        "of two streams": "one after the other" if times["second"] > times["first ends"] else "beside each other",
        "the other stream waits": waited > times["first ends"],
        **{f"inside: {what}": answer for what, answer in inside.items()},
    }


def relaxed(work: Callable[[], str]) -> str:
    """As the shim does what the program's capture must not see."""
    mode = ctypes.c_int(2)
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    answer = work()
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    return answer


@rule
def during_a_capture() -> dict[str, str]:
    """Calls of a thread that captures a stream, for other objects: may they be made, and does the capture live?"""
    primary()
    settle()
    other, at, there, function = stream(), memory(), memory(), kernel(b"quick")
    calls = HOST_FUNCTION(lambda _: None)
    done, before = event(), event()
    for mark in (before, done):
        call("cuEventRecord", mark, other)
    call("cuCtxSynchronize")
    status, captured = ctypes.c_int(), Ptr()
    tries: dict[str, Callable[[Any], str]] = {
        "event query": lambda s: said("cuEventQuery", done),
        "event query, relaxed": lambda s: relaxed(lambda: said("cuEventQuery", done)),
        "stream query, relaxed": lambda s: relaxed(lambda: said("cuStreamQuery", other)).replace(
            "ERROR_NOT_READY", "SUCCESS"
        ),
        "event record": lambda s: said("cuEventRecord", event(), other),
        "elapsed time": lambda s: said("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), before, done),
        "stream query": lambda s: said("cuStreamQuery", other).replace("ERROR_NOT_READY", "SUCCESS"),
        "stream synchronize": lambda s: said("cuStreamSynchronize", other),
        "event synchronize": lambda s: said("cuEventSynchronize", done),
        "own stream's query": lambda s: said("cuStreamQuery", s),
        "own stream's context": lambda s: said("cuStreamGetCtx", s, ctypes.byref(Ptr())),
        "capture status": lambda s: said("cuStreamIsCapturing", s, ctypes.byref(status)),
        "memory information": lambda s: said("cuMemGetInfo_v2", ctypes.byref(Size()), ctypes.byref(Size())),
        "alloc": lambda s: said("cuMemAlloc_v2", ctypes.byref(Address()), Size(MIB)),
        "free": lambda s: said("cuMemFree_v2", memory_before.pop()),
        "launch": lambda s: launch(function, other),
        "copy": lambda s: said("cuMemcpyDtoDAsync_v2", there, at, Size(4096), other),
        "copy at once": lambda s: said("cuMemcpyDtoD_v2", there, at, Size(4096)),
        "host function": lambda s: said("cuLaunchHostFunc", other, calls, None),
        "own stream: free of cuMemAlloc's memory": lambda s: said("cuMemFreeAsync", memory_before.pop(), s),
        "new event": lambda s: said("cuEventCreate", ctypes.byref(Ptr()), 0),
        "current context": lambda s: said("cuCtxSetCurrent", None),
    }
    memory_before = [memory(), memory()]
    out = {}
    context = made("cuCtxGetCurrent", Ptr)
    for what, make in tries.items():
        on = stream()
        call("cuStreamBeginCapture_v2", on, GLOBAL_CAPTURE)
        answer = make(on)
        call("cuCtxSetCurrent", context)
        out[what] = f"{answer}, then {said('cuStreamEndCapture', on, ctypes.byref(captured))}"
        said("cuCtxSynchronize")
    return out


@rule
def shared_then_freed() -> dict[str, Any]:
    """Memory that another process has opened by its handle, once its maker has freed it."""
    primary()
    settle()
    before = free_mib()
    at, handle = memory(512 * MIB), ctypes.create_string_buffer(64)
    call("cuIpcGetMemHandle", handle, at)
    argv = [sys.executable, __file__, "--open", bytes(handle).hex()]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    opened = json.loads(child.stdout.readline())
    base = free_mib()
    answer = said("cuMemFree_v2", at)
    kept = free_mib() - base < 256
    child.stdin.write("read\n")
    child.stdin.flush()
    read = json.loads(child.stdout.readline())
    child.stdin.close()
    child.wait(20)
    return {
        "open": opened,
        "free": answer,
        "still taken": kept,
        "read": read,
        "all is back at its end": before - free_mib() < 256,
    }


def open_shared(handle: str) -> None:
    primary()
    settle()
    at, data = Address(), ctypes.create_string_buffer(4)

    class Handle(ctypes.Structure):
        _fields_ = [("reserved", ctypes.c_char * 64)]

    print(
        json.dumps(said("cuIpcOpenMemHandle_v2", ctypes.byref(at), Handle.from_buffer_copy(bytes.fromhex(handle)), 1))
    )
    sys.stdout.flush()
    if sys.stdin.readline():
        print(json.dumps(said("cuMemcpyDtoH_v2", data, at, Size(4))), flush=True)
        sys.stdin.readline()


@rule
def exported_then_released() -> dict[str, Any]:
    """Memory of cuMemCreate of which only a descriptor is left."""
    primary()
    settle()
    before = free_mib()
    prop, descriptor = Prop(type=1, handle_types=1, location_type=1), ctypes.c_int()
    handle = made("cuMemCreate", Address, Size(512 * MIB), ctypes.byref(prop), Address(0))
    export = said("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, Address(0))
    release = said("cuMemRelease", handle)
    kept = before - free_mib() > 256
    os.close(descriptor.value)
    return {
        "export": export,
        "release": release,
        "still taken": kept,
        "after the descriptor": before - free_mib() > 256,
    }


@rule
def bounds_of_a_launch() -> dict[str, str]:
    primary()
    function, on = kernel(b"quick"), stream()
    return {
        "no blocks": launch(function, on, 0),
        "more blocks": launch(function, on, 2**31),
        "no threads": launch(function, on, 1, 0),
        "1024 threads": launch(function, on, 1, 1024),
        "1025 threads": launch(function, on, 1, 1025),
        "48 KiB": launch(function, on, 1, 1, 48 << 10),
        "49 KiB": launch(function, on, 1, 1, 49 << 10),
        "256 KiB": launch(function, on, 1, 1, 256 << 10),
        "no function": launch(None, on),
        "after all": said("cuCtxSynchronize"),
    }


@rule
def stack_of_contexts() -> dict[str, Any]:
    context = primary()
    depth, answer = 0, "SUCCESS"
    while answer == "SUCCESS" and depth < 20000:
        answer = said("cuCtxPushCurrent_v2", context)
        depth += answer == "SUCCESS"
    return {"answer": answer, "set": said("cuCtxSetCurrent", context), "count": {"depth": depth}}


@rule
def stream_of_a_green_context() -> dict[str, str]:
    home = primary()
    resource = ctypes.create_string_buffer(512)
    description, green, on, context, other = Ptr(), Ptr(), Ptr(), Ptr(), Ptr()
    out = {"resource": said("cuDeviceGetDevResource", 0, resource, 1)}
    if out["resource"] != "SUCCESS":
        return out
    call("cuDevResourceGenerateDesc", ctypes.byref(description), resource, 1)
    call("cuGreenCtxCreate", ctypes.byref(green), description, 0, 1)
    function = kernel(b"quick")
    call("cuGreenCtxStreamCreate", ctypes.byref(on), green, NON_BLOCKING, 0)
    out |= {
        "its context": said("cuStreamGetCtx", on, ctypes.byref(context)),
        "that is": "the primary one" if context.value == home.value else "another" if context else "none",
        "its green context": said("cuStreamGetGreenCtx", on, ctypes.byref(other)),
        "launch": launch(function, on),
        "record": said("cuEventRecord", event(), on),
    }
    call("cuCtxSetCurrent", None)
    out["launch with no context current"] = launch(function, on)
    out["both contexts"] = said("cuStreamGetCtx_v2", on, ctypes.byref(context), ctypes.byref(other))
    return out


@rule
def end_of_a_context() -> dict[str, Any]:
    """With a kernel that runs and memory in it."""
    primary()
    settle()
    before = free_mib()
    context = another()
    function, on = kernel(b"slow"), stream()
    memory(512 * MIB)
    launch(function, on)
    begin = time.monotonic()
    answer = said("cuCtxDestroy_v2", context)
    took = time.monotonic() - begin
    primary()
    return {"answer": answer, "waits": took > SLOW / 2, "memory is back": before - free_mib() < 256,
            "us": {"call": round(took * 1e6)}}  # fmt: skip


@rule
def pool_keeps_memory() -> dict[str, Any]:
    primary()
    settle()
    on, at = stream(), Address()
    before = free_mib()
    call("cuMemAllocAsync", ctypes.byref(at), Size(512 * MIB), on)
    call("cuStreamSynchronize", on)
    call("cuMemFreeAsync", at, on)
    early = before - free_mib() > 256
    call("cuStreamSynchronize", on)
    return {"before a synchronisation": early, "after it": before - free_mib() > 256}


@rule
def lengths_on_the_gpu() -> dict[str, Any]:
    """Microseconds between two events around sets and copies within the GPU: median of 20, each in an idle stream."""
    primary()
    settle()
    on, a, b = stream(), memory(64 * MIB), memory(64 * MIB)
    first, last, took = event(), event(), ctypes.c_float()
    out: dict[str, float] = {}
    for size in (256, 65536, MIB // 2, MIB - 1, MIB, 4 * MIB, 64 * MIB):
        for what in ("set", "copy"):
            times = []
            for _ in range(20):
                call("cuEventRecord", first, on)
                if what == "set":
                    call("cuMemsetD8Async", a, 1, Size(size), on)
                else:
                    call("cuMemcpyDtoDAsync_v2", b, a, Size(size), on)
                call("cuEventRecord", last, on)
                call("cuStreamSynchronize", on)
                call("cuEventElapsedTime", ctypes.byref(took), first, last)
                times.append(took.value * 1e3)
            out[f"{what} of {size}"] = round(sorted(times)[10], 2)
    return {"us": out}


@rule
def copy_beside_a_kernel() -> dict[str, Any]:
    """Which calls return before a kernel of another stream, or of their own, has ended?"""
    primary()
    settle()
    on, other, a, b = stream(), stream(), memory(), memory()
    function, host = kernel(b"slow"), ctypes.create_string_buffer(4096)
    calls: dict[str, Callable[[], str]] = {
        "copy within, at once": lambda: said("cuMemcpyDtoD_v2", b, a, Size(4096)),
        "copy within, in another stream": lambda: said("cuMemcpyDtoDAsync_v2", b, a, Size(4096), other),
        "set at once": lambda: said("cuMemsetD8_v2", a, 1, Size(4096)),
        "copy to the GPU at once": lambda: said("cuMemcpyHtoD_v2", a, host, Size(4096)),
        "copy within, in its own stream": lambda: said("cuMemcpyDtoDAsync_v2", b, a, Size(4096), on),
        "module": lambda: said("cuModuleLoadData", ctypes.byref(Ptr()), PTX),
        "alloc": lambda: said("cuMemAlloc_v2", ctypes.byref(Address()), Size(64 * MIB)),
        "pinned memory": lambda: said("cuMemHostAlloc", ctypes.byref(Ptr()), Size(MIB), 0),
        "event": lambda: said("cuEventCreate", ctypes.byref(Ptr()), 0),
    }
    out: dict[str, Any] = {}
    for what, make in calls.items():
        launch(function, on)
        begin = time.monotonic()
        answer = make()
        out[what] = f"{answer}, {'waits' if time.monotonic() - begin > SLOW / 2 else 'at once'}"
        call("cuCtxSynchronize")
    return out


@rule
def threads_of_one_context() -> dict[str, Any]:
    """Does a thread that waits for a stream keep others from launching?"""
    primary()
    settle()
    context, on, other, function, quick = (
        made("cuCtxGetCurrent", Ptr),
        stream(),
        stream(),
        kernel(b"slow"),
        kernel(b"quick"),
    )
    launch(function, on)

    def waits() -> None:
        call("cuCtxSetCurrent", context)
        call("cuStreamSynchronize", on)

    thread = threading.Thread(target=waits)
    thread.start()
    time.sleep(SLOW / 10)
    begin = time.monotonic()
    answer = launch(quick, other)
    call("cuStreamSynchronize", other)
    took = time.monotonic() - begin
    thread.join()
    return {"answer": answer, "waits": took > SLOW / 2}


def one(name: str) -> dict[str, Any]:
    argv = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"ended": "not within 20 s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"ended": f"{done.returncode}: {done.stderr.strip()[-300:]}"}
    answer = json.loads(lines[-1])
    assert isinstance(answer, dict)
    return answer


def main(words: list[str]) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it must not outlive whoever waits for it
    if words[:1] == ["--open"]:
        open_shared(words[1])
    elif words[:1] == ["--one"]:
        print(json.dumps(RULES[words[1]]()), flush=True)
        os._exit(0)  # the driver's own threads may still hold what this process would free
    else:
        print(json.dumps({name: one(name) for name in words or RULES}))


if __name__ == "__main__":
    main(sys.argv[1:])
