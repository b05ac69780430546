"""The host files of a plan, looked at before anything is changed: those that it mounts, and those that it mounts on."""

import os
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG, S_ISSOCK

from oci_hook.core.layout import CONTAINER_DIR, PAGE_UID
from oci_hook.core.plan import DATA, Bind, Tmpfs
from oci_hook.errors import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.config.settings import Settings
    from oci_hook.core.plan import Step

ADVICE = {
    "GH-302": "install the driver's files again and run `gpu-hook gpus --refresh`",
    "GH-303": "look at the state directory's file system",
    "GH-305": "run `gpu-hook install` again",
}


def check_sources(plan: "Iterable[Step]", settings: "Settings") -> None:
    """Each file that is mounted must be there, be writable by root alone, and have something in it.

    Raises NodeError with the code of the place that is not fit: GH-302 driver root, GH-303 state, GH-305 install.
    """
    seen: set[str] = set()
    for step in plan:
        if not isinstance(step, Bind) or step.source in seen:
            continue
        path = step.source
        seen.add(path)
        code = _code(path, settings)
        try:
            st = os.stat(path, follow_symlinks=False)
        except OSError as e:
            raise refuse(code, f"{path}: {e.strerror}; {ADVICE[code]}") from None
        shared = S_ISSOCK(st.st_mode) or "rw" in step.options  # meant to be used by others
        if S_ISLNK(st.st_mode) or st.st_uid not in (0, PAGE_UID) or (S_IMODE(st.st_mode) & 0o022 and not shared):
            raise refuse(code, f"{path} must be no link, root's, and writable by root alone; {ADVICE[code]}")
        if S_ISREG(st.st_mode) and not st.st_size and not may_be_empty(step, settings):
            raise refuse(code, f"{path} is empty: a copy of it was cut off; {ADVICE[code]}")


def may_be_empty(step: Bind, settings: "Settings") -> bool:
    """A driver's data file, or the install's file that is mounted over libraries that are not to be loaded."""
    return step.options == DATA and not step.source.startswith(settings.state_dir + "/")


def _code(path: str, settings: "Settings") -> str:
    for folder, code in ((settings.prefix, "GH-305"), (settings.state_dir, "GH-303")):
        if path.startswith(folder + "/"):
            return code
    return "GH-302"


def check_mount_points(plan: "Iterable[Step]", settings: "Settings") -> None:
    """Each place to mount on in the private directory must be there: PREFIX/lib/private/container, read-only in the
    container. A runtime would notice a missing place only after config.json was edited.

    Raises NodeError GH-305 where one is missing or of another kind.
    """
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
