"""What a container's spec says to core/request.py: the mounts that may ask, and how the JSON of `request` is read."""

import os

from oci_hook.core.layout import PRIVATE, REQUEST_DIR, VISIBLE_DIR
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
