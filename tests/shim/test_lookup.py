"""However a program looks a function up, it gets ours: each route, function and CUDA version."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.driver_symbols import listed
from testbed.pinned import wheels
from testbed.real_drivers import DRIVERS, libraries
from tests.shim.box import ROOT, Box
from tests.shim.conftest import HERE, compile_c, compile_kept

pytestmark = pytest.mark.root
SHIM = ROOT / "oci_hook" / "shim"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory, shim: Path) -> Path:
    """lookup and its plugin, linked against the shim; and a library linked --as-needed."""
    out = tmp_path_factory.mktemp("lookup")
    base = [f"-I{SHIM}", "-std=gnu11", "-w", str(HERE / "lookup.c")]
    link = [str(shim / "libcuda.so.1"), "-Wl,--allow-shlib-undefined", "-ldl"]
    (out / "lookup").symlink_to(compile_kept("lookup", "-fPIE", *base, *link))
    plugin = compile_kept("plugin.so", "-shared", "-fPIC", "-DPLUGIN", "-Wl,--as-needed", *base, *link)
    (out / "plugin.so").symlink_to(plugin)
    return out


def routes(box: Box, programs: Path, tmp_path: Path) -> list[tuple[str, str, str]]:
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for name in (
        "libcuda.so.1",
        "libcuda.so",
        "libcuda.so.550.163.01",
    ):  # as the plan binds them: one file, three names
        (libraries / name).write_bytes(b"")
    binds = " && ".join(f"mount --bind '{box.shim}/libcuda.so.1' {libraries}/{n}" for n in os.listdir(libraries))
    more = [str(libraries / "libcuda.so.550.163.01"), "libcuda.so.550.163.01"]
    argv = ["sh", "-c", f'{binds} && exec "$@"', "sh", str(programs / "lookup"), str(programs / "plugin.so"), *more]
    out = box.run(argv, LD_LIBRARY_PATH=str(libraries), check=False)
    assert out.returncode == 0, out.stderr + out.stdout[-500:]
    return [tuple(line.split(" ", 2)) for line in out.stdout.splitlines()]  # type: ignore[misc]


def check(found: list[tuple[str, str, str]], names: int, second: bool = True) -> None:
    """second: the driver has cuGetProcAddress_v2, since 12.0."""
    strangers = [f for f in found if "/lib/libcuda.so" not in f[2]]
    assert not strangers, strangers[:20]
    count = Counter(route for route, _, _ in found)
    whole = [
        "link",
        "default",
        "next",
        "libcuda.so.1",
        "libcuda.so",
        "libcuda.so.550.163.01",
        "dlmopen",
        "deepbind-link",
        "deepbind-dlsym",
        "deepbind-default",
    ]
    assert {r: count[r] for r in whole} == dict.fromkeys(whole, names)
    # glibc finds no version in a library without version definitions, the driver's or ours: nothing, not the driver
    assert not [r for r in count if r.endswith("dlvsym") and count[r] not in (0, names)]
    assert count["cuGetProcAddress-12000-2"] > 30, count
    assert (count["cuGetProcAddress_v2-12000-0"] > 30) == (count["cuGetProcAddress-twice"] > 100) == second, count


def test_every_route_lands_in_the_shim(box: Box, programs: Path, tmp_path: Path) -> None:
    names = (SHIM / "intercepts.def").read_text().count("\nGH_CUDA(")
    check(routes(box, programs, tmp_path), names)


@pytest.mark.slow
@pytest.mark.parametrize("version", DRIVERS)
def test_every_route_with_the_real_driver_library(box: Box, programs: Path, tmp_path: Path, version: str) -> None:
    library = libraries(version)["libcuda"]
    (box.place / "driver" / "cuda").write_bytes(library.read_bytes())
    found = routes(box, programs, tmp_path)
    second = "cuGetProcAddress_v2" in listed(library)
    check(found, (SHIM / "intercepts.def").read_text().count("\nGH_CUDA("), second)
    # per-thread variants and every ABI version answer with different functions, all of them ours
    route = "cuGetProcAddress_v2-12000" if second else "cuGetProcAddress-12000"
    assert len({f for f in found if f[1] == "cuMemAllocAsync" and f[0].startswith(route)}) == 3


def test_a_stranger_is_left_as_the_driver_answered(box: Box) -> None:
    box.python("""
