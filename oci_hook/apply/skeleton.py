"""PREFIX/lib/private/container, which becomes the private directory of every container: read-only there, so that what a
plan mounts on must be in it beforehand. A runtime would notice a missing place only after config.json was edited."""

import os
from stat import S_ISDIR, S_ISREG

from oci_hook.core.layout import CONTAINER_DIR
from oci_hook.core.plan import Bind, Tmpfs
from oci_hook.errors import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.config.settings import Settings
    from oci_hook.core.plan import Step


def check_mount_points(plan: "Iterable[Step]", settings: "Settings") -> None:
    """Raises NodeError GH-305 where a step that lies in the private directory has no place, or one of another kind."""
    skeleton = f"{settings.prefix}/{CONTAINER_DIR}"
    private = ""
    for step in plan:
        if isinstance(step, Bind) and step.source == skeleton:
            private = step.destination + "/"
        elif private and isinstance(step, (Bind, Tmpfs)) and step.destination.startswith(private):
            path = f"{skeleton}/{step.destination[len(private) :]}"
            mode = _mode(path)
            folder = isinstance(step, Tmpfs) or S_ISDIR(_mode(step.source))
            if not (S_ISDIR if folder else S_ISREG)(mode):
                kind = "directory" if folder else "file"
                raise refuse("GH-305", f"{path}, to mount on, is missing or no {kind}; run `gpu-hook install` again")


def _mode(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return 0
