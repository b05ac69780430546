"""What the image brings, and hostile images: every destination of a plan as a link to every other place."""

import itertools
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.apply.image import check_destinations, look, warnings
from oci_hook.apply.image_search import Command
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.inventory import DeviceFile, DriverFile, Gpu, Inventory
from oci_hook.core.plan import Bind, DeviceNode, ImageFacts, Step, make_plan
from oci_hook.errors import ApplyError, GhError

MULTI = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}[platform.machine()]
PROC = {"destination": "/proc", "type": "proc"}
DEV = {"destination": "/dev", "type": "tmpfs"}
MOUNTS: list[dict[str, Any]] = [PROC, DEV, {"destination": "/sys", "type": "sysfs"}]


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for d in ("bin", "dev", "proc", "sys", "etc", "run", "usr/lib64", "usr/bin"):
        (root / d).mkdir(parents=True)
    return root


def plan(facts: ImageFacts) -> tuple[Step, ...]:
    inventory = Inventory(
        boot_id="b",
        driver_version="550.1",
        driver_root="/",
        simulated=True,
        gpus=(Gpu("GPU-0", 0, 0, 1000, simulated=True, file="/s/sim/gpus/0"),),
        control=(DeviceFile("/dev/nvidiactl", 195, 255),),
        files=(
            DriverFile(
                "/d/libnvidia-ptxjitcompiler.so.550.1", "library", "compute", ("libnvidia-ptxjitcompiler.so.1",)
            ),
            DriverFile("/d/nvidia-smi", "binary", "utility"),
        ),
        libcuda="/d/libcuda.so.550.1",
        libnvml="/d/libnvidia-ml.so.550.1",
    )
    grant = Grant("k" * 32, Identity("/r", "id", "/b"), Life("b"), (Share("GPU-0", 100),))
    return make_plan(grant, inventory, facts, "/opt/g", "/run/g")


def checked(rootfs: Path, mounts: list[dict[str, Any]] = MOUNTS) -> tuple[Step, ...]:
    return check_destinations(str(rootfs), mounts, plan(look(str(rootfs), mounts)))


def refused(rootfs: Path, mounts: list[dict[str, Any]] = MOUNTS) -> str:
    with pytest.raises(ApplyError) as e:
        checked(rootfs, mounts)
    assert {p.code for p in e.value.problems} == {"GH-402"}
    assert "\n" not in str(e.value) and len(str(e.value)) < 300
    return str(e.value)


def link(rootfs: Path, at: str, to: str) -> None:
    path = rootfs / at.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def final(steps: tuple[Step, ...]) -> dict[str, str]:
    return {s.destination: s.source for s in steps if isinstance(s, Bind)}


def test_libdir(rootfs: Path) -> None:
    assert look(str(rootfs), MOUNTS).libdir == "/usr/lib64"
    (rootfs / "etc/debian_version").write_text("12\n")
    assert look(str(rootfs), MOUNTS).libdir == f"/usr/lib/{MULTI}"


@pytest.mark.parametrize("folder", (f"usr/lib/{MULTI}", f"lib/{MULTI}", "usr/lib64", "lib64", "usr/lib", "lib"))
def test_libraries_go_where_the_c_library_is(rootfs: Path, folder: str) -> None:
    (rootfs / folder).mkdir(parents=True, exist_ok=True)
    (rootfs / folder / "libc.so.6").write_text("")
    facts = look(str(rootfs), MOUNTS)
    assert facts.libdir == "/usr/" + folder.removeprefix("usr/") and facts.c_library == "glibc"


def test_64_bit_folders_come_first(rootfs: Path) -> None:
    for folder in ("usr/lib", "usr/lib64"):
        (rootfs / folder).mkdir(exist_ok=True)
        (rootfs / folder / "libc.so.6").write_text("")
    assert look(str(rootfs), MOUNTS).libdir == "/usr/lib64"


def test_musl_alone_is_warned_of(rootfs: Path) -> None:
    (rootfs / "lib").mkdir()
    assert warnings(look(str(rootfs), MOUNTS)) == []
    (rootfs / f"lib/ld-musl-{platform.machine()}.so.1").write_text("")
    assert [problem.code for problem in warnings(look(str(rootfs), MOUNTS))] == ["GH-408"]
    (rootfs / "usr/lib64/libc.so.6").write_text("")
    assert warnings(look(str(rootfs), MOUNTS)) == []


