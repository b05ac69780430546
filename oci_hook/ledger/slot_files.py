"""What the containers of one GPU have in common on the host: a slot file of each container, and the GPU page.

STATE/share/UUID/slot/NN  a file per granted slot, on a tmpfs of the GPU; each grant gets a new inode. Its container may
                          write, truncate and grow it at will, the others may read it
STATE/messages/gpu-UUID   the message with the GPU page (core/gpu_page.py), and with the page files that it goes into

The GPU page follows from the ledger; `write_message` writes it under the ledger's lock. A delivery (ledger/deliver.py)
makes the slot files match it and copies it into the page file of each container, which no other container sees. The
tmpfs is mounted on first use, and is missing in other mount namespaces than that of its first user (decisions.md).
"""

import os
from errno import ENOSPC, ENOTDIR, ENOTEMPTY

from oci_hook.core.gpu_page import COUNTS_OFFSET, SIZE, SLOT_FILE_SIZE, born, gpu_page, head, seq_of, tiers_of
from oci_hook.core.layout import PAGE_UID, SHARE_STATE, SLOT_DIR, slot_file
from oci_hook.core.policy_page import SEQ_OFFSET
from oci_hook.errors import refuse
from oci_hook.ledger import messages
from oci_hook.linux import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_hook.core.grant import Grant, Share
    from oci_hook.core.slot_page import Gate

TMPFS_SIZE = 8 << 20  # far more than the slot files: a tenant needs milliseconds to fill it, enough to add a slot file
TMPFS_GROWTH = 1 << 20  # added if a tenant does not release what it has filled
TMPFS_MAX = 64 << 20
TRIES = 20


def folder(state_dir: str, uuid: str) -> str:
    """The GPU's tmpfs."""
    return f"{state_dir}/{SHARE_STATE}/{uuid}"


def slot_path(state_dir: str, uuid: str, slot: int) -> str:
    """The slot file of Share.slot `slot`."""
    return f"{folder(state_dir, uuid)}/{slot_file(slot)}"


def write_message(state_dir: str, uuid: str, grants: "tuple[Grant, ...]", time_scale: int = 0, tiers: int = 0) -> None:
    """Write the message for all containers on the GPU. For the holder of the ledger's lock.

    time_scale: 0 keeps the previous message's time scale and tiers. Raises OSError.
    """
    old = messages.newest(state_dir, messages.GPU + uuid)[:SIZE]
    _, generation, scale = head(old)
    generation += 1
    page = gpu_page(
        uuid,
        grants,
        generation,
        time_scale or scale,
        seq_of(generation),
        tiers if time_scale else tiers_of(old),
    )
    # Page 0 of a container's page file is its policy page; the GPU pages follow in the order of its GPUs.
    whom = [(g.key, 1 + i) for g in grants for i, s in enumerate(g.shares) if s.slot and s.uuid == uuid]
    lines = "".join(f"{key} {n}\n" for key, n in whom)
    messages.write(state_dir, messages.GPU + uuid, page + lines.encode())


def page(state_dir: str, uuid: str) -> bytes:
    """The GPU page of the newest message; b"" for none. Raises OSError."""
    return messages.newest(state_dir, messages.GPU + uuid)[:SIZE]


def parse(message: bytes) -> tuple[bytes, list[tuple[str, int]]]:
    """(the GPU page, (key, page number) of each container that it is for)."""
    lines = [line.split() for line in message[SIZE:].decode("ascii", "replace").splitlines()]
    return message[:SIZE], [(line[0], int(line[1])) for line in lines]


def ready(state_dir: str, uuid: str) -> None:
    """Mount the GPU's tmpfs unless it is mounted. Raises OSError, NodeError GH-303."""
    top, path = f"{state_dir}/{SHARE_STATE}", folder(state_dir, uuid)
    try:
        above, there = os.lstat(top), os.lstat(path)
    except FileNotFoundError:
        os.makedirs(path, 0o700, exist_ok=True)
        above, there = os.lstat(top), os.lstat(path)
    if above.st_uid not in (0, os.geteuid()) or above.st_mode & 0o170022 != 0o040000:
        raise refuse("GH-303", f"{top} can be changed by other users, or is no directory; remove it")
    if there.st_dev == above.st_dev:
        from oci_hook.linux import mount

        # Since Linux 6.19 a directory's owner can take a lease on it as well (F_SETDELEG).
        owner = f"uid={PAGE_UID},gid={PAGE_UID}"
        # Only root makes files here. A limit would be room that tenants can use up by attributes of their files (user.*, since
        # Linux 6.6); without one these take memory of the tenant's own cgroup.
        mount.mount_tmpfs(path, f"size={TMPFS_SIZE},nr_inodes=0,mode=0755,{owner}")
        label.put(path, label.WRITE)
    slots = f"{path}/{SLOT_DIR}"
    if not os.path.exists(slots):
        os.mkdir(slots)
        os.chmod(slots, 0o755)  # despite the umask
        os.chown(slots, PAGE_UID, PAGE_UID)


def is_mounted(state_dir: str, uuid: str) -> bool:
    """Whether this mount namespace has the GPU's tmpfs."""
    try:
        return _mounted(folder(state_dir, uuid), os.lstat(f"{state_dir}/{SHARE_STATE}"))
    except FileNotFoundError:
        return False


def _mounted(path: str, above: os.stat_result) -> bool:
    return os.lstat(path).st_dev != above.st_dev


def gpus(state_dir: str) -> list[str]:
    """The UUIDs of all GPUs that were ever shared here."""
    try:
        return os.listdir(f"{state_dir}/{SHARE_STATE}")
    except FileNotFoundError:
        return []


def set_slots(state_dir: str, uuid: str, before: bytes, now: bytes, mount: bool = True) -> bool:
    """Make the slot files match the GPU page `now`: new files for grants that are not in the page `before`, no file for
    a slot that no grant has. False, and nothing is done, where a file is needed, the tmpfs is not mounted and `mount` does
    not allow to. Raises OSError, NodeError GH-303."""
    old, new = born(before), born(now)
    fresh = [slot for slot in new if old.get(slot) != new[slot]]
    if fresh and not mount and not is_mounted(state_dir, uuid):
        return False
    if fresh:
        ready(state_dir, uuid)
    top = f"{folder(state_dir, uuid)}/{SLOT_DIR}"
    used = {os.path.basename(slot_file(slot)) for slot in new}
    try:
        for name in os.listdir(top):
            if name not in used:
                _despite_flags(os.unlink, f"{top}/{name}")
    except FileNotFoundError:  # mounted in another mount namespace, or removed
        return True
    for slot in fresh:
        make_slot(state_dir, uuid, slot)
    return True


def make_slot(state_dir: str, uuid: str, slot: int) -> None:
    """Make a new file for Share.slot `slot`: allocated, zero, writable by every process that sees it. Raises OSError.

    If a tenant has grown its file to fill the tmpfs, the file is cut back. If a lease on the file prevents that, the
    tmpfs is made larger.
    """
    path = slot_path(state_dir, uuid, slot)
    drop_slot(state_dir, uuid, slot)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for attempt in range(TRIES):
            try:
                os.posix_fallocate(fd, 0, SLOT_FILE_SIZE)
                break
            except OSError as e:
                if e.errno != ENOSPC or attempt == TRIES - 1:
                    raise
            if not trim(state_dir, uuid) or attempt > TRIES // 2:
                _grow(folder(state_dir, uuid))
        os.fchmod(fd, 0o666)
        os.fchown(fd, PAGE_UID, PAGE_UID)
    finally:
        os.close(fd)


def trim(state_dir: str, uuid: str) -> bool:
    """Cut every slot file that grew back to SLOT_FILE_SIZE; whether there was one. Files are truncated by descriptor:
    truncate(2) by path waits for a lease (fcntl(2)), as an open without O_NONBLOCK does."""
    top = f"{folder(state_dir, uuid)}/{SLOT_DIR}"
    cut = False
    for name in os.listdir(top):
        path = f"{top}/{name}"
        if os.lstat(path).st_size > SLOT_FILE_SIZE:
            try:
                _despite_flags(_cut, path)
            except BlockingIOError:
                continue
            cut = True
    return cut


