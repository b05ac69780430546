"""Volumes that bring a driver library to a place where programs look: each kind of place, with the mount at it, at every
folder above it, below it, and through links."""

import os
from pathlib import Path
from typing import Any

import pytest

from oci_hook.apply.image import check_destinations, look
from oci_hook.apply.image_search import Command
from oci_hook.errors import ApplyError

# By a folder that is found only by a list or by the configuration: what finds it.
PLACES: dict[str, dict[str, str]] = {
    "usr/local/cuda-12.4/compat": {},
    "usr/local/cuda-12.4/compat/lib.real": {},
    "usr/local/cuda/compat/a/b/c": {},
    "usr/local/lib/glibc-hwcaps/x86-64-v3": {},
    "usr/lib/wsl/lib": {},
    "opt/conda/envs/train/lib": {},
    "root/miniforge3/envs/train/cuda-compat/lib": {},
    "opt/cached/lib": {},  # by the loader's cache
    "srv/search": {"LD_LIBRARY_PATH": "/srv/search"},
    "srv/compat/lib.real": {"LD_LIBRARY_PATH": "/srv/compat/lib"},
    "srv/toolkit/compat/lib.real": {"CUDA_HOME": "/srv/toolkit"},
    "srv/env/lib": {"PATH": "/srv/env/bin"},
    "srv/run/lib": {"RUN": "/srv/run/bin/program"},
}
ABOVE = [(place, "/".join(place.split("/")[:n])) for place in PLACES for n in range(1, place.count("/") + 2)]
ABOVE = [(place, at) for place, at in ABOVE if at not in ("usr", "usr/lib")]  # refused for the libraries that go there
OPTIONS = (["bind"], ["rbind"], ["rbind", "ro"], ["bind", "rw", "rprivate"])


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for folder in ("bin", "etc", "run", "usr/lib64", "usr/bin", "usr/local"):
        (root / folder).mkdir(parents=True)
    (root / "usr/lib64/libc.so.6").touch()
    (root / "etc/ld.so.cache").write_bytes(b"\0/opt/cached/lib/libcuda.so.1\0")
    return root


def mount(source: Path, at: str, options: "list[str]" = OPTIONS[2]) -> dict[str, Any]:
    return {"destination": f"/{at}", "type": "bind", "source": str(source), "options": options}


def checked(root: Path, place: str, *mounts: dict[str, Any]) -> set[str]:
    """What is covered."""
    env = dict(PLACES.get(place, {}))
    args = (env.pop("RUN"),) if "RUN" in env else ()
    facts = look(str(root), mounts, Command(args, env=env))
    check_destinations(str(root), mounts, ())
    return {*facts.cover_cuda, *facts.cover_nvml}


def refused(root: Path, place: str, *mounts: dict[str, Any]) -> str:
    with pytest.raises(ApplyError) as e:
        checked(root, place, *mounts)
    assert {p.code for p in e.value.problems} == {"GH-402"} and len(str(e.value)) < 300
    return str(e.value)


def image_part(root: Path, place: str) -> None:
    """The prefix's own programs, where a mount does not bring them."""
    if place.startswith(("srv/env", "srv/run")):
        program(root / os.path.dirname(place) / "bin")


def program(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "program").touch(0o755)


@pytest.mark.parametrize("library", ("libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so"))
@pytest.mark.parametrize(("place", "at"), ABOVE)
def test_at_and_above(rootfs: Path, tmp_path: Path, place: str, at: str, library: str) -> None:
    image_part(rootfs, place)
    volume = tmp_path / "volume"
    libs = volume / place[len(at) :].lstrip("/")
    libs.mkdir(parents=True)
    if place.startswith(("srv/env", "srv/run")) and at.count("/") < 2:
        program(libs.parent / "bin")
    assert checked(rootfs, place, mount(volume, at)) == set()
    (libs / library).write_text("")
    for options in OPTIONS:
        assert f"/{place}/{library}" in refused(rootfs, place, mount(volume, at, options))
    # The last mount counts, and what it hides does not.
    assert checked(rootfs, place, mount(volume, at), {"destination": f"/{at}", "type": "tmpfs"}) == set()
    refused(rootfs, place, {"destination": f"/{place}", "type": "tmpfs"}, mount(volume, at))


