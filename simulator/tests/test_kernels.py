"""How long kernels run, the ways to launch them, and faults."""

import time
from collections.abc import Callable

from gpu_hook_simulator import driver_root
from simulator.tests.test_streams import MORE
from testbed.sim.gpus import Sim

KERNELS = (
    MORE
    + """
def loaded(text, name=b"k"):
    m, f = c_void_p(), c_void_p()
    cuda.cuModuleLoadData(byref(m), b".entry k() .entry other() // " + text)
    cuda.cuModuleGetFunction(byref(f), m, name)
    return f
def gated(s, calls):
    "The gpu's time for each of the calls, which are all submitted before the first begins."
    g = gate(); cuda.cuStreamWaitValue32_v2(s, g, 1, 0); events = [event(s)]
    for call in calls:
        call(); events.append(event(s))
    word(g).value = 1; cuda.cuCtxSynchronize()
    return [round(elapsed(a, b), 4) for a, b in zip(events, events[1:])]
"""
)


def kernels(sim: Sim, code: str) -> list[str]:
    return sim.python(KERNELS + code).splitlines()


def test_durations_vary_as_told_and_the_same_in_every_run(sim: Sim) -> None:
    code = """
context(); s = stream()
times = gated(s, [lambda f=loaded(b"sim_us=80 sim_sigma=0.5"): wide(f, s)] * 400)
print(times[:5]); print(0.070 < sum(times) / 400 < 0.090, min(times) < 0.04, max(times) > 0.16)
print(gated(s, [lambda f=loaded(b"sim_us=80 sim_sigma other=0.5"): wide(f, s)] * 3))
print(gated(s, [lambda f=loaded(b"sim_us=80 sim_sigma=0.5 sim_seed=9"): wide(f, s)] * 5))
"""
    first, second = kernels(sim, code), kernels(sim, code)
    assert first[1:3] == ["True True True", "[0.08, 0.08, 0.08]"]
    assert first == second and first[0] != first[3]


def test_every_way_to_launch(make_sim: Callable[..., Sim]) -> None:
    out = kernels(
        make_sim(scale=5),
        """
context(); s = stream(); f = loaded(b"sim_us=300")
class Config(ctypes.Structure):
    _fields_ = [(n, c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("stream", c_void_p), ("attributes", c_void_p), ("n", c_uint)]
class Launch(ctypes.Structure):
    _fields_ = [("f", c_void_p)] + Config._fields_[:8] + [("params", c_void_p)]
cuda.cuFuncSetBlockShape(f, 32, 1, 1); cuda.cuParamSetSize(f, 8); cuda.cuParamSeti(f, 0, 1)
config = Config(2, 1, 1, 32, 1, 1, 0, s, None, 0); grid = (2, 1, 1, 32, 1, 1, 0, s)
each = [
    lambda: cuda.cuLaunchKernel(f, *grid, NONE, NONE), lambda: cuda.cuLaunchKernel_ptsz(f, *grid, NONE, NONE),
    lambda: cuda.cuLaunchCooperativeKernel(f, *grid, NONE), lambda: cuda.cuLaunchCooperativeKernel_ptsz(f, *grid, NONE),
    lambda: cuda.cuLaunchKernelEx(byref(config), f, NONE, NONE),
    lambda: cuda.cuLaunchKernelEx_ptsz(byref(config), f, NONE, NONE),
    lambda: cuda.cuLaunchCooperativeKernelMultiDevice((Launch * 1)(Launch(f, 2, 1, 1, 32, 1, 1, 0, s, None)), 1, 0),
    lambda: cuda.cuLaunchGridAsync(f, 2, 1, s),
]
print(gated(s, each))
null = event(); cuda.cuLaunch(f); cuda.cuLaunchGrid(f, 2, 2); last = event(); cuda.cuCtxSynchronize()
print(0.6 <= elapsed(null, last) < 2)
print(code("cuLaunchCooperativeKernel", f, 132 * 2, 1, 1, 1024, 1, 1, 0, s, NONE),
      code("cuLaunchCooperativeKernel", f, 132 * 2 + 1, 1, 1, 1024, 1, 1, 0, s, NONE))
""",
    )
    assert out == ["[0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3]", "True", "0 720"]


