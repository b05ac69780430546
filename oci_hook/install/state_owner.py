"""Which install owns a state directory: STATE/owner names the prefix of the one install that may write and empty it.

`install`, `settings set`, `sim up` and whoever lists the GPUs write it; without a list of the GPUs no container starts
after a reboot has emptied the directory. An install that is gone, or that uses another state directory now
(PREFIX/etc/state_dir), owns nothing here.
"""

import contextlib
import errno
import fcntl
import os
import stat

from oci_hook.config.settings import state_in_use
from oci_hook.core import layout
from oci_hook.core.units import show
from oci_hook.errors import GhError, refuse
from oci_hook.linux.lock import lock_file, own_dir

OURS = {
    *(layout.LEDGER_DIR, layout.PAGES_DIR, layout.MESSAGES_DIR, layout.SHARE_STATE),
    *(layout.BOUNDARY_DIR, layout.BOUNDARY_SOCKET, layout.CLAIMS_DIR),
    *(layout.INVENTORY, layout.TIERS, layout.UNLISTED, layout.STATE_OWNER),
    *(layout.EVENTS, f"{layout.EVENTS}.1", layout.AGENT_LOCK, "sim"),
}
MAX_SIZE = 4096
FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space there"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "run as root"),
    errno.EROFS: "choose another state_dir, on tmpfs; for a unit of systemd one below /run, or give it ReadWritePaths=",
}


def other(prefix: str, state_dir: str) -> str:
    """The prefix of another existing install that uses this state directory; "" if there is none."""
    try:
        fd = _open(state_dir)
    except OSError:
        return ""
    try:
        return _other(fd, prefix, state_dir)
    finally:
        os.close(fd)


def check(prefix: str, state_dir: str) -> None:
    """Raises SettingsError GH-504 if the directory is another install's."""
    if found := other(prefix, state_dir):
        raise _taken(found, state_dir)


def unfit(prefix: str, state_dir: str) -> str:
    """Why this directory cannot be our state directory: other programs' files are in it, or it is inside an install, so
    that gpu-hook would remove files that are not its own, or its own would be removed. "" if it can."""
    at = os.path.realpath(state_dir)
    inside, own = at, os.path.realpath(prefix)
    while inside != "/":
        inside = os.path.dirname(inside)
        # Not the library folder alone: the Debian package has one in /usr/lib, which is /lib.
        if inside != own and all(os.path.exists(f"{inside}/{p}") for p in (layout.LIB_DIR, layout.SETTINGS_YAML)):
            return f"is inside the install {inside[:80]}; choose another place"
        if _in_use(inside):
            return f"is inside the state directory {inside[:80]}; choose another place"
    try:
        others = sorted(set(os.listdir(at)) - OURS)
    except OSError:  # the directory does not exist yet; own_dir says what else is wrong
        return ""
    if others and _said(at) != _name(prefix):
        return f"is not empty and not gpu-hook's (it has {show(others[0][:40])}); choose an empty or new directory"
    return ""


def claim(prefix: str, state_dir: str) -> None:
    """Make the directory, for root alone, and write that it is ours. Raises SettingsError GH-504 if it is another
    install's, NodeError GH-303 if it cannot be used."""
    if why := unfit(prefix, state_dir):
        raise refuse("GH-504", f"state_dir {state_dir[:80]} {why}")
    try:
        own_dir(state_dir)
        fd = lock_file(f"{state_dir}/{layout.STATE_OWNER}", fcntl.LOCK_EX)
        try:
            if found := _other(fd, prefix, state_dir):
                raise _taken(found, state_dir)
            name = _name(prefix)
            if os.pread(fd, MAX_SIZE, 0) != name:
                os.ftruncate(fd, 0)
                os.pwrite(fd, name, 0)
        finally:
            os.close(fd)
        if os.stat(state_dir).st_mode & 0o077 and set(os.listdir(state_dir)) <= OURS:
            os.chmod(state_dir, 0o700)  # 0.1.0's `sim up` made it 0755, and containers write to files in it
    except OSError as e:
        raise unusable(state_dir, e) from None


def unusable(state_dir: str, e: OSError) -> GhError:
    """GH-303 for a directory that cannot be made or written."""
    fix = FIXES.get(e.errno or 0, "choose another state_dir, on tmpfs")
    return refuse("GH-303", f"{str(e.filename or state_dir)[:150]}: {e.strerror}; {fix}")


def release(prefix: str, state_dir: str) -> None:
    """Give up the directory if it is ours: from now on no install owns it. Remove it if nothing else is in it."""
    if not other(prefix, state_dir):
        for remove, path in ((os.unlink, f"{state_dir}/{layout.STATE_OWNER}"), (os.rmdir, state_dir)):
            try:
                remove(path)
            except OSError:  # not there, or used
                pass


def foreign(state_dir: str) -> list[str]:
    """The paths in an emptied state directory that are not gpu-hook's."""
    found = []
    for folder, ours in ((state_dir, OURS), (f"{state_dir}/{layout.SHARE_STATE}", set[str]())):
        with contextlib.suppress(OSError):
            found += [f"{folder}/{name}" for name in os.listdir(folder) if name not in ours]
    return found


def _open(state_dir: str) -> int:
    return os.open(f"{state_dir}/{layout.STATE_OWNER}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _said(state_dir: str) -> bytes:
    """The contents of the directory's owner file; b"" if there is none."""
    try:
        fd = _open(state_dir)
        try:
            return os.pread(fd, MAX_SIZE, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)
    except OSError:
        return b""


def _in_use(folder: str) -> bool:
    """True if the folder is the state directory of an install, or was one and still has its ledger."""
    said = _said(folder)
    if not said.startswith(b"/") or not said.endswith(b"\n"):
        return False
    installed = os.path.join(os.fsdecode(said[:-1]), layout.SETTINGS_YAML)
    return os.path.isdir(f"{folder}/{layout.LEDGER_DIR}") or os.path.lexists(installed)


def _name(prefix: str) -> bytes:
    return os.fsencode(os.path.realpath(prefix)) + b"\n"


def _other(fd: int, prefix: str, state_dir: str) -> str:
    st, said = os.fstat(fd), os.pread(fd, MAX_SIZE, 0)
    if not stat.S_ISREG(st.st_mode) or not said.endswith(b"\n") or said == _name(prefix):
        return ""  # a file that was not written to its end names nobody
    found = os.fsdecode(said[:-1])
    used = state_in_use(found)
    if not used:  # half an install is one, too
        return found if os.path.lexists(f"{found}/{layout.SETTINGS_YAML}") else ""
    return found if os.path.realpath(used) == os.path.realpath(state_dir) else ""


def _taken(found: str, state_dir: str) -> GhError:
    return refuse(
        "GH-504",
        f"state_dir {state_dir[:80]} is that of the install in {found[:80]}; give this one another (--state-dir, or"
        " settings.yaml), or uninstall that one",
    )
