"""The boundary of a container that is being made: the server sets the limits, or else a helper process; and what
happens when neither can."""

import os

from oci_hook.boundary import alone, cgroups, limit_records, owner, protocol
from oci_hook.boundary.nvml_limits import LimitError
from oci_hook.core.layout import LEDGER_DIR
from oci_hook.core.terms import DRIVER
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import admit, events, grant_file
from oci_hook.linux.proc import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.boundary.protocol import Packet
    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant

FALLBACK = "boundary-fallback"  # the event: a container starts with the shim alone


def ask(
    settings: "Settings", request: "Packet", patience: float = protocol.SECONDS, helper: float = alone.SECONDS
) -> "Packet":
    """The answer of the server, or of a helper where no server answers. Raises LimitError.

    patience, helper: seconds that the one and the other may take.
    """
    try:
        return protocol.ask(settings.state_dir, request, patience)
    except protocol.NoServer:
        return alone.run(settings, request, helper)


def at_start(key: str, pid: int, settings: "Settings", patience: float = 0, helper: float = alone.SECONDS) -> None:
    """Set the limits of the grant's container, whose first process, pid, has not started its program yet.

    patience: seconds that the server may take; 0: it was asked already. Where the limits cannot be set: with boundary
    driver the grant is released and ApplyError GH-414 raised; with auto the container starts with the shim alone, and
    an event says so. A grant with which another container runs stays as it is, and ApplyError GH-414 is raised.
    """
    request = {"do": "set", "grant": key, "pid": pid}
    try:
        if patience:
            protocol.ask(settings.state_dir, request, patience)
            return
    except (protocol.NoServer, LimitError):
        pass  # the server's own trouble must not be the container's
    try:
        if limit_records.hung(settings.state_dir) and _grant(settings, key).terms.boundary != DRIVER:
            raise LimitError("the driver did not answer a container before; the agent tries again")
        try:
            alone.run(settings, request, helper)
        except alone.NoAnswerError:
            limit_records.note_hung(settings.state_dir)
            raise
    except LimitError as e:
        grant = _grant(settings, key)
        _without(grant, pid, str(e), settings)
        _note(grant, pid, str(e), settings)


def at_end(key: str, settings: "Settings", helper: float = alone.SECONDS, what: str = "clear") -> None:
    """Clear the limits of a container that has ended; nothing where there are none. what: "end" for one that is about to.
    The server was asked already. Raises LimitError: the record stays, and the next start, or the agent, clears them."""
    if os.path.lexists(f"{limit_records.folder(settings.state_dir)}/{key}"):
        try:
            alone.run(settings, {"do": what, "grant": key}, helper)
        except alone.NoAnswerError:
            limit_records.note_hung(settings.state_dir)
            raise


def clear_ended(settings: "Settings", patience: float = protocol.SECONDS, helper: float = alone.SECONDS) -> None:
    """Clear the limits of grants that the ledger no longer has; what cannot be cleared stays recorded."""
    if limit_records.left(settings.state_dir):
        try:
            ask(settings, {"do": "sweep"}, patience, helper)
        except LimitError:
            pass


def _without(grant: "Grant", pid: int, why: str, settings: "Settings") -> None:
    """The limits could not be set. Raises ApplyError GH-414 for a container that insists on them."""
    if owner.is_anothers(grant, limit_records.read(settings.state_dir, grant.key), pid):
        raise refuse(
            "GH-414",
            f"another container, {grant.who.id[:100]}, runs with the grant that this container's config.json names; "
            "make this one with gpu-hook-runtime, from a bundle that was not edited for the other",
        )
    if grant.terms.boundary == DRIVER:
        if owner.is_holder(pid, grant.key):  # another container's grant stays
            admit.release(grant.key, settings, force=True)
            limit_records.forget_failed(settings.state_dir, grant.key)
        raise refuse(
            "GH-414",
            f"boundary: driver is asked for, and the driver's memory limit cannot be set: {why[:250]}; "
            "`gpu-hook doctor`, or set `boundary: auto`",
        )
    name = events.full_name(grant.who)[:256]
    events.record(settings.state_dir, FALLBACK, id=grant.who.id[:256], name=name, key=grant.key, why=why[:300])


def _note(grant: "Grant", pid: int, why: str, settings: "Settings") -> None:
    """Record why the container has no limit, and its cgroup, where the helper could not: it was killed. The agent needs
    the cgroup to set the limit later, and it is certain only now, before the container's program runs."""
    if not owner.is_holder(pid, grant.key) or owner.is_anothers(grant, None, pid):
        return
    try:
        places = cgroups.places(pid, grant.life.cgroup)
        held = limit_records.lock(settings.state_dir)
    except (cgroups.NoCgroup, OSError, GhError):
        return
    try:
        if limit_records.read(settings.state_dir, grant.key) is None:
            failed = limit_records.LimitRecord(
                grant.key, grant.who.id[:256], boot_id(), limit_records.FAILED, places, (), why[:300]
            )
            limit_records.write(settings.state_dir, failed)
    except OSError:
        pass
    finally:
        os.close(held)


def _grant(settings: "Settings", key: str) -> "Grant":
    """Raises ApplyError GH-414: a container whose grant is gone must not run."""
    try:
        return grant_file.read(f"{settings.state_dir}/{LEDGER_DIR}", key)
    except (OSError, GhError) as e:
        raise refuse("GH-414", f"grant {key[:40]} cannot be read: {e}; make the container again") from None