def test_copies_in_the_search_path_are_found(rootfs: Path) -> None:
    for folder in ("opt/a", "opt/b", "opt/last"):
        (rootfs / folder).mkdir(parents=True)
        (rootfs / folder / "libcuda.so.1").write_text("")
    link(rootfs, "opt/link", "b")
    env = {"LD_LIBRARY_PATH": "opt/relative::/opt/a;/opt/link:/../opt/b:/opt/none" + ":/x" * 99 + ":/opt/last"}
    found = look(str(rootfs), MOUNTS, Command(env=env)).cover_cuda
    assert found == ("/opt/a/libcuda.so.1", "/opt/b/libcuda.so.1")
    below = [*MOUNTS, {"destination": "/opt", "type": "bind", "source": "/srv", "options": ["rbind"]}]
    assert look(str(rootfs), below, Command(env=env)).cover_cuda == ()


NVIDIAS = {"PATH": "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/bin"}  # of NVIDIA's images


def test_nvidia_smi_is_also_where_nvidias_images_look_first(rootfs: Path, tmp_path: Path) -> None:
    """And no container is refused for it."""

    def smi_too(env: dict[str, str] = NVIDIAS, *more: dict[str, Any]) -> bool:
        return look(str(rootfs), [*MOUNTS, *more], Command(env=env)).smi_too

    assert smi_too()
    assert not smi_too({}) and not smi_too({"PATH": "/usr/bin:/usr/local/nvidia/bin/x"})
    for at in ("/usr/local/nvidia", "/usr/local/nvidia/bin", "/usr/local"):
        assert not smi_too(NVIDIAS, bind(tmp_path, at)), at
    assert smi_too(NVIDIAS, {"destination": "/usr/local/nvidia", "type": "tmpfs"})
    link(rootfs, "usr/local/nvidia/bin", "bin")
    assert not smi_too()
    (rootfs / "usr/local/nvidia/bin").unlink()
    (rootfs / "usr/local/nvidia/bin/nvidia-smi").mkdir(parents=True)
    assert not smi_too()


@pytest.mark.parametrize(
    ("args", "there"),
    [
        (("/usr/local/nvidia/bin/nvidia-smi", "pmon", "-d", "10"), True),  # of gpu-manager's README
        (("sh", "-c", "while :; do /usr/local/nvidia/bin/nvidia-smi; sleep 9; done"), True),
        (("nvidia-smi",), False),
        (("ls", "/usr/local/nvidia/bin"), False),
    ],
)
def test_nvidia_smi_is_where_the_command_calls_it(rootfs: Path, args: tuple[str, ...], there: bool) -> None:
    assert look(str(rootfs), MOUNTS, Command(args)).smi_too == there
    (rootfs / "usr/local/nvidia/bin/nvidia-smi").mkdir(parents=True)
    assert not look(str(rootfs), MOUNTS, Command(args)).smi_too


def test_other_libraries_of_a_compat_folder(rootfs: Path) -> None:
    compat = rootfs / "usr/local/cuda-13.0/compat"
    compat.mkdir(parents=True)
    for name in ("libnvidia-ptxjitcompiler.so.580", "libnvidia-ptxjitcompiler.so.1", "libnvidia-other.so.1", "README"):
        (compat / name).write_text("")
    found = final(checked(rootfs))
    jit = {d for d in found if "ptxjit" in d and "compat" in d}
    assert jit == {f"/usr/local/cuda-13.0/compat/libnvidia-ptxjitcompiler.so.{v}" for v in ("1", "580")}
    assert {found[d] for d in jit} == {"/d/libnvidia-ptxjitcompiler.so.550.1"}
    assert not any("other" in d or "README" in d for d in found)


@pytest.mark.parametrize("env", ({}, {"LD_LIBRARY_PATH": "/srv/compat/"}, {"PATH": "/srv/py/bin"}))
def test_other_libraries_of_conda_forges_compat_folder(rootfs: Path, env: dict[str, str]) -> None:
    names = ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1")
    for folder in ("opt/conda/cuda-compat", "srv/compat", "srv/py/cuda-compat", "srv/none"):
        (rootfs / folder).mkdir(parents=True)
        for name in names:
            (rootfs / folder / name).write_text("")
    found = final(plan(look(str(rootfs), MOUNTS, Command(env=env))))
    folders = {
        "/opt/conda/cuda-compat",
        *("/srv/compat" for v in env if v[0] == "L"),
        *("/srv/py/cuda-compat" for v in env if v[0] == "P"),
    }
    assert {d for d in found if d.startswith(("/opt", "/srv"))} == {
        f"{folder}/{name}" for folder in folders for name in names
    }


