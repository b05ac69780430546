"""Writes the messages of ledger/messages.py into the files that containers see, without the ledger's lock: a tenant that
holds a lease on such a file delays only this delivery, and no other container's start, `ps` or change."""

import fcntl
import os

from oci_hook.core.gpu_page import SIZE
from oci_hook.core.layout import PAGES_DIR
from oci_hook.errors import GhError
from oci_hook.ledger import messages, slot_files
from oci_hook.linux.lock import lock_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE_FILE = "policy"


def page_file(state_dir: str, key: str) -> str:
    """The file that the container of this grant sees: the policy page, and after it the GPU pages of its GPUs."""
    return f"{state_dir}/{PAGES_DIR}/{key}/{PAGE_FILE}"


def deliver(state_dir: str, mine: "Iterable[str]", mount: bool) -> set[str]:
    """Deliver all pending messages; the keys of grants whose container delays its own by a lease on its page file.
    Those stay pending, and every later delivery tries them again.

    mine: names of messages that must be delivered, or it raises OSError, NodeError GH-303. Other transactions' messages
    are delivered on the way, unless another process is delivering them.

    mount: whether a GPU's tmpfs may be mounted, since this process starts a container, or makes a claim's grant. Anybody else, such
    as an agent in a mount namespace of its own, would mount it where no container sees it: then the message stays pending.
    """
    late: set[str] = set()
    must = dict.fromkeys(mine)
    for name in dict.fromkeys([*must, *messages.pending(messages.names(state_dir))]):
        try:
            lock = lock_file(_lock(state_dir, name), fcntl.LOCK_EX, wait=name in must)
            try:
                late |= _deliver(state_dir, name, mount)
            finally:
                os.close(lock)
        except (OSError, GhError):
            if name in must:
                raise
    return late


def _lock(state_dir: str, name: str) -> str:
    """The lock file for this message: messages that write the same pages have the same lock."""
    if not name.startswith(messages.GPU):
        name = (
            messages.private(name)[1] and messages.newest(state_dir, name).decode("ascii", "replace")
        ) or messages.POLICIES
    return f"{messages.folder(state_dir)}/{name}{messages.LOCK}"


def _deliver(state_dir: str, name: str, mount: bool) -> set[str]:
    message = messages.begin(state_dir, name)
    if message is None:  # another process has delivered it
        return set()
    late: set[str] = set()
    if name.startswith(messages.GPU):
        done, late = _deliver_gpu(state_dir, name, message, mount)
        if not done:
            return late
    else:
        key, number = messages.private(name)
        page = messages.delivered(state_dir, message.decode("ascii", "replace"))[:SIZE] if number else message
        if not slot_files.write_page(page_file(state_dir, key), number, page):
            return {key}
    messages.end(state_dir, name)
    return late


def _deliver_gpu(state_dir: str, name: str, message: bytes, mount: bool) -> tuple[bool, set[str]]:
    page, whom = slot_files.parse(message)
    before = messages.delivered(state_dir, name)[:SIZE]
    done = slot_files.set_slots(state_dir, name[len(messages.GPU) :], before, page, mount)
    late: set[str] = set()
    for key, number in whom:
        if not slot_files.write_page(page_file(state_dir, key), number, page):
            # A message for this container alone, so that the others do not get it again.
            messages.write(state_dir, f"{key}-{number}", name.encode())
            late.add(key)
    return done, late
