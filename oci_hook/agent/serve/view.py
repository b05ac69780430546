"""The node as plain data, in one form for the web page, `top` and the metrics."""

import time
from typing import Any

from oci_hook.agent.judge.audit_rules import Finding
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.judge.meter import Meter
from oci_hook.agent.watched import Watched
from oci_hook.boundary.limit_records import LimitRecord
from oci_hook.core.boundary import Boundary
from oci_hook.core.grant import Grant, booked_compute, booked_memory
from oci_hook.core.inventory import Inventory
from oci_hook.core.slot_page import Gate
from oci_hook.core.terms import SHIM
from oci_hook.core.units import MIB
from oci_hook.observe import boundary_now
from oci_hook.observe.account import PageFigures
from oci_hook.observe.stage import stage, stopped

Boundaries = dict[str, tuple[Boundary, LimitRecord | None]]  # by key, of observe.boundary.look
GATE_SHOWN = tuple(name for name in Gate.FIELDS if name not in ("held_for", "uncharged"))


NO_BOUNDARY: tuple[Boundary, LimitRecord | None] = (Boundary(SHIM, boundary_now.UNKNOWN_GPUS), None)


def mib_up(size: int | None) -> int | None:
    return None if size is None else -(-size // MIB)


def view(
    inventory: Inventory | None,
    grants: dict[str, Grant],
    gpus: dict[str, GpuSample],
    watched: dict[str, Watched],
    findings: tuple[Finding, ...],
    unknown: dict[str, tuple[int, int]],
    agent: dict[str, Any],
    unlisted: dict[str, int] | None = None,
    boundaries: "Boundaries | None" = None,
) -> dict[str, Any]:
    """The node as data. gpus: NVML's samples by UUID. Sizes in the result are MiB, compute and utilization per cent;
    None: unknown."""
    indices = {gpu.uuid: gpu.index for gpu in inventory.gpus} if inventory else {}
    by_slot = {(s.uuid, s.slot): g.who.id for g in grants.values() for s in g.shares if s.slot}
    harvested: dict[str, float] = {}
    for w in watched.values():
        for uuid, meter in w.meters.items():
            if meter.harvest is not None:
                harvested[uuid] = harvested.get(uuid, 0.0) + meter.harvest
    order = sorted(grants.values(), key=lambda g: (g.created, g.who.id))
    return {
        "at": round(time.time(), 1),
        "simulated": bool(inventory and inventory.simulated),
        "driver_version": inventory.driver_version if inventory else "",
        "agent": agent,
        "gpus": [
            {
                **gpu_view(gpu.fields(), grants, gpus.get(gpu.uuid), unknown.get(gpu.uuid), harvested.get(gpu.uuid)),
                "unlisted_mib": -(-(unlisted or {}).get(gpu.uuid, 0) // MIB),
            }
            for gpu in (inventory.gpus if inventory else ())
        ],
        "containers": [
            container_view(
                g,
                indices,
                watched.get(g.key) or Watched(),
                [f for f in findings if f.key == g.key],
                by_slot,
                (boundaries or {}).get(g.key, NO_BOUNDARY),
            )
            for g in order
        ],
    }


def gpu_view(
    gpu: dict[str, Any],
    grants: dict[str, Grant],
    sample: GpuSample | None,
    unknown: tuple[int, int] | None,
    harvested: float | None,
) -> dict[str, Any]:
    shares = [s for g in grants.values() for s in g.shares if s.uuid == gpu["uuid"]]
    compute, offline = booked_compute(gpu["uuid"], grants.values())
    good = sample if sample and not sample.error else None
    return {
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "name": gpu["name"],
        "simulated": gpu["simulated"],
        "memory_mib": gpu["memory_mib"],
        "granted_mib": booked_memory(gpu["uuid"], grants.values()),
        "granted_compute": compute,
        "granted_offline_compute": offline,
        "containers": len(shares),
        "used_mib": -(-good.used // MIB) if good else None,
        "utilization": good.busy if good and good.busy >= 0 else None,
        "harvested": harvested,
        "error": sample.error if sample else "",
        "boundary": "shim" if gpu["no_limits"] else "driver",
        "boundary_why": gpu["no_limits"],
        "unknown_processes": unknown[0] if unknown else 0,
        "unknown_processes_mib": -(-unknown[1] // MIB) if unknown else 0,
    }


def container_view(
    grant: Grant,
    indices: dict[str, int],
    watched: Watched,
    findings: list[Finding],
    by_slot: dict[tuple[str, int], str],
    held: tuple[Boundary, LimitRecord | None],
) -> dict[str, Any]:
    who = grant.who
    begun, seconds = stage(grant)
    limits = boundary_now.limits(held)
    return {
        "key": grant.key,
        "id": who.id,
        "namespace": who.namespace,
        "pod": who.pod,
        "name": who.container,
        "policy": grant.terms.policy,
        "class": grant.terms.priority_class,
        "competes": grant.competes,
        "state": watched.stopped or stopped(grant) or begun,
        "waits_seconds": seconds,
        "frozen_since": grant.frozen or None,
        "suspended_since": grant.suspended or None,
        "lent_to": grant.lent_to or None,
        "host_mib": grant.host_mib,
        "frozen_seconds": round(watched.frozen_seconds, 3),
        "suspended_seconds": round(watched.suspended_seconds, 3),
        "boundary": held[0].name,
        "boundary_why": held[0].why,
        "created": grant.created,
        "account_problem": watched.account if isinstance(watched.account, str) else None,
        "gpus": [share_view(grant, i, indices, watched, by_slot, limits) for i in range(len(grant.shares))],
        "findings": [{"kind": f.kind, "uuid": f.uuid, "pid": f.pid, "evidence": f.evidence} for f in findings],
    }


def share_view(
    grant: Grant,
    i: int,
    indices: dict[str, int],
    watched: Watched,
    by_slot: dict[tuple[str, int], str],
    limits: dict[str, int],
) -> dict[str, Any]:
    share, usage = grant.shares[i], watched.account if isinstance(watched.account, PageFigures) else None
    use, gate = watched.uses.get(share.uuid), watched.gates.get(share.uuid)
    meter = watched.meters.get(share.uuid) or Meter()
    accounted = -(-usage.totals[i] // MIB) if usage and i < len(usage.totals) else None
    if grant.suspended:
        accounted = 0
    seen, charged = mib_up(use.used if use else None), mib_up(watched.charged.get(share.uuid))
    return {
        "index": indices.get(share.uuid),
        "uuid": share.uuid,
        "memory_mib": share.memory_mib,
        "booked_mib": share.booked_mib,
        "used_mib": max((n for n in (seen, accounted, charged) if n is not None), default=None),
        "accounted_mib": accounted,
        "driver_limit_mib": limits[share.uuid] // MIB if share.uuid in limits else None,
        "charged_mib": charged,
        "peak_mib": watched.peaks.get(share.uuid),
        "kept_mib": -(-usage.kept[i] // MIB) if usage and i < len(usage.kept) else 0,
        "surcharge_mib": -(-usage.surcharges[i] // MIB) if usage and i < len(usage.surcharges) else 0,
        "waits_mib": -(-watched.waits.get(share.uuid, 0) // MIB),
        "compute": share.compute,
        "compute_limit": share.compute_limit,
        "whole": share.whole,
        "utilization": use.busy if use else None,
        "compute_used": meter.used,
        "compute_shortfall": meter.shortfall,
        "harvested": meter.harvest,
        "harvested_seconds": meter.harvested,
        "outranked_seconds": meter.outranked,
        "gate": {name: gate.fields()[name] for name in GATE_SHOWN} if gate else None,
        "waits_for": by_slot.get((share.uuid, gate.waits_for)) if gate else None,
    }
