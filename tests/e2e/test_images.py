"""Images of every kind: a program in it is held to the limit, or the container is refused with a code.

docs/guide/images.md says for users what these tests show.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oci_hook.cli.main import cli
from oci_hook.core.layout import PRIVATE, REAL_LIBCUDA
from testbed import tiny_image
from testbed.containers import Bundle, Runc
from testbed.installs import Install
from testbed.packages import unpacked
from testbed.stage import (
    ARCH,
    CONTEXT_MIB,
    LIMIT_MIB,
    MULTIARCH,
    MUSL,
    Stage,
    compile_client,
    glibc_image,
    search_only,
    stopped_at_the_limit,
)

pytestmark = [pytest.mark.root, pytest.mark.slow]

FILL = ("cuMemAlloc_v2",)


@pytest.fixture(scope="module")
def clients(stage: Stage, native: Path) -> Path:
    """route and route-linked, compiled once."""
    folder = stage.folder / "clients"
    compile_client(folder / "route", "route.c", "-ldl")
    linked = ("-DLINKED", "-Wl,--no-as-needed", "-ldl", str(native / "libcuda.so.1"))
    compile_client(folder / "route-linked", "route.c", *linked)
    return folder


@pytest.fixture
def image(tmp_path: Path, clients: Path) -> Callable[..., Path]:
    """image(libdir, libc) -> the root of an image with the clients in it."""

    def make(libdir: str = f"usr/lib/{MULTIARCH}", libc: Path | None = None) -> Path:
        root = glibc_image(tmp_path / "rootfs", libdir, libc)
        for client in clients.iterdir():
            shutil.copy(client, root / "bin")
        return root

    return make


def works(stage: Stage, root: Path, **more: Any) -> None:
    """What is linked against libcuda and what opens it are both held to the limit."""
    stopped_at_the_limit(stage.fill(root, "/bin/route-linked", "direct", *FILL, **more))
    stopped_at_the_limit(stage.fill(root, "/bin/route", "libcuda.so.1", *FILL, **more))


def own_libcuda(stage: Stage, at: Path) -> None:
    """A driver library that the image brings: it knows no limit."""
    at.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(stage.driver / "libcuda.so.1", at)


# C libraries and folders


def test_shims_ask_for_symbols_of_2012_at_most(native: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        minors = [int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", (native / name).read_bytes())]
        assert minors and max(minors) <= 17


@pytest.mark.parametrize("suite", ("bullseye", "trixie", "sid"))
def test_c_libraries_of_2020_to_today(stage: Stage, image: Callable[..., Path], suite: str) -> None:
    works(stage, image(libc=unpacked(suite, "libc6")))


@pytest.mark.parametrize("libdir", (f"usr/lib/{MULTIARCH}", "usr/lib64", "usr/lib"))
def test_library_folder_of_a_distribution(stage: Stage, image: Callable[..., Path], libdir: str) -> None:
    """Debian and Ubuntu, Red Hat and SUSE, those with one folder; loaders search only their own."""
    root = image(libdir)
    if libdir == "usr/lib64":
        assert not (root / "usr/lib").exists()
    works(stage, root)


def test_folders_that_are_links(stage: Stage, image: Callable[..., Path]) -> None:
    """Arch: /lib64 and /usr/lib64 are /usr/lib."""
    root = image("usr/lib")
    loader = tiny_image.LOADER[ARCH].lstrip("/")
    shutil.rmtree(root / "lib64")
    for link, to in (("usr/lib64", "lib"), ("lib64", "usr/lib"), ("lib", "usr/lib")):
        os.symlink(to, root / link)
    assert (root / loader).exists()
    works(stage, root)


def test_debian_without_its_mark(stage: Stage, image: Callable[..., Path]) -> None:
    """Chiselled and distroless images may lack /etc/debian_version: the C library says where the loader looks."""
    root = image()
    (root / "etc/debian_version").unlink()
    works(stage, root)


def test_before_the_merge_of_usr(stage: Stage, image: Callable[..., Path]) -> None:
    """/lib/<multiarch> has the C library, /usr/lib/<multiarch> the rest."""
    root = image(f"lib/{MULTIARCH}")
    assert not (root / "usr/lib").exists()
    loader = root / f"lib/{MULTIARCH}" / os.path.basename(tiny_image.LOADER[ARCH])
    search_only(loader, f"/lib/{MULTIARCH}", f"/usr/lib/{MULTIARCH}")
    works(stage, root)


def test_no_shell(stage: Stage, image: Callable[..., Path]) -> None:
    """Distroless: the program is all there is in /bin."""
    root = image()
    for file in (root / "bin").iterdir():
        if not file.name.startswith("route"):
            file.unlink()
    works(stage, root)


def test_nix(stage: Stage, tmp_path: Path, native: Path) -> None:
    """No loader and no library where others have them; programs look in /run/opengl-driver/lib by their RUNPATH."""
    store = "/nix/store/0-glibc/lib"
    root = glibc_image(tmp_path / "nix", store.lstrip("/"))
    shutil.rmtree(root / "lib64")
    loader = f"{store}/{os.path.basename(tiny_image.LOADER[ARCH])}"
    link = ["-ldl", f"-Wl,--dynamic-linker={loader}"]
    driver = "-Wl,-rpath,/run/opengl-driver/lib"
    libcuda = ["-DLINKED", "-Wl,--no-as-needed", str(native / "libcuda.so.1")]
    compile_client(root / "bin/route-linked", "route.c", *link, driver, *libcuda)
    compile_client(root / "bin/route", "route.c", *link, driver)
    works(stage, root)
    compile_client(root / "bin/route", "route.c", *link)
    compile_client(root / "bin/route-linked", "route.c", *link, *libcuda)
    assert "unopened=" in stage.fill(root, "/bin/route", "libcuda.so.1", *FILL).output
    works(stage, root, env={"LD_LIBRARY_PATH": "/usr/lib64"})  # as nixpkgs' dockerTools tell their users


def test_musl_starts_with_a_warning(stage: Stage, tmp_path: Path) -> None:
    """Neither the driver's libraries nor ours can be loaded; what needs no driver, such as a sidecar, still runs."""
    root = tiny_image.busybox(tmp_path / "musl")
    shutil.rmtree(root / "usr/lib64")
    (root / "lib").mkdir()
    libc = next(unpacked("bookworm", "musl").rglob("lib/*-linux-musl/libc.so"))
    shutil.copy(libc, root / f"lib/ld-musl-{ARCH}.so.1")
    (root / f"lib/ld-musl-{ARCH}.so.1").chmod(0o755)
    compile_client(root / "bin/route", "route.c", target=MUSL)
    done = stage.run(root, "/bin/route", "libcuda.so.1", *FILL)
    assert "unopened=" in done.stdout and "granted" not in done.stdout, done
    warned = [line for line in done.stderr.splitlines() if "GH-408" in line]
    assert len(warned) == 1 and "level=warning" in warned[0] and "musl" in warned[0]
    spec = stage.bundle(root, ("/bin/echo", "hello")) / "config.json"
    told = CliRunner().invoke(cli, ["explain", "--spec", str(spec), "--prefix", str(stage.prefix)])
    assert told.exit_code == 0 and "GH-408" in told.stderr, told.output
    assert stage.run(root, "/bin/echo", "hello").stdout == "hello\n"


