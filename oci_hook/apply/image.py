"""What an image brings, and where the plan's destinations lead in it. It is hostile: all is done by descriptor."""

import os
from errno import ELOOP, ENOTDIR
from stat import S_ISCHR, S_ISDIR, S_ISREG

from oci_hook.apply import image_copies, image_search
from oci_hook.apply.image_copies import LIBRARIES
from oci_hook.apply.image_search import Command
from oci_hook.apply.image_tree import canonical, collision, mode_of, names_in, on_top, open_image, put_mounts
from oci_hook.core.layout import PRIVATE, REQUEST_DIR
from oci_hook.core.plan import SMI, SMI_PLACE, Bind, DeviceNode, ImageFacts, Tmpfs
from oci_hook.errors import GhError, Problem, refuse
from oci_hook.linux.walk import LOOK, MAX_PATH, Tree
from oci_hook.oci.request_mounts import is_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oci_hook.core.plan import Step
    from oci_hook.oci.spec_types import Mount

CACHE = "/etc/ld.so.cache"  # where the loader looks before its default folders
MAX_CACHE = 4 << 20
MAX_CACHED = 64  # folders in it that have a driver library
MAX_DEPTH = 128  # folders above a place to mount on, each of which is looked up among the mounts
NIX_DRIVER = "/run/opengl-driver/lib"  # where Nix lets programs look for the driver (addDriverRunpath)
MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


def _library_places() -> tuple[str, ...]:
    """Where images are known to bring a driver library of their own: the loader's default folders, and the folders
    that NVIDIA's images put in LD_LIBRARY_PATH or ld.so.conf.d."""
    multiarch = _multiarch()
    return (
        f"/usr/lib/{multiarch}",
        f"/lib/{multiarch}",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
        "/lib",
        "/usr/local/lib",
        f"/usr/local/lib/{multiarch}",
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/usr/lib/wsl/lib",
    )


def _multiarch() -> str:
    machine = os.uname().machine
    return MULTIARCH.get(machine, machine + "-linux-gnu")


def look(rootfs: str, mounts: "Sequence[Mount]", command: Command | None = None) -> ImageFacts:
    """Facts of the image at host path `rootfs`. mounts: the spec's, which hide or bring files. command: what the
    container runs, which says where its programs look for libraries.

    Raises ApplyError GH-402, also for a volume with a driver library where these programs look.
    """
    command = command or Command()
    with open_image(rootfs) as tree:
        kinds = put_mounts(tree, mounts)
        libdir, c_library = _libdir(tree), "glibc"
        if not libdir:
            libdir = f"/usr/lib/{_multiarch()}" if mode_of(tree, "/etc/debian_version") else "/usr/lib64"
            c_library = "musl" if mode_of(tree, f"/lib/ld-musl-{os.uname().machine}.so.1") else ""
        copies = _copies(tree, kinds, command, libdir)
        nix = S_ISDIR(mode_of(tree, "/nix/store"))
        smi_too = _calls_smi(command) and _has_room(tree, kinds, rootfs)
    if nix:
        copies.cuda += [f"{NIX_DRIVER}/{name}" for name in ("libcuda.so.1", "libcuda.so")]
        copies.nvml += [f"{NIX_DRIVER}/{name}" for name in ("libnvidia-ml.so.1", "libnvidia-ml.so")]
    return ImageFacts(libdir, _once(copies.cuda), _once(copies.nvml), _once(copies.other), c_library, smi_too)


def _copies(tree: Tree, kinds: "Mapping[str, str]", command: Command, libdir: str) -> image_copies.Copies:
    """The driver libraries in all places where honest programs find one."""
    searched = image_search.folders(command.env.get("LD_LIBRARY_PATH", ""))
    paths = [*image_search.files(command), *image_search.paths(tree, command)]
    folders = (*searched, *dict.fromkeys(path.rpartition("/")[0] for path in paths))
    compat = image_copies.compat_folders(tree, image_search.compat_folders(command), folders)
    # A volume in the search path may have any number of files.
    volumes = [place for place in searched if on_top(kinds, canonical(tree, place))[1] == "bind"]
    places = [*_library_places(), *(place for place in searched if place not in volumes), *_cached(tree)]
    copies = image_copies.listed(tree, kinds, compat, places, canonical(tree, libdir))
    beside = [f"{canonical(tree, place)}/{name}" for place in volumes for name in image_search.NAMES]
    image_copies.named(tree, kinds, (*beside, *paths), copies)
    return copies


