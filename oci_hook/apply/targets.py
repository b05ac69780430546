"""Where in a live container files and mounts may be made: for to_container.py, in the container's mount namespace.

A path below the rootfs is resolved once, by openat2(2) with RESOLVE_IN_ROOT, and we act on the descriptor that it
gives. A place is used only if it lies on a mount that is the container's own.
"""

import os
import stat
from errno import EEXIST, ELOOP, ENOENT, ENOSYS, ENOTDIR, EOVERFLOW, EXDEV

from oci_hook.core.layout import PRIVATE, REQUEST_DIR
from oci_hook.core.plan import DeviceNode
from oci_hook.errors import GhError, refuse
from oci_hook.linux import device, mount, namespace, process
from oci_hook.linux.libc import SyscallError
from oci_hook.linux.openat2 import RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, openat2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from oci_hook.apply.to_container import LiveContainer

    Made = TypeVar("Made")

INSIDE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
FORBIDDEN = (ELOOP, ENOTDIR, EXDEV)  # openat2(2) on a path that leads through a link, a file or out of the rootfs
USE_RUNTIME = "start it through gpu-hook-runtime instead"


class Targets:
    """Where in the container we may create files and mount: on its root mount, on a tmpfs of its own, and on what we
    have mounted.

    mounts: the container's, by id. host_devices: of the file systems that are mounted on the host. ours: mount id ->
    source of what we have mounted. over: see to_container.apply. owner: (uid, gid) of the container's root.
    """

    __slots__ = ("root", "root_mount", "mounts", "host_devices", "ours", "over", "owner")

    def __init__(self, container: "LiveContainer", over: bool) -> None:
        self.over = over
        self.root = container.root
        self.owner = namespace.owner(container.pid)
        self.root_mount = container.root_mount
        self.mounts = {m.id: m for m in mount.mountinfo(str(container.pid))}
        self.host_devices = {m.device for m in mount.mountinfo()}
        self.ours: dict[int, str] = {}
        if self.mounts[self.root_mount].shared:
            raise refuse(
                "GH-402",
                f"{container.rootfs} shares its mounts with the host, which would see the driver there; {USE_RUNTIME}",
            )

    def attach(self, tree: int, destination: str, source: str) -> None:
        """Mount a detached tree."""
        is_directory = stat.S_ISDIR(os.fstat(tree).st_mode)
        target = self.target(destination, is_directory)
        try:
            if self.already(target, destination, source):
                return
            mount.move_mount(tree, target, destination)
        finally:
            os.close(target)
        self.ours[mount.statx_mount(tree)[0]] = source

    def make_node(self, step: DeviceNode) -> None:
        """Make this device node, if it is not there already."""
        try:
            fd = openat2(self.root, step.path, os.O_PATH, INSIDE)
        except SyscallError as e:
            if e.errno != ENOENT:
                raise collision(step.path, e) from None
        else:
            try:
                if device.numbers(fd) != (step.major, step.minor):
                    raise refuse("GH-405", f"{step.path} is there and is not c {step.major}:{step.minor}; remove it")
            finally:
                os.close(fd)
            return
        parent = self.directory(os.path.dirname(step.path))
        try:
            self.check(parent, step.path)
            device.mknodat(parent, os.path.basename(step.path), step.major, step.minor, 0o666)
        except OSError as e:
            if e.errno != EEXIST:
                raise
            raise refuse("GH-402", f"{step.path} is a link to nothing; remove it from the image") from None
        finally:
            os.close(parent)

    def already(self, target: int, destination: str, source: str) -> bool:
        """Whether this source is mounted there: two destinations of the plan have met at one path. Raises ApplyError
        GH-402 where the other one has another source."""
        mount_id, is_root = mount.statx_mount(target)
        if mount_id not in self.ours or not is_root:
            return False
        if self.ours[mount_id] != source:
            raise refuse("GH-402", f"{destination} leads to where {self.ours[mount_id]} is mounted; fix the image")
        return True

    def target(self, destination: str, is_directory: bool) -> int:
        """A descriptor of the place to mount on, which is made where it is missing."""
        try:
            # The last component may be a link for a file, as libcuda.so usually is, but not for our directory.
            fd = openat2(self.root, destination, os.O_PATH | (os.O_NOFOLLOW if is_directory else 0), INSIDE)
        except SyscallError as e:
            if e.errno != ENOENT:
                raise collision(destination, e) from None
            return self.create(destination, is_directory)
        mode = os.fstat(fd).st_mode
        if is_directory and not (stat.S_ISDIR(mode) and self.is_empty(fd)):
            raise refuse("GH-402", f"{destination} is in the image and is not an empty directory; remove it")
        if not is_directory and not stat.S_ISREG(mode):
            raise refuse("GH-402", f"{destination} is in the image and is not a file; remove it")
        self.check(fd, destination)
        return fd

    def is_empty(self, directory: int) -> bool:
        """Whether it holds nothing but requests by mount. The runtime has made those, our directory will cover them,
        and apply/image.py has seen that the spec has some."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            with os.scandir(fd) as entries:  # stops at the first other entry; there may be millions
                return all(entry.name == os.path.basename(REQUEST_DIR) for entry in entries)
        finally:
            os.close(fd)

    def create(self, destination: str, is_directory: bool) -> int:
        """An empty file (mode 0) or directory (mode 0755) that was not there, opened."""
        if is_directory:
            return self.directory(destination)
        parent = self.directory(os.path.dirname(destination))
        try:
            self.check(parent, destination)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return self.made(lambda: os.open(os.path.basename(destination), flags, 0, dir_fd=parent))
        except FileExistsError:
            raise refuse("GH-402", f"{destination} is a link to nothing; remove it from the image") from None
        finally:
            os.close(parent)

    def made(self, make: "Callable[[], Made]") -> "Made":
        """The result of `make`, which makes a file. Its owner is root, or the container's root on a file system of the
        container's user namespace (such as the /dev that runtimes make), which can express no other owner."""
        try:
            return make()
        except OSError as e:
            if e.errno != EOVERFLOW:
                raise
        process.make_files_as(*self.owner)
        try:
            return make()
        finally:
            process.make_files_as(0, 0)

    def directory(self, path: str) -> int:
        """A directory, opened; made with its parents where it is missing."""
        try:
            return openat2(self.root, path, os.O_PATH | os.O_DIRECTORY, INSIDE)
        except SyscallError as e:
            if e.errno != ENOENT:
                raise collision(path, e) from None
        parent = self.directory(os.path.dirname(path))
        name = os.path.basename(path)
        try:
            self.check(parent, path)
            try:
                self.made(lambda: os.mkdir(name, 0o755, dir_fd=parent))
            except FileExistsError:
                pass  # a link to nothing is refused by the next line; a directory made meanwhile is fine
            return openat2(parent, name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, RESOLVE_NO_SYMLINKS)
        except SyscallError as e:
            raise collision(path, e) from None
        finally:
            os.close(parent)

    def check(self, fd: int, destination: str) -> None:
        """Raises ApplyError GH-402 for a place that is not the container's own: in a bind of the host's files, or in a
        kernel file system."""
        mount_id, is_root = mount.statx_mount(fd)
        private = destination.startswith(PRIVATE + "/")
        if mount_id in self.ours:
            if private or is_root:
                return
        elif mount_id == self.root_mount:
            if not private:
                return
        else:
            m = self.mounts.get(mount_id)
            if m and self.over and is_root and not m.shared and stat.S_ISREG(os.fstat(fd).st_mode) and not private:
                return
            if m and not m.shared and m.fstype == "tmpfs" and m.device not in self.host_devices and not private:
                return
        raise refuse("GH-402", f"{destination} leads into another mount of the container; remove that mount or link")


def collision(destination: str, e: SyscallError) -> GhError:
    if e.errno == ENOSYS:
        return too_old(e)
    if e.errno in FORBIDDEN:
        return refuse(
            "GH-402",
            f"{destination} leads through a link or file that cannot be followed ({e.strerror}); remove that from the "
            "image",
        )
    return failed(e)


def failed(e: OSError) -> GhError:
    if e.errno == ENOSYS:
        return too_old(e)
    return refuse("GH-405", f"the container could not be changed: {e}; try again, or {USE_RUNTIME}")


def too_old(e: OSError) -> GhError:
    return refuse("GH-404", f"{e}; {USE_RUNTIME}")