real = cu.ctypes.CDLL("/run/gpu-hook/driver/cuda")
at = lambda f: cu.ctypes.cast(f, cu.c_void_p).value
assert cu.address("cuDriverGetVersion") == at(real.cuDriverGetVersion)
assert cu.address("cuMemAlloc", 3020) == at(cu.lib.cuMemAlloc_v2)
assert cu.address("cuMemAlloc", 2000) == at(cu.lib.cuMemAlloc)
assert cu.address("cuMemAllocAsync", 12000, 2) == at(cu.lib.cuMemAllocAsync_ptsz)
assert cu.address("cuMemAllocAsync", 12000, 2, v2=False) == at(cu.lib.cuMemAllocAsync_ptsz)
assert cu.address("cuNoSuchThing") == 0
""")


def test_programs_made_for_the_drivers_library_run(box: Box, tmp_path: Path, fake_cuda: Path) -> None:
    """Linked against the driver's own file, as programs are; run over the shim."""
    source = tmp_path / "p.c"
    source.write_text("""
#include <stdio.h>
int cuInit(unsigned); int cuDevicePrimaryCtxRetain(void **, int); int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int main(void) { void *c; unsigned long long p;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0) || cuCtxSetCurrent(c)) return 1;
  printf("%d %d\\n", cuMemAlloc_v2(&p, 1ul << 30), cuMemAlloc_v2(&p, 1)); return 0; }
""")
    program = compile_c(tmp_path / "p", str(source), str(fake_cuda))
    assert box.run([str(program)]).stdout == "0 2\n"


CHECK = """
import sys
own = {line.split(",")[0][8:] for line in open(sys.argv[1]) if line.startswith("GH_CUDA(")}
spans = [[int(n, 16) for n in line.split()[0].split("-")] for line in open("/proc/self/maps") if sys.argv[2] in line]
asked = {tuple(line.split()) for line in open("/run/gpu-hook/asked") if line.count(" ") == 2 and line[0] != " "}
ours = 0
for name, version, flags in asked:
    if name in own and (at := cu.address(name, int(version), int(flags))):
        assert any(a <= at < b for a, b in spans), (name, version, flags)
        ours += 1
print(len(asked), ours)
"""


@pytest.mark.slow
@pytest.mark.parametrize("static", [False, True])
def test_what_cudart_asks_for_is_ours(box: Box, tmp_path: Path, static: bool) -> None:
    """The real runtime library over a driver that writes down its look-ups: cuGetProcAddress, for every function."""
    folder = wheels("cuda-12-runtime") / "nvidia/cuda_runtime/lib"
    library = folder / ("libcudart_static.a" if static else "libcudart.so.12")
    program = tmp_path / "program"
    client = ROOT / "testbed" / "clients" / "runtime.c"
    compile_c(program, str(client), str(library), f"-Wl,-rpath,{folder}", "-ldl", "-lrt", "-lpthread")
    box.run([str(program)], FAKE_LOOKUPS="/run/gpu-hook/asked")
    (box.place / "check.py").write_text("import client as cu\n" + CHECK)
    argv = ["/run/gpu-hook/check.py", str(SHIM / "intercepts.def"), str(box.shim / "libcuda.so.1")]
    asked, ours = map(int, box.run([sys.executable, *argv]).stdout.split())
    assert asked > 300 and ours > 30, (asked, ours)


@pytest.mark.slow
def test_cuda_bindings_are_limited(box: Box) -> None:
    pytest.importorskip("cuda.bindings.driver")
    box.run(
        [
            sys.executable,
            "-c",
            """
from cuda.bindings import driver as d
ok = d.CUresult.CUDA_SUCCESS
assert d.cuInit(0) == (ok,)
r, ctx = d.cuDevicePrimaryCtxRetain(0)
assert d.cuCtxSetCurrent(ctx) == (ok,)
assert d.cuDeviceTotalMem(0) == (ok, 1 << 30)
r, p = d.cuMemAlloc(1 << 29)
assert r == ok
assert d.cuMemGetInfo() == (ok, 1 << 29, 1 << 30)
assert d.cuMemAlloc((1 << 29) + 1)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
assert d.cuMemAllocAsync((1 << 29) + 1, 0)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
assert d.cuMemFree(p) == (ok,)
assert d.cuMemGetInfo() == (ok, 1 << 30, 1 << 30)
""",
        ]
    )


def test_names_that_only_the_driver_knows_resolve(box: Box, tmp_path: Path) -> None:
    """DT_NEEDED on the real file resolves functions that are newer than our lists."""
    source = tmp_path / "new.c"
    source.write_text("int cuBrandNew(void) { return 7; }\nint cuInit(unsigned f) { return (int)f; }\n")
    compile_c(box.place / "driver" / "cuda", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source))
    box.run([sys.executable, "-c", "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuBrandNew() == 7"])


def test_without_the_real_library_nothing_crashes(box: Box, tmp_path: Path) -> None:
    """The shim itself is on the private path: no endless loop."""
    (box.place / "driver" / "cuda").write_bytes((box.shim / "libcuda.so.1").read_bytes())
    out = box.run([sys.executable, "-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"], check=False)
    assert out.returncode == 0 and out.stdout == "500\n", (out.stdout, out.stderr)
    subprocess.run(["true"], check=True)
