"""Images as people have them, on both front ends: a program in a real container is held to the limit, seen from inside.

Where an image brings a libcuda of its own, this is a copy of the driver's, which knows no limit. Programs find it there
before the node's by the means that the image has: a run path, the search path, links.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed import REPO, tiny_image
from testbed.packages import unpacked
from testbed.stage import (
    ARCH,
    LIMIT_MIB,
    MULTIARCH,
    MUSL,
    Held,
    Stage,
    compile_client,
    glibc_image,
    stopped_at_the_limit,
)

pytestmark = [pytest.mark.root, pytest.mark.slow]

FILL = ("libcuda.so.1", "cuMemAlloc_v2")
BESIDE = ("-Wl,-rpath,$ORIGIN/../lib",)
OLD_TAGS = "-Wl,--disable-new-dtags"  # DT_RPATH, as conda's programs have it
STUB = "int cuInit(unsigned flags) { return (int)flags + 34; }\n"  # CUDA_ERROR_STUB_LIBRARY


class Shape:
    """An image that is being made. run: the command. env, edit: what config.json has for it."""

    def __init__(self, root: Path, driver: Path) -> None:
        self.root = root
        self.driver = driver
        self.run: tuple[str, ...] = ("/bin/route", *FILL)
        self.env: dict[str, str] = {}
        self.edit: Callable[[dict[str, Any]], object] = lambda spec: None

    def own(self, path: str) -> None:
        """A libcuda that the image brings."""
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.driver / "libcuda.so.1", at)

    def program(self, path: str, *link: str) -> None:
        """A program that opens libcuda.so.1, to be run by this path."""
        compile_client(self.root / path, "route.c", "-ldl", *link)
        self.run = (f"/{path}", *FILL)

    def stub(self, path: str) -> None:
        """The toolkit's library to link against, without a driver behind it."""
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        source = at.parent / "stub.c"
        source.write_text(STUB)
        link = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
        compile_client(at, str(source), *link)
        source.unlink()


SHAPES: dict[str, Callable[[Shape], None]] = {}


def shape(make: Callable[[Shape], None]) -> Callable[[Shape], None]:
    SHAPES[make.__name__] = make
    return make


@shape
def conda_whose_python_has_a_run_path(s: Shape) -> None:
    s.own("opt/conda/lib/libcuda.so.1")
    s.program("opt/conda/bin/python", *BESIDE)


@shape
def conda_with_the_older_kind_of_run_path(s: Shape) -> None:
    s.own("opt/conda/lib/libcuda.so.550.1")
    os.symlink("libcuda.so.550.1", s.root / "opt/conda/lib/libcuda.so.1")
    s.program("opt/conda/bin/python", *BESIDE, OLD_TAGS)


@shape
def a_conda_environment_that_a_shell_starts(s: Shape) -> None:
    s.own("root/miniforge3/envs/train/lib/libcuda.so.1")
    s.program("root/miniforge3/envs/train/bin/python", *BESIDE, OLD_TAGS)
    s.run = ("/bin/sh", "-c", f"exec {' '.join(s.run)}")


@shape
def a_prefix_in_path_behind_a_shell(s: Shape) -> None:
    s.own("srv/mamba/lib/libcuda.so.1")
    s.program("srv/mamba/bin/python", *BESIDE)
    s.env = {"PATH": "/srv/mamba/bin:/usr/bin:/bin"}
    s.run = ("/bin/sh", "-c", f"exec python {' '.join(FILL)}")


@shape
def a_virtual_environment_that_links_to_a_prefix(s: Shape) -> None:
    s.own("srv/python/lib/libcuda.so.1")
    s.program("srv/python/bin/python3.11", *BESIDE)
    (s.root / "venv/bin").mkdir(parents=True)
    os.symlink("/srv/python/bin/python3.11", s.root / "venv/bin/python")
    s.run = ("/venv/bin/python", *FILL)


@shape
def a_run_path_to_anywhere(s: Shape) -> None:
    s.own("srv/private/libcuda.so.1")
    s.program("srv/bin/server", "-Wl,-rpath,/nowhere:${ORIGIN}/../private")


