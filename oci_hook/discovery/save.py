"""Writes what discovery found into the state directory: the inventory cache and tiers.json."""

import os

from oci_hook.config.settings import Settings
from oci_hook.core.inventory import Inventory
from oci_hook.core.layout import INVENTORY
from oci_hook.core.value import Value
from oci_hook.errors import refuse
from oci_hook.install import state_owner
from oci_hook.ledger.inventory import FORMAT
from oci_hook.linux.lock import own_dir
from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def save_inventory(settings: Settings, inventory: Inventory) -> None:
    """Replace the cache in one step, writable by root and readable by all. Raises NodeError GH-303 when that fails,
    GH-504 where the state directory belongs to another install."""
    state_owner.claim(settings.prefix, settings.state_dir)
    put_file(settings, INVENTORY, _to_data(inventory))


def put_file(settings: Settings, name: str, data: "dict[str, Any]") -> None:
    """Replace a JSON file of the state directory, mode 0644. Raises NodeError GH-303."""
    path = f"{settings.state_dir}/{name}"
    temporary = f"{path}.{os.getpid()}.new"
    try:
        own_dir(settings.state_dir)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            os.fchmod(fd, 0o644)
            text = (fastjson.dumps(data) + "\n").encode()
            while text:
                text = text[os.write(fd, text) :]
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError as e:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise refuse("GH-303", f"{path}: {e.strerror}; free space there, or run as root") from None


def _to_data(inventory: Inventory) -> "dict[str, Any]":
    data: dict[str, Any] = {"format": FORMAT}
    for name, value in inventory.fields().items():
        if isinstance(value, tuple):
            value = [v.fields() if isinstance(v, Value) else list(v) for v in value]
        data[name] = value
    for gpu in data["gpus"]:
        del gpu["missing_mib"]  # of now; an earlier version does not know it, either
    return data
