"""Reads the inventory cache, STATE/inventory.json, at every container start. discovery/save.py writes it.

Reading it asks no driver: the cache is valid while the boot, the driver root and a few files (libraries, the kernel
driver's version) are what they were. Otherwise loading it fails with GH-301, and the container does not start.
"""

import os

from oci_hook.config.settings import Settings
from oci_hook.core.inventory import DeviceFile, DriverFile, Gpu, GpuNode, Inventory
from oci_hook.core.layout import DEFAULT_PREFIX, INVENTORY
from oci_hook.errors import GhError, refuse
from oci_hook.linux.proc import boot_id, read_file
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
MAX_SIZE = 1 << 20


def load(settings: Settings) -> Inventory:
    """The cached inventory. Raises NodeError GH-301 when it is missing, damaged, or of another driver or boot, GH-302
    when the driver is gone."""
    path = f"{settings.state_dir}/{INVENTORY}"
    try:
        st = os.stat(path)
        if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022:
            raise _stale(settings, f"{path} can be changed by other users")
        inventory = _from_data(fastjson.loads(read_file(path, MAX_SIZE)))
        if inventory.boot_id != boot_id():
            raise _stale(settings, f"{path} is of an earlier boot")
    except FileNotFoundError:
        raise _stale(settings, f"{path} does not exist") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        if isinstance(e, PermissionError) and os.geteuid():
            raise refuse("GH-301", f"{path} is root's alone; run this as root") from None
        raise _stale(settings, f"{path} cannot be read ({e})") from None
    if inventory.driver_root != settings.driver_root:
        raise _stale(settings, f"the setting driver_root changed from {inventory.driver_root}")
    for then in inventory.stamp:
        now = stamp(then[0])
        if now[1:] == (0, 0, 0) != then[1:]:
            raise refuse(
                "GH-302", f"{then[0][:150]} is gone; install or load the driver again, {_look_again(settings)}"
            )
        if now != then:
            raise _stale(settings, f"{then[0]} changed since the GPUs were listed")
    return inventory


def stamp(path: str) -> tuple[str, int, int, int]:
    """(path, inode, size, mtime in ns); below /proc, where these mean nothing, (path, 0, length, CRC-32) of the text.
    A file that is not there is (path, 0, 0, 0)."""
    try:
        if path.startswith("/proc/"):
            from binascii import crc32

            text = read_file(path)
            return path, 0, len(text), crc32(text)
        st = os.stat(path)
        return path, st.st_ino, st.st_size, st.st_mtime_ns
    except OSError:
        return path, 0, 0, 0


def _stale(settings: Settings, why: str) -> GhError:
    return refuse("GH-301", f"{why[:150]}; {_look_again(settings)}")


def _look_again(settings: Settings) -> str:
    prefix = f" --prefix {settings.prefix}" if settings.prefix != DEFAULT_PREFIX else ""
    return f"run `gpu-hook gpus --refresh{prefix}`"


def _from_data(data: "Any") -> Inventory:
    if data.pop("format") != FORMAT:
        raise ValueError("written by another version of gpu-hook")
    data["gpus"] = tuple(Gpu(**gpu) for gpu in data["gpus"])
    data["control"] = tuple(DeviceFile(**file) for file in data["control"])
    data["files"] = tuple(DriverFile(**{**file, "names": tuple(file["names"])}) for file in data["files"])
    data["nodes"] = tuple(GpuNode(**node) for node in data.get("nodes") or ())
    data["links"] = tuple(tuple(link) for link in data["links"])
    data["stamp"] = tuple(tuple(entry) for entry in data["stamp"])
    data["environment"] = tuple(tuple(entry) for entry in data.get("environment") or ())
    return Inventory(**data)
