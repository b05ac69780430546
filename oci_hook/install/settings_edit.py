"""Changes of settings.yaml by commands: one line each; comments and the other lines stay as they are."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oci_hook.config import flat_yaml
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import Settings
from oci_hook.core.layout import SETTINGS_YAML
from oci_hook.errors import refuse
from oci_hook.install import state_move
from oci_hook.install.files import LOCK, locked, os_refusal, unlock, write
from oci_hook.install.settings_check import checked

if TYPE_CHECKING:
    from oci_hook.config.flat_yaml import Value


def change(prefix: str, **values: "Value") -> Settings:
    """Set these keys in settings.yaml; the settings, which are in effect from now on. Without keys: check the file, and
    move the install to the state directory that it names.

    Nothing is written unless all of the file is valid then. A state directory that is left is emptied. Raises
    SettingsError GH-501/503/504, NodeError GH-303 where containers hold shares in it, or that cannot be found out.
    """
    with _alone(prefix):
        old = node_settings.read(prefix)
        new = edited(prefix, old, values) if values else old
        settings = checked(prefix, new)
        with state_move.moving(prefix, settings.state_dir):
            if new != old:
                write(os.path.join(prefix, SETTINGS_YAML), new.decode())
    return settings


@contextlib.contextmanager
def _alone(prefix: str) -> Iterator[None]:
    """Changes wait for each other, and for installs and removals: of two at once, one would be lost. Raises SettingsError
    GH-501 where there are no settings, GH-504."""
    node_settings.read(prefix)
    lock = os.path.join(prefix, LOCK)
    try:
        fd = locked(lock, "GH-504")
    except OSError as e:
        raise os_refusal("GH-504", f"{lock} cannot be locked", e, "choose --prefix") from None
    try:
        yield
    finally:
        unlock(lock, fd)


def set_driver_root(prefix: str, root: str) -> Settings:
    return change(prefix, driver_root=root)


def edited(prefix: str, data: bytes, values: "dict[str, Value]") -> bytes:
    """The text with each key's line changed, or added at the end. Raises SettingsError GH-501 for a file that is not
    settings and for a value that no line can hold."""
    for number, _, _, problem in flat_yaml.lines(data):
        if problem:
            where = f"{os.path.join(prefix, SETTINGS_YAML)}:{number}"
            raise refuse("GH-501", f"{where}: {problem}")
    text = data.decode().split("\n")
    for key, value in values.items():
        try:
            line = f"{key}: {flat_yaml.quoted(value)}"
        except ValueError as e:
            raise refuse("GH-501", f"{key}: {str(value)[:80]!r} {e}") from None
        for at, found in enumerate(map(flat_yaml.split_line, text)):
            if found and found[0] == key:
                text[at] = line + found[2]
                break
        else:
            text = [*(text if text[-1] else text[:-1]), line, ""]
    return "\n".join(text).encode()
