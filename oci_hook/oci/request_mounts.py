"""A container's request in its spec: annotations, environment, and mounts below REQUEST_DIR or VISIBLE_DIR, whose
destinations say what is asked for."""

import os

from oci_hook.core import collect
from oci_hook.core.layout import PRIVATE, REQUEST_DIR, VISIBLE_DIR
from oci_hook.core.request import parse
from oci_hook.oci import annotations as oci_annotations
from oci_hook.oci import fastjson
from oci_hook.oci.spec import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.request import Request
    from oci_hook.core.rules import Rules
    from oci_hook.oci.spec_types import Mount, Spec

OWN_HOOK = "/bin/oci-gpu-hook"  # below a prefix
HOSTNAME = "/etc/hostname"  # docker mounts its own file there, which lies beside the container's config.v2.json


def request(spec: "Spec", annotations: dict[str, str], rules: "Rules") -> "Request | None":
    """The container's request; None if it asks for nothing, as a pod's sandbox does. Raises RequestError.

    spec: as it was before gpu-hook edited it. annotations: the spec's, or the state document's.
    """
    if oci_annotations.is_sandbox(annotations):
        return None
    name = oci_annotations.container_name(annotations)
    env = {} if claim(spec) else environment(spec)  # a claim's CDI file sets variables that ask where they are trusted
    return parse(annotations, env, name, rules, mounts(spec), decode)


def claim(spec: "Spec") -> str:
    """The uid of the ResourceClaim whose CDI file has put our hook into the spec; "" where none has."""
    hooks = spec.get("hooks")
    entries = hooks.get("createRuntime") if isinstance(hooks, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        args = entry.get("args") if isinstance(entry, dict) and str(entry.get("path")).endswith(OWN_HOOK) else None
        if isinstance(args, list) and len(args) == 3 and args[1] == "createRuntime":
            return str(args[2])
    return ""


def unclear(spec: "Spec", annotations: dict[str, str], rules: "Rules", asks: bool) -> bool:
    """True if oci/unclear.py, which few containers load, must look at what this one asks for. asks: whether it asks for a
    GPU in words that are understood."""
    if oci_annotations.is_sandbox(annotations) or claim(spec):
        return False
    if collect.suspects(annotations, oci_annotations.container_name(annotations), rules, asks):
        return True
    for mount in spec.get("mounts") or ():
        source, destination = mount.get("source") or "", mount.get("destination") or ""
        if source == "/dev/null" and "gpu" in destination.lower() and not inside(plain(destination), REQUEST_DIR):
            return True
        if not asks and destination == HOSTNAME and "/containers/" in source:
            return True  # docker's: its labels are beside that file
    env = environment(spec)
    if rules.trust_env:
        return bool(collect.unread_variables(env, rules, asks))
    return not asks and any(name.startswith(collect.ASKING_VARIABLES) for name in env)


def mounts(spec: "Spec") -> list[tuple[str, str]]:
    """(destination, source) of the spec's mounts that are requests, in their order."""
    found = []
    for mount in spec.get("mounts") or ():
        path = plain(mount.get("destination") or "")
        if inside(path, REQUEST_DIR) or inside(path, VISIBLE_DIR):
            found.append((path, mount.get("source") or ""))
    return found


def is_request(mount: "Mount") -> bool:
    """True if a mount is a request in our words. No such mount is made: its destination says all."""
    return inside(plain(mount.get("destination") or ""), REQUEST_DIR)


def is_visible(mount: "Mount") -> bool:
    """True if a mount is a request in the NVIDIA runtime's words."""
    return inside(plain(mount.get("destination") or ""), VISIBLE_DIR)


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def plain(path: str) -> str:
    """A destination without `.`, `..` and doubled slashes; of our own folder always as below /run, not /var/run."""
    path = os.path.normpath("/" + path.lstrip("/"))
    return path[len("/var") :] if path.startswith("/var" + PRIVATE + "/") else path


def decode(text: str) -> object:
    """The value of the annotation `request`, as JSON. Raises ValueError, also for an object that has a key twice, since
    readers differ in which of the two they take."""
    return fastjson.loads_unique(text.encode())
