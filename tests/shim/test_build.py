"""What the build makes, and that it refuses functions that nobody has classified."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from oci_hook.core import layout
from oci_hook.shim import build
from tests.shim.box import ROOT

LIBRARIES = {library.soname: library for library in build.LIBRARIES}


def readelf(path: Path, *options: str) -> str:
    return subprocess.run(["readelf", "-W", *options, str(path)], capture_output=True, text=True, check=True).stdout


def exported(path: Path) -> set[str]:
    rows = [line.split() for line in readelf(path, "--dyn-syms").splitlines()]
    return {r[7].split("@")[0] for r in rows if len(r) > 7 and r[4] in ("GLOBAL", "WEAK") and r[6] != "UND"}


@pytest.mark.parametrize("soname", LIBRARIES)
def test_every_known_name_is_exported_and_nothing_else(shim: Path, soname: str) -> None:
    library = LIBRARIES[soname]
    own = set(build.table(library.taken)) | (set(build.table("GH_NVML_REFUSED")) if "nvidia-ml" in soname else set())
    assert exported(shim / soname) == set(build.known(library.lists)) | own


@pytest.mark.parametrize("soname", LIBRARIES)
def test_needs_only_libc_and_the_real_library(shim: Path, soname: str) -> None:
    text = readelf(shim / soname, "-d", "-V")
    real = layout.REAL_LIBCUDA if soname == "libcuda.so.1" else layout.REAL_LIBNVML
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", text))
    assert needed == {real, "libc.so.6", "libdl.so.2", "libpthread.so.0"}
    assert f"soname: [{soname}]" in text
    assert "INIT_ARRAY" not in text and "FINI" not in text and "TEXTREL" not in text
    floors = {tuple(int(n) for n in v.split(".")) for v in re.findall(r"GLIBC_([\d.]+)", text)}
    assert max(floors) <= (2, 17), floors


def test_no_signal_exit_or_abort(shim: Path) -> None:
    for soname in LIBRARIES:
        rows = [line.split() for line in readelf(shim / soname, "--dyn-syms").splitlines()]
        imports = {r[7].split("@")[0] for r in rows if len(r) > 7 and r[6] == "UND"}
        assert not imports & {"signal", "sigaction", "exit", "_exit", "abort", "raise", "getenv", "secure_getenv"}
        assert len(imports) <= 45, imports


def test_no_call_is_a_cancellation_point(shim: Path) -> None:
    """pthreads(7). A thread that a program cancels would leave locks held; syscall(2) is none."""
    points = (
        "close creat f?open(at)? fsync fdatasync msync nanosleep clock_nanosleep u?sleep pause p?poll p?select "
        "epoll_p?wait p?(read|write)v? pthread_join pthread_cond_(timed)?wait sem_(timed)?wait "
        "(send|recv)(msg|from|to)? accept connect sig(pause|suspend|wait|waitinfo|timedwait) wait(pid|id)? system lockf "
        "f?(read|write|printf|puts)"
    )
    for soname in LIBRARIES:
        rows = [line.split() for line in readelf(shim / soname, "--dyn-syms").splitlines()]
        imports = {r[7].split("@")[0].removesuffix("64") for r in rows if len(r) > 7 and r[6] == "UND"}
        assert not {name for name in imports if re.fullmatch(points.replace(" ", "|"), name)}


def test_no_open_can_sleep(shim: Path) -> None:
    """Another tenant can have a lease on a file that it can open, or put a pipe in its place."""
    for soname in LIBRARIES:
        rows = [line.split() for line in readelf(shim / soname, "--dyn-syms").splitlines()]
        imports = {r[7].split("@")[0] for r in rows if len(r) > 7 and r[6] == "UND"}
        assert not {name for name in imports if re.fullmatch(r"f?open(at|dir)?(64)?|creat(64)?|shm_open", name)}
    opens = []
    for source in sorted((ROOT / "oci_hook" / "shim").rglob("*.c")):
        text = source.read_text()
        assert "SYS_open," not in text and "SYS_openat2" not in text
        for call in re.findall(r"SYS_openat,[^;]*;", text):
            opens.append(source.name)
            flags = text if "always" in call else call
            assert "O_NONBLOCK" in flags and "O_CLOEXEC" in flags, (source.name, call)
    assert len(opens) >= 7, opens


def test_paths_are_those_of_the_layout() -> None:
    text = (ROOT / "oci_hook" / "shim" / "pages" / "layout.h").read_text()
    words = dict(re.findall(r"#define (GH_\w+) (.*)", text))

    def value(name: str) -> str:
        return re.sub(r"GH_PRIVATE ", lambda _: words["GH_PRIVATE"], words[name]).replace('"', "").replace(" ", "")

    assert value("GH_PRIVATE") == layout.PRIVATE
    assert value("GH_REAL_LIBCUDA") == layout.REAL_LIBCUDA
    assert value("GH_REAL_LIBNVML") == layout.REAL_LIBNVML
    assert value("GH_POLICY_FILE") == layout.POLICY_PAGE
    assert value("GH_ACCOUNT_FILE") == layout.ACCOUNT_FILE


def test_an_unclassified_function_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    build.check()
    kinds = build.classes()
    monkeypatch.setattr(build, "classes", lambda: {k: v for k, v in kinds.items() if k != "cuMemcpy"})
    with pytest.raises(SystemExit, match="cuMemcpy: not classified"):
        build.check()


def test_an_allocating_function_without_interceptor_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    real = build.table
    monkeypatch.setattr(build, "table", lambda macro: [n for n in real(macro) if n != "cuArray3DCreate_v2"])
    with pytest.raises(SystemExit, match="cuArray3DCreate_v2: allocates, but not in"):
        build.check()


def test_an_intercepted_function_that_no_list_has_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    real = build.known
    monkeypatch.setattr(build, "known", lambda lists: [n for n in real(lists) if n != "cuMemcpyBatchAsync_v2_ptsz"])
    with pytest.raises(SystemExit, match="cuMemcpyBatchAsync_v2_ptsz: in intercepts.def, but in no list"):
        build.check()


def test_the_lists_have_what_macros_of_newer_headers_make() -> None:
    """And all variants of a name for streams of each thread, where a list has one."""
    names = set(build.known("*cuda-*.txt"))
    assert {"cuEventElapsedTime_v2", "cuStreamGetDevice_ptsz", "cuMemBatchDecompressAsync_ptsz"} < names
    assert {name[: -len("_ptsz")] for name in names if name.endswith("_ptsz")} < names


def test_what_launches_or_copies_by_its_name_passes_the_gate() -> None:
    """But what only the host, its memory or another GPU is concerned with; each was looked at by hand."""
    kinds = build.classes()
    other = re.compile(
        r"cu(LaunchHostFunc|StreamAddCallback|Stream(Wait|Write)Value|StreamBatchMemOp|(Signal|Wait)External"
        r"|Memcpy(HtoD|DtoH|HtoA|AtoH)|MemPrefetch|MemDiscard)"
    )
    for name, kind in kinds.items():
        if name.startswith("cu") and kind == "launches":
            assert other.match(name), name
        if re.match(r"cu(Launch|Memcpy|Memset|FabricCpy|MemBatchDecompress)", name):
            assert kind == "gated" or other.match(name), (name, kind)


def test_nothing_that_looks_like_an_allocation_is_called_harmless() -> None:
    """Their names suggest an allocation; each was checked by hand and makes none."""
    looked_at = {
        "cuMemAddressReserve",  # addresses, no memory
        "cuMemGetAllocationGranularity",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuGraphMemAllocNodeGetParams",
        "cuTensorMapSetAllocationClass",
    }
    kinds = build.classes()
    for name, kind in kinds.items():
        if name.startswith("cu") and re.search(r"Alloc|MemCreate|ArrayCreate|Reserve|Import.*Memory", name):
            assert kind in ("allocates", "frees", "host", "imports") or name in looked_at, (name, kind)


def test_every_nvml_setter_is_refused() -> None:
    kinds = build.classes()
    own = {
        "nvmlDeviceSetCpuAffinity",
        "nvmlDeviceClearCpuAffinity",
        "nvmlDeviceClearFieldValues",
    }  # of the caller alone
    for name, kind in kinds.items():
        if re.match(r"nvml(Device|System|Unit|VgpuInstance|GpuInstance)?(Set|Clear|Reset|Create|Destroy|Remove)", name):
            assert kind == "refused" or name in own, name


@pytest.mark.slow
def test_arm64_is_built_too() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "build"), "--part", "shim", "--arch", "aarch64"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    made = ROOT / "build" / "aarch64"
    for soname, library in LIBRARIES.items():
        assert "AArch64" in readelf(made / soname, "-h")
        assert set(build.known(library.lists)) <= exported(made / soname)
        floors = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", readelf(made / soname, "-V"))}
        assert max(floors) <= (2, 17)
