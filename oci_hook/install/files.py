"""Files and folders that commands change: replaced in one step, locked, removed where empty."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from oci_hook.errors import GhError, NodeError, refuse
from oci_hook.linux.lock import lock_file

LOCK = ".lock"  # of a prefix: one process installs, removes or changes settings at a time
LOCK_SECONDS = 60.0


def write(file: str, text: str, mode: int = 0o644) -> None:
    """Replace `file`, by rename; its mode is `mode` whatever the umask. Raises SettingsError GH-504."""
    temporary = f"{file}.{os.getpid()}.new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            with open(fd, "w", encoding="utf-8") as f:
                f.write(text)
                f.flush()
                os.fchmod(f.fileno(), mode)
                os.fsync(f.fileno())
            os.rename(temporary, file)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as e:
        raise os_refusal("GH-504", f"{file} cannot be written", e, "choose --prefix") from None


def os_refusal(code: str, what: str, error: OSError, advice: str = "") -> GhError:
    """The exception for a file that the kernel refuses. advice: what helps beside being root."""
    root = "run as root" if isinstance(error, PermissionError) and os.geteuid() else ""
    helps = ", or ".join(filter(None, (root, advice)))
    return refuse(code, f"{what}: {error.strerror}" + (helps and f"; {helps}"))


def locked(path: str, code: str) -> int:
    """A descriptor that holds this lock file. Raises OSError, and a SettingsError with `code` that names the holder if
    it keeps the lock for LOCK_SECONDS."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return lock_file(path, fcntl.LOCK_EX)
        except NodeError as e:
            if time.monotonic() > end:
                raise refuse(code, e.problems[0].message) from None


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, each 0755 whatever the umask, since other users read what is in it."""
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            folder.mkdir(0o755, exist_ok=True)
            folder.chmod(0o755)


def unlock(path: str, fd: int) -> None:
    """Let go of what `locked` gave, and remove the file."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.close(fd)


def remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass
