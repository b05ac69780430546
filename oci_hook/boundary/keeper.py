"""Sets, changes, checks and clears the driver's limits of grants. The server and the helper both run this code.

Only the ledger is trusted: what to set is the grant's, the process that is named must have the grant's policy page
mounted, and no other container may run with that grant (boundary/owner.py). A record (boundary/limit_records.py) is written
before the first limit is set. All changes are made under one lock, so that no limit of a cgroup that is gone is cleared
after a new container of the same path has set its own.
"""

import os
import time

from oci_hook.boundary import cgroups, leaks, limit_records, owner
from oci_hook.boundary.cgroups import NoCgroup
from oci_hook.boundary.leaks import Leak
from oci_hook.boundary.limit_records import FAILED, SET, SETTING, LimitRecord
from oci_hook.boundary.nvml_limits import INVALID_ARGUMENT, NOT_FOUND, LimitError, LimitFigures
from oci_hook.core.boundary import NO_LIMIT, Limit, lacks, limits_of, limits_on
from oci_hook.core.layout import LEDGER_DIR
from oci_hook.errors import GhError
from oci_hook.ledger import grant_file
from oci_hook.ledger import inventory as node_inventory
from oci_hook.linux.cgroup_tree import TooManyCgroups, processes
from oci_hook.linux.proc import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_hook.boundary.cgroups import Place
    from oci_hook.boundary.nvml_limits import NvmlLimits
    from oci_hook.config.settings import Settings
    from oci_hook.core.grant import Grant
    from oci_hook.core.inventory import Inventory


CGROUPS_MAX = 1024  # below a container's own
ENDS_SECONDS = 600  # a container that was told to end and still runs gets its soft limits back after this time


