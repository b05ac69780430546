"""Which engines a machine has, and whether an install is safe to register with them."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from oci_hook.engines import NAMES, containerd_place, engine
from oci_hook.engines.edits import Registration
from oci_hook.errors import GhError, refuse
from oci_hook.install import own_path

FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/bin",
    "/snap/bin",
)


def found(registration: Registration) -> dict[str, str]:
    """Engine -> the program by which it was found, in the order of NAMES."""
    return {name: path for name in NAMES if (path := where(name, registration))}


def where(name: str, registration: Registration) -> str | None:
    module = engine(name)
    for folder in FOLDERS:
        for program in module.PROGRAMS:
            path = registration.host(f"{folder}/{program}")
            if os.path.lexists(path):  # not exists(): seen from a container, an absolute link may lead nowhere
                return f"{folder}/{program}"
    return (module.elsewhere(registration) or None) if hasattr(module, "elsewhere") else None


def runtime(names: Sequence[str], registration: Registration) -> str:
    """The runc that a distribution's own containerd brings; "" where it brings none."""
    if names and "containerd" not in names:
        return ""
    try:
        place = containerd_place.of(registration)
    except GhError:  # registering reports it
        return ""
    return place.runc if place.runc and os.path.exists(registration.host(place.runc)) else ""


def require(name: str, registration: Registration) -> None:
    """Raises SettingsError GH-505 if the engine is not on this machine, unless --config names its file."""
    if registration.config is None and where(name, registration) is None:
        programs = " or ".join(engine(name).PROGRAMS)
        here = ", ".join(found(registration)) or "none"
        if os.path.lexists(registration.host(f"/snap/bin/{name}")):
            raise refuse(
                "GH-505",
                f"{name} is here from snap only, which starts no program outside its snap;"
                f" install the package of {name} or of the distribution instead",
            )
        raise refuse(
            "GH-505",
            f"{name} is not on this machine: no {programs} in /usr/bin, /usr/sbin and the like; engines that are here: {here};"
            f" install {name} first, name its file by --config, or see its lines by --print",
        )


def check_prefix(prefix: str) -> None:
    """Engines run PREFIX's programs as root, so only root may be able to change them. Raises SettingsError GH-504."""
    for program in ("gpu-hook-runtime", "oci-gpu-hook"):
        path = Path(prefix, "bin", program)
        if not path.is_file():
            raise refuse(
                "GH-504", f"{path} does not exist; run `gpu-hook install --prefix {shlex.quote(prefix)}` first"
            )
        if (part := own_path.changeable(str(path))) is not None:
            raise refuse("GH-504", f"{part} can be changed by others than root; run chown root and chmod go-w on it")
    if os.statvfs(prefix).f_flag & os.ST_NOEXEC:
        raise refuse("GH-504", f"{prefix} is on a file system mounted noexec; choose another --prefix")