COMPANIONS = ("libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libcudadebugger.so.1")
NEWER = ("libcuda.so.1", "libcuda.so.580", "libnvidia-ptxjitcompiler.so.580", *COMPANIONS)


def compat(rootfs: Path, folder: str, names: tuple[str, ...] = NEWER) -> set[str]:
    """A newer driver's libraries in this folder; their paths."""
    (rootfs / folder).mkdir(parents=True)
    for name in names:
        (rootfs / folder / name).write_text("")
    return {f"/{folder}/{name}" for name in names}


def found(rootfs: Path, *args: str, **env: str) -> set[str]:
    facts = look(str(rootfs), MOUNTS, Command(args, env=env))
    return {*facts.cover_cuda, *facts.cover_nvml, *facts.cover_other}


@pytest.mark.parametrize(
    "below", ("lib.real", "lib", "x86_64/lib", "a/b/c/d", "glibc-hwcaps/x86-64-v3", "libcudadebugger")
)
@pytest.mark.parametrize("toolkit", ("cuda", "cuda-12", "cuda-13.0", "cuda-tools"))
def test_every_folder_below_a_compat_folder(rootfs: Path, toolkit: str, below: str) -> None:
    """NVIDIA's images have the libraries in lib.real; the entrypoint makes the link lib."""
    there = compat(rootfs, f"usr/local/{toolkit}/compat/{below}")
    (rootfs / f"usr/local/{toolkit}/compat/README").write_text("")
    link(rootfs, f"usr/local/{toolkit}/compat/again", below)
    assert found(rootfs) == there
    steps = final(checked(rootfs))
    jit = [steps[path] for path in there if "ptxjit" in path]
    assert jit == ["/d/libnvidia-ptxjitcompiler.so.550.1"] * 2


def test_a_compat_folder_that_is_a_link(rootfs: Path) -> None:
    there = compat(rootfs, "opt/driver/lib.real")
    link(rootfs, "usr/local/cuda-13/compat", "/opt/driver")
    link(rootfs, "usr/local/cuda", "/etc/alternatives/cuda")
    link(rootfs, "etc/alternatives/cuda", "/usr/local/cuda-13")
    assert found(rootfs) == there


def test_links_out_of_a_compat_folder(rootfs: Path) -> None:
    """What they lead to is a folder like others: nothing below it is listed, so that it may be the whole toolkit."""
    compat(rootfs, "usr/local/cuda/lib64", tuple(f"libnvidia-x.so.{n}" for n in range(99)))
    compat(rootfs, "usr/local/cuda/lib64/below")
    there = compat(rootfs, "opt/driver")
    for name, to in (("up", ".."), ("lib64", "../lib64"), ("root", "/"), ("self", "."), ("driver", "/opt/driver")):
        link(rootfs, f"usr/local/cuda/compat/{name}", to)
    assert found(rootfs) == there


@pytest.mark.parametrize(
    ("folder", "env"),
    (
        ("srv/compat/lib.real", {"LD_LIBRARY_PATH": "/srv/compat/lib.real"}),
        ("srv/compat/lib.real", {"LD_LIBRARY_PATH": "/srv/compat/lib"}),  # made by the entrypoint
        ("srv/compat/lib.real", {"LD_LIBRARY_PATH": "/srv/link"}),
        ("srv/cuda-compat/a/b", {"LD_LIBRARY_PATH": "/none:/srv/cuda-compat/x/y/"}),
        ("srv/toolkit/compat/lib.real", {"CUDA_HOME": "/srv/toolkit"}),
        ("srv/py/cuda-compat/lib", {"PATH": "/srv/py/bin"}),
        ("srv/newer/lib.real", {"_CUDA_COMPAT_PATH": "/srv/newer"}),
        ("srv/newer", {"VLLM_CUDA_COMPATIBILITY_PATH": "/srv/newer"}),
        ("srv/compat", {"LD_PRELOAD": "libx.so /srv/compat/libcuda.so.1:/srv/none/libcuda.so"}),
        ("opt/conda/envs/a/cuda-compat/lib", {}),
    ),
)
def test_compat_folders_that_the_configuration_names(rootfs: Path, folder: str, env: dict[str, str]) -> None:
    there = compat(rootfs, folder)
    (rootfs / "srv/py/bin").mkdir(parents=True)
    link(rootfs, "srv/link", "/srv/compat/lib.real")
    assert found(rootfs, **env) == there


