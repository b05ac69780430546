"""A state directory that an install leaves: the install is removed, or is given another directory.

Nobody reads the old directory's ledger afterwards, so the GPU memory of a container in it would be booked a second
time: an install stays while a container holds a share there. What it leaves is emptied, since its tmpfs mounts would
otherwise stay until a reboot.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from oci_hook.boundary import limit_records, running
from oci_hook.config import settings as node_settings
from oci_hook.config.settings import state_in_use
from oci_hook.core import layout
from oci_hook.errors import refuse
from oci_hook.install import state_owner
from oci_hook.install.files import write
from oci_hook.ledger import events, gpu_owner, slot_files, store
from oci_hook.linux import unix_socket
from oci_hook.linux.lock import lock_file


@contextlib.contextmanager
def moving(prefix: str, state_dir: str) -> Iterator[None]:
    """Around the writing of settings that name this state directory: at the end the install uses it. If the install
    used another directory until now, that one's ledger is locked meanwhile, and what is ours in it is removed.

    Raises SettingsError GH-501 while containers hold shares there, NodeError GH-303 if that cannot be found out.
    """
    used = state_in_use(prefix)
    old = used if _is_left(prefix, used, state_dir) else ""
    fd = _lock(old) if old else -1
    try:
        if old:
            refuse_while_held(old)
            clear_limits(prefix, old)
        yield
        if used != state_dir:
            write(os.path.join(prefix, layout.STATE_IN_USE), f"{state_dir}\n")
        if old:  # still locked: a start that waits for the lock fails, and the next start uses the new directory
            empty(prefix, old)
            gpu_owner.forget(old)
    finally:
        if fd >= 0:
            os.close(fd)


def _is_left(prefix: str, used: str, state_dir: str) -> bool:
    """True if `used` is another directory, and this install's."""
    return used != "" and os.path.realpath(used) != os.path.realpath(state_dir) and not state_owner.other(prefix, used)


def _lock(state_dir: str) -> int:
    try:
        return lock_file(f"{state_dir}/{layout.LEDGER_DIR}/lock", fcntl.LOCK_EX)
    except FileNotFoundError:  # no ledger yet
        return -1
    except OSError as e:
        raise store.unusable(state_dir, e) from None


def refuse_while_held(state_dir: str) -> None:
    """The caller holds the ledger's lock. Raises SettingsError GH-501, NodeError GH-303."""
    try:
        living = store.peek(state_dir)
    except FileNotFoundError:
        return
    if living:
        raise refuse(
            "GH-501",
            f"state_dir: {len(living)} container(s) hold shares in {state_dir[:80]} ({events.title(living[0].who)});"
            f" end them, or keep state_dir: {state_dir[:80]}",
        )


def clear_limits(prefix: str, state_dir: str, force: bool = False) -> None:
    """Clear the driver's memory limits that this state directory records. Nobody could do it afterwards.

    force: go on where that fails. Raises SettingsError GH-504.
    """
    found = limit_records.keys(state_dir)
    if not found:
        return
    reading = node_settings.parse(prefix, node_settings.read(prefix))
    settings = node_settings.interpret(prefix, reading).replace(state_dir=state_dir)
    why = running.drop(settings, found)
    if why and not force:
        raise refuse("GH-504", f"the driver keeps a memory limit that cannot be cleared: {why[:160]}; try again")


def empty(prefix: str, state_dir: str) -> None:
    """Remove what an install has in its state directory, and the directory itself if nothing else is in it. Simulated
    GPUs stay: a driver root leads to them. Raises SettingsError GH-504."""
    try:
        slot_files.drop(state_dir)
    except OSError as e:
        raise refuse("GH-504", f"{e.filename}: {e.strerror}; unmount it, then try again") from None
    for name in (layout.LEDGER_DIR, layout.PAGES_DIR, layout.MESSAGES_DIR, layout.BOUNDARY_DIR, layout.CLAIMS_DIR):
        shutil.rmtree(os.path.join(state_dir, name), ignore_errors=True)
    names = (
        layout.INVENTORY,
        layout.TIERS,
        layout.UNLISTED,
        layout.EVENTS,
        f"{layout.EVENTS}.1",
        layout.BOUNDARY_SOCKET,
    )
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(state_dir, name))
    with contextlib.suppress(OSError):  # a running agent keeps its lock file: without it a second agent could start
        fd = lock_file(os.path.join(state_dir, layout.AGENT_LOCK), fcntl.LOCK_EX, wait=False)
        os.unlink(os.path.join(state_dir, layout.AGENT_LOCK))
        unix_socket.remove(state_dir + layout.AGENT_SOCKET)
        os.close(fd)
    state_owner.release(prefix, state_dir)
