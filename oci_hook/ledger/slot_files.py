"""What the containers of a GPU share, on the host, and what each of them is told of it.

STATE/share/UUID/slot/NN  a file per granted slot on a tmpfs of the GPU's own, a fresh inode per grant; its container
                          may write, truncate and grow it at will, the others may read it
STATE/told/gpu-UUID      the GPU page (core/gpu_page.py) as all of them are to see it, and in whose page files

The GPU page follows from the ledger: `say` writes it under the ledger's lock. A delivery (ledger/deliver.py) makes the
slot files what it says and copies it into the page file of each container, which nobody else sees. The
tmpfs is mounted on first use; in another mount namespace than the one where that was it is missing (ARCHITECTURE.md).
"""

import os
from errno import ENOSPC, ENOTDIR, ENOTEMPTY

from oci_hook.core.gpu_page import SIZE, SLOT_FILE_SIZE, born, gpu_page, head, seq_of, tiers_of
from oci_hook.core.layout import PAGE_UID, SHARE_STATE, SLOT_DIR, slot_file
from oci_hook.core.pages import SEQ_OFFSET
from oci_hook.errors import refuse
from oci_hook.ledger import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.grant import Grant, Share
    from oci_hook.core.slot_page import Gate

TMPFS_SIZE = 8 << 20  # far more than is in it: who fills it needs milliseconds, which leaves time to get a slot file in
TMPFS_GROWTH = 1 << 20  # added where a tenant keeps what it has filled
TMPFS_MAX = 64 << 20
TMPFS_INODES = 256
TRIES = 20


def folder(state_dir: str, uuid: str) -> str:
    """The GPU's tmpfs."""
    return f"{state_dir}/{SHARE_STATE}/{uuid}"


def slot_path(state_dir: str, uuid: str, slot: int) -> str:
    """The slot file of Share.slot `slot`."""
    return f"{folder(state_dir, uuid)}/{slot_file(slot)}"


def say(state_dir: str, uuid: str, grants: "tuple[Grant, ...]", time_scale: int = 0, tiers: int = 0) -> None:
    """Write down what all containers on the GPU are to be told. For the holder of the ledger's lock.

    time_scale: 0 keeps what was said of it and of tiers before. Raises OSError.
    """
    old = tell.said(state_dir, tell.GPU + uuid)[:SIZE]
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
    tell.say(state_dir, tell.GPU + uuid, page + lines.encode())


def page(state_dir: str, uuid: str) -> bytes:
    """The GPU page as it was said last; b"" for none. Raises OSError."""
    return tell.said(state_dir, tell.GPU + uuid)[:SIZE]


def parse(message: bytes) -> tuple[bytes, list[tuple[str, int]]]:
    """(GPU page, (key, page number) of each container that is to have it)."""
    lines = [line.split() for line in message[SIZE:].decode("ascii", "replace").splitlines()]
    return message[:SIZE], [(line[0], int(line[1])) for line in lines]


def ready(state_dir: str, uuid: str) -> None:
    """Mount the GPU's tmpfs unless it is. Raises OSError, NodeError GH-303."""
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

        # Directories can be leased as well since Linux 6.19 (F_SETDELEG), likewise by their owner.
        owner = f"uid={PAGE_UID},gid={PAGE_UID}"
        mount.mount_tmpfs(path, f"size={TMPFS_SIZE},nr_inodes={TMPFS_INODES},mode=0755,{owner}")
    slots = f"{path}/{SLOT_DIR}"
    if not os.path.exists(slots):
        os.mkdir(slots)
        os.chmod(slots, 0o755)  # whatever the umask
        os.chown(slots, PAGE_UID, PAGE_UID)


def _mounted(path: str, above: os.stat_result) -> bool:
    return os.lstat(path).st_dev != above.st_dev


def gpus(state_dir: str) -> list[str]:
    """The GPUs that ever were shared here, by UUID."""
    try:
        return os.listdir(f"{state_dir}/{SHARE_STATE}")
    except FileNotFoundError:
        return []


