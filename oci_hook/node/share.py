"""What the containers of a card share, on the host: STATE/share/UUID, a tmpfs of its own per card.

card       the card page (core/card_page.py), rewritten in place: containers have it mapped
slot/NN    a file per granted slot, a fresh inode per grant; its container may write, truncate and grow it at will

All of this is for whoever holds the ledger's lock, and follows from the ledger: `mark` makes the page's seq odd before
anything of the card changes, `settle` makes it even when all is as the grants say. What a crash leaves is odd, and the
next transaction settles it. The tmpfs is mounted on first use; in another mount namespace than the one where that was,
it is not there (ARCHITECTURE.md).
"""

import os

from oci_hook.core.card_page import SEQ_OFFSET, SLOT_FILE_SIZE, card_page, head, on_card, tiers_of
from oci_hook.core.layout import CARD_FILE, SHARE_STATE, SLOT_DIR, slot_file
from oci_hook.errors import refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.grant import Grant, Share
    from oci_hook.core.slot_page import Gate

TMPFS_SIZE = 8 << 20  # far more than is in it: who fills it needs milliseconds, which leaves time to get a slot file in
TMPFS_INODES = 128
TRIES = 20
SEQ_MAX = 0xFFFFFFFF
HEAD_SIZE = 128


def folder(state_dir: str, uuid: str) -> str:
    """The card's tmpfs."""
    return f"{state_dir}/{SHARE_STATE}/{uuid}"


def ready(state_dir: str, uuid: str) -> None:
    """Mount the card's tmpfs unless it is. Raises OSError."""
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

        mount.mount_tmpfs(path, f"size={TMPFS_SIZE},nr_inodes={TMPFS_INODES},mode=0755")
    slots = f"{path}/{SLOT_DIR}"
    if not os.path.exists(slots):
        os.mkdir(slots)
        os.chmod(slots, 0o755)  # whatever the umask


def _mounted(path: str, above: os.stat_result) -> bool:
    return os.lstat(path).st_dev != above.st_dev


