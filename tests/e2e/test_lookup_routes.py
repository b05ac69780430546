"""Every way in which programs find the driver's functions, in a real container: each is stopped at the limit.

The programs run on an image with the host's C library; what they hold is read from the simulated GPU itself.
"""

import os
import shutil
import stat
from pathlib import Path

import pytest

from testbed.pinned import wheels
from testbed.stage import CONTEXT_MIB, LIMIT_MIB, MULTIARCH, Stage, compile_client, glibc_image, stopped_at_the_limit

pytestmark = [pytest.mark.root, pytest.mark.slow]

LIBDIR = f"/usr/lib/{MULTIARCH}"
FUNCTIONS = (
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemCreate",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuArray3DCreate_v2",
)
PLUGIN = ("-fPIC", "-shared", "-Wl,-soname,plugin.so", "-Wl,--as-needed")
VERSIONS = (11030, 12000, 13000)


@pytest.fixture(scope="module")
def rootfs(stage: Stage, native: Path) -> Path:
    """An image with the clients in /bin."""
    root = glibc_image(stage.folder / "rootfs")
    bin, libcuda = root / "bin", str(native / "libcuda.so.1")
    plugin = compile_client(bin / "plugin.so", "plugin.c", *PLUGIN, libcuda)
    compile_client(bin / "route", "route.c", "-ldl")
    compile_client(bin / "route-linked", "route.c", "-DLINKED", "-Wl,--no-as-needed", "-ldl", libcuda)
    compile_client(bin / "route-as-needed", "route.c", "-DLINKED", "-Wl,--as-needed", "-ldl", libcuda)
    compile_client(bin / "route-library", "route.c", "-DLIBRARY", "-ldl", str(plugin), "-Wl,-rpath,/bin")
    return root


@pytest.fixture(scope="module")
def container(stage: Stage, rootfs: Path) -> str:
    return stage.start(rootfs)


ROUTES = {
    "linked": ("route-linked", "direct"),
    "linked as needed": ("route-as-needed", "direct"),
    "linked to a library that is": ("route-library", "library"),
    "RTLD_NEXT of a linked program": ("route-linked", "next"),
    "RTLD_DEFAULT": ("route", "default"),
    "dlopen libcuda.so.1": ("route", "libcuda.so.1"),
    "dlopen libcuda.so": ("route", "libcuda.so"),
    "dlopen by path": ("route", f"{LIBDIR}/libcuda.so.1"),
    "dlmopen": ("route", "dlmopen"),
    "plugin": ("route", "plugin"),
    "RTLD_DEEPBIND plugin": ("route", "deepbind"),
    "TRITON_LIBCUDA_PATH": ("route", "triton"),
}


@pytest.mark.parametrize("route", ROUTES)
def test_route(stage: Stage, container: str, route: str) -> None:
    for function in FUNCTIONS:
        stopped_at_the_limit(stage.exec(container, *ROUTES[route], function))


@pytest.mark.parametrize("flags", (0, 1, 2))
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ask", ("getproc", "getproc2", "getproc2r"))
def test_proc_address(stage: Stage, container: str, ask: str, version: int, flags: int) -> None:
    """Both versions of cuGetProcAddress, for old and new programs, with each kind of default stream."""
    stopped_at_the_limit(stage.exec(container, "route", f"{ask}-{version}-{flags}", "cuMemAllocAsync"))


@pytest.mark.parametrize("static", (True, False))
def test_cuda_runtime_library(stage: Stage, rootfs: Path, container: str, static: bool) -> None:
    """CUDA's own runtime library loads the shim and nothing beside it.

    It then asks the driver for tables that only the real one has, so it ends there on simulated GPUs; how it asks for
    functions is among the routes of cuGetProcAddress.
    """
    folder = wheels("cuda-12-runtime") / "nvidia/cuda_runtime/lib"
    name = "libcudart_static.a" if static else "libcudart.so.12"
    shutil.copy(folder / "libcudart.so.12", rootfs / LIBDIR.lstrip("/"))
    compile_client(rootfs / "bin/runtime", "runtime.c", str(folder / name), "-ldl", "-lrt", "-lpthread")
    done = stage.runc("exec", container, "runtime")
    said = done.stdout.splitlines()
    assert said[0].startswith("cudaGetDeviceCount"), done
    assert said[1] == "cudaMalloc -1" or said[1] == "cudaMalloc 2"  # 2 GiB are never granted
    assert sorted(said[2:]) == ["loaded /run/gpu-hook/driver/cuda", f"loaded {LIBDIR}/libcuda.so.1"]


