"""Kernels, streams and events of the simulated libcuda, and how its functions are found."""

import re
from collections.abc import Callable
from pathlib import Path

from testbed.sim.gpus import Sim

NAMES = Path(__file__).resolve().parents[1] / "driver/names.def"
ROWS = re.findall(r"^([FP])\((\w+), (\d+), (\w+)\)", NAMES.read_text(), re.MULTILINE)


def test_events_measure_the_gpus_time(sim: Sim) -> None:
    out = sim.python(
        """
context(); f = kernel(500)
s = c_void_p(); cuda.cuStreamCreate(byref(s), 1)
a = event(s)
for _ in range(10): launch(f, s)
b = event(s)
print(code("cuEventQuery", b), code("cuStreamQuery", s))
cuda.cuEventSynchronize(b)
print(code("cuEventQuery", b), code("cuStreamQuery", s), elapsed(a, b) >= 4.999)
"""
    )
    assert out.split() == ["600", "600", "0", "0", "True"]


def test_a_slow_gpu_says_gpu_time(make_sim: Callable[..., Sim]) -> None:
    """Programs see the times of an unscaled GPU; only waiting takes longer."""
    out = make_sim(scale=20).python(
        """
import time
context(); f = kernel(2000); begin = time.monotonic(); a = event(); launch(f); b = event(); cuda.cuCtxSynchronize()
print(elapsed(a, b) < 20, time.monotonic() - begin >= 0.04)
"""
    )
    assert out.split() == ["True", "True"]


def test_event_keeps_its_time_after_much_other_work(sim: Sim) -> None:
    out = sim.python(
        """
context(); f = kernel(100); tiny = kernel(1, b"tiny")
a = event(); launch(f); b = event()
cuda.cuCtxSynchronize(); first = elapsed(a, b)
for _ in range(3000): launch(tiny)
cuda.cuCtxSynchronize()
print(first == elapsed(a, b), first >= 0.0999)
cuda.cuEventRecord(a, NONE); cuda.cuEventSynchronize(a); print(elapsed(b, a) >= 3.0 - 0.001)
cuda.cuEventDestroy_v2(a)
"""
    )
    assert out.split() == ["True", "True", "True"]


def test_launching_blocks_when_a_thousand_are_unfinished(sim: Sim) -> None:
    out = sim.python(
        """
context(); f = kernel(20)
first = event()
for _ in range(1030): launch(f)
print(code("cuEventQuery", first))
cuda.cuCtxSynchronize()
"""
    )
    assert out == "0\n"


def test_kernel_duration_by_name_and_text(sim: Sim) -> None:
    """The kernels are queued behind a long one, so they run back to back and their times are exact."""
    out = sim.python(
        """
context(); m, events = c_void_p(), []; functions = [kernel(300000)]
for image, name in [
    (b".entry a() .entry b() // sim_us=300 sim_us b=700", b"b"),
    (b".entry a() .entry b() // sim_us=300 sim_us b=700", b"a"),
    (b"\\x7fELF\\x02\\x01\\x01\\0\\0\\0", b"gemm_250us"),
    (b"\\x50\\xed\\x55\\xba\\0\\0\\0\\0", b"plain"),
]:
    f = c_void_p(); cuda.cuModuleLoadData(byref(m), image); cuda.cuModuleGetFunction(byref(f), m, name)
    functions.append(f)
by_parameter = c_void_p(); cuda.cuModuleLoadData(byref(m), b".entry c() // sim_param")
cuda.cuModuleGetFunction(byref(by_parameter), m, b"c")
for f in functions: launch(f); events.append(event())
for ns in (600000, 50000):
    n = c_uint64(ns); parameters = (c_void_p * 1)(ctypes.addressof(n))
    cuda.cuLaunchKernel(by_parameter, 1, 1, 1, 1, 1, 1, 0, NONE, parameters, NONE); events.append(event())
cuda.cuCtxSynchronize()
print([round(elapsed(a, b), 4) for a, b in zip(events, events[1:])])
cuda.cuModuleLoadData(byref(m), b".entry a()"); print(code("cuModuleGetFunction", byref(f), m, b"other"))
"""
    )
    assert out == "[0.7, 0.3, 0.25, 0.01, 0.6, 0.05]\n500\n"


def test_two_processes_slow_each_other_down(sim: Sim) -> None:
    """Both processes queue all their work before either can be done, so the later one ends after the sum of both."""
    code = """
context(); f = kernel(1000); a = event(); print("ready", flush=True); input()
for _ in range(300): launch(f)
b = event(); cuda.cuEventSynchronize(b); print(elapsed(a, b))
"""
    children = [sim.start_python(code) for _ in range(2)]
    for child in children:
        sim.tell(child)
    assert max(float(sim.line(child)) for child in children) >= 600


def test_kernels_of_a_killed_process_leave_the_gpu(sim: Sim) -> None:
    child = sim.start(sim.probe, "launch", "10000000", "100")
    assert (
        sim.python("import time\ncontext(); f = kernel(10)\nlaunch(f); cuda.cuCtxSynchronize(); print('ran')")
        == "ran\n"
    )
    child.kill()
    child.wait()
    assert sim.python("context(); f = kernel(10); launch(f); cuda.cuCtxSynchronize(); print('ran')") == "ran\n"