@pytest.mark.parametrize(
    ("folder", "env"),
    (
        ("srv/newer", {"LD_LIBRARY_PATH": "/srv/newer"}),
        ("usr/local/nvidia/lib64", {}),
        ("usr/local/lib", {}),
        ("srv/py/lib", {"PATH": "/srv/py/bin"}),
        ("opt/conda/envs/a/lib64", {}),
    ),
)
def test_the_compiler_beside_any_libcuda(rootfs: Path, folder: str, env: dict[str, str]) -> None:
    """The node's libcuda would take it for its own."""
    names = (*COMPANIONS, "libnvidia-other.so.1", "libcuda.so.1")
    there = compat(rootfs, folder, names)
    (rootfs / "srv/py/bin").mkdir(parents=True)
    assert found(rootfs, **env) == there - {f"/{folder}/libnvidia-other.so.1"}
    (rootfs / folder / "libcuda.so.1").unlink()
    assert found(rootfs, **env) == set()


def test_nix_programs_look_in_a_folder_of_their_own(rootfs: Path) -> None:
    assert not any("opengl-driver" in d for d in final(checked(rootfs)))
    (rootfs / "nix/store").mkdir(parents=True)
    found = final(checked(rootfs))
    assert found["/run/opengl-driver/lib/libcuda.so.1"] == "/opt/g/lib/shim/libcuda.so.1"
    assert found["/run/opengl-driver/lib/libnvidia-ml.so.1"] == "/opt/g/lib/shim/libnvidia-ml.so.1"


def bind(source: Path, destination: str) -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}


@pytest.mark.parametrize("at", ("/usr/local/nvidia", "/usr/local/nvidia/lib64", "/usr/local"))
def test_a_volume_with_a_driver_library_in_a_usual_place(rootfs: Path, tmp_path: Path, at: str) -> None:
    """Some clouds mount the node's driver into containers in this way."""
    volume = tmp_path / "volume"
    libs = volume / "/usr/local/nvidia/lib64"[len(at) :].lstrip("/")
    libs.mkdir(parents=True)
    mounts = [*MOUNTS, bind(volume, at)]
    (libs / "libcudart.so.12").write_text("")
    assert final(checked(rootfs, mounts))
    (libs / "libnvidia-ml.so.1").write_text("")
    assert f"volume at {at};" in refused(rootfs, mounts)
    # A mount on top of it hides it; and in other folders no library is searched.
    assert final(checked(rootfs, [*mounts, {"destination": "/usr/local/nvidia/lib64", "type": "tmpfs"}]))
    assert final(checked(rootfs, [*MOUNTS, bind(volume, "/data")]))


def test_a_driver_library_as_a_volume(rootfs: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("")
    assert "from a volume" in refused(rootfs, [*MOUNTS, bind(tmp_path / "lib", "/opt/x/libcuda.so.535")])
    assert final(checked(rootfs, [*MOUNTS, bind(tmp_path / "lib", "/opt/x/libcudart.so.12")]))


@pytest.mark.parametrize("source", ("/nowhere", ""))
def test_a_volume_that_is_not_there_is_the_runtimes_matter(rootfs: Path, source: str) -> None:
    mounts: list[dict[str, Any]] = [*MOUNTS, {**bind(Path("/"), "/usr/local/nvidia"), "source": source}]
    assert final(checked(rootfs, mounts))


def test_copies_are_found(rootfs: Path) -> None:
    for path in (
        f"usr/lib/{MULTI}/libcuda.so.535.1",
        "usr/local/cuda-12.4/compat/libcuda.so.1",
        "usr/local/cuda-11/compat/libnvidia-ml.so.1",
        "usr/local/lib/libcuda.so",
        "usr/local/lib/libcudart.so",
        "usr/lib64/libnvidia-ml.so.535",
        "opt/libcuda.so.1",
    ):
        (rootfs / path).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / path).write_text("")
    link(rootfs, "lib", "usr/lib")
    link(rootfs, "usr/local/cuda", "cuda-12.4")
    facts = look(str(rootfs), MOUNTS)
    assert facts.cover_cuda == (
        f"/usr/lib/{MULTI}/libcuda.so.535.1",
        "/usr/local/cuda-12.4/compat/libcuda.so.1",
        "/usr/local/lib/libcuda.so",
    )
    assert facts.cover_nvml == ("/usr/lib64/libnvidia-ml.so.535", "/usr/local/cuda-11/compat/libnvidia-ml.so.1")
    assert final(checked(rootfs))["/usr/local/cuda-12.4/compat/libcuda.so.1"] == "/opt/g/lib/shim/libcuda.so.1"


