"""The setting `near_misses`, by which containers are refused that ask in words which are not understood."""

import os

from oci_hook.oci import fastjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.config.settings import Settings

ENGINES = "etc/engines.json"  # below the prefix: engines/edits.py's record of what was registered where
MAX = 1 << 20


def refuses(settings: "Settings", named: bool) -> bool:
    """named: whether the container's user chose gpu-hook by name, as far as the caller knows: a runtime is chosen, a hook
    sees every container."""
    how = settings.rules.near_misses
    return how == "refuse" or (how == "auto" and named and not _is_default(settings.prefix))


def _is_default(prefix: str) -> bool:
    """True if some engine has this install as the runtime of containers that name none (`install --set-default`)."""
    try:
        fd = os.open(f"{prefix}/{ENGINES}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            engines = fastjson.loads(os.read(fd, MAX))["engines"]
        finally:
            os.close(fd)
        return any("default" in file["notes"] for files in engines.values() for file in files.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
