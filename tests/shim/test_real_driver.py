"""Over NVIDIA's own libraries, of several drivers: without a GPU, but with every real function behind the shim's.

Whatever a program asks, it gets what the bare library answers; docs/internals/real-drivers.md has the table.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oci_hook.shim import build
from scripts.driver_symbols import listed
from testbed.compiled import source
from testbed.real_drivers import DRIVERS, libraries
from tests.shim.box import Box
from tests.shim.conftest import HERE, compile_kept
from tests.shim.test_build import exported, readelf

pytestmark = [pytest.mark.root, pytest.mark.slow]
KINDS = {"libcuda": "cuda", "libnvidia-ml": "ml"}
FIRST = {"libcuda": "cuInit", "libnvidia-ml": "nvmlInit_v2"}


class Driver:
    """One driver's libraries. plain: a folder in which programs find them under their sonames."""

    def __init__(self, version: str, plain: Path) -> None:
        self.version = version
        self.files = libraries(version)
        self.plain = plain
        for name, file in self.files.items():
            (plain / f"{name}.so.1").symlink_to(file)


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(request.param, tmp_path_factory.mktemp("plain"))


@pytest.fixture
def over(box: Box, driver: Driver, no_new_devices: None) -> Box:
    """A box whose driver is that one."""
    for name, private in KINDS.items():
        (box.place / "driver" / private).write_bytes(driver.files[name].read_bytes())
    return box


@pytest.fixture
def real_box(box: Box, real_driver: Path, no_new_devices: None) -> Box:
    for ours, theirs in (("cuda", "libcuda.so"), ("ml", "libnvidia-ml.so")):
        (box.place / "driver" / ours).write_bytes((real_driver / theirs).read_bytes())
    return box


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """every and ask, compiled once."""
    out = tmp_path_factory.mktemp("programs")
    for name in ("every", "ask"):
        (out / name).symlink_to(compile_kept(name, "-w", str(HERE / f"{name}.c"), "-ldl"))
    yield out


def told(box: Box, program: Path, library: str, names: list[str], **env: str) -> dict[str, str]:
    """What the program says of each name."""
    (box.place / "names").write_text("\n".join(names) + "\n")
    command = f"'{program}' {library} < /run/gpu-hook/names"
    out = box.run(["sh", "-c", command], timeout=400, **env)
    return dict(line.split(" " if program.name == "every" else ": ", 1) for line in out.stdout.splitlines())


# Names


@pytest.mark.parametrize("library", KINDS)
def test_the_lists_are_what_the_libraries_export(driver: Driver, library: str) -> None:
    file = build.SYMBOLS / f"{library}-{driver.version}.txt"
    assert file.read_text().split() == listed(driver.files[library])


@pytest.mark.parametrize("library", KINDS)
def test_no_symbol_has_a_version(driver: Driver, shim: Path, library: str) -> None:
    """So the shim needs none, and dlvsym finds nothing in either."""
    for file in (driver.files[library], shim / f"{library}.so.1"):
        assert "Version definition" not in readelf(file, "-V")


WHERE = """
import ctypes, sys
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("at", ctypes.c_void_p)]
libc = ctypes.CDLL(None)
libc.dlsym.restype = ctypes.c_void_p
libc.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
libc.dladdr.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
handle = ctypes.CDLL(sys.argv[1])._handle
for name in open("/run/gpu-hook/names").read().split():
    at, info = libc.dlsym(handle, name.encode()), Info()
    print(name, info.file.decode() if at and libc.dladdr(at, ctypes.byref(info)) else "-")
"""


@pytest.mark.parametrize("library", KINDS)
def test_every_exported_name_resolves_to_the_shim(over: Box, driver: Driver, library: str) -> None:
    """All but the debugger's interface, which is the driver's own."""
    names = sorted(exported(driver.files[library]))
    (over.place / "names").write_text("\n".join(names) + "\n")
    out = over.run([sys.executable, "-c", WHERE, f"{library}.so.1"]).stdout
    found = dict(line.split(" ", 1) for line in out.splitlines())
    assert list(found) == names
    ours = set(listed(driver.files[library]))
    shim, real = str(over.shim / f"{library}.so.1"), f"/run/gpu-hook/driver/{KINDS[library]}"
    assert {n: found[n] for n in names} == {n: shim if n in ours else real for n in names}
    assert len(ours) > 250 and all(n.startswith("cudbg") for n in set(names) - ours)


# Answers


@pytest.mark.parametrize("library", KINDS)
def test_every_function_answers_as_the_drivers_own(over: Box, driver: Driver, programs: Path, library: str) -> None:
    names = listed(driver.files[library])
    theirs = told(over, programs / "every", f"/run/gpu-hook/driver/{KINDS[library]}", names)
    ours = told(over, programs / "every", f"{library}.so.1", names)
    assert "missing" not in ours.values() and list(ours) == list(theirs) == names
    pointers = {"nvmlErrorString"}
    other = {n: (theirs[n], ours[n]) for n in names if theirs[n] != ours[n] and n not in pointers}
    assert not other, other
    if library == "libcuda":
        assert ours["cuInit"] == "100"  # CUDA_ERROR_NO_DEVICE
        assert ours["cuMemAlloc_v2"] == "3"  # CUDA_ERROR_NOT_INITIALIZED


