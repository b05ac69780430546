"""The shims over the driver libraries that the NVIDIA runtime has put into a made container.

Its copies are found by what they are, not only by their names: a link in the image may have led its mount elsewhere.
"""

import os

from oci_hook.core.layout import CONTAINER_DIR, PRIVATE, SHIM_DIR
from oci_hook.core.plan import DATA, Bind
from oci_hook.errors import refuse
from oci_hook.linux import mount
from oci_hook.linux.walk import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oci_hook.apply.to_container import Container
    from oci_hook.core.inventory import Inventory
    from oci_hook.core.plan import ImageFacts

NAMES = {"libcuda": "libcuda.so", "libnvidia-ml": "libnvidia-ml.so"}


def nothing(prefix: str) -> str:
    """An empty file, for what is not to be loaded at all."""
    return f"{prefix}/{CONTAINER_DIR}/policy"


def covers(
    container: "Container", image: "ImageFacts", inventory: "Inventory", past: "Iterable[str]", prefix: str
) -> tuple[Bind, ...]:
    """What to mount over every copy of libcuda and libnvidia-ml that is there now, and over `past`, the driver's
    libraries that reach a GPU past them. Nothing that is missing is made.

    Raises ApplyError GH-402 where two of them are one file.
    """
    wanted = [("libcuda", path) for path in image.cover_cuda] + [("libnvidia-ml", path) for path in image.cover_nvml]
    for library, path in _mounted(container, inventory):
        wanted.append((library, path))
    wanted += [("", path) for path in past]
    out: dict[str, Bind] = {}
    with Tree(container.path()) as tree:
        for library, path in wanted:
            try:
                place, mode = tree.resolve(path)
            except OSError:
                continue
            if not mode or place.startswith(PRIVATE + "/"):
                continue
            source = f"{prefix}/{SHIM_DIR}/{library}.so.1" if library else nothing(prefix)
            step = Bind(source, place) if library else Bind(source, place, DATA)
            if out.setdefault(place, step).source != source:
                raise refuse("GH-402", f"{path} in the container is {place}, where another library is; fix the image")
    return tuple(out.values())


def check_covered(container: "Container", inventory: "Inventory") -> None:
    """Raises ApplyError GH-405 when a program could still open one of the real libraries."""
    real = _identities(inventory)
    for _, path in _mounted(container, inventory):
        found = _identity(container, path)
        if found in real:
            raise refuse("GH-405", f"{path} is still the driver's own library; the image or a mount is in the way")


def _mounted(container: "Container", inventory: "Inventory") -> "Iterator[tuple[str, str]]":
    """(library, path in the container) of each mount that is one, by name or because it is the host's file."""
    real = _identities(inventory)
    top = os.path.realpath(container.rootfs)
    for entry in mount.mountinfo(str(container.pid)):
        if not entry.point.startswith(top + "/"):
            continue
        path = entry.point[len(top) :]
        if path == PRIVATE or path.startswith(PRIVATE + "/"):
            continue
        library = real.get(_identity(container, path), "")
        for name, start in NAMES.items():
            if not library and start in (
                path.rpartition("/")[2][: len(start)],
                entry.root.rpartition("/")[2][: len(start)],
            ):
                library = name
        if library:
            yield library, path


def _identities(inventory: "Inventory") -> dict[tuple[int, int], str]:
    found = {}
    for library, path in (("libcuda", inventory.libcuda), ("libnvidia-ml", inventory.libnvml)):
        st = os.stat(path)
        found[st.st_dev, st.st_ino] = library
    return found


def _identity(container: "Container", path: str) -> tuple[int, int]:
    """(device, inode) of what is at this canonical path; (0, 0) where another mount hides it."""
    try:
        fd = os.open(container.path(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in path.split("/")[1:]:
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = below
        st = os.fstat(fd)
        os.close(fd)
        return st.st_dev, st.st_ino
    except OSError:
        return 0, 0
