"""Prepares a look at one GPU for protect_rules.py: what NVML, the ledger and the account pages say of each of its containers.

It also remembers when the GPU is to be looked at again, and which limits were lowered while containers ran.
"""

import math
from collections.abc import Collection

from oci_hook.agent.judge.audit_rules import NodeLook, TenantProcess
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.judge.protect_rules import Harm, Judgement, Look, Member, Protector, Tenant
from oci_hook.core.inventory import Gpu
from oci_hook.core.units import MIB
from oci_hook.linux.proc import start_at
from oci_hook.observe.account import PageFigures
from oci_hook.observe.event_log import Follower


class Guard:
    """`judge` looks at GPUs; four results are kept by the GPU's UUID. alarms: bytes; when less memory is free, the GPU
    is to be looked at. due: when it is to be looked at again (monotonic seconds). unlisted: bytes in use that belong to
    no listed process. unexplained: those among them that no account page explains.

    tolerance_mib: what a container may have above its limit.
    """

    def __init__(self, tolerance_mib: int) -> None:
        self.alarms: dict[str, int] = {}
        self.due: dict[str, float] = {}
        self.unlisted: dict[str, int] = {}
        self.unexplained: dict[str, int] = {}
        self._protector = Protector(tolerance_mib * MIB)
        self._highest: dict[tuple[str, str], int] = {}  # MiB, by (key, UUID): the highest limit before a change
        self._before: set[str] | None = None  # keys of containers that are older than this agent
        self._logged: set[str] = set()  # keys whose grant is in the event log
        self._gone: set[str] = set()  # keys with events that were not living at the last call of `follow`
        self._log: Follower | None = None
        self._state_dir = ""

    def follow(self, state_dir: str, living: Collection[str]) -> None:
        """Read new events: a container may keep what it used when its limit was lowered. living: keys."""
        if self._log is None or state_dir != self._state_dir:
            self._log, self._state_dir = Follower(state_dir, old=True), state_dir
        for event in self._log.read():
            if event["event"] == "granted":
                self._logged.add(str(event.get("key")))
            if event["event"] == "changed":
                for uuid, before in event.get("before") or ():
                    at = str(event.get("key")), str(uuid)
                    self._highest[at] = max(self._highest.get(at, 0), int(before))
        # A short life may be over before its events are read; one that has just begun is living at the next call.
        gone = {*self._logged, *(key for key, _ in self._highest)}.difference(living)
        self.forget(gone & self._gone)
        self._gone = gone

    def first_seen(self, keys: set[str]) -> None:
        """At the first call, remember the containers older than the agent. It sees all changes of later ones."""
        if self._before is None:
            self._before = set(keys)

    def forget(self, keys: set[str]) -> None:
        """Drop what is known of these containers, which have ended."""
        self._protector.forget(keys)
        self._logged -= keys
        self._before = self._before and self._before - keys
        for at in [at for at in self._highest if at[0] in keys]:
            del self._highest[at]

    def spare(self, uuid: str) -> None:
        """Note that the container of this GPU that was to be killed is not killed now."""
        self._protector.spare(uuid)

    def alone(self, uuid: str) -> None:
        """Drop what is known of the GPU, which has no container or cannot be looked at. What was unexplained stays so."""
        for known in (self.alarms, self.due, self.unlisted):
            known.pop(uuid, None)

    def judge(self, gpu: Gpu, sample: GpuSample, seen: NodeLook, stopped: set[str], now: float) -> Judgement:
        """seen.grants: those with a share of this GPU. stopped: keys of containers that were killed."""
        tenants = tuple(self._tenant(gpu.uuid, key, sample, seen, stopped) for key in seen.grants)
        others, leaving = [], 0
        for pid, used, _ in sample.processes:
            if pid in seen.processes and seen.processes[pid][0] in seen.grants:
                continue
            if start_at(pid, sample.at):
                others.append(used)
            else:  # the process has just ended, and its memory is free by now
                leaving += used or 0
        look = Look(
            gpu.uuid,
            sample.at,
            sample.total,
            max(0, sample.total - sample.used + leaving),
            sample.used - leaving if sample.steady else None,
            tenants,
            None if None in others else sum(n or 0 for n in others),
            bool(others) and any(grant.life.init is None for grant in seen.grants.values()),
        )
        found = self._protector.judge(look, now)
        self.unlisted[gpu.uuid] = found.unlisted
        self.unexplained[gpu.uuid] = found.unexplained
        if len(tenants) > 1:
            self.alarms[gpu.uuid] = found.alarm
        else:
            self.alarms.pop(gpu.uuid, None)
        if found.again is None:
            self.due.pop(gpu.uuid, None)
        else:
            self.due[gpu.uuid] = now + found.again
        return found

    def _tenant(self, uuid: str, key: str, sample: GpuSample, seen: NodeLook, stopped: set[str]) -> Tenant:
        listed: list[tuple[TenantProcess, int | None]] = []
        for pid, used, _ in sample.processes:
            owner, process = seen.processes.get(pid, ("", None))
            if owner == key and process is not None:
                listed.append((process, used))
        grant, kept = seen.grants[key], seen.accounts.get(key)
        i = grant.place(uuid)
        share = grant.shares[i]
        usage = kept if isinstance(kept, PageFigures) else PageFigures((), (), frozenset())
        shown = frozenset(owner for process, _ in listed for owner in process.owners)
        settled = seen.moved.get(key, -math.inf) < sample.at
        away = bool(grant.suspended) and settled
        return Tenant(
            key,
            0 if away else None if share.whole else share.memory_mib * MIB,
            tuple(Member(p.pid, p.start, used, bool(p.owners & usage.owners)) for p, used in listed),
            usage.totals[i] if i < len(usage.totals) and not grant.off_gpu else 0,
            grant.life.init is not None and key not in stopped,
            key not in seen.unread,
            sum(part[i] for owner, part in usage.by_process.items() if owner not in shown and i < len(part)),
            self._highest.get((key, uuid), 0) * MIB,
            key in self._logged or key not in (self._before or ()),
            sample.charged.get(key),
            away,
            not away and (grant.off_gpu or not settled),
        )


def evidence(harm: Harm, tolerance_mib: int) -> str:
    yet = "" if harm.away else " that they do not use yet"
    return (
        f"{-(-harm.used // MIB)} MiB in use, limit {harm.limit // MIB} MiB{' while it is suspended' if harm.away else ''},"
        f" tolerance {tolerance_mib} MiB; others were granted {harm.unmet // MIB} MiB{yet}, and {harm.free // MIB} MiB are"
        " left for them"
    )
