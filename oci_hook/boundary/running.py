"""The driver's limits of containers that run, for commands: a share is changed, a grant is released, all is removed."""

from oci_hook.boundary import limit_records
from oci_hook.boundary.nvml_limits import LimitError
from oci_hook.boundary.start import ask
from oci_hook.core.boundary import changed_limits, expected, limits_on
from oci_hook.core.terms import DRIVER
from oci_hook.core.value import Value
from oci_hook.errors import refuse
from oci_hook.ledger import admit, events, store
from oci_hook.ledger import inventory as node_inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.boundary.limit_records import LimitRecord
    from oci_hook.config.settings import Settings
    from oci_hook.core.boundary import Limit
    from oci_hook.core.grant import Grant
    from oci_hook.ledger.admit import Alteration


class Altered(Value):
    """old, new: the grant before and after. delivered: the container's pages have it. driver: why the driver still has the former
    limit; "" if it has the new one, or needs none. without: why the driver has no limit for a container that should have one."""

    old: "Grant"
    new: "Grant"
    delivered: bool
    driver: str = ""
    without: str = ""


def alter(settings: "Settings", container: str, change: "Alteration", commit: "Alteration") -> Altered:
    """admit.alter for a container whose limit the driver may hold as well.

    A larger limit goes to the driver first and then to the shim, a smaller one to the shim first: what the container is
    told never exceeds what the driver permits. change: computes the new grant, and has no effect. commit: the same in
    the ledger's transaction. Raises ApplyError GH-414 where the driver refuses the larger limit; then nothing is
    changed.
    """
    grants = store.snapshot(settings.state_dir)
    before = admit.find(grants, container)
    record = limit_records.read(settings.state_dir, before.key)
    if record is None or not record.cgroups or not record.limits:
        done = Altered(*admit.alter(settings, container, commit))
        return done.replace(without=_give(settings, done.new))
    after = change(before, tuple(grant for grant in grants if grant is not before))
    now, then = _limits(before, record, settings), _limits(after, record, settings)
    if (larger := changed_limits(now, then)) != now:
        _raise(settings, before, larger)
    try:
        old, new, delivered = admit.alter(settings, before.key, commit)
    except BaseException:
        _agree(settings, before.key)
        raise
    concerned = now != then or before == after  # the same again: a change before this one did not reach the driver
    return Altered(old, new, delivered, _agree(settings, new.key) if concerned else "")


def drop(settings: "Settings", keys: "list[str]") -> str:
    """Clear the limits of these grants, whose containers may still run; "" or why one could not be cleared."""
    why = ""
    recorded = set(limit_records.keys(settings.state_dir))
    for key in [key for key in keys if key in recorded]:
        try:
            ask(settings, {"do": "clear", "grant": key, "force": True})
        except LimitError as e:
            why = str(e)
    return why


def _limits(grant: "Grant", record: "LimitRecord", settings: "Settings") -> "tuple[Limit, ...]":
    return limits_on(grant, [limit.uuid for limit in record.limits], settings.rules)


def _raise(settings: "Settings", grant: "Grant", larger: "tuple[Limit, ...]") -> None:
    sizes = [[limit.uuid, limit.soft, limit.hard] for limit in larger]
    try:
        ask(settings, {"do": "change", "grant": grant.key, "limits": sizes})
    except LimitError as e:
        _agree(settings, grant.key)
        why = f"the driver does not take the new limit: {str(e)[:150]}; the former one is in effect"
        raise refuse("GH-414", f"container {events.title(grant.who)} is not changed: {why}") from None


def _give(settings: "Settings", grant: "Grant") -> str:
    """Set the limits of a container that had to start without them; "" or why that failed."""
    planned = expected(grant, node_inventory.load(settings)).name
    return _agree(settings, grant.key) if planned == DRIVER and grant.life.init is not None else ""


def _agree(settings: "Settings", key: str) -> str:
    """Make the driver's limit what the ledger says; "" or why that failed."""
    try:
        ask(settings, {"do": "check", "grant": key})
        return ""
    except LimitError as e:
        return str(e)