def _calls_smi(command: Command) -> bool:
    """True if SMI_PLACE is in the PATH, or a word of the command has nvidia-smi there, as gpu-manager's own example."""
    return SMI_PLACE in command.env.get("PATH", "").split(":") or any(
        f"{SMI_PLACE}/{SMI}" in one for one in command.args
    )


def _has_room(tree: Tree, kinds: dict[str, str], rootfs: str) -> bool:
    """True if nvidia-smi can also be mounted at SMI_PLACE. No container is refused for it."""
    try:
        path = _file(tree, kinds, PRIVATE, f"{SMI_PLACE}/{SMI}")
        if os.statvfs(rootfs).f_flag & os.ST_RDONLY:
            _exists(tree, kinds, path)
    except GhError:
        return False
    return True


def warnings(facts: ImageFacts) -> list[Problem]:
    """What the container's owner should know of the image; the container starts nevertheless."""
    if facts.c_library != "musl":
        return []
    text = "the image's only C library is musl: no program in it can load the driver's libraries; use a glibc image"
    return [Problem("GH-408", text)]


def check_destinations(rootfs: str, mounts: "Sequence[Mount]", steps: "Sequence[Step]") -> "tuple[Step, ...]":
    """The steps with every destination resolved, and each destination only once.

    Raises ApplyError GH-402 where two steps with different sources have one destination; where a destination is not a
    file, or lies in a mount of the spec (a tmpfs is fine: it is empty); where the image has something at PRIVATE; and
    where a volume is a driver library.
    """
    with open_image(rootfs) as tree:
        kinds = put_mounts(tree, mounts)
        image_copies.check_files(kinds)
        private = _private(tree, kinds, mounts)
        read_only = os.statvfs(rootfs).f_flag & os.ST_RDONLY
        taken: dict[str, str] = {}
        out: list[Step] = []
        for step in steps:
            if isinstance(step, (Bind, Tmpfs)):
                if step.destination == PRIVATE or step.destination.startswith(PRIVATE + "/"):
                    destination = private + step.destination[len(PRIVATE) :]
                else:
                    destination = _file(tree, kinds, private, step.destination)
                if read_only and not destination.startswith(private + "/"):
                    _exists(tree, kinds, destination)
                source = step.source if isinstance(step, Bind) else "tmpfs"
                if _take(taken, private, destination, source, step.destination):
                    out.append(step.replace(destination=destination))
            elif isinstance(step, DeviceNode):
                _node(tree, step)
                if _take(taken, private, step.path, step.describe(), step.path):
                    out.append(step)
            else:
                out.append(step)
        return tuple(out)


def _libdir(tree: Tree) -> str:
    """The folder of 64-bit libraries that the image's loader searches by default, known by its C library; "" for none.

    The 64-bit folders come first: /usr/lib may hold 32-bit libraries. Where /lib and /usr/lib are two folders, the
    loader searches both, and our files go below /usr.
    """
    multiarch = _multiarch()
    for folder in (f"/usr/lib/{multiarch}", f"/lib/{multiarch}", "/usr/lib64", "/lib64", "/usr/lib", "/lib"):
        if S_ISREG(mode_of(tree, f"{folder}/libc.so.6")):
            return folder if folder.startswith("/usr") else "/usr" + folder
    return ""


def _cached(tree: Tree) -> list[str]:
    """The folders in which the image's loader cache names a driver library. The cache is a table of offsets into
    strings that end with a NUL; only the strings are read here."""
    try:
        path, mode = tree.resolve(CACHE)
        data = tree.read(path, MAX_CACHE + 1) if S_ISREG(mode) else b""
    except OSError as e:
        if e.errno in (ELOOP, ENOTDIR):
            return []
        raise collision(CACHE, f"cannot be read: {e.strerror}") from None
    if len(data) > MAX_CACHE:
        raise collision(CACHE, f"has more than {MAX_CACHE >> 20} MiB")
    found: dict[str, None] = {}
    for library in LIBRARIES:
        needle = b"/" + library.encode()
        at = data.find(needle)
        while at >= 0:
            tree.work.spend(LOOK)
            start = data.rfind(b"\0", max(0, at - MAX_PATH - 1), at) + 1
            folder = data[start:at] if start or at <= MAX_PATH else b"."  # too long to be a path
            if not folder or folder.startswith(b"/"):
                found[os.fsdecode(folder or b"/")] = None
                if len(found) > MAX_CACHED:
                    raise collision(CACHE, f"names more than {MAX_CACHED} folders with driver libraries")
            at = data.find(needle, at + 1)
    return list(found)


