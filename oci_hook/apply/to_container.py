"""Plan -> mounts and device nodes in a container that its runtime has made but not started.

The image is hostile and may change while we work. So a path below the rootfs is used by descriptor only (targets.py). A
mount's source is a file of the host that root owns, opened in the host's mount namespace. Nothing of the image is read,
run or used as a source. A kernel without the calls for this is refused with GH-404.
"""

import os
import stat
from errno import ENOSYS

from oci_hook.apply.sources import ADVICE
from oci_hook.apply.targets import INSIDE, USE_RUNTIME, Targets, failed, too_old
from oci_hook.core.layout import PAGE_UID
from oci_hook.core.plan import Bind, DeviceNode, Step, Tmpfs
from oci_hook.errors import CODES, GhError, refuse
from oci_hook.linux import device, label, mount, namespace, proc, process
from oci_hook.linux.libc import AT_FDCWD, SyscallError, syscall
from oci_hook.linux.openat2 import RESOLVE_NO_MAGICLINKS, openat2


class LiveContainer:
    """A container's process and root file system, held by descriptors so that neither can be exchanged.

    root: O_PATH descriptor of the rootfs as the container's mount namespace has it. root_mount: the id of the mount it
    is on. rootfs: what the host calls it.
    """

    __slots__ = ("pid", "pidfd", "root", "root_mount", "rootfs")

    def __init__(self, pid: int, pidfd: int, root: int, root_mount: int, rootfs: str) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.root = root
        self.root_mount = root_mount
        self.rootfs = rootfs

    def path(self) -> str:
        """A path of the root directory for code that takes paths; it stays valid when the container exits."""
        return f"/proc/self/fd/{self.root}"