def set_slots(state_dir: str, uuid: str, before: bytes, now: bytes) -> None:
    """Make the slot files what this GPU page says: fresh ones for grants that were not in the page before, none for
    slots that nobody holds. Where the tmpfs is not mounted and nothing is to be made, nothing is done. Raises OSError,
    NodeError GH-303."""
    old, new = born(before), born(now)
    fresh = [slot for slot in new if old.get(slot) != new[slot]]
    if fresh:
        ready(state_dir, uuid)
    top = f"{folder(state_dir, uuid)}/{SLOT_DIR}"
    held = {os.path.basename(slot_file(slot)) for slot in new}
    try:
        for name in os.listdir(top):
            if name not in held:
                os.unlink(f"{top}/{name}")
    except FileNotFoundError:  # mounted elsewhere, or taken away
        return
    for slot in fresh:
        make_slot(state_dir, uuid, slot)


def make_slot(state_dir: str, uuid: str, slot: int) -> None:
    """A fresh file for Share.slot `slot`: allocated, zero, writable by all (who has it mounted). Raises OSError.

    A tenant that has grown its own file to fill the tmpfs is cut back; one that keeps what it took, by a lease on the
    file, has the tmpfs grow.
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
    """Cut every slot file back to its size; whether any was. A file that grew is not trusted, but its first part is its
    owner's. A path is never truncated: that would wait for a lease (fcntl(2)), as an open without O_NONBLOCK would."""
    top = f"{folder(state_dir, uuid)}/{SLOT_DIR}"
    cut = False
    for name in os.listdir(top):
        path = f"{top}/{name}"
        if os.lstat(path).st_size > SLOT_FILE_SIZE:
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            except BlockingIOError:
                continue
            os.ftruncate(fd, SLOT_FILE_SIZE)
            os.close(fd)
            cut = True
    return cut


def _grow(path: str) -> None:
    """Make the tmpfs larger, up to TMPFS_MAX: what fills it counts against the memory of the container that wrote."""
    st = os.statvfs(path)
    size = st.f_blocks * st.f_frsize + TMPFS_GROWTH
    if size <= TMPFS_MAX:
        from oci_hook.linux import mount

        mount.resize_tmpfs(path, f"size={size}")


def drop_slot(state_dir: str, uuid: str, slot: int) -> None:
    """Remove the slot's file if it is there; who has it mounted keeps its inode, which nobody else sees any more."""
    try:
        os.unlink(slot_path(state_dir, uuid, slot))
    except FileNotFoundError:
        pass


def write_page(path: str, number: int, data: bytes) -> bool:
    """Put page `number` into a container's page file, which it has mapped, under the page's seqlock (gpu_page.h);
    False where a lease of its own keeps that from it. A file that is gone is told nothing. Raises OSError."""
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


def preempt_bounds(state_dir: str, grants: "tuple[Grant, ...]") -> "tuple[tuple[str, str, int], ...]":
    """(grant's key, GPU's UUID, microseconds) for each container that has published how long it holds the GPU at most
    once a higher class has work. A tenant wrote it: it decides where others go, and nothing else."""
    found = []
    for grant in grants:
        for held in grant.shares:
            told = read_gate(state_dir, held)
            if told and told.preempt_bound:
                found.append((grant.key, held.uuid, -(-round(told.preempt_bound * 1e9) // 1000)))
    return tuple(found)


def read_gate(state_dir: str, held: "Share") -> "Gate | None":
    """What the container with this share publishes of its compute; None where it has no slot, says nothing, or keeps us
    from reading by a lease. Never under the ledger's lock."""
    from oci_hook.core.slot_page import parse as slot  # no container's start needs it

    if not held.slot:
        return None
    try:
        scale = head(page(state_dir, held.uuid))[2]
        return slot(_read(slot_path(state_dir, held.uuid, held.slot), SLOT_FILE_SIZE + 1), scale)
    except OSError:
        return None


def _read(path: str, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def drop(state_dir: str, keep: "tuple[str, ...]" = ()) -> None:
    """Unmount and remove the folders of all GPUs but those to keep. Containers that live keep what they have mounted.
    What is in the way and not ours stays.

    Raises OSError.
    """
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
    except OSError:  # not there, or some are kept
        pass
