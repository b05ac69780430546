"""Resolves paths inside a root directory, component by component with descriptors; no link is followed out of it.

Only openat(2) with O_PATH|O_NOFOLLOW and readlinkat(2) are used, so that it works on any kernel and needs no ctypes.
`..` at the root stays there and absolute links start over at the root, as after chroot(2). Parts that do not exist are
resolved by their text, as container runtimes do for mount destinations that they are about to create.

What is below the root may be hostile, so the total work is limited (Work). A component that is known, a name in a
folder and 64 bytes of a path cost one step each, a system call costs LOOK steps. A step is about half a microsecond.
"""

import os
from stat import S_IFDIR, S_ISDIR, S_ISLNK, S_ISREG

from oci_hook.errors import refuse

MAX_LINKS = 40  # path_resolution(7)
MAX_PATH = 4095
MAX_FOLDERS = 900  # open at a time, by one Tree; RLIMIT_NOFILE is 1024 by default
LOOK = 8
# The default: some 30 ms. An ordinary image takes a tenth of it or less, most of that for the names in its library
# folders.
STEPS = 1 << 16
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Work:
    """The number of steps left. what: the owner of these files, for the message."""

    __slots__ = ("left", "what")

    def __init__(self, steps: int = STEPS, what: str = "the directory tree") -> None:
        self.left = steps
        self.what = what

    def spend(self, steps: int) -> None:
        """Raises ApplyError GH-402 when no steps are left, and at each later call."""
        self.left -= steps
        if self.left < 0:
            raise refuse(
                "GH-402",
                f"{self.what} cannot be looked through with reasonable effort: too many files, links, folders or long "
                "paths where mounts go or driver libraries may be; make them fewer",
            )


class _Node:
    """One name in the tree. mode: st_mode, 0 if the name does not exist. fd: of a directory, or -1. link: a link's text.
    size: characters of the canonical path. source: the host's path of what is mounted here, "" for the root's own file.
    todo: that it was not opened yet. holds: something is mounted here or below."""

    __slots__ = ("name", "up", "mode", "fd", "link", "below", "size", "source", "todo", "holds")

    def __init__(self, name: str, up: "_Node | None", mode: int, fd: int, link: str) -> None:
        self.name = name
        self.up = up or self
        self.mode = mode
        self.fd = fd
        self.link = link
        self.below: dict[str, _Node] = {}
        self.source = ""
        self.todo = self.holds = False
        self.size: int = up.size + 1 + len(name) if up else 0

    def path(self) -> str:
        names = []
        node = self
        while node.up is not node:
            names.append(node.name)
            node = node.up
        return "/" + "/".join(reversed(names))