def test_no_c_library_at_all(stage: Stage, tmp_path: Path) -> None:
    """A static program in an empty image: nothing to hold, nothing to warn of."""
    root = tiny_image.busybox(tmp_path / "static")
    shutil.rmtree(root / "usr")
    done = stage.run(root, "/bin/echo", "hello")
    assert (done.stdout, done.stderr) == ("hello\n", "")


# Driver libraries that the image brings

USUAL = (
    f"usr/lib/{MULTIARCH}/libcuda.so.535.54.03",
    "usr/lib64/libcuda.so.1",
    "lib64/libcuda.so.535",
    "usr/lib/libcuda.so",
    "lib/libcuda.so.1",
    "usr/local/lib/libcuda.so.1",
    f"usr/local/lib/{MULTIARCH}/libcuda.so.1",
    "usr/local/nvidia/lib64/libcuda.so.1",
    "usr/local/nvidia/lib/libcuda.so.1",
    "usr/lib/wsl/lib/libcuda.so.1",
    "usr/local/cuda/compat/libcuda.so.1",
    "usr/local/cuda-13.0/compat/libcuda.so.580.65.06",
)


def test_own_libcuda_in_the_usual_places_is_covered(stage: Stage, image: Callable[..., Path]) -> None:
    root = image()
    for path in USUAL:
        own_libcuda(stage, root / path)
    id = stage.start(root)
    for path in USUAL:
        stopped_at_the_limit(stage.exec(id, "route", f"/{path}", *FILL))