def test_copies_where_the_loaders_cache_leads(rootfs: Path) -> None:
    for path in ("opt/a/libcuda.so.1", "opt/b/libnvidia-ml.so.1", "opt/c/libcuda.so.1", "libcuda.so.1"):
        (rootfs / path).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / path).write_text("")
    cache = b"glibc-ld.so.cache1.1\0\1\2\0/opt/a/libcuda.so.1\0/opt/link/libnvidia-ml.so.1\0relative/libcuda.so\0"
    (rootfs / "etc/ld.so.cache").write_bytes(cache + b"/libcuda.so.1\0/nowhere/libcuda.so\0/opt/\xff/libcuda.so.1")
    link(rootfs, "opt/link", "b")
    facts = look(str(rootfs), MOUNTS)
    assert facts.cover_nvml == ("/opt/b/libnvidia-ml.so.1",)
    assert set(final(checked(rootfs))) >= {"/opt/a/libcuda.so.1", "/opt/b/libnvidia-ml.so.1", "/libcuda.so.1"}
    assert "/opt/c/libcuda.so.1" not in facts.cover_cuda


def test_a_loaders_cache_that_is_none(rootfs: Path, tmp_path: Path) -> None:
    cache = rootfs / "etc/ld.so.cache"
    (rootfs / "opt/a").mkdir(parents=True)
    (rootfs / "opt/a/libcuda.so.1").write_text("")
    (tmp_path / "outside").write_bytes(b"\0/opt/a/libcuda.so.1\0")
    makes: list[Callable[[], object]] = [
        lambda: cache.symlink_to(tmp_path / "outside"),
        lambda: cache.symlink_to("ld.so.cache"),
        lambda: os.mkfifo(cache),
        lambda: cache.mkdir(),
    ]
    for make in makes:
        make()
        assert look(str(rootfs), MOUNTS).cover_cuda == ()
        cache.rmdir() if cache.is_dir() else cache.unlink()
    with open(cache, "wb") as f:
        f.truncate(1 << 30)
    with pytest.raises(GhError, match="GH-402: /etc/ld.so.cache in the image has more than 4 MiB"):
        look(str(rootfs), MOUNTS)
    cache.write_bytes(b"".join(b"\0/x%d/libcuda.so" % i for i in range(20_000)))
    with pytest.raises(GhError, match="GH-402"):
        look(str(rootfs), MOUNTS)


def test_copies_in_folders_that_the_loader_prefers(rootfs: Path) -> None:
    names = [f"usr/lib/{MULTI}/glibc-hwcaps/x86-64-v3/libcuda.so.1", "usr/lib64/tls/haswell/libcuda.so.1"]
    for path in (*names, f"usr/lib/{MULTI}/other/libcuda.so.1"):
        (rootfs / path).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / path).write_text("")
    for path in ("usr/lib64/tls/tls", "usr/lib64/glibc-hwcaps", f"usr/lib/{MULTI}/haswell"):
        link(rootfs, path, ".")
    assert look(str(rootfs), MOUNTS).cover_cuda == tuple(f"/{name}" for name in names)


@pytest.mark.parametrize("where", (f"usr/lib/{MULTI}", "usr/local/lib", "usr/local/cuda-12/compat"))
@pytest.mark.parametrize("to", ("/opt/variants", "../" * 9 + "opt/variants"))
def test_a_link_to_folders_that_the_loader_prefers(rootfs: Path, where: str, to: str) -> None:
    copy = rootfs / "opt/variants/x86-64-v2/libcuda.so.1"
    copy.parent.mkdir(parents=True)
    copy.write_text("")
    link(rootfs, f"{where}/glibc-hwcaps", to)
    assert look(str(rootfs), MOUNTS).cover_cuda == ("/opt/variants/x86-64-v2/libcuda.so.1",)