class Keeper:
    """load: the install's settings as they are now. connect: gives NVML, the same one each time; called only when a limit
    is to be touched, and first without the lock, since NVML's start takes long. until: when waiting for the lock ends
    (time.monotonic(); 0: as for any lock)."""

    def __init__(
        self, load: "Callable[[], Settings]", connect: "Callable[[Inventory], NvmlLimits]", until: float = 0
    ) -> None:
        self._load = load
        self._connect = connect
        self._until = until

    def start(self, key: str, pid: int) -> bool:
        """Set the limits of a container that is being made, and whose first process is pid. Whether there are any.

        Raises LimitError; then none is set, or the record names the cgroups that still have one.
        """
        settings = self._settings()
        self._connect_early(settings)
        with self._lock(settings):
            self._sweep(settings)
            grant = self._grant(settings, key)
            self._check_owner(settings, grant, pid)
            limits = limits_of(grant, _inventory(settings), settings.rules)
            if uuid := lacks(grant, limits):
                raise LimitError(f"GPU {uuid} cannot have one any more; run `gpu-hook gpus --refresh`")
            if not limits or (all(limit.hard == NO_LIMIT for limit in limits) and not cgroups.keeps_limits_of_gone()):
                return False
            record = LimitRecord(key, grant.who.id[:256], boot_id(), SETTING, limits=limits)
            try:
                places = cgroups.places(pid, grant.life.cgroup)
            except NoCgroup as e:
                self._clear_earlier(settings, record)
                self._failed(settings, record, e)
                raise LimitError(str(e)) from None
            self._put(settings, record.replace(cgroups=places))
            return True

    def change(self, key: str, limits: tuple[Limit, ...]) -> None:
        """Give a container that runs other limits, for a change of its grant that is under way. Raises LimitError."""
        settings = self._settings()
        self._connect_early(settings)
        with self._lock(settings):
            self._grant(settings, key)
            record = self._set_record(settings, key)
            if {limit.uuid for limit in limits} != {limit.uuid for limit in record.limits}:
                raise LimitError(f"grant {key} has other GPUs than those that are named")
            nvml = self._nvml(settings)
            new = record.replace(limits=limits)
            limit_records.write(settings.state_dir, new.replace(state=SETTING))
            for limit, place in _each(new):
                nvml.set(limit, place[0])
            limit_records.write(settings.state_dir, new.replace(state=SET))

    def check(self, key: str) -> bool:
        """Make the driver's limits of a container that runs what its grant says. Whether one was different or missing.

        A container that had to start without its limits, or whose record was lost, gets them now. Raises LimitError.
        """
        settings = self._settings()
        self._connect_early(settings)
        with self._lock(settings):
            grant = self._grant(settings, key)
            found = limit_records.read(settings.state_dir, key)
            if found is None or not found.limits:
                self._restore(settings, grant, found)
                return True
            record = self._set_record(settings, key)
            limits = self._limits(grant, record, settings)
            nvml, repaired = self._nvml(settings), False
            if limits != record.limits or record.state != SET:
                limit_records.write(settings.state_dir, record.replace(limits=limits, state=SETTING))
                repaired = True
            for limit, (path, inode) in _each(record.replace(limits=limits)):
                if cgroups.inode(path) != inode:
                    continue  # the container ends just now
                at_driver = nvml.get(limit.uuid, path)
                lowest = path == record.cgroups[-1][0]  # those above count its soft limit as well
                if at_driver.hard != limit.hard or (lowest and at_driver.soft != limit.soft):
                    nvml.set(limit, path)
                    repaired = True
            limit_records.write(settings.state_dir, record.replace(limits=limits, state=SET))
            return repaired

    def end(self, key: str) -> None:
        """Make the soft limits of a container 0 that is about to end, as long as its cgroup exists; its hard ones stay.
        Nothing without a soft limit. Raises LimitError."""
        settings = self._settings()
        self._connect_early(settings, [key])
        with self._lock(settings):
            record = limit_records.read(settings.state_dir, key)
            if record is None or not record.reserves or record.boot != boot_id():
                return
            ended = record.replace(limits=_without_soft(record.limits), ending=int(time.monotonic()))
            if not record.cgroups or cgroups.inode(record.cgroups[-1][0]) != record.cgroups[-1][1]:
                return  # too late
            for limit, (path, inode) in _each(ended):
                if cgroups.inode(path) == inode:
                    self._nvml(settings).set(limit, path)
            limit_records.write(settings.state_dir, ended)

    def leaks(self) -> list[Leak]:
        """What the driver still sets aside for cgroups that are gone. Raises LimitError."""
        settings = self._settings()
        self._connect_early(settings)
        with self._lock(settings):
            leaks.write(settings.state_dir, leaks.read(settings.state_dir))
            found = [leak.replace(size=self._left(settings, leak)) for leak in leaks.read(settings.state_dir)]
            found = [leak for leak in found if leak.size > 0]
            leaks.write(settings.state_dir, found)
            return found

    def figures(self, key: str) -> "list[tuple[str, str, LimitFigures]]":
        """(GPU's UUID, cgroup, what the driver says) for each limit of the record. Raises LimitError."""
        settings = self._settings()
        record = limit_records.read(settings.state_dir, key)
        if record is None:
            raise LimitError(f"no limit is recorded for grant {key}")
        nvml = self._nvml(settings)
        return [(limit.uuid, path, nvml.get(limit.uuid, path)) for limit, (path, _) in _each(record)]

    def clear(self, key: str, force: bool = False) -> None:
        """Clear the limits of a container that has ended, and forget them. Nothing without a record.

        force: also while it runs. Raises LimitError; then the record stays.
        """
        settings = self._settings()
        self._connect_early(settings, [key])
        with self._lock(settings):
            record = limit_records.read(settings.state_dir, key)
            if record is None:
                limit_records.remove(settings.state_dir, key)  # a damaged one, which names no limit
                return
            if not force and self._lives(settings, record):
                raise LimitError(f"the container of grant {key} still runs")
            self._clear(settings, record)

    def sweep(self) -> list[str]:
        """Clear the limits of all grants that the ledger no longer has; their keys. Raises LimitError."""
        settings = self._settings()
        self._connect_early(settings, limit_records.left(settings.state_dir))
        with self._lock(settings):
            return self._sweep(settings)

    def keys(self) -> list[str]:
        """The grants that have a record."""
        return limit_records.keys(self._settings().state_dir)

    def warm(self) -> None:
        """Start NVML, so that no container waits for it. Raises LimitError."""
        self._nvml(self._settings())

    def _connect_early(self, settings: "Settings", keys: "list[str] | None" = None) -> None:
        """Start NVML before the lock is taken, unless none of these grants has a limit to clear (None: it is needed)."""
        found = [limit_records.read(settings.state_dir, key) for key in keys or ()]
        if keys is not None and not any(r is not None and r.cgroups and r.boot == boot_id() for r in found):
            return
        try:
            self._nvml(settings)
        except LimitError:
            pass  # it is raised again under the lock, where it can be recorded

    def _lock(self, settings: "Settings") -> "Lock":
        return Lock(settings.state_dir, max(0.1, self._until - time.monotonic()) if self._until else 0)

    # --- under the lock ---

    def _check_owner(self, settings: "Settings", grant: "Grant", pid: int) -> None:
        if not owner.is_holder(pid, grant.key):
            raise LimitError(f"process {pid} is not of the container that holds grant {grant.key}")
        if owner.is_anothers(grant, limit_records.read(settings.state_dir, grant.key), pid):
            raise LimitError(f"another container, {grant.who.id[:100]}, runs with grant {grant.key}")

    def _put(self, settings: "Settings", record: LimitRecord) -> None:
        self._clear_earlier(settings, record)
        try:
            nvml = self._nvml(settings)
            nvml.find(limit.uuid for limit in record.limits)
        except LimitError as e:
            self._failed(settings, record, e)
            raise
        limit_records.write(settings.state_dir, record)
        try:
            for limit, (path, _) in _each(record):
                nvml.set(limit, path)
        except LimitError as e:
            limit_records.write(settings.state_dir, record.replace(state=FAILED, why=str(e)[:300]))
            try:
                self._unset(settings, record)
                self._failed(settings, record, e)
            except LimitError:
                pass  # the record says where limits may be left
            raise
        limit_records.write(settings.state_dir, record.replace(state=SET))

    def _restore(self, settings: "Settings", grant: "Grant", record: LimitRecord | None) -> None:
        """Set the limits of a container that runs without. record: of its start, where there is one."""
        why = record.why if record is not None else ""
        limits = limits_of(grant, _inventory(settings), settings.rules)
        if all(limit.hard == NO_LIMIT for limit in limits) or lacks(grant, limits):
            raise LimitError(why or f"the driver has no limit for grant {grant.key}")
        # Its program has been running, so where the process is now says nothing: it may have gone to a neighbour's cgroup.
        places = record.cgroups if record is not None else _places(grant)
        if not places or any(cgroups.inode(path) != inode for path, inode in places):
            raise LimitError(why or f"the cgroup of grant {grant.key} is not known")
        if {path for path, _ in places} & self._used_by_others(settings, grant.key):
            raise LimitError(f"another container has its limit on the cgroup of grant {grant.key}")
        self._put(
            settings, LimitRecord(grant.key, grant.who.id[:256], boot_id(), SETTING, cgroups=places, limits=limits)
        )

    def _clear_earlier(self, settings: "Settings", record: LimitRecord) -> None:
        """Clear the limits of a container with the same name that crashed."""
        earlier = limit_records.read(settings.state_dir, record.key)
        if earlier is not None and earlier.cgroups:
            left = tuple(place for place in earlier.cgroups if place not in record.cgroups)
            self._clear(settings, earlier.replace(cgroups=left))

    def _failed(self, settings: "Settings", record: LimitRecord, e: Exception) -> None:
        """Record that the grant has no limit, and why."""
        limit_records.write(settings.state_dir, record.replace(state=FAILED, limits=(), why=str(e)[:300]))

    def _sweep(self, settings: "Settings") -> list[str]:
        done = []
        for key in limit_records.left(settings.state_dir):
            record = limit_records.read(settings.state_dir, key)
            try:
                if record is not None:
                    self._clear(settings, record)
                else:
                    limit_records.remove(settings.state_dir, key)
                done.append(key)
            except LimitError:
                pass  # it stays for the next sweep
        return done

    def _clear(self, settings: "Settings", record: LimitRecord) -> None:
        if record.boot == boot_id():  # after another boot, the driver has no old limits
            self._unset(settings, record)
        limit_records.remove(settings.state_dir, record.key)

    def _unset(self, settings: "Settings", record: LimitRecord) -> None:
        others = self._used_by_others(settings, record.key)
        gone = [place for place in record.cgroups if cgroups.inode(place[0]) != place[1]]
        if gone and not cgroups.keeps_limits_of_gone():
            if record.cgroups[-1] in gone:
                self._note_leaks(settings, record.limits, record.cgroups[-1][0])
            record = record.replace(cgroups=tuple(place for place in record.cgroups if place not in gone))
        for limit, (path, inode) in reversed(_each(record)):
            if limit.hard == NO_LIMIT or path in others:
                continue
            nvml = self._nvml(settings)
            now = cgroups.inode(path)
            try:
                found = nvml.get(limit.uuid, path)
                # Another container has this path by now; a limit that is not ours is somebody else's.
                foreign = now not in (0, inode) and found.hard != limit.hard
                if found.hard != NO_LIMIT and not foreign:
                    nvml.clear(limit.uuid, path)
            except LimitError as e:
                if now or e.code not in (INVALID_ARGUMENT, NOT_FOUND):
                    raise  # else: the cgroup is gone, and the driver knows nothing of its path
                self._note_leaks(settings, (limit,), path)

    def _note_leaks(self, settings: "Settings", limits: tuple[Limit, ...], cgroup: str) -> None:
        above = leaks.above(cgroup)
        if found := [Leak(limit.uuid, above, limit.soft) for limit in limits if limit.soft and above]:
            leaks.write(settings.state_dir, leaks.read(settings.state_dir) + found)

    def _left(self, settings: "Settings", leak: Leak) -> int:
        """Bytes of the cgroup's soft limit that no cgroup below it explains, of those that were noted."""
        nvml = self._nvml(settings)

        def soft(path: str) -> int:
            try:
                return nvml.get(leak.uuid, path).soft
            except LimitError:
                return 0  # it has gone, or has no limits

        try:
            below = [entry.path for entry in os.scandir(leak.cgroup) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return 0
        return min(leak.size, soft(leak.cgroup) - sum(map(soft, below[:CGROUPS_MAX])))

    def _used_by_others(self, settings: "Settings", key: str) -> set[str]:
        """The cgroups that another grant's record names: their limits are that grant's now."""
        found = (
            limit_records.read(settings.state_dir, other)
            for other in limit_records.keys(settings.state_dir)
            if other != key
        )
        return {path for record in found if record is not None and record.limits for path, inode in record.cgroups}

    def _lives(self, settings: "Settings", record: LimitRecord) -> bool:
        if not os.path.lexists(f"{settings.state_dir}/{LEDGER_DIR}/{record.key}.json"):
            return False
        if any(cgroups.inode(p) == inode and cgroups.populated(p) for p, inode in record.cgroups):
            return True
        try:
            return owner.init_lives(self._grant(settings, record.key))
        except LimitError:
            return False  # a damaged grant, which the ledger reports

    def _set_record(self, settings: "Settings", key: str) -> LimitRecord:
        record = limit_records.read(settings.state_dir, key)
        if record is None or not record.cgroups or not record.limits:
            raise LimitError(f"the driver has no limit for grant {key}")
        return record

    def _grant(self, settings: "Settings", key: str) -> "Grant":
        try:
            return grant_file.read(f"{settings.state_dir}/{LEDGER_DIR}", key)
        except (OSError, GhError) as e:
            raise LimitError(f"grant {key} cannot be read: {e}") from None

    def _limits(self, grant: "Grant", record: LimitRecord, settings: "Settings") -> tuple[Limit, ...]:
        """The grant's present limits for the GPUs that were given limits, whatever the inventory says by now."""
        limits = limits_on(grant, [limit.uuid for limit in record.limits], settings.rules)
        ends = record.ending and time.monotonic() - record.ending < ENDS_SECONDS
        return _without_soft(limits) if ends else limits

    def _nvml(self, settings: "Settings") -> "NvmlLimits":
        return self._connect(_inventory(settings))

    def _settings(self) -> "Settings":
        try:
            return self._load()
        except GhError as e:
            raise LimitError(str(e)) from None


class Lock:
    """`with Lock(state_dir):` holds the records' lock. seconds: to wait for it. Raises LimitError."""

    def __init__(self, state_dir: str, seconds: float = 0) -> None:
        self._state_dir = state_dir
        self._seconds = seconds
        self._fd = -1

    def __enter__(self) -> None:
        try:
            self._fd = limit_records.lock(self._state_dir, self._seconds)
        except (OSError, GhError) as e:
            raise LimitError(f"{e}") from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _inventory(settings: "Settings") -> "Inventory":
    try:
        return node_inventory.load(settings)
    except GhError as e:
        raise LimitError(str(e)) from None


def _each(record: LimitRecord) -> "list[tuple[Limit, Place]]":
    """What to set where. The soft limit is the lowest cgroup's alone: the driver adds it to those above."""
    lowest = record.cgroups[-1:]
    return [
        (limit if (place,) == lowest else limit.replace(soft=0), place)
        for limit in record.limits
        for place in record.cgroups
    ]


def _without_soft(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    return tuple(limit.replace(soft=0) for limit in limits)


def _places(grant: "Grant") -> "tuple[Place, ...]":
    """The cgroup that the container was made in, if its first process and no foreign one is in it now, else nothing."""
    planned, init = grant.life.cgroup, grant.life.init
    if init is None or not planned.startswith(cgroups.MOUNTED + "/"):
        return ()
    place = (planned, cgroups.inode(planned))
    try:
        inside = [pid for pids in processes(planned, CGROUPS_MAX) for pid in pids]
    except (TooManyCgroups, OSError):
        return ()
    mine = init[0] in inside and all(owner.is_holder(pid, grant.key) for pid in inside)
    return (place,) if mine else ()