def test_cuda_compat_first_in_the_search_path(stage: Stage, image: Callable[..., Path]) -> None:
    root = image()
    compat = root / "usr/local/cuda-13.0/compat"
    own_libcuda(stage, compat / "libcuda.so.580.65.06")
    os.symlink("libcuda.so.580.65.06", compat / "libcuda.so.1")
    os.symlink("libcuda.so.1", compat / "libcuda.so")
    os.symlink("cuda-13.0", root / "usr/local/cuda")
    for folder in ("/usr/local/cuda/compat", "/usr/local/cuda-13.0/compat/"):
        works(stage, root, env={"LD_LIBRARY_PATH": folder})


def test_other_libraries_of_cuda_compat(prefix: Install, bundle: Bundle, runc: Runc, rootfs: Path) -> None:
    """Another driver's compiler must not be loaded beside this driver's libcuda."""
    compat = rootfs / "usr/local/cuda-13.0/compat"
    compat.mkdir(parents=True)
    (compat / "libnvidia-ptxjitcompiler.so.580").write_text("another driver's\n")
    os.symlink("libnvidia-ptxjitcompiler.so.580", compat / "libnvidia-ptxjitcompiler.so.1")
    (compat / "libother.so.1").write_text("not of a driver\n")
    names = [f"/usr/local/cuda-13.0/compat/{name}" for name in ("libnvidia-ptxjitcompiler.so.1", "libother.so.1")]
    asked = {"gpu-hook.io/devices": "0", "gpu-hook.io/memory": "1Gi"}
    done = runc.run(bundle(asked, args=["cat", *names]), prefix)
    assert done.stdout == "driver file libnvidia-ptxjitcompiler.so.1\nnot of a driver\n", done


def test_own_libcuda_in_the_search_path_is_covered(stage: Stage, image: Callable[..., Path]) -> None:
    root = image()
    own_libcuda(stage, root / "opt/app/lib/libcuda.so.1")
    works(stage, root, env={"LD_LIBRARY_PATH": "relative::/nowhere:/opt/app/lib"})


def test_own_libcuda_to_which_the_loaders_cache_leads_is_covered(stage: Stage, image: Callable[..., Path]) -> None:
    """The loader asks /etc/ld.so.cache before its own folders."""
    root = image()
    own_libcuda(stage, root / "opt/driver/lib/libcuda.so.1")
    (root / "etc/ld.so.conf").write_text("/opt/driver/lib\n")
    subprocess.run([shutil.which("ldconfig", path="/sbin:/usr/sbin") or "", "-r", root], check=True)
    works(stage, root)


@pytest.mark.skipif(ARCH != "x86_64", reason="the levels of x86-64")
def test_own_libcuda_for_the_processors_level_is_covered(stage: Stage, image: Callable[..., Path]) -> None:
    root = image()
    for level in ("v2", "v3", "v4"):
        own_libcuda(stage, root / f"usr/lib/{MULTIARCH}/glibc-hwcaps/x86-64-{level}/libcuda.so.1")
    works(stage, root)


@pytest.mark.parametrize("path", ("/srv/libcuda.so.1", REAL_LIBCUDA))
def test_another_library_is_not_stopped(stage: Stage, image: Callable[..., Path], path: str) -> None:
    """Documented: a program that goes out of its way to another library than it is given is found, not stopped."""
    root = image()
    own_libcuda(stage, root / "srv/libcuda.so.1")
    held = stage.fill(root, "/bin/route", path, *FILL)
    assert held.granted > LIMIT_MIB, held


