"""SELinux's labels (xattr(7)): the types that containers may use, as tried with the policy of Debian.

What is made in a folder has the folder's type. Nothing is done where a file has no label, since SELinux is off, or where the
policy refuses one: then it refuses the file's use as well, and says so.
"""

import os

NAME = "security.selinux"
READ = "container_ro_file_t"  # engines change it, containers read it
WRITE = "container_file_t"
PROGRAM, LIBRARY = "bin_t", "lib_t"  # as the policies have it below /opt


def put(path: str, kind: str) -> None:
    """Give a file or folder this type; user, role and level stay."""
    try:
        user, role, _, level = os.getxattr(path, NAME).split(b":", 3)
        os.setxattr(path, NAME, b":".join((user, role, kind.encode(), level)))
    except (OSError, ValueError):
        pass


def copy(source: str, path: str) -> None:
    """Give a file or folder the label of another one."""
    try:
        os.setxattr(path, NAME, os.getxattr(source, NAME))
    except OSError:
        pass