def test_a_kernel_that_spins_until_a_flag_is_set(make_sim: Callable[..., Sim]) -> None:
    """It keeps its time slices: a neighbour gets half of the GPU."""
    out = kernels(
        make_sim(scale=20),
        """
context(); s = stream(); f = loaded(b"sim_spin=1"); g = gate()
pointer = c_uint64(g.value); params = (c_void_p * 1)(ctypes.addressof(pointer))
cuda.cuLaunchKernel(f, 132, 1, 1, 32, 1, 1, 0, s, params, NONE)
time.sleep(0.3); print(code("cuStreamQuery", s)); word(g).value = 1
cuda.cuStreamSynchronize(s); print("over")
print(code("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, s, NONE, NONE))
""",
    )
    assert out == ["600", "over", "1"]


def test_a_graph_takes_the_sum_of_its_nodes_and_waits_and_writes_inside(make_sim: Callable[..., Sim]) -> None:
    out = kernels(
        make_sim(scale=5),
        """
context(); s = stream(); f, long = loaded(b"sim_us=40"), loaded(b"sim_us=100"); g = gate(); h = gate()
def captured(*launches):
    graph, exe = c_void_p(), c_void_p()
    cuda.cuStreamBeginCapture_v2(s, 2)
    for each in launches: each()
    cuda.cuStreamEndCapture(s, byref(graph)); cuda.cuGraphInstantiateWithFlags(byref(exe), graph, c_uint64(0))
    return graph, exe
graph, exe = captured(*[lambda: wide(f, s)] * 50)
play = lambda: cuda.cuGraphLaunch(exe, s)
print(gated(s, [play, play]))
update, _ = captured(*[lambda: wide(long, s)] * 50)
result = (c_int * 8)(); cuda.cuGraphExecUpdate_v2(exe, update, result); print(result[0], gated(s, [play]))
class Params(ctypes.Structure):
    _fields_ = [("f", c_void_p)] + [(n, c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("params", c_void_p), ("extra", c_void_p), ("kernel", c_void_p), ("ctx", c_void_p)]
n = c_size_t(1); node = c_void_p(); cuda.cuGraphGetNodes(graph, byref(node), byref(n))
cuda.cuGraphExecKernelNodeSetParams_v2(exe, node, byref(Params(f.value, 1, 1, 1, 1, 1, 1)))
print(gated(s, [play]))
_, gates = captured(lambda: cuda.cuStreamWaitValue32_v2(s, g, 1, 0), lambda: wide(f, s),
                    lambda: cuda.cuStreamWriteValue32_v2(s, h, 3, 0))
cuda.cuGraphLaunch(gates, s); time.sleep(0.1); print(word(h).value, code("cuStreamQuery", s))
word(g).value = 1; cuda.cuStreamSynchronize(s); print(word(h).value)
class Batch(ctypes.Structure):
    _fields_ = [("op", c_int), ("at", c_uint64), ("value", c_uint64), ("flags", c_uint), ("alias", c_uint64),
                ("pad", c_uint64)]
class Node(ctypes.Structure):
    _fields_ = [("ctx", c_void_p), ("count", c_uint), ("list", c_void_p), ("flags", c_uint)]
ops = (Batch * 2)(Batch(1, h.value, 3, 0), Batch(2, h.value, 8, 0))
graph, exe = c_void_p(), c_void_p(); cuda.cuGraphCreate(byref(graph), 0)
cuda.cuGraphAddBatchMemOpNode(byref(node), graph, NONE, c_size_t(0), byref(Node(None, 2, ctypes.addressof(ops), 0)))
kind = c_int(); cuda.cuGraphNodeGetType(node, byref(kind))
cuda.cuGraphInstantiateWithFlags(byref(exe), graph, c_uint64(0)); cuda.cuGraphDestroy(graph)
cuda.cuGraphLaunch(exe, s); cuda.cuStreamSynchronize(s); print(kind.value, word(h).value)
cuda.cuStreamBeginCapture_v2(s, 0)
print(code("cuStreamSynchronize", s), code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(8)))
print(code("cuStreamEndCapture", s, byref(graph)))
""",
    )
    assert out == ["[2.0, 2.0]", "0 [5.0]", "[4.94]", "0 600", "3", "12 8", "900 900", "901"]