@shape
def compat_of_conda_forge(s: Shape) -> None:
    s.own("opt/conda/cuda-compat/libcuda.so.1")
    s.program("opt/conda/bin/python", "-Wl,-rpath,$ORIGIN/../cuda-compat")
    s.run = ("/bin/sh", "-c", f"exec {' '.join(s.run)}")


@shape
def compat_of_the_toolkit(s: Shape) -> None:
    s.own("usr/local/cuda-13.0/compat/libcuda.so.580.1")
    os.symlink("libcuda.so.580.1", s.root / "usr/local/cuda-13.0/compat/libcuda.so.1")
    os.symlink("cuda-13.0", s.root / "usr/local/cuda")
    s.env = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat"}


def nvidias(s: Shape, entry: str, folder: str = "usr/local/cuda-12.4/compat") -> None:
    """NVIDIA's layout: the libraries in lib.real, and an entrypoint that has programs find them."""
    s.own(f"{folder}/lib.real/libcuda.so.999.1")
    os.symlink("libcuda.so.999.1", s.root / folder / "lib.real/libcuda.so.1")
    if folder.startswith("usr/local/"):
        os.symlink("cuda-12.4", s.root / "usr/local/cuda")
    s.env = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}
    (s.root / "entry.sh").write_text(f'#!/bin/sh\n{entry}\nexec "$@"\n')
    (s.root / "entry.sh").chmod(0o755)
    s.run = ("/entry.sh", *s.run)


@shape
def nvidias_compat_that_the_entrypoint_links(s: Shape) -> None:
    nvidias(s, "ln -s lib.real /usr/local/cuda/compat/lib")


@shape
def nvidias_compat_that_the_entrypoint_links_by_its_path(s: Shape) -> None:
    nvidias(s, "ln -sf /usr/local/cuda-12.4/compat/lib.real /usr/local/cuda/compat/lib")


@shape
def nvidias_compat_that_the_entrypoint_puts_first(s: Shape) -> None:
    nvidias(s, "export LD_LIBRARY_PATH=/usr/local/cuda/compat/lib.real:$LD_LIBRARY_PATH")


@shape
def nvidias_compat_that_the_entrypoint_copies(s: Shape) -> None:
    nvidias(s, "cp -r /usr/local/cuda/compat/lib.real /usr/local/cuda/compat/lib")


@shape
def nvidias_compat_that_the_entrypoint_copies_elsewhere(s: Shape) -> None:
    nvidias(s, "cp -rL /usr/local/cuda/compat/lib.real /tmp/lib; export LD_LIBRARY_PATH=/tmp/lib")


@shape
def nvidias_compat_that_the_entrypoint_renames(s: Shape) -> None:
    nvidias(s, "mv /usr/local/cuda/compat/lib.real /usr/local/cuda/compat/lib")


@shape
def nvidias_compat_that_the_entrypoint_links_file_by_file(s: Shape) -> None:
    entry = "mkdir /usr/local/cuda/compat/lib; ln -s /usr/local/cuda/compat/lib.real/* /usr/local/cuda/compat/lib/"
    nvidias(s, entry)


@shape
def nvidias_compat_elsewhere(s: Shape) -> None:
    nvidias(s, "ln -s lib.real /srv/compat/lib", "srv/compat")
    s.env = {"LD_LIBRARY_PATH": "/srv/compat/lib"}


@shape
def nvidias_compat_in_a_toolkit_of_the_environment(s: Shape) -> None:
    nvidias(s, "export LD_LIBRARY_PATH=$CUDA_HOME/compat/lib.real", "srv/cuda/compat")
    s.env = {"CUDA_HOME": "/srv/cuda"}


# The layouts of docs/guide/images.md, "Public images".

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin") or ""