@pytest.mark.parametrize("place", PLACES)
def test_below(rootfs: Path, tmp_path: Path, place: str) -> None:
    """The library itself as a volume, and a folder below what is listed whole."""
    image_part(rootfs, place)
    (tmp_path / "file").write_text("")
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume/libcuda.so.1").write_text("")
    refused(rootfs, place, mount(tmp_path / "file", f"{place}/libcuda.so.550"))
    below = {
        "destination": f"/{place}/deep/er",
        "type": "bind",
        "source": str(tmp_path / "volume"),
        "options": ["bind"],
    }
    if "compat" in place:
        assert f"/{place}/deep/er/libcuda.so.1" in refused(rootfs, place, below)
    else:
        assert checked(rootfs, place, below) == set()


@pytest.mark.parametrize(("place", "at"), ABOVE)
def test_through_a_link(rootfs: Path, tmp_path: Path, place: str, at: str) -> None:
    """The mount's destination leads by a link of the image to the place."""
    image_part(rootfs, place)
    libs = tmp_path / "volume" / place[len(at) :].lstrip("/")
    libs.mkdir(parents=True)
    (libs / "libcuda.so.1").write_text("")
    if place.startswith(("srv/env", "srv/run")) and at.count("/") < 2:
        program(libs.parent / "bin")
    (rootfs / "link").symlink_to(f"/{at}")
    refused(rootfs, place, mount(tmp_path / "volume", "link"))


@pytest.mark.parametrize("at", ("usr/local/cuda", "usr/local/cuda-12", "usr/local/cuda-12.4"))
def test_a_toolkit_behind_links(rootfs: Path, tmp_path: Path, at: str) -> None:
    """The three names of one folder, as NVIDIA's images have them; the image's own copy there is hidden."""
    compat = rootfs / "usr/local/cuda-12.4/compat"
    compat.mkdir(parents=True)
    (compat / "libcuda.so.1").write_text("")
    (rootfs / "usr/local/cuda-12").symlink_to("cuda-12.4")
    (rootfs / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (rootfs / "etc/alternatives").mkdir()
    (rootfs / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.4")
    volume = tmp_path / "volume"
    (volume / "lib64").mkdir(parents=True)
    assert checked(rootfs, "", mount(volume, at)) == set()
    (volume / "compat").mkdir()
    (volume / "compat/libcuda.so.1").write_text("")
    assert "the volume at /usr/local/cuda-12.4;" in refused(rootfs, "", mount(volume, at))


def test_links_of_a_volume_start_at_the_containers_root(rootfs: Path, tmp_path: Path) -> None:
    """A volume that leads into a second one, and one that leads to the image."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (other / "drv").mkdir(parents=True)
    (other / "drv/libcuda.so.1").write_text("")
    (one / "compat").symlink_to("/data/drv")
    toolkit = mount(one, "usr/local/cuda-13")
    assert checked(rootfs, "", toolkit) == set()
    assert "the volume at /data;" in refused(rootfs, "", toolkit, mount(other, "data"))
    (rootfs / "data/drv").mkdir(parents=True)
    (rootfs / "data/drv/libcuda.so.1").write_text("")
    assert checked(rootfs, "", toolkit) == {"/data/drv/libcuda.so.1"}
    (one / "compat").unlink()
    (one / "compat").symlink_to("../../../data/drv")
    assert checked(rootfs, "", toolkit) == {"/data/drv/libcuda.so.1"}


def test_other_libraries_in_a_volume_are_left(rootfs: Path, tmp_path: Path) -> None:
    (tmp_path / "compat").mkdir()
    (tmp_path / "compat/libnvidia-ptxjitcompiler.so.1").write_text("")
    assert look(str(rootfs), [mount(tmp_path, "usr/local/cuda")]).cover_other == ()


def test_a_volume_in_the_search_path_may_have_any_number_of_files(rootfs: Path, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    for n in range(70_000):
        os.mknod(volume / str(n))
    assert checked(rootfs, "srv/search", mount(volume, "srv/search")) == set()


@pytest.mark.parametrize("at", ("usr/local", "usr/local/cuda-12.4", "usr/local/cuda-12.4/compat/lib", "srv/search"))
def test_a_mount_that_cannot_be_looked_into(rootfs: Path, at: str) -> None:
    """Such as podman's `-v SOURCE:DESTINATION:O`, an overlay."""
    said = refused(rootfs, "srv/search", {"destination": f"/{at}", "type": "overlay", "source": "overlay"})
    assert f"in a mount of type overlay at /{at}," in said
    said = refused(rootfs, "srv/search", {"destination": f"/{at}", "source": "volume", "options": ["rbind"]})
    assert f"in a mount of type relative bind at /{at}," in said
    assert checked(rootfs, "", {"destination": "/srv/other", "type": "overlay", "source": "overlay"}) == set()