@pytest.mark.parametrize("token", ("$LIB", "${LIB}", "$LIB/$PLATFORM"))
@pytest.mark.parametrize("folder", ("lib64", f"lib/{MULTI}"))
def test_what_the_loader_replaces_in_a_search_path(rootfs: Path, token: str, folder: str) -> None:
    folder += "/haswell" if "PLATFORM" in token else ""
    copy = rootfs / "srv/z" / folder / "libcuda.so.1"
    copy.parent.mkdir(parents=True)
    copy.write_text("")
    for env in ({"LD_LIBRARY_PATH": f"/srv/z/{token}"}, {"LD_PRELOAD": f"/srv/z/{token}/libcuda.so.1"}):
        found = look(str(rootfs), MOUNTS, Command(env=env)).cover_cuda
        assert found == (f"/srv/z/{folder}/libcuda.so.1",), env


def test_places_that_lead_out_are_not_read(rootfs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "libcuda.so.666").write_text("")
    link(rootfs, "usr/local/lib", str(outside))
    link(rootfs, "usr/local/nvidia", "../../../../outside")
    assert look(str(rootfs), MOUNTS).cover_cuda == ()


def test_an_ordinary_image_with_links(rootfs: Path) -> None:
    """libcuda.so -> libcuda.so.1 -> libcuda.so.535: one file in the end, covered once; the links stay."""
    link(rootfs, "usr/lib64/libcuda.so", "libcuda.so.1")
    link(rootfs, "usr/lib64/libcuda.so.1", "libcuda.so.535.1")
    (rootfs / "usr/lib64/libcuda.so.535.1").write_text("old")
    found = final(checked(rootfs))
    ours = {d for d, s in found.items() if s.endswith("shim/libcuda.so.1")}
    assert ours == {"/usr/lib64/libcuda.so.535.1", "/usr/lib64/libcuda.so.550.1"}


def test_usr_merged_and_var_run(rootfs: Path) -> None:
    (rootfs / "usr/lib64").rmdir()
    link(rootfs, "usr/lib64", "lib")
    (rootfs / "run").rmdir()
    link(rootfs, "run", "var/run")
    found = final(checked(rootfs))
    assert "/usr/lib/libcuda.so.1" in found and "/var/run/gpu-hook/driver/cuda" in found


def test_dangling_links_lead_where_the_runtime_will_create(rootfs: Path) -> None:
    link(rootfs, "usr/lib64/libcuda.so.1", "/opt/none/libcuda.so.9")
    assert final(checked(rootfs))["/opt/none/libcuda.so.9"] == "/opt/g/lib/shim/libcuda.so.1"


def test_a_driver_file_may_not_land_on_the_shim(rootfs: Path) -> None:
    link(rootfs, "usr/lib64/libnvidia-ptxjitcompiler.so.1", "libcuda.so.1")
    assert "another file" in refused(rootfs)


DESTINATIONS = sorted(
    {s.destination for s in plan(ImageFacts("/usr/lib64")) if isinstance(s, Bind)} | {"/run/gpu-hook/account"}
)
NODES = ["/dev/nvidia0", "/dev/nvidiactl"]


def test_the_plan_has_the_destinations_that_are_attacked() -> None:
    assert len(DESTINATIONS) >= 14 and "/dev/nvidia-sim/0" in DESTINATIONS


@pytest.mark.parametrize(("at", "to"), list(itertools.product(DESTINATIONS, DESTINATIONS + NODES)))
def test_each_destination_as_a_link_to_each_other(rootfs: Path, at: str, to: str) -> None:
    """The plan is refused, or every step has a place of its own inside the root."""
    if at == to:
        return
    if at.startswith("/run/gpu-hook/"):  # also an image in which the private directory exists already
        link(rootfs, at, to)
        refused(rootfs)
        return
    link(rootfs, at, to)
    mounts = [m for m in MOUNTS if not (at + to).startswith("/dev") or m is not DEV]
    try:
        steps = checked(rootfs, mounts)
    except ApplyError as e:
        assert {p.code for p in e.problems} == {"GH-402"}
        return
    by_place: dict[str, set[str]] = {}
    for step in steps:
        if isinstance(step, Bind):
            by_place.setdefault(step.destination, set()).add(step.source)
    assert all(len(sources) == 1 for sources in by_place.values())
    before = final(plan(look(str(rootfs), mounts)))
    for destination, source in before.items():
        where = to if destination == at else destination
        assert by_place[where] == {source}