def test_bad_handles_and_missing_context_are_refused(sim: Sim) -> None:
    out = sim.python(
        """
print(code("cuCtxSynchronize"), code("cuDeviceGetCount", byref(c_int())), code("cuInit", 1))
cuda.cuInit(0)
print(code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(1)), code("cuDeviceGet", byref(c_int()), 2))
context()
print(code("cuLaunchKernel", NONE, 1, 1, 1, 1, 1, 1, 0, NONE, NONE, NONE))
f = kernel(1)
print(code("cuLaunchKernel", f, 0, 1, 1, 1, 1, 1, 0, NONE, NONE, NONE))
print(code("cuLaunchKernel", f, 1, 1, 1, 2048, 1, 1, 0, NONE, NONE, NONE))
print(code("cuGetExportTable", byref(c_void_p()), b"0" * 16), code("cuGraphicsUnregisterResource", NONE))
name = c_char_p(); cuda.cuGetErrorName(2, byref(name)); print(name.value.decode())
print(code("cuGetErrorName", 12345, byref(name)))
"""
    )
    assert out.split() == ["3", "3", "1", "201", "101", "400", "1", "1", "801", "801", "CUDA_ERROR_OUT_OF_MEMORY", "1"]


def test_kernels_events_and_streams_of_other_contexts_are_refused(sim: Sim) -> None:
    """A kernel of a library is of none. Green contexts are their primary one."""
    out = sim.python(
        """
def stream(ctx):
    s = c_void_p(); cuda.cuCtxSetCurrent(ctx); cuda.cuStreamCreate(byref(s), 1); return s
def run(f, s): return code("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, s, NONE, NONE)
b, a = context(1), context(0); t, s = stream(b), stream(a); k = kernel(10); e = event(s); lib, l = c_void_p(), c_void_p()
cuda.cuLibraryLoadData(byref(lib), b".entry k()", NONE, NONE, 0, NONE, NONE, 0); cuda.cuLibraryGetKernel(byref(l), lib, b"k")
print(run(k, s), run(k, t), run(l, t), code("cuEventRecord", e, t), code("cuStreamWaitEvent", t, e, 0))
own = c_void_p(); cuda.cuCtxCreate_v2(byref(own), 0, 0); cuda.cuCtxSetCurrent(own)
print(run(k, NONE), code("cuEventRecord", e, NONE), run(l, NONE), code("cuEventRecord", e, s))
what, desc, g = (ctypes.c_ubyte * 144)(), c_void_p(), c_void_p(); cuda.cuDeviceGetDevResource(0, what, 1)
cuda.cuDevResourceGenerateDesc(byref(desc), what, 1); cuda.cuGreenCtxCreate(byref(g), desc, 0, 1)
u = c_void_p(); cuda.cuGreenCtxStreamCreate(byref(u), g, 1, 0)
print(run(k, u), code("cuEventRecord", e, u))
cuda.cuCtxSetCurrent(b); cuda.cuDevicePrimaryCtxRelease_v2(1)
print(code("cuStreamSynchronize", t), code("cuStreamQuery", t), code("cuStreamDestroy_v2", t))
"""
    )
    assert out.split("\n") == ["0 400 0 400 0", "400 400 0 0", "0 0", "709 709 0", ""]


def test_get_proc_address_honours_version_and_stream_flag(sim: Sim) -> None:
    """For every name, CUDA version and flag, the answer is the symbol of the highest version up to the given one."""
    versions = sorted({int(v) for _, _, v, _ in ROWS})
    wanted = []
    for base in sorted({base for _, base, _, _ in ROWS}):
        own = [(kind, int(v), symbol) for kind, b, v, symbol in ROWS if b == base]
        for version in (1000, *versions):
            for flag in (0, 1, 2):
                fit = [row for row in own if row[1] <= version and (row[0] == "F" or flag == 2)]
                best = max(fit, key=lambda row: (row[0] == "P", row[1]), default=None)
                wanted.append((base, version, flag, best[2] if best else ""))
    out = sim.python(
        f"""
address = lambda name: ctypes.cast(getattr(library, name), c_void_p).value
bad = []
for base, version, flag, symbol in {wanted!r}:
    at, status = c_void_p(), c_int(9)
    result = code("cuGetProcAddress_v2", base.encode(), byref(at), version, c_uint64(flag), byref(status))
    one = c_void_p(); r1 = code("cuGetProcAddress", base.encode(), byref(one), version, c_uint64(flag))
    if symbol: ok = (result, r1, status.value, at.value, one.value) == (0, 0, 0, address(symbol), address(symbol))
    else: ok = (result, r1, status.value, at.value) == (500, 500, 2, None)
    if not ok: bad.append((base, version, flag, symbol, result, status.value))
status = c_int()
print(bad, code("cuGetProcAddress_v2", b"cuNoSuch", byref(c_void_p()), 12000, c_uint64(0), byref(status)), status.value)
"""
    )
    assert out == "[] 500 1\n"


def test_every_symbol_has_an_address_of_its_own(sim: Sim) -> None:
    """The shim distinguishes functions by their addresses."""
    symbols = sorted({symbol for *_, symbol in ROWS})
    code = f"names = {symbols!r}\nprint(len({{ctypes.cast(getattr(library, n), c_void_p).value for n in names}}))"
    assert int(sim.python(code)) == len(symbols)
