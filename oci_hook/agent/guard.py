"""Looks at single GPUs for their tenants' sake: from NVML's figures, grants and books to protect.py's judgement, and
when to look again."""

from oci_hook.agent import holders
from oci_hook.agent.audit import Process
from oci_hook.agent.event_log import Follower
from oci_hook.agent.protect import Harm, Held, Judgement, Look, Protector, Tenant
from oci_hook.agent.sampler import GpuSample
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Gpu
from oci_hook.core.units import MIB
from oci_hook.linux.proc import start_time
from oci_hook.observe.account import Books


class Guard:
    """alarms: by GPU, bytes; free memory below that is worth a look. due: when a GPU is to be looked at again.
    unlisted: bytes, by GPU. tolerance_mib: what a container may be above its limit."""

    def __init__(self, tolerance_mib: int) -> None:
        self.alarms: dict[str, int] = {}
        self.due: dict[str, float] = {}
        self.unlisted: dict[str, int] = {}
        self._protector = Protector(tolerance_mib * MIB)
        self._most: dict[tuple[str, str], int] = {}
        self._before: set[str] | None = None  # keys that were there before us, and whose grant the log does not tell
        self._granted: set[str] = set()  # in the log
        self._log: Follower | None = None
        self._state_dir = ""

    def follow(self, state_dir: str) -> None:
        """Learn what limits were before they were changed: whoever used more then may keep it."""
        if self._log is None or state_dir != self._state_dir:
            self._log, self._state_dir = Follower(state_dir, old=True), state_dir
        for event in self._log.read():
            if event["event"] == "granted":
                self._granted.add(str(event.get("key")))
            if event["event"] == "set":
                for uuid, before in event.get("before") or ():
                    at = str(event.get("key")), str(uuid)
                    self._most[at] = max(self._most.get(at, 0), int(before))

    def there(self, keys: set[str]) -> None:
        """The containers that live when we begin; of later ones we see all that is done to them."""
        if self._before is None:
            self._before = set(keys)

    def forget(self, keys: set[str]) -> None:
        """Of containers that ended."""
        self._protector.forget(keys)
        self._granted -= keys
        self._before = self._before and self._before - keys
        for at in [at for at in self._most if at[0] in keys]:
            del self._most[at]

    def spare(self, uuid: str) -> None:
        """Who was to be killed is not, for now."""
        self._protector.spare(uuid)

    def alone(self, uuid: str) -> None:
        """The GPU has no neighbours on it, or cannot be looked at."""
        for known in (self.alarms, self.due, self.unlisted):
            known.pop(uuid, None)

    def judge(
        self,
        gpu: Gpu,
        sample: GpuSample,
        grants: dict[str, Grant],
        stopped: set[str],
        members: dict[int, tuple[str, Process]],
        books: "dict[str, Books | str | None]",
        unread: frozenset[str],
        now: float,
    ) -> Judgement:
        """grants: of those with a share of this GPU."""
        tenants = self._tenants(gpu.uuid, sample, grants, stopped, members, books, unread)
        strange, leaving = [], 0
        for pid, used, _ in sample.processes:
            if pid in members and members[pid][0] in grants:
                continue
            if start_time(pid):
                strange.append(used)
            else:  # it has just ended: what it had is free by now
                leaving += used or 0
        look = Look(
            gpu.uuid,
            sample.at,
            sample.total,
            max(0, sample.total - sample.used + leaving),
            sample.used - leaving if sample.steady else None,
            tenants,
            None if None in strange else sum(n or 0 for n in strange),
            bool(strange) and any(grant.life.init is None for grant in grants.values()),
        )
        found = self._protector.judge(look, now, lambda: holders.able(gpu, grants))
        self.unlisted[gpu.uuid] = found.unlisted
        self.alarms[gpu.uuid] = found.alarm
        if found.again is None:
            self.due.pop(gpu.uuid, None)
        else:
            self.due[gpu.uuid] = now + found.again
        return found

    def _tenants(
        self,
        uuid: str,
        sample: GpuSample,
        grants: dict[str, Grant],
        stopped: set[str],
        members: dict[int, tuple[str, Process]],
        books: "dict[str, Books | str | None]",
        unread: frozenset[str],
    ) -> tuple[Tenant, ...]:
        listed: dict[str, list[tuple[Process, int | None]]] = {key: [] for key in grants}
        for pid, used, _ in sample.processes:
            key, process = members.get(pid, ("", None))
            if key in listed and process is not None:
                listed[key].append((process, used))
        tenants = []
        for key, grant in grants.items():
            i, share = next((i, s) for i, s in enumerate(grant.shares) if s.uuid == uuid)
            kept = books.get(key)
            owners = kept.owners if isinstance(kept, Books) else frozenset()
            shown = frozenset(owner for process, _ in listed[key] for owner in process.owners)
            parts = kept.shares if isinstance(kept, Books) else {}
            tenants.append(
                Tenant(
                    key,
                    None if share.whole else share.memory_mib * MIB,
                    tuple(Held(p.pid, p.start, used, bool(p.owners & owners)) for p, used in listed[key]),
                    kept.totals[i] if isinstance(kept, Books) and i < len(kept.totals) else 0,
                    grant.life.init is not None and key not in stopped,
                    key not in unread,
                    sum(part[i] for owner, part in parts.items() if owner not in shown and i < len(part)),
                    self._most.get((key, uuid), 0) * MIB,
                    key in self._granted or key not in (self._before or ()),
                )
            )
        return tuple(tenants)


def evidence(harm: Harm, tolerance_mib: int) -> str:
    return (
        f"{-(-harm.held // MIB)} MiB in use, limit {harm.limit // MIB} MiB, tolerance {tolerance_mib} MiB; others were"
        f" granted {harm.unmet // MIB} MiB that they do not use yet, and {harm.free // MIB} MiB are free"
    )