OUT = [
    "../../../../..",
    "../../../../../etc/passwd",
    "/",
    "/proc/1/root/dev",
    "/proc/self/exe",
    "/sys/kernel",
    "/dev/null",
]


@pytest.mark.parametrize(("at", "to"), list(itertools.product(DESTINATIONS, OUT)))
def test_each_destination_as_a_link_out(rootfs: Path, at: str, to: str) -> None:
    (rootfs / "etc/passwd").write_text("root\n")
    if at.startswith("/dev"):  # the image's /dev is hidden by the tmpfs that is mounted there
        return
    link(rootfs, at, to)
    if to.endswith("/etc/passwd") and not at.startswith("/run/gpu-hook"):
        assert "/etc/passwd" in final(checked(rootfs))  # a file of the image: it harms only itself
    else:
        refused(rootfs)


@pytest.mark.parametrize(
    "to", ["/", "/usr", "/usr/lib64", "../../..", "/proc", "/proc/1/root/run", "/dev", "/sys/x", "self"]
)
def test_run_as_a_link(rootfs: Path, to: str) -> None:
    (rootfs / "run").rmdir()
    link(rootfs, "run", "run" if to == "self" else to)
    if to in ("/", "/usr", "/usr/lib64", "../../.."):
        where = {"/": "", "../../..": ""}.get(to, to)
        assert f"{where}/gpu-hook/driver/cuda" in final(checked(rootfs))
    else:
        refused(rootfs)


def test_private_directory_of_the_image(rootfs: Path) -> None:
    private = rootfs / "run/gpu-hook"
    private.mkdir()
    checked(rootfs)  # the mount point that a runtime left
    (private / "driver").mkdir()
    assert "exists already" in refused(rootfs)
    (private / "driver").rmdir()
    private.rmdir()
    private.write_text("")
    refused(rootfs)
    private.unlink()
    link(rootfs, "run/gpu-hook", "/etc")
    (rootfs / "etc/x").write_text("")
    refused(rootfs)


def test_a_volume_at_run_is_named_as_such(rootfs: Path) -> None:
    said = refused(rootfs, [*MOUNTS, {"destination": "/run", "type": "bind", "source": "/run"}])
    assert (
        "which has a mount of its own at /run (bind)" in said
        and "a Pod by another mountPath below /run" in said
        and "in the image" not in said
    )


@pytest.mark.parametrize(
    ("mount", "fine"),
    [
        ({"destination": "/data", "type": "bind", "source": "/d"}, True),
        ({"destination": "/run", "type": "tmpfs"}, True),
        ({"destination": "/usr/lib64", "type": "tmpfs"}, True),
        ({"destination": "/run", "type": "bind", "source": "/run"}, False),
        ({"destination": "/run", "source": "/run", "options": ["rbind"]}, False),
        ({"destination": "/run", "type": "none", "source": "/run", "options": ["rbind"]}, False),
        ({"destination": "/run", "type": "tmpfs", "source": "/run", "options": ["bind"]}, False),
        ({"destination": "/run/gpu-hook", "type": "bind", "source": "/x"}, False),
        ({"destination": "/var/../run/./gpu-hook/", "type": "bind", "source": "/x"}, False),
        ({"destination": "/usr/lib64", "type": "bind", "source": "/x"}, False),
        ({"destination": "/usr", "type": "overlay"}, False),
        ({"destination": "/usr/lib64/libcuda.so.1", "type": "bind", "source": "/x"}, False),
        ({"destination": "/lnk/libcuda.so.1", "type": "bind", "source": "/x"}, False),
        ({"destination": "/usr/lib64/libcuda.so.1", "type": "tmpfs"}, False),
        ({"destination": "/", "type": "bind", "source": "/x"}, False),
        ({"destination": "/lnk/../../usr", "type": "bind", "source": "/x"}, False),
        ({"destination": "lnk", "type": "bind", "source": "/x"}, False),
    ],
)
def test_volumes(rootfs: Path, mount: dict[str, Any], fine: bool) -> None:
    link(rootfs, "lnk", "/usr/lib64")
    mounts = [*MOUNTS, mount]
    if fine:
        checked(rootfs, mounts)
    else:
        refused(rootfs, mounts)


