"""Which boundary holds a container's memory limit now, by the grant, the inventory and the record of what was set."""

from oci_hook.boundary import limit_records
from oci_hook.boundary.limit_records import FAILED, SET, SETTING, LimitRecord
from oci_hook.core import boundary
from oci_hook.core.boundary import NO_LIMIT, Boundary
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.rules import Rules
from oci_hook.core.terms import DRIVER, SHIM
from oci_hook.core.units import MIB
from oci_hook.linux.proc import boot_id

NOT_STARTED = "the container has not been made yet"
UNRECORDED = "no limit is recorded for it; start it again"
UNKNOWN_GPUS = "the GPUs of this node are not known now"


def look(state_dir: str, grant: Grant, inventory: Inventory | None) -> tuple[Boundary, LimitRecord | None]:
    """(the boundary, its record if there is one)."""
    record = limit_records.read(state_dir, grant.key)
    if record is not None and record.state == SET and record.boot == boot_id() and covers(record, grant):
        return Boundary(DRIVER), record
    if inventory is None:
        return Boundary(SHIM, UNKNOWN_GPUS), record
    planned = boundary.expected(grant, inventory)
    if planned.name == SHIM:
        return planned, record
    if record is not None and record.state == FAILED:
        return Boundary(SHIM, record.why or "its limits could not be set"), record
    return Boundary(SHIM, NOT_STARTED if grant.life.init is None else UNRECORDED), record


def differs(record: LimitRecord | None, grant: Grant, rules: Rules) -> str:
    """How the driver's limit differs from the ledger's, as after a change that was cut off between the two; "" where both
    agree or the driver is to have none."""
    if record is None or record.boot != boot_id() or grant.life.init is None:
        return ""
    planned = boundary.limits_on(grant, [limit.uuid for limit in record.limits], rules)
    same = [limit.hard for limit in planned] == [limit.hard for limit in record.limits]
    if record.state not in (SET, SETTING) or same or not covers(record, grant):
        return ""
    at_driver, here = (", ".join(_size(limit.hard) for limit in limits) for limits in (record.limits, planned))
    return (
        f"the driver's memory limit is {at_driver}, the ledger's {here}: a change was cut off; run `gpu-hook set` again"
    )


def _size(limit: int) -> str:
    return "none" if limit == NO_LIMIT else f"{limit // MIB} MiB"


def covers(record: LimitRecord, grant: Grant) -> bool:
    """True if the record has a limit for each share of the grant that is to have one, and there is one."""
    limited = {limit.uuid for limit in record.limits if limit.hard != NO_LIMIT}
    needed = {share.uuid for share in grant.shares if not share.whole}
    return bool(needed) and needed <= limited and bool(record.cgroups)


def limits(found: tuple[Boundary, LimitRecord | None]) -> dict[str, int]:
    """Bytes of the driver's limit by GPU, without those that have none. found: of `look`."""
    now, record = found
    if now.name != DRIVER or record is None:
        return {}
    return {limit.uuid: limit.hard for limit in record.limits if limit.hard != NO_LIMIT}
