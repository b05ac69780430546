"""Links /dev/char/MAJOR:MINOR to the driver's device nodes. The driver makes its nodes without udev, so without links.

For a device without a link, runc before 1.1.7 and systemd before 240 write no rule into the systemd unit; the next
`systemctl daemon-reload` then removes the device from running containers (runc issue 3708).
"""

import os
import stat

from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import NVIDIA_MAJOR

FOLDER = "/dev/char"


def nodes(gpus: Inventory) -> list[tuple[str, int, int]]:
    """(path, major, minor) of every node that containers may get."""
    wanted = [(f"/dev/nvidia{gpu.minor}", NVIDIA_MAJOR, gpu.minor) for gpu in gpus.gpus]
    wanted += [(device.path, device.major, device.minor) for device in gpus.control]
    wanted += [(node.path, node.major, node.minor) for node in gpus.nodes]
    return list(dict.fromkeys(wanted))


def is_device(path: str, major: int, minor: int) -> bool:
    try:
        st = os.stat(path)
    except OSError:
        return False
    return stat.S_ISCHR(st.st_mode) and st.st_rdev == os.makedev(major, minor)


def missing(gpus: Inventory) -> list[tuple[str, str]]:
    """(node, link) for each node that exists without a link."""
    found = ((path, f"{FOLDER}/{major}:{minor}", major, minor) for path, major, minor in nodes(gpus))
    return [(path, link) for path, link, *number in found if is_device(path, *number) and not is_device(link, *number)]


def make(gpus: Inventory) -> None:
    """Make the missing links of real GPUs. `doctor` reports those that cannot be made."""
    for path, link in () if gpus.simulated else missing(gpus):
        try:
            os.makedirs(FOLDER, exist_ok=True)
            os.symlink(os.path.relpath(path, FOLDER), link)
        except OSError:
            pass
