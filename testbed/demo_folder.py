"""A demo's folder, with a place of the same name below /run and one in the cgroups; and how those of demos that were
killed go away.

A living demo holds a lock on its folder's OWNER file, which the kernel drops with it, however it ends. The file gets
its name when it is locked already: an unlocked one is left over from a demo that has ended.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from oci_hook.linux.mount import mountinfo, unmount

NAME = "gpu-hook-demo-"
OWNER = "owner"
RUNC, PREFIX = "runc", "prefix"  # in the folder: runc's state, and the install
GROUPS = Path("/sys/fs/cgroup")


def make() -> tuple[Path, int]:
    """A new folder, and the descriptor that keeps it: children do not inherit it."""
    folder = Path(tempfile.mkdtemp(prefix=NAME))
    fd = os.open(folder / f"{OWNER}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(folder / f"{OWNER}.new", folder / OWNER)
    return folder, fd


def run_of(folder: Path) -> Path:
    """Its place below /run, for a state directory."""
    return Path("/run", folder.name)


def sweep() -> list[Path]:
    """Clear the folders whose demo has ended; return their paths."""
    found = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{NAME}*")):
        try:
            if os.lstat(folder).st_uid != os.geteuid():  # what runc finds in it is run by us
                continue
            fd = os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            clear(folder)
            found.append(folder)
        except BlockingIOError:
            pass  # its demo lives
        finally:
            os.close(fd)
    return found


def clear(folder: Path) -> None:
    """End its containers and the programs that start one, and remove cgroups, mounts and files. The folder goes last: the
    rest is found by it."""
    for pid in _makers(folder):
        _kill(pid)
    for state in sorted(folder.glob(f"{RUNC}/*")):
        command = ["runc", "--root", str(folder / RUNC), "delete", "--force", state.name]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for top in (*GROUPS.glob(f"*/{folder.name}"), GROUPS / folder.name):
        _remove_group(top)
    run = run_of(folder)
    for mount in reversed(mountinfo()):
        if mount.point.startswith((f"{run}/", f"{folder}/")):
            unmount(mount.point)
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _makers(folder: Path) -> Iterator[int]:
    """Runtimes and commands at work in it: runc with its state, gpu-hook with its install."""
    ours = {os.fsencode(folder / RUNC), os.fsencode(folder / PREFIX)}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if ours & set((process / "cmdline").read_bytes().split(b"\0")):
                yield int(process.name)


def _remove_group(top: Path) -> None:
    """Remove a cgroup with all below it. Kills processes in it: they belong to containers that runc no longer knows."""
    end = time.monotonic() + 5
    while top.exists() and time.monotonic() < end:
        for group, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                for pid in Path(group, "cgroup.procs").read_text().split():
                    _kill(int(pid))
                os.rmdir(group)
        if top.exists():
            time.sleep(0.02)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
