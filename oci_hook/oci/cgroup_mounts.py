"""Checks that a container may not write to its cgroups.

The driver keeps a limit for a cgroup. Whether the limit holds for the cgroups below is documented for the controller
dmem only (kernel, Documentation/admin-guide/cgroup-v2.rst, "DMEM"), not for the driver's other back-end. A container that
can make cgroups below its own may so leave its limit. Engines mount cgroups read-only, except for images that run
systemd (podman's --systemd).
"""

from oci_hook.errors import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.oci.spec_types import Spec

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
    for mount in spec.get("mounts") or ():
        kind, source = str(mount.get("type")), str(mount.get("source"))
        options = mount.get("options") or ()
        if kind in ("cgroup", "cgroup2") or source == TREE or source.startswith(TREE + "/"):
            last = [word for word in options if word in ("ro", "rw")][-1:]
            if last != ["ro"]:
                return str(mount.get("destination"))
    return ""