def cuda_base(s: Shape, entry: str = "") -> None:
    """nvidia/cuda: a compat package that no search path names; the toolkit by the links of alternatives."""
    compat = "usr/local/cuda-12.4/compat"
    s.own(f"{compat}/libcuda.so.999.1")
    for name in ("libcuda.so.1", "libcuda.so"):
        os.symlink("libcuda.so.999.1", s.root / compat / name)
    (s.root / "etc/alternatives").mkdir(exist_ok=True)
    os.symlink("/etc/alternatives/cuda", s.root / "usr/local/cuda")
    os.symlink("/usr/local/cuda-12.4", s.root / "etc/alternatives/cuda")
    s.env = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}
    (s.root / "entry.sh").write_text(f'#!/bin/sh\n{entry}\nexec "$@"\n')
    (s.root / "entry.sh").chmod(0o755)
    (s.root / "etc/ld.so.conf.d").mkdir()
    (s.root / "etc/ld.so.conf").write_text(f"include /etc/ld.so.conf.d/*.conf\n/usr/lib/{MULTIARCH}\n")
    shutil.copy(LDCONFIG, s.root / "bin/ldconfig")
    s.run = ("/entry.sh", *s.run)


def searched_by_default(s: Shape, folder: str, name: str = "00-cuda-compat.conf") -> None:
    """A folder in the loader's cache, as `ldconfig` writes it while the image is built."""
    (s.root / "etc/ld.so.conf.d" / name).write_text(f"{folder}\n")
    subprocess.run([LDCONFIG, "-r", s.root], check=True)
    assert folder.encode() in (s.root / "etc/ld.so.cache").read_bytes()


@shape
def public_cuda(s: Shape) -> None:
    cuda_base(s)


@shape
def public_cuda_whose_entrypoint_asks_ldconfig(s: Shape) -> None:
    cuda_base(s, "ldconfig")


@shape
def public_vllm(s: Shape) -> None:
    cuda_base(s)
    searched_by_default(s, "/usr/local/cuda-12.4/compat", "vllm.conf")