def open_container(pid: int, rootfs: str) -> LiveContainer:
    """The container whose init is pid and whose root directory the host calls rootfs.

    Raises ApplyError GH-406 when pid is no such process, GH-404 when the kernel is too old.
    """
    try:
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if mount.fstatfs_type(proc) != mount.PROC_SUPER_MAGIC:
            raise refuse("GH-404", "/proc is not a proc file system; mount it")
        pidfd = syscall("pidfd_open", pid, 0, path=f"process {pid}")
        if namespace.same("mnt", pid):
            raise _not_ours(pid, "has the host's mount namespace")
        top = os.open(f"{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
        root = openat2(top, rootfs, os.O_PATH | os.O_DIRECTORY, INSIDE)
        root_mount, is_mount = mount.statx_mount(root)
    except OSError as e:
        if e.errno == ENOSYS:
            raise too_old(e) from None
        raise _not_ours(pid, f"with the root {rootfs}: {e}") from None
    os.close(top)
    os.close(proc)
    if not is_mount:
        raise _not_ours(pid, f"has nothing mounted at {rootfs}")
    return LiveContainer(pid, pidfd, root, root_mount, rootfs)


def check_child_of(container: LiveContainer, parent: int) -> None:
    """Raises ApplyError GH-406 unless parent is the init's parent, as it is where a runtime makes a container and calls
    the hook. A wrong pid in the state document (of another container, of any other process, our own) is thus refused.

    crun makes the init of a user namespace by a process in between, which has ended. That init is known by crun's command
    line, with the container's id, which it has until it becomes the container's program.
    """
    if proc.parent(container.pid) != parent and not proc.is_fork_of(container.pid, parent):
        raise _not_ours(container.pid, "is not a child of the runtime that called this hook")


def apply(
    plan: tuple[Step, ...], container: LiveContainer, sources: tuple[tuple[str, str], ...], over: bool = False
) -> None:
    """Make the plan's mounts and nodes, in its order. Its device rules and variables are left to others.

    over: whether a destination may be a file that somebody else has mounted. Without it such a place is refused.
    sources: (host directory, code) pairs. The source of a bind must lie below one of these directories; what is wrong
    with it is refused with that directory's code.

    Raises ApplyError GH-402, GH-404, GH-405 or the source's code. Nothing is undone then: the runtime kills the
    container when the hook fails, and its mounts go with it. Empty files that were made to mount on stay in the image's
    writable layer.
    """
    work: list[tuple[Step, int]] = []
    try:
        same_user_namespace = namespace.same("user", container.pid)
        for step in plan:
            if isinstance(step, Bind):
                work.append((step, _bind_tree(step, sources)))
            elif isinstance(step, Tmpfs):
                work.append((step, _tmpfs_tree(step, container)))
            elif isinstance(step, DeviceNode):
                work.append((step, -1 if same_user_namespace else _node_tree(step)))
        _in_mount_namespace(container, work, over)
    except OSError as e:
        raise failed(e) from None
    finally:
        for _, tree in work:
            if tree >= 0:
                os.close(tree)


def verify(plan: tuple[Step, ...], container: LiveContainer) -> None:
    """Check that each path of the plan, resolved as a program in the container would, leads to the plan's file or node.

    Raises ApplyError GH-405 for the first that does not.
    """
    for step in plan:
        if isinstance(step, Bind | Tmpfs):
            wrong = _wrong_mount(step, container)
        elif isinstance(step, DeviceNode):
            wrong = _wrong_node(step, container)
        else:
            continue
        if wrong:
            raise refuse("GH-405", f"{wrong}; the image or a mount of the container is in the way: leave it out")


# --- sources, in the host's mount namespace ---


def _bind_tree(step: Bind, sources: tuple[tuple[str, str], ...]) -> int:
    code = _source_code(step.source, sources)
    try:
        fd = openat2(AT_FDCWD, step.source, os.O_PATH | os.O_NOFOLLOW, RESOLVE_NO_MAGICLINKS)
    except SyscallError as e:
        if e.errno == ENOSYS:
            raise
        raise refuse(code, f"cannot open {step.source}: {e.strerror}; {ADVICE[code]}") from None
    try:
        st = os.fstat(fd)
        shared = stat.S_ISSOCK(st.st_mode) or "rw" in step.options  # meant to be used by others
        if stat.S_ISLNK(st.st_mode) or st.st_uid not in (0, PAGE_UID) or (st.st_mode & 0o022 and not shared):
            raise refuse(code, f"{step.source} must be no link, root's, and writable by root alone; {ADVICE[code]}")
        tree = mount.open_tree(fd, step.source)
    finally:
        os.close(fd)
    mount.mount_setattr(tree, step.options, step.source)
    return tree


def _source_code(source: str, sources: tuple[tuple[str, str], ...]) -> str:
    if "/../" not in f"{source}/":
        for directory, code in sources:
            if source.startswith(directory.rstrip("/") + "/"):
                return code
    raise refuse(
        "GH-405",
        f"{source} lies in no directory that gpu-hook mounts from; check `driver_root` in settings.yaml and run "
        "`gpu-hook gpus --refresh`",
    )


def _tmpfs_tree(step: Tmpfs, container: LiveContainer) -> int:
    settings = {"source": "tmpfs", "size": str(step.size), "nr_inodes": str(step.inodes), "mode": f"{step.mode:o}"}
    tree = mount.new_tmpfs(settings, ("nosuid", "nodev", "noexec"), step.destination)
    label.copy(container.path(), f"/proc/self/fd/{tree}")  # as the runtime labels what it mounts for the container
    return tree


def _node_tree(step: DeviceNode) -> int:
    """For a container with a user namespace: a node made in one of its file systems cannot be opened
    (user_namespaces(7)), so the host's node is mounted."""
    try:
        fd = os.open(step.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as e:
        raise refuse(
            "GH-405", f"the container has a user namespace and the host's {step.path}: {e.strerror}; {USE_RUNTIME}"
        ) from None
    try:
        if device.numbers(fd) != (step.major, step.minor):
            raise refuse(
                "GH-405", f"the host's {step.path} is not c {step.major}:{step.minor}; run `gpu-hook gpus --refresh`"
            )
        tree = mount.open_tree(fd, step.path)
    finally:
        os.close(fd)
    mount.mount_setattr(tree, ("nosuid", "noexec"), step.path)
    return tree


# --- in the container's mount namespace ---


def _in_mount_namespace(container: LiveContainer, work: list[tuple[Step, int]], over: bool) -> None:
    """Run `_attach_all` in a forked child, which enters the container's mount namespace; we stay in the host's."""
    targets = Targets(container, over)
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            process.die_with_parent(parent)
            namespace.setns(container.pidfd, namespace.CLONE_NEWNS, container.rootfs)
            _attach_all(targets, work)
            status = 0
        except OSError as e:
            os.write(writer, str(failed(e)).encode())
        except GhError as e:
            os.write(writer, str(e).encode())
        finally:
            os._exit(status)
    os.close(writer)
    try:
        with open(reader, "rb") as pipe:
            message = pipe.read(4096).decode("utf-8", "replace")
    except BaseException:  # the deadline
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise
    if os.waitpid(child, 0)[1]:
        code, _, text = message.partition(": ")
        if code in CODES:
            raise refuse(code, text)
        raise refuse(
            "GH-405",
            "the process that makes the mounts was killed; see the kernel's log (dmesg) for why, and start the "
            "container again",
        )


def _attach_all(targets: Targets, work: list[tuple[Step, int]]) -> None:
    for step, tree in work:
        if isinstance(step, DeviceNode) and tree < 0:
            targets.make_node(step)
        elif isinstance(step, Bind):
            targets.attach(tree, step.destination, step.source)
        elif isinstance(step, Tmpfs):
            targets.attach(tree, step.destination, "tmpfs")
        elif isinstance(step, DeviceNode):
            targets.attach(tree, step.path, step.path)


# --- verification ---


def _wrong_mount(step: Bind | Tmpfs, container: LiveContainer) -> str:
    try:
        fd = openat2(container.root, step.destination, os.O_PATH, INSIDE)
    except SyscallError as e:
        return f"{step.destination} cannot be opened: {e.strerror}"
    try:
        if isinstance(step, Tmpfs):
            own_root = mount.statx_mount(fd)[1] and mount.fstatfs_type(fd) == mount.TMPFS_MAGIC
            return "" if own_root else f"{step.destination} is not the tmpfs of the plan"
        found, wanted = os.fstat(fd), os.stat(step.source, follow_symlinks=False)
        same = (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
        return "" if same else f"{step.destination} is not {step.source}"
    except OSError as e:
        return f"{step.destination} cannot be compared: {e}"
    finally:
        os.close(fd)


def _wrong_node(step: DeviceNode, container: LiveContainer) -> str:
    try:
        fd = openat2(container.root, step.path, os.O_PATH, INSIDE)
    except SyscallError as e:
        return f"{step.path} cannot be opened: {e.strerror}"
    found = device.numbers(fd)
    os.close(fd)
    return "" if found == (step.major, step.minor) else f"{step.path} is not c {step.major}:{step.minor}"


def _not_ours(pid: int, what: str) -> GhError:
    return refuse("GH-406", f"process {pid} {what}: it is not this container's init; only a runtime can call this hook")
