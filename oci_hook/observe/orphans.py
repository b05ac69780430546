"""Orphans: processes of containers whose grant is lost, found by the policy page that is mounted for them.

A grant is lost while its container runs when it is released by force, or when the state directory is emptied. What such
a container uses is not in the ledger, and can be granted to others as well.
"""

import os

from oci_hook.core.layout import PAGES_DIR, POLICY_PAGE
from oci_hook.ledger.holders import holders
from oci_hook.linux.mount import Mount, mountinfo, parse

SECONDS = 10.0  # for the look at all processes


def orphans(state_dir: str, known: set[str]) -> dict[str, int]:
    """Key of a grant that is not known -> a process of its container, the container's first where it is found."""
    pages = _on_its_disk(state_dir)
    if pages is None:
        return {}
    device, top = pages

    def keys(data: bytes, _: bytes) -> set[str]:
        """The keys of this state directory's pages; another install's pages have the same place in its containers."""
        found = set()
        for line in data.split(b"\n"):
            if POLICY_PAGE.encode() in line:
                try:
                    (mount,) = parse(line)
                except (ValueError, IndexError):  # the last line, cut off
                    continue
                if mount.point == POLICY_PAGE and mount.device == device and mount.root.startswith(top):
                    found.add(mount.root[len(top) :].partition("/")[0])
        return found - known

    found, _ = holders(SECONDS, keys=keys)
    return {key: pid for key, (pid, _) in found.items()}


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
