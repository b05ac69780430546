"""Driver libraries that an image and its volumes bring. Those of the image are covered by mounts. Those in volumes are
refused, since a volume's owner may replace them while the container runs."""

from stat import S_ISREG

from oci_hook.apply.image_tree import canonical, collision, mode_of, names_in, on_top
from oci_hook.errors import refuse
from oci_hook.linux.walk import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
MAX_COPIES = 64
# Folders of NVIDIA's package, and of conda-forge's: a newer driver's libraries. NVIDIA's images have them in lib.real
# below; their entrypoint makes the link `lib` to it.
COMPAT = ("compat", "cuda-compat")
# Libraries which libcuda opens by name, also those of its versions to come: a compat folder has nothing else.
OF_COMPAT = ("libnvidia-", "libcudadebugger.so")
COMPANIONS = ("libnvidia-ptxjitcompiler.so", "libnvidia-nvvm", "libcudadebugger.so")
COMPANION_NAMES = ("libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4", "libcudadebugger.so.1")
# Subfolders with libraries for a certain processor, which the loader prefers; since glibc 2.37 only the first.
PREFERRED = frozenset(("glibc-hwcaps", "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "aarch64", "atomics"))
# File systems in which no image or volume brings a file.
EMPTY = frozenset(("", "tmpfs", "proc", "sysfs", "devpts", "devtmpfs", "mqueue", "cgroup", "cgroup2", "hugetlbfs"))


class Copies:
    """Paths of libcuda, of libnvidia-ml, and of libraries which libcuda opens by name."""

    __slots__ = ("cuda", "nvml", "other")

    def __init__(self) -> None:
        self.cuda: list[str] = []
        self.nvml: list[str] = []
        self.other: list[str] = []

    def add(self, kind: list[str], path: str) -> None:
        kind.append(path)
        if len(self.cuda) + len(self.nvml) + len(self.other) > MAX_COPIES:
            raise refuse("GH-402", f"the image has more than {MAX_COPIES} copies of driver libraries; remove some")


def compat_folders(tree: Tree, named: "Iterable[str]", folders: "Iterable[str]") -> list[str]:
    """The compat folders of the toolkits in /usr/local, those that are named, and those in or below which `folders` lie."""
    local = canonical(tree, "/usr/local")
    found = [*named]
    found += [f"{local}/{name}/compat" for name in names_in(tree, local) if name.startswith("cuda")]
    for folder in folders:
        for path in (folder, canonical(tree, folder)):
            parts = path.split("/")
            last = max((n for n, part in enumerate(parts) if part in COMPAT), default=0)
            if last:
                found.append("/".join(parts[: last + 1]))
    return list(dict.fromkeys(canonical(tree, path) for path in found))


def listed(
    tree: Tree, kinds: "Mapping[str, str]", compat: "Sequence[str]", places: "Sequence[str]", libdir: str
) -> Copies:
    """What is in these folders, in those below them that the loader prefers, and in all below the compat folders.

    Raises ApplyError GH-402 for more than MAX_COPIES, and for one that is, or may be, in a volume.
    """
    copies = Copies()
    known: set[str] = set()
    more: list[str] = []  # where links lead out of compat folders
    variants: set[str] = set()  # glibc-hwcaps, or where it leads as a link: each folder in it may be preferred
    for whole in (True, False):
        start = compat if whole else (*places, *more)
        todo = [place for place in dict.fromkeys(canonical(tree, place) for place in start) if place not in known]
        known.update(todo)
        for place in todo:
            names = names_in(tree, place)
            where, kind = on_top(kinds, place)
            if kind != "bind" and kind not in EMPTY:
                raise refuse(
                    "GH-402",
                    f"{place[:100]} is a place of driver libraries, and lies in a mount of type {kind[:20]} at"
                    f" {where[:80]}, which cannot be looked into; mount that elsewhere",
                )
            cuda = [name for name in names if name.startswith(LIBRARIES[0])]
            for name in (*cuda, *(name for name in names if name.startswith(LIBRARIES[1]))):
                _check_volume(kinds, f"{place}/{name}")
                copies.add(copies.cuda if name.startswith(LIBRARIES[0]) else copies.nvml, f"{place}/{name}")
            beside = OF_COMPAT if whole else COMPANIONS if cuda and place != libdir else ()
            for name in names if beside and kind != "bind" else ():
                if name.startswith(beside) and not name.startswith(LIBRARIES):
                    copies.add(copies.other, f"{place}/{name}")
            folders: Iterable[str] = PREFERRED.intersection(names)
            if whole or place in variants or place.endswith("/glibc-hwcaps"):
                folders = [name for name in names if not name.startswith((*LIBRARIES, *beside))]
            for name in folders:
                below = canonical(tree, f"{place}/{name}")
                if name == "glibc-hwcaps":
                    variants.add(below)
                if whole and not below.startswith(place + "/"):
                    more.append(below)
                elif below not in known:
                    known.add(below)
                    todo.append(below)
    return copies


def named(tree: Tree, kinds: "Mapping[str, str]", paths: "Iterable[str]", copies: Copies) -> None:
    """Add those of these paths at which there is a file, and the libraries beside a libcuda. No folder is listed.

    Raises ApplyError GH-402 as `listed` does.
    """
    known = {*copies.cuda, *copies.nvml, *copies.other}
    for path in paths:
        if path in known or not S_ISREG(mode_of(tree, path)):
            continue
        known.add(path)
        _check_volume(kinds, path)
        folder, _, name = path.rpartition("/")
        copies.add(copies.cuda if name.startswith(LIBRARIES[0]) else copies.nvml, path)
        for beside in COMPANION_NAMES if name.startswith(LIBRARIES[0]) else ():
            other = f"{folder}/{beside}"
            if other not in known and S_ISREG(mode_of(tree, other)):
                known.add(other)
                copies.add(copies.other, other)


def _check_volume(kinds: "Mapping[str, str]", path: str) -> None:
    """Raises ApplyError GH-402 where the driver library at this path is in a volume. A mount at the path itself is
    another matter: it may be ours."""
    where, kind = on_top(kinds, path.rpartition("/")[0])
    if kind == "bind":
        raise collision(path[:100], f"is a driver library from the volume at {where[:80]}; it knows no limit")


def check_files(kinds: "Mapping[str, str]") -> None:
    """Raises ApplyError GH-402 for a volume that is a driver library."""
    for path, kind in kinds.items():
        if kind == "bind" and path.rpartition("/")[2].startswith(LIBRARIES):
            raise collision(path[:100], "is a driver library from a volume, which knows no limit")