def mark(state_dir: str, uuid: str, make: bool = False) -> None:
    """Make the page's seq odd: readers wait, and a crash from here on is seen. Raises FileNotFoundError where there is
    none, unless it is to be made, and OSError."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    fd = os.open(f"{folder(state_dir, uuid)}/{CARD_FILE}", flags, 0o644)
    try:
        if os.fstat(fd).st_mode & 0o777 != 0o644:
            os.fchmod(fd, 0o644)
        seq = head(os.pread(fd, HEAD_SIZE, 0))[0]
        os.pwrite(fd, (seq | 1).to_bytes(4, "little"), SEQ_OFFSET)
    finally:
        os.close(fd)


def rewrite(state_dir: str, uuid: str, grants: "tuple[Grant, ...]", time_scale: int = 0, tiers: int = 0) -> None:
    """Write all of a marked page but its seq. time_scale: 0 keeps what the page says of it and of tiers. Raises
    OSError."""
    fd = os.open(f"{folder(state_dir, uuid)}/{CARD_FILE}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        old = os.pread(fd, HEAD_SIZE, 0)
        _, generation, scale = head(old)
        page = card_page(
            uuid, grants, generation + 1, time_scale or scale, tiers=tiers if time_scale else tiers_of(old)
        )
        os.pwrite(fd, page[SEQ_OFFSET + 4 :], SEQ_OFFSET + 4)
        os.pwrite(fd, page[:SEQ_OFFSET], 0)
    finally:
        os.close(fd)


def settle(state_dir: str, uuid: str) -> None:
    """Make the rewritten page valid. Raises OSError."""
    fd = os.open(f"{folder(state_dir, uuid)}/{CARD_FILE}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        seq = head(os.pread(fd, HEAD_SIZE, 0))[0]
        os.pwrite(fd, ((seq | 1) + 1 & SEQ_MAX).to_bytes(4, "little"), SEQ_OFFSET)
    finally:
        os.close(fd)


def unsettled(state_dir: str) -> list[str]:
    """The cards whose page a crash left odd, by UUID. Raises OSError."""
    found = []
    for name in cards(state_dir):
        try:
            fd = os.open(f"{folder(state_dir, name)}/{CARD_FILE}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # nothing was shared out before the crash, or it is mounted elsewhere
        try:
            seq = os.pread(fd, 1, SEQ_OFFSET)
        finally:
            os.close(fd)
        if not seq or seq[0] & 1:
            found.append(name)
    return found


def cards(state_dir: str) -> list[str]:
    """The cards that ever were shared here, by UUID."""
    try:
        return os.listdir(f"{state_dir}/{SHARE_STATE}")
    except FileNotFoundError:
        return []


def make_slot(state_dir: str, uuid: str, slot: int) -> None:
    """A fresh file for Share.slot `slot`: allocated, zero, writable by all (who has it mounted). Raises OSError.

    A tenant that has grown its own file to fill the tmpfs is cut back.
    """
    path = f"{folder(state_dir, uuid)}/{slot_file(slot)}"
    drop_slot(state_dir, uuid, slot)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        os.fchmod(fd, 0o666)
        for attempt in range(TRIES):
            try:
                os.posix_fallocate(fd, 0, SLOT_FILE_SIZE)
                return
            except OSError as e:
                if e.errno != 28 or attempt == TRIES - 1:  # ENOSPC
                    raise
            trim(state_dir, uuid)
    finally:
        os.close(fd)


def preempt_bounds(state_dir: str, grants: "tuple[Grant, ...]") -> "tuple[tuple[str, str, int], ...]":
    """(grant's key, card's UUID, microseconds) for each container that has published how long it holds the card at most
    once a higher class has work. A tenant wrote it: it decides where others go, and nothing else."""
    found = []
    for grant in grants:
        for held in grant.shares:
            told = read_gate(state_dir, held)
            if told and told.preempt_bound:
                found.append((grant.key, held.uuid, -(-round(told.preempt_bound * 1e9) // 1000)))
    return tuple(found)


def read_gate(state_dir: str, held: "Share") -> "Gate | None":
    """What the container with this share publishes of its compute; None where it has no slot, or says nothing."""
    from oci_hook.core.slot_page import parse  # no container's start needs it

    if not held.slot:
        return None
    place = folder(state_dir, held.uuid)
    try:
        scale = head(_read(f"{place}/{CARD_FILE}", HEAD_SIZE))[2]
        return parse(_read(f"{place}/{slot_file(held.slot)}", SLOT_FILE_SIZE + 1), scale)
    except OSError:
        return None


def _read(path: str, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def trim(state_dir: str, uuid: str) -> None:
    """Cut every slot file back to its size. A file that grew is not trusted, but its first part is its owner's."""
    top = f"{folder(state_dir, uuid)}/{SLOT_DIR}"
    for name in os.listdir(top):
        path = f"{top}/{name}"
        if os.lstat(path).st_size > SLOT_FILE_SIZE:
            os.truncate(path, SLOT_FILE_SIZE)


def drop_slot(state_dir: str, uuid: str, slot: int) -> None:
    """Remove the slot's file if it is there; who has it mounted keeps its inode, which nobody else sees any more."""
    try:
        os.unlink(f"{folder(state_dir, uuid)}/{slot_file(slot)}")
    except FileNotFoundError:
        pass


def tidy(state_dir: str, uuid: str, grants: "tuple[Grant, ...]") -> None:
    """Remove the files of slots that nobody holds. Raises OSError."""
    held = {os.path.basename(slot_file(share.slot)) for _, share in on_card(uuid, grants)}
    top = f"{folder(state_dir, uuid)}/{SLOT_DIR}"
    for name in os.listdir(top):
        if name not in held:
            os.unlink(f"{top}/{name}")


def drop(state_dir: str, keep: "tuple[str, ...]" = ()) -> None:
    """Unmount and remove the folders of all cards but those to keep. Containers that live keep what they have mounted.

    Raises OSError.
    """
    top = f"{state_dir}/{SHARE_STATE}"
    for name in cards(state_dir):
        if name in keep:
            continue
        path = f"{top}/{name}"
        while _mounted(path, os.lstat(top)):
            from oci_hook.linux import mount

            mount.unmount(path)
        os.rmdir(path)
    try:
        os.rmdir(top)
    except OSError:  # not there, or some are kept
        pass
