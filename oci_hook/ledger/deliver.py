"""Writes the messages of ledger/tell.py into the files that containers see, without the ledger's lock: a tenant that
holds such a file delays this delivery, and no other container's start, `ps` or change."""

import fcntl
import os

from oci_hook.core.gpu_page import SIZE
from oci_hook.core.layout import PAGES_DIR
from oci_hook.errors import GhError
from oci_hook.ledger import slot_files, tell
from oci_hook.linux.lock import lock_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAGE_FILE = "policy"


def page_file(state_dir: str, key: str) -> str:
    """The file that the container of this grant sees: the policy page, and after it the GPU pages of its GPUs."""
    return f"{state_dir}/{PAGES_DIR}/{key}/{PAGE_FILE}"


def deliver(state_dir: str, mine: "Iterable[str]", at: "Callable[[str], None]") -> set[str]:
    """Deliver all that is pending; the keys of grants whose container keeps it out by a lease on its own page file.
    That stays pending, and every later delivery tries it again.

    mine: names that must go out, or it raises OSError, NodeError GH-303; others' are done on the way, and only where
    nobody else is at it. at: told of each step.
    """
    late: set[str] = set()
    must = dict.fromkeys(mine)
    for name in dict.fromkeys([*must, *tell.pending(tell.names(state_dir))]):
        try:
            lock = lock_file(_lock(state_dir, name), fcntl.LOCK_EX, wait=name in must)
            try:
                late |= _deliver(state_dir, name, at)
            finally:
                os.close(lock)
        except (OSError, GhError):
            if name in must:
                raise
    return late


def _lock(state_dir: str, name: str) -> str:
    """Of what all pages that are written for this message have in common."""
    if not name.startswith(tell.GPU):
        name = (tell.private(name)[1] and tell.said(state_dir, name).decode("ascii", "replace")) or tell.POLICIES
    return f"{tell.folder(state_dir)}/{name}{tell.LOCK}"


def _deliver(state_dir: str, name: str, at: "Callable[[str], None]") -> set[str]:
    message = tell.begin(state_dir, name)
    at("telling")
    if message is None:  # another delivery took it along
        return set()
    late = set()
    if name.startswith(tell.GPU):
        late = _tell_gpu(state_dir, name, message, at)
    else:
        key, number = tell.private(name)
        page = tell.delivered(state_dir, message.decode("ascii", "replace"))[:SIZE] if number else message
        if not slot_files.write_page(page_file(state_dir, key), number, page):
            return {key}
    tell.end(state_dir, name)
    at("told")
    return late


def _tell_gpu(state_dir: str, name: str, message: bytes, at: "Callable[[str], None]") -> set[str]:
    page, whom = slot_files.parse(message)
    slot_files.set_slots(state_dir, name[len(tell.GPU) :], tell.delivered(state_dir, name)[:SIZE], page)
    at("slots")
    late = set()
    for key, number in whom:
        if not slot_files.write_page(page_file(state_dir, key), number, page):
            # Later for it alone, as it is on this GPU then: the others need not hear it again.
            tell.say(state_dir, f"{key}-{number}", name.encode())
            late.add(key)
        at("GPU page")
    return late