def _cut(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.ftruncate(fd, SLOT_FILE_SIZE)
    finally:
        os.close(fd)


def _grow(path: str) -> None:
    """Make the tmpfs larger, up to TMPFS_MAX. What fills it is charged to the memory cgroup of the writing container."""
    st = os.statvfs(path)
    size = st.f_blocks * st.f_frsize + TMPFS_GROWTH
    if size <= TMPFS_MAX:
        from oci_hook.linux import mount

        mount.resize_tmpfs(path, f"size={size}")


def drop_slot(state_dir: str, uuid: str, slot: int) -> None:
    """Remove the slot's file if it is there. A container that has it mounted keeps the inode, which no other one sees."""
    try:
        _despite_flags(os.unlink, slot_path(state_dir, uuid, slot))
    except FileNotFoundError:
        pass


def _despite_flags(act: "Callable[[str], None]", path: str) -> None:
    """Do something to a slot file whose tenant may have forbidden that. Raises OSError."""
    try:
        act(path)
    except PermissionError:
        from oci_hook.linux import inode_flags

        inode_flags.free(path)
        act(path)


def write_page(path: str, number: int, data: bytes) -> bool:
    """Write page `number` into a container's page file, which the container has mapped, under the page's seqlock
    (gpu_page.h); False if the container holds a lease on the file. A file that was removed is no error. Raises
    OSError."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    try:
        at = number * SIZE
        seq = int.from_bytes(data[SEQ_OFFSET : SEQ_OFFSET + 4], "little")
        os.pwrite(fd, (seq - 1 & 0xFFFFFFFF).to_bytes(4, "little"), at + SEQ_OFFSET)
        os.pwrite(fd, data[:SEQ_OFFSET], at)
        os.pwrite(fd, data[SEQ_OFFSET + 4 :], at + SEQ_OFFSET + 4)
        os.pwrite(fd, data[SEQ_OFFSET : SEQ_OFFSET + 4], at + SEQ_OFFSET)
        return True
    finally:
        os.close(fd)


def write_counts(path: str, number: int, data: bytes) -> None:
    """Write core/gpu_page.counts into page `number` of a container's page file. The next message takes them away again, until
    the next look. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(fd, data, number * SIZE + COUNTS_OFFSET)
    finally:
        os.close(fd)


def preempt_bounds(state_dir: str, grants: "tuple[Grant, ...]") -> "tuple[tuple[str, str, int], ...]":
    """(grant's key, GPU's UUID, microseconds) for each container that publishes how long it keeps the GPU at most once a
    higher class has work. A tenant wrote the figure, so it is used for placement only."""
    found = []
    for grant in grants:
        for share in grant.shares:
            gate = read_gate(state_dir, share)
            if gate and gate.preempt_bound:
                found.append((grant.key, share.uuid, -(-round(gate.preempt_bound * 1e9) // 1000)))
    return tuple(found)


def read_gate(state_dir: str, share: "Share") -> "Gate | None":
    """What the container with this share publishes about its compute; None if it has no slot, has published nothing, or
    holds a lease on its slot file. Not to be called under the ledger's lock."""
    from oci_hook.core.slot_page import parse as slot  # no container's start needs it

    if not share.slot:
        return None
    try:
        scale = head(page(state_dir, share.uuid))[2]
        return slot(_read(slot_path(state_dir, share.uuid, share.slot), SLOT_FILE_SIZE + 1), scale)
    except OSError:
        return None


def _read(path: str, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def drop(state_dir: str, keep: "tuple[str, ...]" = ()) -> None:
    """Unmount and remove the folders of all GPUs but those to keep. Running containers keep what they have mounted.
    Files that gpu-hook did not make stay. Raises OSError."""
    top = f"{state_dir}/{SHARE_STATE}"
    for name in gpus(state_dir):
        if name in keep:
            continue
        path = f"{top}/{name}"
        while _mounted(path, os.lstat(top)):
            from oci_hook.linux import mount

            mount.unmount(path)
        try:
            os.rmdir(path)
        except OSError as e:
            if e.errno not in (ENOTDIR, ENOTEMPTY):
                raise
    try:
        os.rmdir(top)
    except OSError:  # the folder is not there, or not empty
        pass