def test_ldconfig(stage: Stage, rootfs: Path) -> None:
    """Images that call ldconfig when they start find the shim in its list, and its links lead to the shim."""
    for file in ("sbin/ldconfig", "etc/ld.so.conf"):
        (rootfs / file).parent.mkdir(exist_ok=True)
    shutil.copy(shutil.which("ldconfig", path="/sbin:/usr/sbin") or "", rootfs / "sbin/ldconfig")
    (rootfs / "etc/ld.so.conf").write_text(f"{LIBDIR}\n")
    id = stage.start(rootfs)
    assert stage.runc("exec", id, "/sbin/ldconfig").returncode == 0
    listed = [line.strip() for line in stage.runc("exec", id, "/sbin/ldconfig", "-p").stdout.splitlines()]
    assert f"libcuda.so.1 (libc6,x86-64) => {LIBDIR}/libcuda.so.1" in listed, listed
    for name in ("libcuda.so.1", "libcuda.so", f"{LIBDIR}/libcuda.so"):
        stopped_at_the_limit(stage.exec(id, "route", name, "cuMemAlloc_v2"))


def test_the_drivers_own_file_name(stage: Stage, container: str) -> None:
    stopped_at_the_limit(stage.exec(container, "route", f"libcuda.so.{stage.version}", "cuMemAlloc_v2"))


def test_dlvsym_finds_nothing(stage: Stage, container: str) -> None:
    """The driver's library has no versions: who asks for one finds nothing there, and nothing here."""
    assert "missing=cuInit" in stage.exec(container, "route", "dlvsym", "cuMemAlloc_v2").output


def test_no_environment(stage: Stage, container: str) -> None:
    for program, route in ROUTES.values():
        if route != "triton":
            stopped_at_the_limit(stage.exec(container, "/bin/env", "-i", f"/bin/{program}", route, "cuMemAlloc_v2"))


def test_setuid_program_of_a_plain_user(stage: Stage, rootfs: Path) -> None:
    """The loader ignores LD_* for such a program, and it may not be what finds our library."""
    own = rootfs / "bin/route-setuid"
    own.write_bytes((rootfs / "bin/route-linked").read_bytes())
    own.chmod(0o755 | stat.S_ISUID)

    def plain_user(spec: dict[str, object]) -> None:
        spec["process"].update(user={"uid": 1000, "gid": 1000}, noNewPrivileges=False)  # type: ignore[attr-defined]

    id = stage.start(rootfs, edit=plain_user, env={"LD_LIBRARY_PATH": "/nowhere"})
    for program in ("route-setuid", "route-linked"):
        stopped_at_the_limit(stage.exec(id, program, "direct", "cuMemAlloc_v2"))


@pytest.mark.parametrize("env", ({"LD_LIBRARY_PATH": "/opt"}, {"LD_PRELOAD": "/opt/libother.so"}))
def test_environment_of_the_image(stage: Stage, rootfs: Path, env: dict[str, str]) -> None:
    """An image may preload and search what it likes."""
    if not (rootfs / "opt/libother.so").exists():
        compile_client(rootfs / "opt/libother.so", "-shared", "-x", "c", os.devnull)
    for program, route in ROUTES.values():
        held = stage.fill(rootfs, program, route, "cuMemAlloc_v2", env=env)
        assert "cannot be preloaded" not in held.output
        stopped_at_the_limit(held)


def test_two_programs_share_the_limit(stage: Stage, container: str, rootfs: Path) -> None:
    """Found by different routes, counted together: the second has no room for a context of its own."""
    first = stage.runc.popen("exec", container, "route", "libcuda.so", "cuMemAlloc_v2", stdin=-1, stdout=-1)
    assert first.stdout and first.stdin
    assert first.stdout.readline() == f"granted={LIMIT_MIB - CONTEXT_MIB} code=2\n"
    second = stage.exec(container, "route-linked", "direct", "cuMemCreate")
    used = stage.used_mib()
    first.stdin.close()
    first.wait()
    first.stdout.close()
    assert second.output == "failed=2\n" and used == LIMIT_MIB, (second, used)  # CUDA_ERROR_OUT_OF_MEMORY


def test_the_smallest_limit_is_a_context(stage: Stage, rootfs: Path) -> None:
    """What is left for a program is the limit without it; below it, no program could run: refused with the number."""
    for mib, granted in ((CONTEXT_MIB, 0), (CONTEXT_MIB + 32, 32)):
        held = stage.fill(rootfs, "route-linked", "direct", "cuMemAlloc_v2", annotations=memory(mib))
        assert (held.granted, held.code, held.used) == (granted, 2, mib), held
    said = stage.refused(rootfs, "GH-201", annotations=memory(CONTEXT_MIB - 1))
    less = CONTEXT_MIB - 1
    asked = f"{less} MiB asked (did you mean {less}%?); ask for more"
    assert f"takes {CONTEXT_MIB} MiB for a program's context alone, {asked}" in said


def memory(mib: int) -> dict[str, str]:
    return {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": f"{mib}Mi"}


def test_a_whole_gpu_is_not_limited(stage: Stage, rootfs: Path) -> None:
    """The clients can fail: without a limit they take the GPU."""
    held = stage.fill(rootfs, "route-linked", "direct", "cuMemAlloc_v2", annotations={"gpu-hook.io/devices": "1"})
    assert held.code == 2 and held.granted > 4096, held
