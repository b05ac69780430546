"""Reads the inventory cache, STATE/inventory.json, at every container start. discovery/save.py writes it.

Reading it asks no driver: the cache is valid while the boot, the driver root and a few files (libraries, the kernel
driver's version) are what they were. Otherwise loading it fails with GH-301, and the container does not start.
"""

import os
import time

from oci_hook.config.settings import Settings, option
from oci_hook.core.inventory import DeviceFile, DriverFile, Gpu, GpuNode, Inventory
from oci_hook.core.layout import DRIVER_ROOTS, INVENTORY, UNLISTED
from oci_hook.errors import GhError, refuse
from oci_hook.linux.proc import boot_id, is_running, read_file
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
MAX_SIZE = 1 << 20
BOOT_SECONDS = 120.0  # after power-on; until then the GPUs may still have to be listed


def load(settings: Settings) -> Inventory:
    """The cached inventory. Raises NodeError GH-301 when it is missing, damaged, or of another driver or boot, GH-302
    when the driver is gone."""
    path = f"{settings.state_dir}/{INVENTORY}"
    try:
        st = os.stat(path)
        if st.st_uid not in (0, os.geteuid()) or st.st_mode & 0o022:
            raise _stale(settings, f"{path} can be changed by other users")
        inventory = _from_data(fastjson.loads(read_file(path, MAX_SIZE)), _missing(settings.state_dir))
        if inventory.boot_id != boot_id():
            raise _stale(settings, f"{path} is of an earlier boot")
    except FileNotFoundError:
        raise _stale(settings, f"{path} does not exist") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        if isinstance(e, PermissionError) and os.geteuid():
            raise refuse("GH-301", f"{path} is root's alone; run this as root") from None
        raise _stale(settings, f"{path} cannot be read ({e})") from None
    roots = (settings.driver_root, *(DRIVER_ROOTS if settings.driver_root == "/" else ()))
    if inventory.driver_root not in roots:
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


def load_at_boot(settings: Settings, patience: float) -> Inventory:
    """`load`; soon after the machine's boot it waits so many seconds for an inventory, since engines start containers before
    the GPUs are listed."""
    end = time.monotonic() + patience
    while True:
        try:
            return load(settings)
        except GhError as e:
            known = e.problems[0].code != "GH-301" or time.clock_gettime(time.CLOCK_BOOTTIME) > BOOT_SECONDS
            if known or time.monotonic() > end:
                raise
        time.sleep(0.1)


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
    return f"run `gpu-hook gpus --refresh{option(settings.prefix)}`"


def _missing(state_dir: str) -> "dict[str, int]":
    """MiB by UUID, as the agent found it (agent/act/protection.py). What an agent found that has ended may be free by now."""
    try:
        found = fastjson.loads(read_file(f"{state_dir}/{UNLISTED}", MAX_SIZE))
    except FileNotFoundError:
        return {}
    if not is_running(tuple(found.get("agent") or (0, 0))):
        return {}
    return {str(uuid): int(mib) for uuid, mib in found["mib"].items()}


def _from_data(data: "Any", missing: "dict[str, int]") -> Inventory:
    if data.pop("format") != FORMAT:
        raise ValueError("written by another version of gpu-hook")
    data["gpus"] = tuple(Gpu(**gpu, missing_mib=missing.get(gpu["uuid"], 0)) for gpu in data["gpus"])
    data["control"] = tuple(DeviceFile(**file) for file in data["control"])
    data["files"] = tuple(DriverFile(**{**file, "names": tuple(file["names"])}) for file in data["files"])
    data["nodes"] = tuple(GpuNode(**node) for node in data.get("nodes") or ())
    data["links"] = tuple(tuple(link) for link in data["links"])
    data["stamp"] = tuple(tuple(entry) for entry in data["stamp"])
    data["environment"] = tuple(tuple(entry) for entry in data.get("environment") or ())
    return Inventory(**data)