@pytest.mark.parametrize("hard", (False, True))
def test_names_that_are_links_to_each_other(stage: Stage, image: Callable[..., Path], hard: bool) -> None:
    root = image()
    libdir = root / f"usr/lib/{MULTIARCH}"
    own_libcuda(stage, libdir / "libcuda.so.535.54.03")
    link = os.link if hard else os.symlink
    at = str(libdir) + "/" if hard else ""
    link(f"{at}libcuda.so.535.54.03", libdir / "libcuda.so.1")
    link(f"{at}libcuda.so.1", libdir / "libcuda.so")
    works(stage, root)
    for name in ("libcuda.so", "libcuda.so.535.54.03"):
        stopped_at_the_limit(stage.fill(root, "/bin/route", name, *FILL))


def test_links_in_a_circle_are_refused(stage: Stage, image: Callable[..., Path]) -> None:
    root = image()
    libdir = root / f"usr/lib/{MULTIARCH}"
    os.symlink("libcuda.so.1", libdir / "libcuda.so")
    os.symlink("libcuda.so", libdir / "libcuda.so.1")
    assert "libcuda.so" in stage.refused(root, "GH-402")


def test_a_folder_for_a_library_is_refused(stage: Stage, image: Callable[..., Path]) -> None:
    root = image()
    (root / f"usr/lib/{MULTIARCH}/libcuda.so.1").mkdir()
    assert "not a regular file" in stage.refused(root, "GH-402")


def test_a_volume_over_the_library_folder_is_refused(stage: Stage, image: Callable[..., Path]) -> None:
    root = image()
    where = f"/usr/lib/{MULTIARCH}"

    def volume(spec: dict[str, Any]) -> None:
        spec["mounts"].append({"destination": where, "source": f"{root}{where}", "options": ["rbind", "ro"]})

    assert where in stage.refused(root, "GH-402", edit=volume)


def test_a_volume_with_the_nodes_driver_is_refused(stage: Stage, image: Callable[..., Path], tmp_path: Path) -> None:
    """Clouds mount the node's driver at /usr/local/nvidia; that is the real library, which knows no limit."""
    own_libcuda(stage, tmp_path / "nvidia/lib64/libcuda.so.1")

    def volume(spec: dict[str, Any]) -> None:
        source = str(tmp_path / "nvidia")
        spec["mounts"].append({"destination": "/usr/local/nvidia", "source": source, "options": ["rbind", "ro"]})

    said = stage.refused(image(), "GH-402", edit=volume, env={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"})
    assert "/usr/local/nvidia/lib64/libcuda.so.1" in said


# Read-only images


def test_read_only_root(stage: Stage, image: Callable[..., Path]) -> None:
    works(stage, image(), edit=lambda spec: spec["root"].update(readonly=True))


def test_read_only_file_system(stage: Stage, image: Callable[..., Path]) -> None:
    """The runtime cannot make what it mounts on: refused, with the name of what is missing; fine once all is there."""
    root = image()
    for options in (["--bind", str(root)], ["-o", "remount,ro,bind"]):
        subprocess.run(["mount", *options, str(root)], check=True)
    try:
        said = stage.refused(root, "GH-402")
        for _ in range(20):
            missing = re.search(r"GH-402: (\S+) is missing in the image", said)
            if not missing:
                break
            subprocess.run(["mount", "-o", "remount,rw,bind", str(root)], check=True)
            path = root / missing[1].lstrip("/")
            if missing[1] == PRIVATE:
                path.mkdir(parents=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            subprocess.run(["mount", "-o", "remount,ro,bind", str(root)], check=True)
            folder = stage.bundle(root, ("/bin/route", "libcuda.so.1", *FILL))
            id = stage.runc.new_id()
            done = stage.runc("run", "--bundle", str(folder), id, program=stage.program)
            said = done.stderr
        assert f"granted={LIMIT_MIB - CONTEXT_MIB}" in done.stdout, done
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def test_usr_lib64_may_be_absent(stage: Stage, tmp_path: Path) -> None:
    root = tiny_image.busybox(tmp_path / "bare")
    shutil.rmtree(root / "usr/lib64")
    done = stage.run(root, "/bin/ls", "/usr/lib64")
    assert done.returncode == 0 and "libcuda.so.1" in done.stdout.split(), done
