"""Every function of the libraries: called in a process of its own; and the libraries of each release."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_hook_simulator import exports
from gpu_hook_simulator.release import CUDA, release
from simulator.tests import functions
from testbed.sim.gpus import Sim

LISTS = functions.NAMES.parent
BAD = ("signal", "hangs", "missing", "no result")


def called(sim: Sim, library: str, context: bool) -> dict[str, str]:
    names = {name for path in LISTS.glob(f"{library}-*.txt") for name in path.read_text().split()}
    calls = str(functions.HERE / "calls.py")
    r = sim.run("python3", calls, str(sim.libraries / f"{library}.so.1"), str(int(context)), *sorted(names))
    assert r.returncode == 0, r.stderr
    said = dict(line.split(" ", 1) for line in r.stdout.splitlines())
    assert said.keys() == names
    return said


@pytest.mark.parametrize("context", [False, True], ids=["before cuInit", "with a context"])
@pytest.mark.parametrize("library", ["libcuda", "libnvidia-ml"])
def test_no_function_crashes_or_hangs(sim: Sim, library: str, context: bool) -> None:
    said = called(sim, library, context)
    assert not {name: answer for name, answer in said.items() if answer.startswith(BAD)}


def test_the_page_says_what_works(simulated: Path) -> None:
    said = functions.answers(context=True)
    assert [name for name in functions.not_supported(said) if not functions.reason(name)] == []
    assert functions.page(said) == functions.PAGE.read_text()


def exported(library: Path) -> set[str]:
    lines = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return {words[2] for words in map(str.split, lines) if len(words) == 3 and words[1] in "TW"}


@pytest.mark.parametrize("branch", ["470", "525", "535", "550", "555"])
def test_a_known_driver_exports_what_the_real_one_does(make_sim: Callable[..., Sim], branch: str) -> None:
    sim = make_sim(release=release(branch))
    [real] = LISTS.glob(f"libcuda-{branch}.*.txt")
    own = {"gpuHookSimulatedTimeScale"}
    assert exported(sim.libraries / "libcuda.so.1") - own == set(real.read_text().split())
    [real] = LISTS.glob(f"libnvidia-ml-{branch}.*.txt")
    private = {"nvmlInternalGetExportTable"}
    assert exported(sim.libraries / "libnvidia-ml.so.1") - private == set(real.read_text().split()) - private


ASK = """
import sys
v = c_int(); cuda.cuDriverGetVersion(byref(v)); print(v.value)  # also before cuInit
def found(name, version, flags=0):
    p, status = c_void_p(), c_int()
    r = code("cuGetProcAddress_v2" if hasattr(library, "cuGetProcAddress_v2") else "cuGetProcAddress", name, byref(p),
             version, c_uint64(flags), byref(status))
    same = [s for s in SYMBOLS if hasattr(library, s) and ctypes.cast(getattr(library, s), c_void_p).value == p.value]
    return r, same
SYMBOLS = ["cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuMemcpyBatchAsync",
           "cuMemcpyBatchAsync_v2", "cuMemGetMemPool", "cuKernelGetName", "cuGetProcAddress_v2", "cuMemAdvise_v2"]
for name in (b"cuCtxCreate", b"cuMemcpyBatchAsync", b"cuMemGetMemPool", b"cuKernelGetName"):
    print(*found(name, 13000)[1] or ["none"])
print(*[s for s in SYMBOLS if hasattr(library, s)])
nvml.nvmlInit(); print(nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion())
cuda.cuInit(0); cuda.cuDriverGetVersion(byref(v)); print(v.value)
"""


@pytest.mark.parametrize(
    ("driver", "cuda", "context", "copies", "pool", "kernel"),
    [
        ("470", 11040, "cuCtxCreate_v3", "none", "none", "none"),
        ("535.183", 12020, "cuCtxCreate_v3", "none", "none", "none"),
        ("550", 12040, "cuCtxCreate_v3", "none", "none", "cuKernelGetName"),
        ("570", 12080, "cuCtxCreate_v4", "cuMemcpyBatchAsync", "none", "cuKernelGetName"),
        ("580", 13000, "cuCtxCreate_v4", "cuMemcpyBatchAsync_v2", "cuMemGetMemPool", "cuKernelGetName"),
        ("615", 13040, "cuCtxCreate_v4", "cuMemcpyBatchAsync_v2", "cuMemGetMemPool", "cuKernelGetName"),
    ],
)
def test_names_and_versions_are_those_of_the_driver(
    make_sim: Callable[..., Sim], driver: str, cuda: int, context: str, copies: str, pool: str, kernel: str
) -> None:
    sim = make_sim(release=release(driver))
    version, *names, there, nvml, after = sim.python(ASK).splitlines()
    assert (version, after) == (str(cuda), str(cuda))
    assert names == [context, copies, pool, kernel]
    assert set(there.split()) >= {context} and ("cuMemGetMemPool" in there.split()) == (pool != "none")
    assert ("cuGetProcAddress_v2" in there.split()) == (cuda >= 12000)
    assert nvml.split() == [release(driver).version, str(cuda)]


def test_each_release_exports_at_least_what_the_one_before_does(simulated: Path) -> None:
    library = (simulated / "sim/libcuda.so.1").read_bytes()
    names = exports.versions(library)
    counts = [sum(exports.has(*ends, cuda) for ends in names.values()) for cuda in sorted(CUDA.values())]
    newest = max(CUDA.values())
    assert counts == sorted(counts) and counts[0] == 524
    assert counts[-1] == sum(since <= newest for since, _ in names.values())  # headers know functions of later drivers


def test_without_a_version_all_functions_are_there(sim: Sim, simulated: Path) -> None:
    assert exported(sim.libraries / "libcuda.so.1") == exported(simulated / "sim/libcuda.so.1")
