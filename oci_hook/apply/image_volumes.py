"""Driver libraries in volumes. They are refused, and not covered by a mount as the image's copies are, since the volume's
owner may replace them while the container runs."""

from stat import S_ISREG

from oci_hook.apply.image_tree import canonical, collision, mode_of, on_top
from oci_hook.linux.walk import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oci_hook.oci.spec_types import Mount

LIBRARIES = ("libcuda.so", "libnvidia-ml.so")


def of_mounts(tree: Tree, kinds: "Mapping[str, str]", mounts: "Sequence[Mount]") -> dict[str, str]:
    """The host path of each volume, by its canonical place in the container."""
    sources = {canonical(tree, mount.get("destination") or "/"): mount.get("source") or "" for mount in mounts}
    return {path: source for path, source in sources.items() if kinds.get(path) == "bind" and source.startswith("/")}


def check(tree: Tree, kinds: "Mapping[str, str]", volumes: "Mapping[str, str]", places: "Iterable[str]") -> None:
    """Raises ApplyError GH-402 for a volume that is a driver library, or that has one in one of these places."""
    for path in volumes:
        if path.rpartition("/")[2].startswith(LIBRARIES):
            raise collision(path, "is a driver library from a volume, which knows no limit")
    for place in places if volumes else ():
        place = canonical(tree, place)
        where = on_top(kinds, place)[0]
        if where not in volumes:
            continue
        try:
            with Tree(volumes[where], tree.work) as volume:
                names = volume.names(volume.resolve(place[len(where) :])[0])
        except (OSError, ValueError):  # not a folder, nothing there, or a NUL in the path
            continue
        for name in names:
            if name.startswith(LIBRARIES):
                raise _refusal(f"{place}/{name}", where)


def check_names(tree: Tree, kinds: "Mapping[str, str]", volumes: "Mapping[str, str]", paths: "Iterable[str]") -> None:
    """Raises ApplyError GH-402 where one of these paths is a file in a volume. Unlike `check`, it lists no folder."""
    for path in paths if volumes else ():
        folder, _, name = path.rpartition("/")
        try:
            folder = tree.resolve(folder)[0]
            where = on_top(kinds, folder)[0]
            if where not in volumes:
                continue
            with Tree(volumes[where], tree.work) as volume:
                found = S_ISREG(mode_of(volume, f"{folder[len(where) :]}/{name}"))
        except (OSError, ValueError):  # nothing there, or a NUL in the path
            continue
        if found:
            raise _refusal(f"{folder}/{name}", where)


def _refusal(path: str, where: str) -> Exception:
    return collision(path, f"is a driver library from the volume at {where}; it knows no limit")
