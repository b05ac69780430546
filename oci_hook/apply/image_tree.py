"""The tree of an image, less what the container's mounts hide, and how the parts of apply/image.py ask about it."""

from errno import ELOOP, ENOTDIR

from oci_hook.errors import GhError, refuse
from oci_hook.linux.walk import STEPS, Tree, Work
from oci_hook.oci.request_mounts import is_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oci_hook.oci.spec_types import Mount


def open_image(rootfs: str) -> Tree:
    try:
        return Tree(rootfs, Work(STEPS, "the image with its mounts"))
    except (OSError, ValueError) as e:  # ValueError: a NUL in it
        why = getattr(e, "strerror", e)
        raise refuse("GH-402", f"root file system {rootfs}: {why}; check root.path in config.json") from None


def collision(path: str, why: str) -> GhError:
    return refuse("GH-402", f"{path} in the image {why}; use an image or volumes without it")


def mode_of(tree: Tree, path: str) -> int:
    """st_mode of the file at this path, 0 where there is none."""
    try:
        return tree.resolve(path)[1]
    except OSError:
        return 0


def names_in(tree: Tree, place: str) -> list[str]:
    try:
        return tree.names(place)
    except OSError as e:
        raise collision(place, f"cannot be read: {e.strerror}") from None


def canonical(tree: Tree, path: str) -> str:
    try:
        return tree.resolve(path)[0]
    except OSError as e:
        if e.errno in (ELOOP, ENOTDIR):  # nothing is there
            return ""
        raise collision(path, f"cannot be looked at: {e.strerror}") from None


def put_mounts(tree: Tree, mounts: "Sequence[Mount]") -> dict[str, str]:
    """The kind of mount (bind, or a file system's type) by canonical mount point of the spec. The tree has below these
    points what it will have in the container: of volumes what is in them, of other mounts nothing."""
    kinds: dict[str, str] = {}
    for mount in mounts:
        if is_request(mount):  # the wrapper takes it out of the spec; after the hook our private directory covers it
            continue
        path = mount.get("destination") or "/"
        try:
            path = tree.resolve(path)[0]
        except OSError as e:
            raise collision(path, f"cannot be mounted on: {e.strerror}") from None
        kind = mount.get("type") or "bind"
        options = mount.get("options") or ()
        kinds[path] = kind = "bind" if "bind" in options or "rbind" in options else kind
        source = mount.get("source") or ""
        if kind == "bind" and source and not source.startswith("/"):
            kinds[path] = kind = "relative bind"  # to the bundle, which is not known here
        if kind != "bind":
            source = ""
        # With tmpcopyup runc and crun copy the image's files there into the tmpfs.
        if tree.mount(path, source, keep="tmpcopyup" in options):
            for hidden in [other for other in kinds if not tree.is_mount(other)]:
                del kinds[hidden]
    return kinds


def on_top(kinds: "Mapping[str, str]", path: str) -> tuple[str, str]:
    """(mount point, kind) of the innermost mount of the spec at or above `path`, or ("", "")."""
    while path:
        if path in kinds:
            return path, kinds[path]
        path = path.rpartition("/")[0]
    return ("/", kinds["/"]) if "/" in kinds else ("", "")
