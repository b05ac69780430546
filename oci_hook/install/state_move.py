"""The end of a state directory: an install that goes, or that is given another one.

Not for the hot path. The ledger in the old directory is read by nobody afterwards: what its containers hold would be
booked a second time, so that it stays while one lives. And its tmpfs mounts would stay until a reboot: it is emptied.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from oci_hook.config.settings import load
from oci_hook.core import layout
from oci_hook.errors import GhError, refuse
from oci_hook.install import state_owner
from oci_hook.ledger import claims, slot_files, store
from oci_hook.linux.lock import lock_file


@contextlib.contextmanager
def moving(prefix: str, state_dir: str) -> Iterator[None]:
    """Around the writing of settings that name this state directory: where those in use name another one of ours, its
    ledger is locked, and what is ours in it goes at the end.

    Raises SettingsError GH-501 while containers hold shares there, NodeError GH-303 where that cannot be told.
    """
    old = _left(prefix, state_dir)
    if not old:
        yield
        return
    fd = _lock(old)
    try:
        refuse_while_held(old)
        yield
        empty(prefix, old)  # with the lock: a start that waits for it fails, and the next one uses the new directory
        claims.forget(old)
    finally:
        if fd >= 0:
            os.close(fd)


def _left(prefix: str, state_dir: str) -> str:
    """The directory that is used now, if this is another one."""
    try:
        old = load(prefix).state_dir
    except GhError:  # nothing was in use
        return ""
    if os.path.realpath(old) == os.path.realpath(state_dir) or state_owner.other(prefix, old):
        return ""
    return old


def _lock(state_dir: str) -> int:
    try:
        return lock_file(f"{state_dir}/{layout.LEDGER_DIR}/lock", fcntl.LOCK_EX)
    except FileNotFoundError:  # no ledger yet
        return -1
    except OSError as e:
        raise store.unusable(state_dir, e) from None


def refuse_while_held(state_dir: str) -> None:
    """For the holder of the ledger's lock. Raises SettingsError GH-501, NodeError GH-303."""
    try:
        living = store.peek(state_dir)
    except FileNotFoundError:
        return
    if living:
        raise refuse(
            "GH-501",
            f"state_dir: {len(living)} container(s) hold shares in {state_dir[:80]} ({living[0].who.id[:40]});"
            f" end them, or keep state_dir: {state_dir[:80]}",
        )


def empty(prefix: str, state_dir: str) -> None:
    """Take away what an install has in its state directory, and the directory where nothing else is in it. Simulated
    GPUs stay: a driver root leads to them. Raises SettingsError GH-504."""
    try:
        slot_files.drop(state_dir)
    except OSError as e:
        raise refuse("GH-504", f"{e.filename}: {e.strerror}; unmount it, then try again") from None
    for name in (layout.LEDGER_DIR, layout.PAGES_DIR, layout.MESSAGES_DIR):
        shutil.rmtree(os.path.join(state_dir, name), ignore_errors=True)
    for name in (layout.INVENTORY, layout.TIERS, layout.EVENTS, f"{layout.EVENTS}.1"):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(state_dir, name))
    with contextlib.suppress(OSError):  # an agent that runs keeps its lock, or another one could join it
        fd = lock_file(os.path.join(state_dir, layout.AGENT_LOCK), fcntl.LOCK_EX, wait=False)
        os.unlink(os.path.join(state_dir, layout.AGENT_LOCK))
        os.close(fd)
    state_owner.release(prefix, state_dir)