class Tree:
    """A root directory. `with Tree(path) as tree:` closes what it opened. Each name is looked at once and remembered.

    Every method raises ApplyError GH-402 when `work` is used up.
    """

    __slots__ = ("_root", "_fds", "work")

    def __init__(self, root: str, work: Work | None = None) -> None:
        """Raises OSError when `root` is no directory."""
        fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fds = {fd}
        self._root = _Node("", None, os.fstat(fd).st_mode, fd, "")
        self.work = work or Work()

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _look(self, parent: _Node, name: str) -> _Node:
        known = parent.below.get(name)
        if known is not None:
            if known.todo:
                self._enter(known)
            return known
        if parent.size + 1 + len(name) > MAX_PATH:
            raise OSError(36, "path too long", name[:100])
        self.work.spend(LOOK + (len(name) >> 6))
        mode, fd, link = 0, -1, ""
        if parent.fd >= 0:
            try:
                mode = os.stat(name, dir_fd=parent.fd, follow_symlinks=False).st_mode
                if S_ISLNK(mode):
                    link = os.readlink(name, dir_fd=parent.fd)
                    self.work.spend(len(link) >> 6)
                elif S_ISDIR(mode):
                    if len(self._fds) >= MAX_FOLDERS:
                        self.work.spend(self.work.left + 1)
                    fd = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=parent.fd)
                    self._fds.add(fd)
            except (FileNotFoundError, NotADirectoryError):  # the second: the parent was replaced meanwhile
                mode = 0
            except ValueError:  # a NUL, or half a surrogate pair from JSON
                raise OSError(22, "not a file name", name[:100]) from None
        node = parent.below[name] = _Node(name, parent, mode, fd, link)
        return node

    def _node(self, path: str) -> _Node:
        """The node of a canonical path."""
        node = self._root
        for name in path.split("/"):
            if name:
                self.work.spend(1)
                node = self._look(node, name)
        return node

    def _enter(self, node: _Node) -> None:
        """Open what is mounted here. What is neither a folder nor a regular file stays hidden."""
        node.todo = False
        self.work.spend(LOOK)
        if len(self._fds) >= MAX_FOLDERS:
            self.work.spend(self.work.left + 1)
        try:
            fd = os.open(node.source, os.O_PATH | os.O_CLOEXEC)
        except (OSError, ValueError):  # nothing is there, or a NUL in it
            return
        mode = os.fstat(fd).st_mode
        if S_ISDIR(mode):
            node.mode, node.fd = mode, fd
            self._fds.add(fd)
            return
        os.close(fd)
        if S_ISREG(mode):
            node.mode = mode

    def mount(self, path: str, source: str = "", keep: bool = False) -> bool:
        """Something is mounted at this canonical path, which hides what the root has. source: what it is by the host's path,
        looked at when it is needed; "" for something empty. keep: it is a copy of what was there. True if it hides another
        mount."""
        node = self._node(path)
        covers = node.holds and not keep
        node.holds = True
        if not keep:
            if node.fd >= 0:
                self._fds.discard(node.fd)
                os.close(node.fd)
            node.mode, node.fd, node.link, node.below = 0, -1, "", {}
            node.source, node.todo = source, bool(source) and node is not self._root
        while node is not node.up:
            node = node.up
            node.holds = True
            node.mode = node.mode or S_IFDIR | 0o755  # a runtime makes the folders above a mount
        return covers

    def is_mount(self, path: str) -> bool:
        """Whether the mount at this canonical path is not hidden by a later one."""
        return self._node(path).holds

    def resolve(self, path: str) -> tuple[str, int]:
        """(canonical path, st_mode of what is there or 0). Raises OSError ELOOP, ENOTDIR, ENAMETOOLONG, EACCES."""
        if len(path) > MAX_PATH:
            raise OSError(36, "path too long", path[:100])
        here = self._root
        todo = path.split("/")
        todo.reverse()
        links = 0
        work = self.work
        while todo:
            name = todo.pop()
            work.left -= 1
            if work.left < 0:
                work.spend(0)
            if name in ("", "."):
                continue
            if here.mode and not S_ISDIR(here.mode):
                raise NotADirectoryError(20, "not a directory", here.name)
            if name == "..":
                here = here.up
                continue
            child = self._look(here, name)
            if S_ISLNK(child.mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(40, "too many links", path)
                todo += reversed(child.link.split("/"))
                if child.link.startswith("/"):
                    here = self._root
                continue
            here = child
        work.spend(here.size >> 6)
        return here.path(), here.mode

    def names(self, path: str) -> list[str]:
        """The names in the directory with this canonical path, those that mounts add included; [] if it is no directory.
        Raises OSError."""
        node = self._node(path)
        found = [name for name, child in node.below.items() if child.holds] if node.holds else []
        if node.fd < 0:
            return found
        work = self.work
        work.spend(LOOK)
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=node.fd)
        try:
            with os.scandir(fd) as entries:  # one name at a time, since there may be millions
                for entry in entries:
                    work.left -= 1  # spend(1), without a call for each of thousands of names
                    if work.left < 0:
                        work.spend(0)
                    found.append(entry.name)
        finally:
            os.close(fd)
        return list(dict.fromkeys(found)) if node.holds else found

    def open(self, path: str) -> int:
        """A descriptor, to read, of the regular file at this canonical path. Raises OSError, also where it is none."""
        self.work.spend(LOOK)
        parent, _, name = path.rpartition("/")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        if source := self._node(path).source:
            fd = os.open(source, flags)
        else:
            fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=self._node(parent).fd)
        if not S_ISREG(os.fstat(fd).st_mode):  # the file was replaced meanwhile
            os.close(fd)
            raise OSError(22, "not a regular file", name[:100])
        return fd

    def read(self, path: str, size: int) -> bytes:
        """The first `size` bytes of the regular file at this canonical path. Raises OSError, also where it is none."""
        fd = self.open(path)
        try:
            parts = []
            while size > 0 and (more := os.read(fd, size)):
                self.work.spend(LOOK)
                parts.append(more)
                size -= len(more)
            return b"".join(parts)
        finally:
            os.close(fd)

    def rdev(self, path: str) -> int:
        """The device number (st_rdev) of the file at this canonical path. Raises OSError."""
        parent, _, name = path.rpartition("/")
        return os.stat(name, dir_fd=self._node(parent).fd, follow_symlinks=False).st_rdev
