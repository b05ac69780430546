"""Processes with a share that the ledger does not know, by the policy page that is mounted for them.

Their grant was lost while they lived (a forced release, a state directory that was emptied): what they use is not
booked, and can be given to others as well. Only the kernel's own words on their mounts are read, nothing in them.
"""

import os

from oci_hook.core.layout import PAGES_DIR, POLICY_PAGE
from oci_hook.ledger.holders import is_first
from oci_hook.linux.mount import TENANT_MOUNTS, Mount, mountinfo


def strays(state_dir: str, known: set[str]) -> dict[str, int]:
    """Key of a grant that is not known -> a process of its container, the container's first where it is found."""
    pages = _on_its_disk(state_dir)
    if pages is None:
        return {}
    device, top = pages
    found: dict[str, int] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            mounts = mountinfo(str(pid), TENANT_MOUNTS)
        except (OSError, ValueError):
            continue  # it has just ended, or has too many
        for mount in mounts:
            if mount.point == POLICY_PAGE and mount.device == device and mount.root.startswith(top):
                key = mount.root[len(top) :].partition("/")[0]
                if key not in known and (key not in found or is_first(pid)):
                    found[key] = pid
    return found


def _on_its_disk(state_dir: str) -> tuple[str, str] | None:
    """(device, path within its file system) of the directory of policy pages."""
    path = os.path.realpath(state_dir)

    def above(mount: Mount) -> bool:
        return (path + "/").startswith(mount.point.rstrip("/") + "/")

    over = [mount for mount in mountinfo() if above(mount)]
    if not over:
        return None
    mount = max(enumerate(over), key=lambda pair: (len(pair[1].point), pair[0]))[1]
    inside = path[len(mount.point.rstrip("/")) :]
    return mount.device, f"{mount.root.rstrip('/')}{inside}/{PAGES_DIR}/"
