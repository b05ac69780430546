"""Finds who can change the target of a path: checks every directory and link on the way, from / on, as sshd looks at its files.

Not for the hot path. A world-writable directory with the sticky bit (/tmp, /dev/shm) may be on the way if it is root's:
nobody else can rename or remove what root has in it. But a program that cleans such a directory may remove it, and
then another user can make it first. So such a place is for trials only, and `gpu-hook doctor` says so.
"""

import os
import stat
from collections.abc import Iterator

LINKS = 40  # as the kernel


def way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """(path without links, its lstat) of each component: `path`'s own, and those of links in the way. It ends at the
    first that is not there."""
    left = path.split("/")[::-1]
    at, links = "/", 0
    yield at, os.lstat(at)
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, name)
        try:
            st = os.lstat(here)
        except OSError:  # the name does not exist, or only root may see it
            return
        yield here, st
        if not stat.S_ISLNK(st.st_mode):
            at = here
            continue
        links += 1
        if links > LINKS:
            return
        target = os.readlink(here)
        left += target.split("/")[::-1]
        if target.startswith("/"):
            at = "/"


def changeable(path: str) -> str | None:
    """The first component by which others than root (and than this user) can change what `path` leads to."""
    end = os.path.realpath(path)
    for here, st in way(path):
        if st.st_uid not in (0, os.geteuid()):
            return here
        if stat.S_ISLNK(st.st_mode) or not st.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            continue
        if here == end or not _sticky(st):
            return here
    return None


def cleaned(path: str) -> str | None:
    """The directory in the way in which everybody may make files."""
    return next((here for here, st in way(path) if _sticky(st) and st.st_mode & stat.S_IWOTH), None)


def _sticky(st: os.stat_result) -> bool:
    return stat.S_ISDIR(st.st_mode) and bool(st.st_mode & stat.S_ISVTX) and st.st_uid == 0
