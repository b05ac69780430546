"""Repairs device nodes of GPUs that are missing on the node: the driver makes them only on first use."""

import os
import stat

from oci_hook.core.inventory import Inventory
from oci_hook.discovery import char_links
from oci_hook.linux.device import mknodat


def repair(inventory: Inventory) -> tuple[list[str], list[str]]:
    """Make missing nodes and links of real GPUs: (what was made, what is wrong). A wrong node is reported and kept."""
    made: list[str] = []
    wrong: list[str] = []
    if inventory.simulated:
        return made, wrong
    for path, major, minor in char_links.nodes(inventory):
        try:
            st = os.lstat(path)
            if not stat.S_ISCHR(st.st_mode) or st.st_rdev != os.makedev(major, minor):
                wrong.append(f"{path} is not the device {major}:{minor}; remove it")
        except FileNotFoundError:
            try:
                folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    mknodat(folder, os.path.basename(path), major, minor, 0o666)
                finally:
                    os.close(folder)
                made.append(path)
            except OSError as e:
                wrong.append(f"{path}: {e.strerror}")
    links = [link for _, link in char_links.missing(inventory)]
    if links:
        char_links.make(inventory)
        made += [link for link in links if os.path.lexists(link)]
    return made, wrong
