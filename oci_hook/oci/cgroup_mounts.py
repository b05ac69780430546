"""Checks that a container may not write to its cgroups.

The driver keeps a limit for a cgroup. Whether the limit holds for the cgroups below is documented for the controller
dmem only (kernel, Documentation/admin-guide/cgroup-v2.rst, "DMEM"), not for the driver's other back-end. A container that
can make cgroups below its own may so leave its limit. Engines mount cgroups read-only, except for images that run
systemd (podman's --systemd).
"""

import os

from oci_hook.errors import refuse
from oci_hook.oci.request_mounts import inside, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.oci.spec_types import Mount, Spec

TREE = "/sys/fs/cgroup"


def check(spec: "Spec") -> None:
    """Raises ApplyError GH-414 if the container, whose boundary is driver, may write to its cgroups."""
    if path := writable(spec):
        raise refuse(
            "GH-414",
            f"boundary: driver is asked for, and the container may write to its cgroups at {path[:90]}, where it could "
            "leave the driver's limit; mount them read-only (podman: --systemd=false)",
        )


def writable(spec: "Spec") -> str:
    """The place of a cgroup file system in the container that it may write to; "" for none."""
    found: list[str] = []
    for mount in spec.get("mounts") or ():
        destination = plain(mount.get("destination") or "")
        found = [place for place in found if not inside(place, destination)]  # a later mount covers these
        below = _brought(mount)
        if below is not None and not _read_only(mount, top=not below):
            found.append(destination.rstrip("/") + below)
    return found[0] if found else ""


def _brought(mount: "Mount") -> str | None:
    """Where below its destination a mount brings a cgroup file system: "" for the destination itself, None for nowhere."""
    if mount.get("type") in ("cgroup", "cgroup2"):
        return ""
    source = mount.get("source") or ""
    if not source.startswith("/"):
        return None
    source = os.path.realpath(source).rstrip("/")
    if inside(source, TREE):
        return ""
    return TREE[len(source) :] if inside(TREE, source) and "rbind" in (mount.get("options") or ()) else None


def _read_only(mount: "Mount", top: bool) -> bool:
    """True if what is mounted there is read-only; top: at the mount's destination, to which alone `ro` applies."""
    options = mount.get("options") or ()
    own = [word for word in options if word in ("ro", "rw")][-1:]
    tree = [word for word in options if word in ("rro", "rrw")][-1:]  # set after the others, on all that lies below too
    return tree == ["rro"] or (top and own == ["ro"] and not tree)
