"""Whose a grant is: the boundary's hook may be called for another process than the grant's container, for example when a
bundle that was edited for one container is used for a second one. The first one keeps its limit and its grant."""

from oci_hook.boundary import cgroups
from oci_hook.boundary.cgroups import NoCgroup
from oci_hook.ledger.holders import holds
from oci_hook.ledger.life import found
from oci_hook.linux.proc import boot_id, is_running, pid_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.boundary.limit_records import LimitRecord
    from oci_hook.core.grant import Grant, Life


def is_holder(pid: int, key: str) -> bool:
    """True if the process sees the grant's policy page."""
    try:
        return pid > 0 and holds(pid, key)
    except OSError:
        return False


def is_anothers(grant: "Grant", record: "LimitRecord | None", pid: int) -> bool:
    """True if another container than the one whose first process is pid runs with this grant: the record names a cgroup
    with other processes, or the grant's own first process lives."""
    return _has_other_processes(record, grant, pid) or init_lives(grant, pid)


def _has_other_processes(record: "LimitRecord | None", grant: "Grant", pid: int) -> bool:
    if record is None or record.boot != boot_id():
        return False
    try:
        own = cgroups.places(pid, grant.life.cgroup)
    except NoCgroup:
        own = ()
    others = (place for place in record.cgroups if place not in own)
    return any(cgroups.inode(path) == inode and cgroups.populated(path) for path, inode in others)


def init_lives(grant: "Grant", but: int = 0) -> bool:
    """True if the first process of the grant's container lives. but: a process that does not count."""
    try:
        reported = found(grant)  # the runtime's state file: the ledger learns of an init with its next transaction only
    except (ValueError, ArithmeticError, LookupError, RecursionError):
        reported = None
    return _has_init(grant.life, grant.key, but) or (reported is not None and _has_init(reported[0], grant.key, but))


def _has_init(life: "Life", key: str, but: int) -> bool:
    if life.init is None or life.init[0] == but or life.space not in (0, pid_space()) or life.boot_id != boot_id():
        return False
    return is_running(life.init) and is_holder(life.init[0], key)