@shape
def public_vllm_that_is_told_to(s: Shape) -> None:
    """The program puts the folder first for its children."""
    cuda_base(s, "export LD_LIBRARY_PATH=$VLLM_CUDA_COMPATIBILITY_PATH")
    s.own("srv/newer/libcuda.so.1")
    s.env = {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1", "VLLM_CUDA_COMPATIBILITY_PATH": "/srv/newer"}


@shape
def public_whisper_cpp(s: Shape) -> None:
    cuda_base(s)
    s.env = {"LD_LIBRARY_PATH": "/usr/local/cuda-12.4/compat:/usr/local/nvidia/lib"}


@shape
def public_triton(s: Shape) -> None:
    """The cache names compat/lib, which is there only after the entrypoint."""
    cuda_base(s, "ln -sf lib.real $_CUDA_COMPAT_PATH/lib")
    s.own("usr/local/cuda-12.4/compat/lib.real/libcuda.so.999.2")
    os.symlink("libcuda.so.999.2", s.root / "usr/local/cuda-12.4/compat/lib.real/libcuda.so.1")
    os.symlink("lib.real", s.root / "usr/local/cuda-12.4/compat/lib")
    searched_by_default(s, "/usr/local/cuda-12.4/compat/lib")
    (s.root / "usr/local/cuda-12.4/compat/lib").unlink()
    s.env = {"_CUDA_COMPAT_PATH": "/usr/local/cuda/compat", "LD_LIBRARY_PATH": "/usr/local/cuda/compat/lib"}


@shape
def public_aws_deep_learning(s: Shape) -> None:
    cuda_base(s, "export LD_LIBRARY_PATH=/usr/local/cuda/compat:$LD_LIBRARY_PATH")


@shape
def public_vast(s: Shape) -> None:
    cuda_base(s, "echo /usr/local/cuda-12.4/compat >/etc/ld.so.conf.d/00-cuda-compat.conf; ldconfig")


@shape
def public_without_a_driver_library(s: Shape) -> None:
    """pytorch/pytorch, ollama, ray."""
    s.env = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"}


@shape
def public_conda_forge(s: Shape) -> None:
    """An entrypoint that activates an environment."""
    for prefix in ("opt/conda", "opt/conda/envs/train"):
        s.own(f"{prefix}/cuda-compat/libcuda.so.999.1")
        os.symlink("libcuda.so.999.1", s.root / prefix / "cuda-compat/libcuda.so.1")
    s.env = {"MAMBA_ROOT_PREFIX": "/opt/conda"}
    exec_it = f"export LD_LIBRARY_PATH=/opt/conda/envs/train/cuda-compat; exec {' '.join(s.run)}"
    s.run = ("/bin/sh", "-c", exec_it)


@shape
def public_with_stubs_in_the_loaders_cache(s: Shape) -> None:
    """TensorFlow's and Horovod's images for building; sglang's link to a stub."""
    cuda_base(s)
    s.stub("usr/local/cuda-12.4/lib64/stubs/libcuda.so")
    os.symlink("libcuda.so", s.root / "usr/local/cuda-12.4/lib64/stubs/libcuda.so.1")
    os.symlink("/usr/local/cuda/lib64/stubs/libcuda.so", s.root / f"usr/lib/{MULTIARCH}/libcuda.so")
    searched_by_default(s, "/usr/local/cuda-12.4/lib64/stubs", "z-cuda-stubs.conf")


@shape
def public_that_deletes_its_compat_folder(s: Shape) -> None:
    """The covered files cannot be deleted; links to them can."""
    cuda_base(s, "rm -rf /usr/local/cuda/compat; ldconfig")
    searched_by_default(s, "/usr/local/cuda-12.4/compat")


@shape
def public_of_apptainer(s: Shape) -> None:
    s.own(".singularity.d/libs/libcuda.so.1")
    s.env = {"LD_LIBRARY_PATH": "/.singularity.d/libs"}


@shape
def public_that_preloads_it(s: Shape) -> None:
    s.own("opt/newer/libcuda.so.1")
    s.env = {"LD_PRELOAD": "/opt/newer/libcuda.so.1"}


@shape
def stubs_in_the_search_path(s: Shape) -> None:
    """A build environment's mistake; the stub answers every call with an error."""
    s.stub("usr/local/cuda/lib64/stubs/libcuda.so")
    os.symlink("libcuda.so", s.root / "usr/local/cuda/lib64/stubs/libcuda.so.1")
    s.env = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs"}


@shape
def stubs_in_the_run_path(s: Shape) -> None:
    s.stub("opt/conda/lib/stubs/libcuda.so")
    os.symlink("libcuda.so", s.root / "opt/conda/lib/stubs/libcuda.so.1")
    s.program("opt/conda/bin/python", "-Wl,-rpath,$ORIGIN/../lib/stubs")
    s.run = ("/bin/sh", "-c", f"exec {' '.join(s.run)}")


@shape
def debians_own_driver_package(s: Shape) -> None:
    """Its libcuda.so.1 leads by alternatives to a folder that is in no search path."""
    libdir = f"usr/lib/{MULTIARCH}"
    s.own(f"{libdir}/nvidia/current/libcuda.so.535.261.03")
    os.symlink("libcuda.so.535.261.03", s.root / libdir / "nvidia/current/libcuda.so.1")
    (s.root / "etc/alternatives").mkdir()
    name = f"glx--libcuda.so.1-{MULTIARCH}"
    os.symlink(f"/{libdir}/nvidia/current/libcuda.so.1", s.root / "etc/alternatives" / name)
    os.symlink(f"/etc/alternatives/{name}", s.root / libdir / "libcuda.so.1")


@shape
def a_plain_user(s: Shape) -> None:
    s.edit = lambda spec: spec["process"].update(user={"uid": 1000, "gid": 1000}, noNewPrivileges=True)


@shape
def a_plain_user_of_conda(s: Shape) -> None:
    conda_whose_python_has_a_run_path(s)
    a_plain_user(s)


@shape
def a_read_only_root(s: Shape) -> None:
    s.edit = lambda spec: spec["root"].update(readonly=True)


@shape
def conda_in_a_read_only_root(s: Shape) -> None:
    conda_whose_python_has_a_run_path(s)
    a_read_only_root(s)


@shape
def distroless(s: Shape) -> None:
    """The program, its loader and its C library."""
    for file in (s.root / "bin").iterdir():
        if file.name != "route":
            file.unlink()
    shutil.rmtree(s.root / "etc")
    (s.root / "etc").mkdir()


@shape
def a_loaders_cache_without_it(s: Shape) -> None:
    """The other images here have no cache at all."""
    (s.root / "etc/ld.so.conf").write_text(f"/usr/lib/{MULTIARCH}\n")
    subprocess.run([shutil.which("ldconfig", path="/sbin:/usr/sbin") or "", "-r", s.root], check=True)
    assert (s.root / "etc/ld.so.cache").stat().st_size


@shape
def a_loaders_cache_that_is_none(s: Shape) -> None:
    (s.root / "etc/ld.so.cache").write_bytes(b"ld.so-1.7.0\0" + bytes(range(256)))


@pytest.fixture(scope="module")
def route(stage: Stage) -> Path:
    return compile_client(stage.folder / "clients/route", "route.c", "-ldl")


@pytest.fixture(params=["wrapper", "hook"])
def front(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(stage: Stage, route: Path, tmp_path: Path) -> Shape:
    root = glibc_image(tmp_path / "rootfs")
    shutil.copy(route, root / "bin/route")
    return Shape(root, stage.driver)


def bundle(stage: Stage, made: Shape, front: str) -> tuple[Path, str]:
    """The shape's bundle, and the runtime to call: for the hook one that knows nothing of us."""

    def edit(spec: dict[str, Any]) -> None:
        made.edit(spec)
        if front != "wrapper":
            text = (REPO / "runtime-config/runc/config.json").read_text()
            spec["hooks"] = json.loads(text.replace("/opt/gpu-hook", str(stage.prefix)))["hooks"]

    folder = stage.bundle(made.root, made.run, env=made.env, edit=edit)
    return folder, "runc" if front == "hook" else stage.program


def fill(stage: Stage, made: Shape, front: str) -> Held:
    folder, program = bundle(stage, made, front)
    id = stage.runc.new_id()
    held = stage.held(["run", "--bundle", str(folder), id], program)
    stage.runc("delete", "--force", id, program=program)
    return held


@pytest.mark.parametrize("name", ("conda_whose_python_has_a_run_path", "stubs_in_the_search_path"))
def test_by_both_front_ends_at_once(stage: Stage, made: Shape, name: str) -> None:
    """The hook then checks what the wrapper has put into config.json."""
    SHAPES[name](made)
    stopped_at_the_limit(fill(stage, made, "both"))


@pytest.mark.parametrize("name", SHAPES)
def test_is_held_to_the_limit(stage: Stage, made: Shape, front: str, name: str) -> None:
    SHAPES[name](made)
    stopped_at_the_limit(fill(stage, made, front))


def refusal(stage: Stage, made: Shape, front: str) -> str:
    """What is said when the container is refused."""
    folder, program = bundle(stage, made, front)
    done = stage.runc("create", "--bundle", str(folder), stage.runc.new_id(), program=program)
    assert done.returncode != 0, done
    return done.stderr + (stage.state / "events").read_text()


def volume(made: Shape, at: str) -> Path:
    """A folder of the host, mounted in the container."""
    source = made.root.parent / "volume"
    source.mkdir()
    mount = {"destination": at, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
    made.edit = lambda spec: spec["mounts"].append(mount)
    return source


def test_conda_in_a_volume_is_refused(stage: Stage, made: Shape, front: str) -> None:
    source = volume(made, "/srv/conda")
    (source / "lib").mkdir()
    (source / "bin").mkdir()
    shutil.copy(made.driver / "libcuda.so.1", source / "lib")
    made.env = {"PATH": "/srv/conda/bin:/bin"}
    made.run = ("python", *FILL)
    said = refusal(stage, made, front)
    assert "GH-402" in said and "/srv/conda/lib/libcuda.so.1" in said


def test_a_search_path_into_a_volume_is_refused(stage: Stage, made: Shape, front: str) -> None:
    source = volume(made, "/data")
    made.env = {"LD_LIBRARY_PATH": "/data"}
    stopped_at_the_limit(fill(stage, made, front))  # with nothing there
    shutil.copy(made.driver / "libcuda.so.1", source)
    said = refusal(stage, made, front)
    assert "GH-402" in said and "/data/libcuda.so.1" in said


@pytest.mark.parametrize(
    ("at", "library"),
    (
        ("/usr/local/cuda", "compat/libcuda.so.1"),
        ("/usr/local/cuda-12", "compat/lib.real/libcuda.so.1"),
        ("/usr/local/cuda-12/compat", "lib.real/libcuda.so.1"),
        ("/usr/local/cuda-12/compat/lib", "libcuda.so.1"),
        ("/usr/local", "cuda-12.4/compat/libcuda.so.1"),
        ("/opt/conda", "envs/a/lib/libcuda.so.1"),
        ("/opt/conda/envs/a", "lib/libcuda.so.1"),
    ),
)
def test_a_volume_in_a_place_that_is_listed_is_refused(
    stage: Stage, made: Shape, front: str, at: str, library: str
) -> None:
    source = volume(made, at)
    made.run = ("/bin/sh", "-c", f"export LD_LIBRARY_PATH={at}/{os.path.dirname(library)}; exec {' '.join(made.run)}")
    (source / library).parent.mkdir(parents=True, exist_ok=True)
    stopped_at_the_limit(fill(stage, made, front))  # with nothing there
    shutil.copy(made.driver / "libcuda.so.1", source / library)
    said = refusal(stage, made, front)
    assert "GH-402" in said and f"{at}/{library}" in said


def test_a_link_into_a_volume_is_refused(stage: Stage, made: Shape, front: str) -> None:
    source = volume(made, "/data")
    shutil.copy(made.driver / "libcuda.so.1", source)
    (made.root / "opt/conda/lib").mkdir(parents=True)
    os.symlink("/data/libcuda.so.1", made.root / "opt/conda/lib/libcuda.so.1")
    assert "GH-402" in refusal(stage, made, front)


def test_musl_starts_without_the_driver(stage: Stage, made: Shape, front: str) -> None:
    """Nothing on musl can load the driver's libraries; what needs none, such as a sidecar, runs."""
    shutil.rmtree(made.root)
    tiny_image.busybox(made.root)
    shutil.rmtree(made.root / "usr/lib64")
    (made.root / "lib").mkdir()
    loader = made.root / f"lib/ld-musl-{ARCH}.so.1"
    shutil.copy(next(unpacked("bookworm", "musl").rglob("lib/*-linux-musl/libc.so")), loader)
    loader.chmod(0o755)
    compile_client(made.root / "bin/route", "route.c", target=MUSL)
    held = fill(stage, made, front)
    assert "unopened=" in held.output and held.granted == -1, held
    assert ("GH-408" in held.output and "musl" in held.output) == (front == "wrapper"), (
        held
    )  # the hook tells the journal


def test_building_against_stubs_still_works(stage: Stage, made: Shape) -> None:
    """A stub under its plain name stays what it is: it may know functions that are newer than the node's driver."""
    made.stub("usr/local/cuda/lib64/stubs/libcuda.so")
    made.run = ("/bin/cat", "/usr/local/cuda/lib64/stubs/libcuda.so")
    folder, program = bundle(stage, made, "wrapper")
    out = folder / "out"
    with out.open("wb") as file:
        id = stage.runc.new_id()
        command = [program, "--root", str(stage.runc.root), "run", "--bundle", str(folder), id]
        subprocess.run(command, stdout=file, stdin=subprocess.DEVNULL, check=True, timeout=60)
    assert out.read_bytes() == (made.root / "usr/local/cuda/lib64/stubs/libcuda.so").read_bytes()


def test_what_goes_past_the_places_that_are_looked_at(stage: Stage, made: Shape, front: str) -> None:
    """Documented: a prefix that nothing in config.json names, started by a shell."""
    made.own("srv/hidden/lib/libcuda.so.1")
    made.program("srv/hidden/bin/python", *BESIDE)
    made.run = ("/bin/sh", "-c", f"exec {' '.join(made.run)}")
    held = fill(stage, made, front)
    assert held.granted > LIMIT_MIB, held