def test_a_mount_on_a_loop_is_refused(rootfs: Path) -> None:
    link(rootfs, "loop", "loop")
    with pytest.raises(ApplyError, match="GH-402"):
        look(str(rootfs), [*MOUNTS, {"destination": "/loop/x", "type": "bind"}])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_destinations_of_other_kinds(rootfs: Path) -> None:
    target = rootfs / "usr/lib64/libcuda.so.1"
    for make in (
        lambda: target.mkdir(),
        lambda: os.mkfifo(target),
        lambda: os.mknod(target, 0o20666, os.makedev(1, 3)),
        lambda: os.mknod(target, 0o60666, os.makedev(7, 0)),
    ):
        make()
        refused(rootfs)
        target.rmdir() if target.is_dir() else target.unlink()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_nodes_without_a_tmpfs_at_dev(rootfs: Path) -> None:
    node = rootfs / "dev/nvidia0"
    os.mknod(node, 0o20666, os.makedev(195, 0))
    steps = checked(rootfs, [PROC])
    assert [s.path for s in steps if isinstance(s, DeviceNode)] == NODES
    node.unlink()
    os.mknod(node, 0o20666, os.makedev(1, 3))
    refused(rootfs, [PROC])
    node.unlink()
    link(rootfs, "dev/nvidia0", "/etc/x")
    refused(rootfs, [PROC])


def test_what_a_tmpfs_hides_does_not_count(rootfs: Path) -> None:
    link(rootfs, "dev/nvidia-sim/0", "/dev/null")
    link(rootfs, "dev/nvidia0", "/usr/lib64/libcuda.so.1")
    assert "/dev/nvidia-sim/0" in final(checked(rootfs))
    link(rootfs, "usr/lib64/libcuda.so.1", "/bin/sh")
    mounts = [*MOUNTS, {"destination": "/usr/lib64", "type": "tmpfs"}]
    assert "/usr/lib64/libcuda.so.1" in final(checked(rootfs, mounts))


def test_a_tmpfs_that_copies_hides_nothing(rootfs: Path) -> None:
    """podman's --read-only: /run, /tmp and /var/tmp are tmpfs with what the image has there."""
    link(rootfs, "run/gpu-hook", "/etc")
    (rootfs / "etc/x").write_text("")
    checked(rootfs, [*MOUNTS, {"destination": "/run", "type": "tmpfs"}])
    refused(rootfs, [*MOUNTS, {"destination": "/run", "type": "tmpfs", "options": ["rw", "tmpcopyup"]}])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mount needs root")
def test_a_read_only_file_system(rootfs: Path) -> None:
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,bind,{how}", str(rootfs)], check=True)

    subprocess.run(["mount", "--bind", str(rootfs), str(rootfs)], check=True)
    try:
        remount("ro")
        assert "read-only" in refused(rootfs)
        remount("rw")
        for step in plan(look(str(rootfs), MOUNTS)):
            if isinstance(step, Bind) and not step.destination.startswith(("/run", "/dev")):
                (rootfs / step.destination.lstrip("/")).write_text("")
        (rootfs / "run/gpu-hook").mkdir()
        remount("ro")
        checked(rootfs)
    finally:
        subprocess.run(["umount", str(rootfs)], check=True)


def test_dev_as_a_link(rootfs: Path) -> None:
    (rootfs / "dev").rmdir()
    link(rootfs, "dev", "/etc")
    refused(rootfs)


@pytest.mark.parametrize("name", [b"libcuda.so.\xff", b"libcuda.so.\n", "libcuda.so.ü".encode()])
def test_names_that_config_json_cannot_hold(rootfs: Path, name: bytes) -> None:
    (rootfs / "usr/lib64" / os.fsdecode(name)).write_text("")
    assert "odd characters" in refused(rootfs)


def test_too_many_copies(rootfs: Path) -> None:
    for n in range(65):
        (rootfs / f"usr/lib64/libcuda.so.{n}").write_text("")
    assert "more than 64 copies" in refused(rootfs)


def test_a_place_that_cannot_be_looked_at_is_not_skipped(rootfs: Path) -> None:
    link(rootfs, "usr/local/lib", "x/" * 2040)
    link(rootfs, "x", "y/" * 2040)
    refused(rootfs)


def test_no_rootfs(tmp_path: Path) -> None:
    with pytest.raises(ApplyError, match="GH-402"):
        look(str(tmp_path / "none"), MOUNTS)