def test_driver_calls_fail_and_block_on_request(sim: Sim) -> None:
    """Faults act on a program that runs, and end."""
    child = sim.start_python(
        "context(); print('ready', flush=True)\n"
        "def tries():\n"
        "    input(); import time; begin = time.monotonic()\n"
        "    codes = [code('cuCtxGetDevice', byref(c_int())) for _ in range(100)]\n"
        "    print(codes.count(0), codes.count(2), time.monotonic() - begin, flush=True)\n"
        "while True: tries()"
    )

    def seconds(*wanted: int) -> float:
        Sim.tell(child)
        good, bad, took = Sim.line(child).split()
        assert (int(good), int(bad)) == wanted
        return float(took)

    driver_root.set_faults(sim.gpus / "0", {"fail_every": 10, "fail_code": 2})
    assert min(seconds(90, 10) for _ in range(20)) < 0.1
    driver_root.set_faults(sim.gpus / "0", {"block_every": 5, "block_us": 20000})
    assert seconds(100, 0) > 0.15
    driver_root.set_faults(sim.gpus / "0", {})
    assert min(seconds(100, 0) for _ in range(20)) < 0.1


def test_nvml_is_slow_or_does_not_know_on_request(sim: Sim) -> None:
    driver_root.set_faults(sim.gpus / "0", {"nvml_call_us": 30000, "nvml_without": 3})
    begin = time.monotonic()
    out = sim.python(
        """
nvml.nvmlInit()
rates, each = nvml.nvmlDeviceGetUtilizationRates, nvml.nvmlDeviceGetProcessUtilization
for call in (lambda: rates(gpu(0)), lambda: each(gpu(0), 0), lambda: rates(gpu(1)).gpu):
    try: print(call())
    except nvml.NVMLError as e: print(e.value)
"""
    )
    assert out.split() == ["3", "3", "0"] and time.monotonic() - begin > 0.06


def test_a_gpu_falls_off_the_bus_and_comes_back(sim: Sim) -> None:
    ask = """
def asked(what):
    try: return what() and "well"
    except nvml.NVMLError as e: return f"{e.value} {e}"
nvml.nvmlInit()
print(nvml.nvmlDeviceGetCount(), *(asked(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu(n))) for n in (0, 1)), sep=", ")
"""
    driver_root.set_faults(sim.gpus / "1", {"lost": 1})
    assert sim.python(ask) == "2, well, 15 GPU is lost\n"
    driver_root.set_faults(sim.gpus / "1", {})
    assert sim.python(ask) == "2, well, well\n"


def test_names_of_any_length(sim: Sim) -> None:
    """Compilers of templates and of Python make names of hundreds of characters."""
    out = kernels(
        sim,
        """
context(); s = stream()
for n in (1, 127, 128, 400, 4095):
    name = b"n" * n; f = loaded(b"sim_us=20 .entry " + name + b"()", name); c = c_char_p()
    cuda.cuFuncGetName(byref(c), f); print(len(c.value), gated(s, [lambda: launch(f, s)]))
""",
    )
    assert out == [f"{n} [0.02]" for n in (1, 127, 128, 400, 4095)]
