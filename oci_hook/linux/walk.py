"""Where a path leads inside a root directory, found component by component with descriptors; nothing is followed out.

Only openat(2) with O_PATH|O_NOFOLLOW and readlinkat(2) are used, so that it works on any kernel and needs no ctypes.
`..` at the root stays there and absolute links start over at the root, as after chroot(2). Parts that do not exist are
resolved by their text, as the container runtimes do for mount destinations that they are about to create.
"""

import os
from stat import S_ISDIR, S_ISLNK, S_ISREG

MAX_LINKS = 40  # path_resolution(7)
MAX_PATH = 4095
MAX_NAMES = 10000  # looked at by one Tree: a hostile tree of long links must not cost the node its memory
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Tree:
    """A root directory. `with Tree(path) as tree:` closes what it opened. Results are remembered: one look per name."""

    __slots__ = ("_seen", "_fds")

    def __init__(self, root: str) -> None:
        """Raises OSError when `root` is no directory."""
        fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fds = [fd]
        self._seen: dict[str, tuple[int, int, str]] = {"": (os.fstat(fd).st_mode, fd, "")}

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _look(self, parent: str, name: str) -> tuple[int, int, str]:
        """(mode, descriptor of a directory or -1, text of a link) of a child; mode 0: there is none."""
        path = f"{parent}/{name}"
        known = self._seen.get(path)
        if known is not None:
            return known
        if len(path) > MAX_PATH or len(self._seen) >= MAX_NAMES:
            raise OSError(36, "path too long", path[:100])
        at = self._seen[parent][1]
        found = (0, -1, "")
        if at >= 0:
            try:
                mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
                if S_ISLNK(mode):
                    found = (mode, -1, os.readlink(name, dir_fd=at))
                elif S_ISDIR(mode):
                    fd = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=at)
                    self._fds.append(fd)
                    found = (mode, fd, "")
                else:
                    found = (mode, -1, "")
            except (FileNotFoundError, NotADirectoryError):  # the second: swapped meanwhile
                pass
        self._seen[path] = found
        return found

    def hide(self, path: str) -> None:
        """Something is mounted on this canonical path: what the root has there and below is not seen any more."""
        path = "" if path == "/" else path
        for below in [p for p in self._seen if p.startswith(path + "/")]:
            del self._seen[below]
        self._seen[path] = (0, -1, "")

    def resolve(self, path: str) -> tuple[str, int]:
        """(canonical path, st_mode of what is there or 0). Raises OSError ELOOP, ENOTDIR, ENAMETOOLONG, EACCES."""
        here, mode = "", self._seen[""][0]
        todo = path.split("/")
        todo.reverse()
        links = 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if mode and not S_ISDIR(mode):
                raise NotADirectoryError(20, "not a directory", here)
            if name == "..":
                here = here.rpartition("/")[0]
                mode = self._seen[here][0]
                continue
            child_mode, _, link = self._look(here, name)
            if S_ISLNK(child_mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(40, "too many links", path)
                todo += reversed(link.split("/"))
                if link.startswith("/"):
                    here, mode = "", self._seen[""][0]
                continue
            here, mode = f"{here}/{name}", child_mode
        return here or "/", mode

    def names(self, path: str) -> list[str]:
        """What is in the directory with this canonical path; empty when it is none, or unknown."""
        found = self._seen.get("" if path == "/" else path)
        if found is None or found[1] < 0:
            return []
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found[1])
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def read(self, path: str, size: int) -> bytes:
        """The first bytes of the regular file at this canonical path; b"" where it is none. Raises OSError."""
        parent, _, name = path.rpartition("/")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self._seen[parent][1])
        try:
            if not S_ISREG(os.fstat(fd).st_mode):  # swapped meanwhile
                return b""
            data = b""
            while len(data) < size and (more := os.read(fd, size - len(data))):
                data += more
            return data
        finally:
            os.close(fd)

    def rdev(self, path: str) -> int:
        """Device number of what is at this canonical path. Raises OSError."""
        parent, _, name = path.rpartition("/")
        return os.stat(name, dir_fd=self._seen[parent][1], follow_symlinks=False).st_rdev
