"""Images, volumes and mounts that are made to be expensive to look at, and what a command costs."""

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oci_hook.linux.walk import STEPS

ASK = {"NVIDIA_VISIBLE_DEVICES": "0", "T9K_GPU_MEMORY": "16"}

MANY = STEPS + 1000  # more names than are looked at

Edit = Callable[[dict[str, Any]], None]

Shape = Callable[[Path], "Edit | None"]

SHAPES: dict[str, Shape] = {}


def shape(make: Shape) -> Shape:
    SHAPES[make.__name__] = make
    return make


def folder(root: Path, path: str) -> Path:
    (root / path).mkdir(parents=True, exist_ok=True)
    return root / path


def fill(place: Path, count: int, name: str = "f{}") -> None:
    """Many names in a folder, made quickly: hard links to one file."""
    (place / "one").touch()
    for n in range(count):
        if n % 30000 == 0:  # ext4 has 65000 links to a file at the most
            (place / f"one{n}").touch()
        os.link(place / f"one{n - n % 30000}", place / name.format(n))


def cache(root: Path, data: bytes) -> None:
    folder(root, "etc")
    (root / "etc/ld.so.cache").write_bytes(data)


@shape
def a_cache_of_library_names(root: Path) -> None:
    """A loader cache with one name as long as the file, each part of which looks like a library of its own."""
    cache(root, b"/libcuda.so" * (4 * 1024 * 1024 // 11))


@shape
def a_smaller_cache_of_library_names(root: Path) -> None:
    cache(root, b"/libcuda.so" * (365 * 1024 // 11))


@shape
def a_cache_of_folders(root: Path) -> None:
    cache(root, b"".join(b"\0/%06x/libcuda.so" % n for n in range(200_000)))


@shape
def a_cache_of_one_long_folder(root: Path) -> None:
    cache(root, (b"\0/" + b"a/" * 2000 + b"libcuda.so") * 1000)


@shape
def a_cache_of_almost_names(root: Path) -> None:
    cache(root, b"/libcuda.s" * (4 * 1024 * 1024 // 10))


@shape
def a_cache_of_last_letters(root: Path) -> None:
    cache(root, (b"libcuda.so" * 400_000)[: 4 << 20])


@shape
def a_library_folder_of_many_names(root: Path) -> None:
    fill(folder(root, "usr/lib64"), MANY)


@shape
def a_compat_folder_of_many_libraries(root: Path) -> None:
    fill(folder(root, "usr/local/cuda/compat"), 60_000, "libx.so.{}")


@shape
def many_compat_folders(root: Path) -> None:
    for n in range(20_000):
        folder(root, f"usr/local/cuda-{n}")


@shape
def compat_folders_of_many_names(root: Path) -> None:
    """Many names times many folders: once each name was compared with each folder."""
    for n in range(3000):
        folder(root, f"usr/local/cuda-{n}/compat")
    fill(folder(root, "usr/lib64"), 40_000)


@shape
def a_compat_folder_of_many_folders(root: Path) -> None:
    place = folder(root, "usr/local/cuda/compat")
    for n in range(20_000):
        (place / f"{n}").mkdir()


@shape
def compat_folders_in_each_other(root: Path) -> None:
    fd = os.open(folder(root, "usr/local/cuda/compat"), os.O_PATH)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


@shape
def a_compat_folder_of_links(root: Path) -> None:
    place = folder(root, "usr/local/cuda/compat")
    for n in range(5000):
        (place / f"{n}").symlink_to(f"/none/{n}/" + "z/" * 2000)


@shape
def a_compat_folder_with_the_whole_image(root: Path) -> None:
    folder(root, "usr/local/cuda-1/compat")
    for n in range(30):
        fill(folder(root, f"srv/{n}/{n}"), 3000)
    (root / "usr/local/cuda-2").mkdir()
    (root / "usr/local/cuda-2/compat").symlink_to("/srv")


@shape
def a_search_path_below_compat_folders(root: Path) -> Edit:
    path = ":".join(f"/{n}/" + "compat/" * 500 for n in range(64))
    return lambda s: s["process"]["env"].append("LD_LIBRARY_PATH=" + path)


@shape
def folders_for_many_processors(root: Path) -> None:
    place = folder(root, "usr/lib64/glibc-hwcaps")
    for n in range(20_000):
        (place / f"x86-64-v{n}").mkdir()


@shape
def preferred_folders_in_each_other(root: Path) -> None:
    place = folder(root, "usr/lib64")
    fd = os.open(place, os.O_PATH)
    for n in range(3000):
        name = ("tls", "haswell", "x86_64")[n % 3]
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


@shape
def links_that_go_to_and_fro(root: Path) -> None:
    """Every place is forty links away, and each link goes into a folder and back eight hundred times."""
    folder(root, "a")
    for n in range(38):
        (root / f"c{n}").symlink_to("/" + "a/../" * 800 + f"c{n + 1}")
    folder(root, "c38")
    for place in ("usr/local/lib", "usr/local/nvidia", "usr/local/cuda-1", "usr/lib32", "usr/local/cuda-2"):
        folder(root, os.path.dirname(place))
        (root / place).symlink_to("/c0")


@shape
def links_into_what_is_not_there(root: Path) -> None:
    for n in range(2000):
        folder(root, f"usr/local/cuda-{n}")
        (root / f"usr/local/cuda-{n}/compat").symlink_to(f"/n{n}/" + "z/" * 2000)


@shape
def links_of_long_names(root: Path) -> None:
    for n in range(5000):
        folder(root, f"usr/local/cuda-{n}")
        (root / f"usr/local/cuda-{n}/compat").symlink_to(f"/none/{n}" + "z" * 4000)


@shape
def a_library_that_is_far_away(root: Path) -> None:
    """Every library lies in a folder whose path has four thousand bytes."""
    (root / "usr/lib64").rmdir()
    (root / "usr/lib64").symlink_to("/none/" + "z/" * 1900)


@shape
def what_is_ours_is_there_and_full(root: Path) -> None:
    fill(folder(root, "run/gpu-hook"), MANY)


@shape
def a_search_path_of_megabytes(root: Path) -> Edit:
    return lambda s: s["process"]["env"].append("LD_LIBRARY_PATH=" + "/a:" * (2 << 20))


@shape
def a_search_path_of_long_folders(root: Path) -> Edit:
    path = ":".join(f"/{n}/" + "z/" * 2000 for n in range(64))
    return lambda s: s["process"]["env"].append("LD_LIBRARY_PATH=" + path)


@shape
def thousands_of_mounts(root: Path) -> Edit:
    more = [{"destination": f"/m{n}/" + "z/" * 1500, "type": "tmpfs", "source": "tmpfs"} for n in range(3000)]
    return lambda s: s["mounts"].extend(more)


@shape
def thousands_of_short_mounts(root: Path) -> Edit:
    more = [{"destination": f"/m/{n}", "type": "tmpfs", "source": "tmpfs"} for n in range(20_000)]
    return lambda s: s["mounts"].extend(more)


@shape
def a_volume_of_many_names(root: Path) -> Edit:
    volume = folder(root.parent, "volume")
    fill(volume, MANY)
    mount = {"destination": "/usr/local/lib", "type": "bind", "source": str(volume), "options": ["rbind"]}
    return lambda s: s["mounts"].append(mount)


@shape
def a_volume_of_links(root: Path) -> Edit:
    volume = folder(root.parent, "volume")
    (volume / "a").mkdir()
    for n in range(38):
        (volume / f"c{n}").symlink_to("/" + "a/../" * 800 + f"c{n + 1}")
    for name in ("lib", "lib64", "nvidia"):
        (volume / name).symlink_to("/c0")
    mount = {"destination": "/usr/local", "type": "bind", "source": str(volume), "options": ["rbind"]}
    return lambda s: s["mounts"].append(mount)


@shape
def volumes_that_are_all_looked_into(root: Path) -> Edit:
    volume = folder(root.parent, "volume")
    fill(folder(volume, "compat"), 100, "README{}")
    more = [
        {"destination": f"/usr/local/cuda-{n}", "type": "bind", "source": str(volume), "options": ["bind"]}
        for n in range(1000)
    ]
    return lambda s: s["mounts"].extend(more)


@shape
def volumes_on_top_of_each_other(root: Path) -> Edit:
    """Each hides the ones before it."""
    volume = folder(root.parent, "volume")
    more = [
        {"destination": f"/usr/local{n * 2 % 3 * '/a'}", "type": "bind", "source": str(volume), "options": ["bind"]}
        for n in range(1000)
    ]
    more += [
        {"destination": f"/{n}/a", "type": "bind", "source": str(volume), "options": ["bind"]} for n in range(1000)
    ]
    more += [{"destination": f"/{n}", "type": "tmpfs", "source": "tmpfs"} for n in range(1000)]
    return lambda s: s["mounts"].extend(more)


@shape
def many_environments_of_conda(root: Path) -> None:
    for n in range(3000):
        folder(root, f"opt/conda/envs/{n}/lib")


@shape
def every_conda_at_once(root: Path) -> None:
    for place in ("opt", "root"):
        for name in ("conda", "miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba"):
            for n in range(130):
                folder(root, f"{place}/{name}/envs/{n}/lib/stubs")


@shape
def environments_that_are_far_away(root: Path) -> None:
    folder(root, "opt/conda/envs")
    for n in range(200):
        (root / f"opt/conda/envs/{n}").symlink_to(f"/n{n}/" + "z/" * 2000)


@shape
def programs_far_from_their_folders(root: Path) -> Edit:
    path = ":".join(f"/p{n}/" + "z/" * 900 + "bin" for n in range(64))
    return lambda s: s["process"].update(args=["none"] * 8, env=[f"PATH={path}"])


@shape
def programs_with_run_paths_of_many_folders(root: Path) -> Edit:
    """Eight programs, whose run paths have as much text as is read."""
    text = b":".join(b"/%d/" % n + b"z/" * 100 for n in range(80))
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    table = struct.pack("<qQqQqQ", 5, 0, 29, 4096, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, 1 << 20, 1 << 20, 4096)
    dynamic = struct.pack("<IIQQQQQQ", 2, 4, 512, 512, 0, len(table), len(table), 8)
    for n in range(8):
        at = folder(root, "opt/app/bin") / f"p{n}"
        at.write_bytes((head + load + dynamic).ljust(512, b"\0") + table.ljust(3584, b"\0") + text + b"\0")
        at.chmod(0o755)
    return lambda s: s["process"].update(args=[f"/opt/app/bin/p{n}" for n in range(8)])


# A process of its own: what it starts begins with the greatest resident set of the one that starts it.
MEASURE = """
import os, sys
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
null = os.open("/dev/null", os.O_RDONLY)
to = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, out, 2)]
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, file_actions=to)
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def cost(command: list[str], err: Path) -> tuple[int, float, float]:
    """(exit status, seconds of processor, MB resident at the most), with all children that were waited for."""
    said = subprocess.check_output(["/usr/bin/python3", "-I", "-S", "-c", MEASURE, str(err), *command], text=True)
    status, seconds, megabytes = said.split()
    return int(status), float(seconds), float(megabytes)