def test_cugetprocaddress_answers_as_the_drivers_own(over: Box, driver: Driver, programs: Path) -> None:
    """The same codes for every function, also those of newer drivers, each version and kind of default stream."""
    names = sorted({*build.known("*cuda-*.txt"), "cuNoSuchThing", "cu", ""})
    theirs = told(over, programs / "ask", "/run/gpu-hook/driver/cuda", names)
    ours = told(over, programs / "ask", "libcuda.so.1", names)
    if "cuGetProcAddress_v2" not in listed(driver.files["libcuda"]):  # before 12.0; the shim's finds nothing there
        assert all(answer.endswith(" 500 0 -1") for answer in ours.values())
        ours = {asked: answer.removesuffix(" 500 0 -1") for asked, answer in ours.items()}
    other = {asked: (theirs.get(asked), answer) for asked, answer in ours.items() if theirs.get(asked) != answer}
    assert not other, dict(list(other.items())[:20])
    assert len(ours) == len(names) * 44 and len(set(ours.values())) > 1, set(ours.values())


# Ways to link

VERSIONED = "LIBCUDA_1 {{ global: {names}; local: *; }};"
LINKS = {
    "lazy": ("-Wl,-z,lazy",),
    "now": ("-Wl,-z,now",),
    "as-needed": ("-Wl,--as-needed",),
    "no-pie": ("-no-pie",),
    "versioned": (),
}


def program_of_all(library: str, names: list[str], how: str, real: Path) -> Path:
    """A program with every one of these functions, linked to the driver's own file as programs are."""
    first = FIRST[library]
    lines = [*(f"int {n}();" for n in names), "static int (*const all[])() = {", *(f"{n}," for n in names), "};"]
    lines += ["#include <stdio.h>", "int main(void) { unsigned n = 0;"]
    lines += ["for (unsigned i = 0; i < sizeof all / sizeof *all; i++) n += all[i] != 0;"]
    lines += [f'printf("%u %d\\n", n, {first}(0)); return 0; }}']
    everything = source("all.c", "\n".join(lines))
    if how == "versioned":  # a stub with symbol versions, as somebody's toolkit might have it
        stub = source("stub.c", "\n".join(f"int {n}(void) {{ return -1; }}" for n in names))
        versions = source("stub.map", VERSIONED.format(names="; ".join(names)))
        link = ["-shared", "-fPIC", f"-Wl,-soname,{library}.so.1", f"-Wl,--version-script={versions}"]
        real = compile_kept(f"{library}.so", "-w", *link, str(stub))
    return compile_kept(
        "all", "-w", "-std=gnu11", *LINKS[how], str(everything), str(real), "-Wl,--allow-shlib-undefined"
    )


@pytest.mark.parametrize("how", LINKS)
@pytest.mark.parametrize("library", KINDS)
def test_programs_linked_in_every_way(over: Box, driver: Driver, library: str, how: str) -> None:
    """With every function of the library, bound at the start or at the first call."""
    names = listed(driver.files[library])
    program = program_of_all(library, names, how, driver.files[library])
    said = set()
    for folder in (driver.plain, over.shim):
        for env in ({}, {"LD_BIND_NOW": "1"}):
            out = over.run([str(program)], LD_LIBRARY_PATH=str(folder), **env)
            said.add(out.stdout)
    assert len(said) == 1 and said.pop().startswith(f"{len(names)} "), said


# Programs


def test_nvidia_smi_says_what_it_says_without_us(real_box: Box, real_driver: Path) -> None:
    """It says that there is no driver, with its own libraries first on the path and with ours."""
    program = str(real_driver / "nvidia-smi")
    ours = real_box.run([program], check=False)
    plain = subprocess.run(
        [program], env={"LD_LIBRARY_PATH": str(real_driver / "plain")}, capture_output=True, text=True
    )
    assert "couldn't communicate with the NVIDIA driver" in ours.stdout
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)


CUDART = """
from cuda.bindings import runtime
print(runtime.cudaGetDeviceCount(), runtime.cudaMalloc(10), runtime.cudaDriverGetVersion())
print(runtime.cudaGetDriverEntryPoint(b"cuMemAlloc", 0)[0])
opened = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "/libcuda.so" in line or "/gpu-hook/driver" in line}
print(sorted(opened))
"""


def test_a_static_cudart_finds_the_shim(over: Box, driver: Driver) -> None:
    """cuda-bindings contains a static cudart, which opens libcuda.so.1 and asks it for every function."""
    pytest.importorskip("cuda.bindings.runtime")
    ours = over.run([sys.executable, "-c", CUDART]).stdout.splitlines()
    env = {"LD_LIBRARY_PATH": str(driver.plain), "PATH": os.environ["PATH"]}
    plain = subprocess.run([sys.executable, "-c", CUDART], env=env, capture_output=True, text=True, check=True)
    assert ours[:-1] == plain.stdout.splitlines()[:-1]
    assert str(over.shim / "libcuda.so.1") in ours[-1] and "/run/gpu-hook/driver/cuda" in ours[-1]
