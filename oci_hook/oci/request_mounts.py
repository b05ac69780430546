"""What a container's spec says to core/request.py: the mounts that may ask, and how the JSON of `request` is read."""

import os

from oci_hook.core.layout import PRIVATE, REQUEST_DIR, VISIBLE_DIR
from oci_hook.core.request import parse
from oci_hook.oci import annotations as oci_annotations
from oci_hook.oci import fastjson
from oci_hook.oci.spec import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.core.request import Request
    from oci_hook.core.rules import Rules


def request(spec: "dict[str, Any]", annotations: dict[str, str], rules: "Rules") -> "Request | None":
    """What the container asks for, None for nothing, as a pod's sandbox does. Raises RequestError.

    spec: as it was before gpu-hook edited it. annotations: the spec's, or the state document's.
    """
    if oci_annotations.is_sandbox(annotations):
        return None
    name = oci_annotations.container_name(annotations)
    return parse(annotations, environment(spec), name, rules, mounts(spec), decode)


def mounts(spec: "dict[str, Any]") -> list[tuple[str, str]]:
    """(destination, source) of the spec's mounts in the two folders where a mount is a request, in their order."""
    found = []
    for mount in spec.get("mounts") or ():
        path = plain(mount.get("destination") or "")
        if inside(path, REQUEST_DIR) or inside(path, VISIBLE_DIR):
            found.append((path, mount.get("source") or ""))
    return found


def is_request(mount: "dict[str, Any]") -> bool:
    """Whether a mount is one of our requests, which nothing is to be mounted for."""
    return inside(plain(mount.get("destination") or ""), REQUEST_DIR)


def is_visible(mount: "dict[str, Any]") -> bool:
    """Whether a mount is a request in the NVIDIA runtime's words, which it makes for its own use."""
    return inside(plain(mount.get("destination") or ""), VISIBLE_DIR)


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def plain(path: str) -> str:
    """A destination without `.`, `..` and doubled slashes; ours below /run also where it is called /var/run."""
    path = os.path.normpath("/" + path.lstrip("/"))
    return path[len("/var") :] if path.startswith("/var" + PRIVATE + "/") else path


def decode(text: str) -> object:
    """JSON whose objects have each key once: of two, a reader takes the one that its author overlooked."""
    return fastjson.loads_unique(text.encode())
