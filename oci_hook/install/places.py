"""Finds where an install can lie: a folder whose file system can be written, runs programs, and is still there after a boot.

Nodes have few: on Container-Optimized OS /home and /var run nothing, and /etc is gone after a boot. No place needs setuid
programs, so nosuid does not matter.
"""

import errno
import os
from pathlib import Path

from oci_hook.core import layout
from oci_hook.errors import refuse

# In the order in which they are tried; of all but the first the folder above must be there.
# https://cloud.google.com/container-optimized-os/docs/concepts/disks-and-filesystem; /local: Bottlerocket.
PLACES = (
    layout.DEFAULT_PREFIX,
    "/var/lib/gpu-hook",
    "/var/opt/gpu-hook",
    "/home/kubernetes/bin/gpu-hook",
    "/var/lib/google/gpu-hook",
    "/local/gpu-hook",
)
IN_MEMORY = ("tmpfs", "ramfs", "rootfs", "devtmpfs")


def found(machine: str = "/") -> str:
    """The place with an install; the first of all where none has one. machine: where its / is mounted."""
    return next((place for place in PLACES if _below(machine, place, layout.SETTINGS_YAML).exists()), PLACES[0])


def choose(program: Path, machine: str = "/") -> tuple[str, list[str]]:
    """(the place, why not those before it): where an install is, else the first that fits, else the first where only a boot
    would remove it. program: a static one, to try. Raises SettingsError GH-504."""
    if _below(machine, place := found(machine), layout.SETTINGS_YAML).exists():
        return place, []
    why: dict[str, str] = {}
    for place in PLACES:
        folder = _below(machine, place)
        if place != PLACES[0] and not folder.parent.is_dir():
            continue
        why[place] = unfit(folder, program, machine) or lost(folder, machine)
        if not why[place]:
            return place, _why(why)
    for place in why:
        if not unfit(_below(machine, place), program, machine):
            return place, [
                f"a boot removes it: {why[place]}",
                *_why({other: why[other] for other in why if other != place}),
            ]
    raise refuse("GH-504", f"no place for the install: {'; '.join(why.values())}"[:220] + "; name one with --prefix")


def _why(why: dict[str, str]) -> list[str]:
    return [f"not in {place}: {reason}" for place, reason in why.items() if reason]


def unfit(folder: Path, program: Path, machine: str = "/") -> str:
    """Why no install can be in this folder, which need not exist; "" if one can. It is tried: with a file in the nearest folder
    that exists, which is run."""
    import subprocess  # other commands only look for the install
    import tempfile

    near = _existing(folder)
    name = _shown(near, machine)
    try:
        flags = os.statvfs(near).f_flag
        if flags & os.ST_RDONLY:
            return f"{name} is mounted read-only"
        if flags & os.ST_NOEXEC:
            return f"{name} is mounted noexec"
        with tempfile.TemporaryDirectory(dir=near, prefix=".gpu-hook-") as tried:
            copy = Path(tried, "program")
            copy.write_bytes(program.read_bytes())
            copy.chmod(0o755)
            null = subprocess.DEVNULL
            try:
                subprocess.run([copy], stdin=null, stdout=null, stderr=null, timeout=60)
            except OSError as e:
                if e.errno != errno.ETXTBSY:  # a process that was just forked still has it open
                    return f"{name} runs no program: {e.strerror}"
    except OSError as e:
        return f"{name} cannot be written: {e.strerror}"
    return ""


def lost(folder: Path, machine: str = "/") -> str:
    """Why a boot removes what is in this folder; "" if nothing says so."""
    from oci_hook.linux import mount

    near = _existing(folder)
    fd = os.open(near, os.O_PATH | os.O_CLOEXEC)
    try:
        here = mount.mount_of(fd, "self", 0)
    finally:
        os.close(fd)
    if here is None:
        return ""
    if here.fstype in IN_MEMORY:
        return f"{_shown(near, machine)} is on {here.fstype}"
    upper = next((word[len("upperdir=") :] for word in here.options if word.startswith("upperdir=")), "")
    if here.fstype == "overlay" and upper and _in_memory(machine + upper):
        return f"{_shown(near, machine)} is an overlay on tmpfs"
    return ""


def _in_memory(folder: str) -> bool:
    from oci_hook.linux import mount

    try:
        fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # mount namespaces differ
        return False
    try:
        return mount.fstatfs_type(fd) == mount.TMPFS_MAGIC
    finally:
        os.close(fd)


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _below(machine: str, *path: str) -> Path:
    return Path(machine, *(part.lstrip("/") for part in path))


def _shown(folder: Path, machine: str) -> str:
    return os.path.join("/", os.path.relpath(folder, machine)) if machine != "/" else str(folder)