def _once(paths: list[str]) -> tuple[str, ...]:
    return tuple(sorted(set(paths)))


def _private(tree: Tree, kinds: dict[str, str], mounts: "Sequence[Mount]") -> str:
    """Where PRIVATE is after all links. Raises ApplyError GH-402 where it cannot be ours."""
    try:
        path, mode = tree.resolve(PRIVATE)
    except OSError as e:
        raise collision(PRIVATE, f"cannot be used: {e.strerror}") from None
    _check_name(PRIVATE, path)
    where, kind = on_top(kinds, path)
    if where and kind != "tmpfs":
        raise refuse(
            "GH-402",
            f"{PRIVATE} is needed in the container, which has a mount of its own at {where} ({kind}); mount that elsewhere, as a Pod"
            f" by another mountPath below {where}; docker and podman may have a tmpfs there",
        )
    if path.split("/")[1] in ("", "dev", "proc", "sys"):
        raise collision(PRIVATE, f"leads to {path}")
    left = set(names_in(tree, path))
    if any(is_request(mount) for mount in mounts):  # the hook's case: the runtime has made their mount points already
        left.discard(REQUEST_DIR.rpartition("/")[2])
    if mode and (not S_ISDIR(mode) or left):
        raise collision(PRIVATE, "exists already")
    return path


def _check_name(destination: str, path: str) -> None:
    if not path.isascii() or not path.isprintable():  # the path might change on its way through config.json
        raise collision(destination, f"leads to {path}, a name with odd characters")
    if path.count("/") > MAX_DEPTH:
        raise collision(destination[:100], f"lies, or leads, more than {MAX_DEPTH} folders deep")


def _file(tree: Tree, kinds: dict[str, str], private: str, destination: str) -> str:
    """Where a file will be mounted, after all links. Raises ApplyError GH-402."""
    try:
        path, mode = tree.resolve(destination)
    except OSError as e:
        raise collision(destination, f"cannot be mounted on: {e.strerror}") from None
    _check_name(destination, path)
    if path == private or path.startswith(private + "/"):
        raise collision(destination, f"leads into {private}")
    where, kind = on_top(kinds, path)
    if where and kind != "tmpfs":
        why = f"{destination} is a place where the library must go, and the container has a mount at {where} ({kind})"
        raise refuse("GH-402", f"{why}; mount that elsewhere (in a Pod: mountPath)")
    if path.split("/")[1] != destination.split("/")[1] and path.split("/")[1] in ("", "dev", "proc", "sys"):
        raise collision(destination, f"leads to {path}")
    if where == path or mode and not S_ISREG(mode):
        raise collision(destination, "is not a regular file" if where != path else "is a mount point already")
    return path


def _exists(tree: Tree, kinds: dict[str, str], path: str) -> None:
    """Raises ApplyError GH-402 where there is nothing to mount on. A runtime would make an empty file, which it cannot
    in a read-only file system."""
    if not tree.resolve(path)[1] and not on_top(kinds, path)[0]:
        raise refuse("GH-402", f"{path} is missing in the image, whose file system is read-only; add it, empty")


def _node(tree: Tree, node: DeviceNode) -> None:
    """Raises ApplyError GH-402 unless the node will be at its own path, which programs use: not behind a link, and not
    where the image has something else."""
    try:
        path, mode = tree.resolve(node.path)
    except OSError as e:
        raise collision(node.path, f"cannot be a device: {e.strerror}") from None
    if path != node.path:
        raise collision(node.path, f"leads to {path}")
    if mode and not (S_ISCHR(mode) and tree.rdev(path) == os.makedev(node.major, node.minor)):
        raise collision(node.path, f"is not device {node.major}:{node.minor}")


def _take(taken: dict[str, str], private: str, path: str, source: str, named: str) -> bool:
    """Take a destination; False where the same source has it already. named: the destination before links were
    followed.

    Raises ApplyError GH-402 where another source has it, or a destination above it.
    """
    above = path.rpartition("/")[0]
    while above and above != private:
        if above in taken:
            raise collision(named, f"leads to {path}, below {above}, where another file goes")
        above = above.rpartition("/")[0]
    if path in taken:
        if taken[path] != source:
            raise collision(named, f"leads to {path}, where another file goes")
        return False
    taken[path] = source
    return True
