"""Character device nodes by directory descriptor (mknod(2))."""

import os
import stat


def mknodat(directory: int, name: str, major: int, minor: int, mode: int) -> None:
    """Make a character device node with exactly this mode. Raises OSError; EEXIST if the name exists."""
    mask = os.umask(0)
    try:
        os.mknod(name, stat.S_IFCHR | mode, os.makedev(major, minor), dir_fd=directory)
    finally:
        os.umask(mask)


def numbers(fd: int) -> tuple[int, int] | None:
    """(major, minor) of the character device that a descriptor (O_PATH is enough) refers to; None: it is no such."""
    st = os.fstat(fd)
    return (os.major(st.st_rdev), os.minor(st.st_rdev)) if stat.S_ISCHR(st.st_mode) else None
