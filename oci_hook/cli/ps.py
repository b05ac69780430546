"""`gpu-hook ps`: the living grants, and how much of each its container uses."""

import os
import time
from collections.abc import Sequence
from typing import Any

import click

from oci_hook.cli import named, node_now, output
from oci_hook.config import settings as node_settings
from oci_hook.core import words
from oci_hook.core.boundary import expected
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.terms import DRIVER, SHIM
from oci_hook.core.units import MIB
from oci_hook.errors import GhError, Problem
from oci_hook.ledger import events
from oci_hook.ledger import inventory as node_inventory
from oci_hook.ledger.slot_files import read_gate
from oci_hook.observe import boundary_now
from oci_hook.observe.account import PageFigures, look
from oci_hook.observe.stage import in_words, stage, stopped

HEADER = (
    *("CONTAINER", "NAME", "GPU", "UUID", "MEMORY", "USED", "BOUNDARY", "COMPUTE", "POLICY", "CLASS", "STATE", "SINCE"),
)
SPARE = ("UUID", "SINCE", "BOUNDARY", "CLASS", "POLICY", "COMPUTE", "NAME")

Wait = tuple[str, float]  # the id of the container that has the GPU, and since when (seconds since 1970)


@click.command()
@click.option("--cluster", is_flag=True, help="List the pods of the cluster that hold shares.")
@output.cluster_options("--cluster")
@output.answers
def ps(prefix: str, cluster: bool, dump: str | None, kubeconfig: str | None) -> output.Report:
    """List the containers that hold a share.

    USED is the memory that the container's account page shows as in use: "-" if nothing is accounted yet, "?" if the
    page cannot be read; a line below the table then says why. Another line there says how much of it is memory of
    exited processes, which their forked children keep. BOUNDARY is who holds the memory limit: the shim in the
    container alone, or the driver as well. COMPUTE is the guarantee, followed by the
    ceiling if that is below the whole GPU. STATE says that `freeze` or `suspend` stopped the container, or which
    container of a higher class it waits for, and since when.

    With --cluster, LEDGER is the pod's state on its node: `granted`, `not yet` (no container has started), `between starts`,
    `ending`, `free`, `refused` with the code, or `no decision` for grants that the node made by itself; for the share of a
    ResourceClaim it is the claim's name.
    """
    if cluster:
        from oci_hook.cli import cluster_objects, ps_cluster  # the cluster's part: not for every use

        objects = cluster_objects.read(dump, kubeconfig)
        return ps_cluster.report(objects, lambda: cluster_objects.claims(dump, kubeconfig))
    settings = node_settings.load(prefix)
    try:
        grants = sorted(named.snapshot(settings), key=lambda grant: (grant.created, grant.who.id))
    except GhError:
        if os.geteuid() == 0 or not (node := node_now.ask(settings)):
            raise
        return as_the_agent_says(node)
    inventory, warnings = usable_inventory(settings)
    indices = gpu_indices(inventory)
    waits = [waits_for(settings.state_dir, grant, grants) for grant in grants]
    data = [
        {**as_data(grant, indices, found), **boundary_data(settings, grant, inventory)}
        for grant, found in zip(grants, waits, strict=True)
    ]
    rows: list[tuple[object, ...]] = []
    for grant, entry, found in zip(grants, data, waits, strict=True):
        rows += as_rows(entry, state_words(grant, found, grants))
    lines = output.table(HEADER, rows, SPARE) if rows else ["no container holds a share"]
    runs = node_now.agent_runs(settings)
    waiting = {} if runs else node_now.waiting({grant.key: grant for grant in grants})
    for entry in data:
        for mib in [-(-size // MIB) for (key, _), size in waiting.items() if key == entry["key"]]:
            lines.append(f"{named.title(entry)}: an allocation of {mib} MiB waits for room, and {node_now.NO_MAKER}")
        if entry["lent_to"] and not runs:
            id = output.short(entry["id"])
            lines.append(
                f"{named.title(entry)}: it made room for another container, and {node_now.NOT_BACK.format(id)}"
            )
        if entry["account_problem"]:
            lines.append(f"account page of {named.title(entry)}: {entry['account_problem']}")
        if entry["boundary_failed"]:
            lines.append(f"{named.title(entry)}: memory limit held by the shim alone: {entry['boundary_why']}")
        elif entry["boundary"] == DRIVER and entry["boundary_why"]:
            lines.append(f"{named.title(entry)}: {entry['boundary_why']}")
        for gpu in entry["gpus"]:
            if gpu["kept_mib"]:
                on = gpu["uuid"] if gpu["index"] is None else f"GPU {gpu['index']}"
                size = output.size(gpu["kept_mib"])
                lines.append(f"{named.title(entry)}: {size} on {on} is memory of an exited process, kept by a child")
    return output.Report({"containers": data}, lines, warnings)


def as_the_agent_says(node: dict[str, Any]) -> output.Report:
    """The same table for users who may not read the ledger. node: of the agent's /api/node."""
    rows = [row for c in node["containers"] for row in as_rows(c, c["state"])]
    lines = output.table(HEADER, rows, SPARE) if rows else ["no container holds a share"]
    return output.Report({"containers": node["containers"]}, [*lines, "(by the agent; root sees more)"])


def usable_inventory(settings: node_settings.Settings) -> tuple[Inventory | None, list[Problem]]:
    """The node's GPUs; None where they are not known, and why as warnings."""
    try:
        return node_inventory.load(settings), []
    except GhError as e:
        return None, list(e.problems)


def gpu_indices(inventory: Inventory | None) -> dict[str, int | str]:
    """UUID -> index."""
    return {gpu.uuid: gpu.address if gpu.parent else gpu.index for gpu in (inventory.gpus if inventory else ())}


def boundary_data(settings: node_settings.Settings, grant: Grant, inventory: Inventory | None) -> dict[str, Any]:
    """The holder of the memory limit, with the reason if it is not the driver or has another limit. boundary_failed: the
    driver could, on this node."""
    found, record = boundary_now.look(settings.state_dir, grant, inventory)
    why = boundary_now.differs(record, grant, settings.rules)
    planned = expected(grant, inventory).name if inventory else SHIM
    failed = planned == DRIVER != found.name and grant.life.init is not None and not why
    return {"boundary": DRIVER if why else found.name, "boundary_why": why or found.why, "boundary_failed": failed}


def waits_for(state_dir: str, grant: Grant, grants: list[Grant]) -> Wait | None:
    """Which container of a higher class this one waits for, and since when; None if it waits for none."""
    for share in grant.shares:
        gate = read_gate(state_dir, share)
        if gate is None or gate.mode != "frozen" or not gate.waiting or not gate.waits_for:
            continue
        for other in grants:
            if any((part.uuid, part.slot) == (share.uuid, gate.waits_for) for part in other.shares):
                return other.who.id, time.time() - max(0.0, time.monotonic() - gate.since)
    return None


def as_data(grant: Grant, indices: dict[str, int | str], wait: Wait | None = None) -> dict[str, Any]:
    """One container of the --json document."""
    usage = look(grant)
    used = [-(-n // MIB) for n in usage.totals] if isinstance(usage, PageFigures) else [None] * len(grant.shares)
    if grant.suspended:
        used = [0] * len(grant.shares)  # the account page has what it gets back
    kept = [-(-n // MIB) for n in usage.kept] if isinstance(usage, PageFigures) else [None] * len(grant.shares)
    gpus = [
        {
            "index": indices.get(share.uuid),
            **share.fields(),
            "booked_mib": share.booked_mib,
            "used_mib": n,
            "kept_mib": m,
        }
        for share, n, m in zip(grant.shares, used, kept, strict=True)
    ]
    who = grant.who.fields()
    return {
        "key": grant.key,
        "id": who.pop("id"),
        "name": who.pop("container"),
        **who,
        "pid": grant.life.init[0] if grant.life.init else None,
        "gpus": gpus,
        "policy": grant.terms.policy,
        "class": grant.terms.priority_class,
        "state": "waits" if wait and not grant.stopped else state(grant),
        "waits_seconds": stage(grant)[1],
        "frozen_since": grant.frozen or None,
        "suspended_since": grant.suspended or None,
        "lent_to": grant.lent_to or None,
        "host_mib": grant.host_mib,
        "waits_since": int(wait[1]) if wait else None,
        "waits_for": wait[0] if wait else None,
        "preempt_tolerance_us": grant.terms.preempt_tolerance_us,
        "account_problem": usage if isinstance(usage, str) else None,
        "exclusive": grant.exclusive,
        "capabilities": list(grant.terms.capabilities),
        "driver_version": grant.driver_version,
        "created": grant.created,
    }


def as_rows(entry: dict[str, Any], words: str) -> list[tuple[object, ...]]:
    """A row per GPU; one row without a GPU for a grant of driver files alone. entry: as_data's, with the boundary, or one of the
    agent's. words: the state."""
    first = (output.short(entry["id"]), "/".join(filter(None, (entry["namespace"], entry["pod"], entry["name"]))))
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["created"]))
    last = (entry["policy"], entry["class"], words, since)
    if not entry["gpus"]:
        return [(*first, "", "", "", "", "", "", *last)]
    rows: list[tuple[object, ...]] = []
    for gpu in entry["gpus"]:
        index, used = gpu["index"], gpu["used_mib"]
        rows.append(
            (
                *first,
                "" if index is None else index,
                gpu["uuid"],
                "whole" if gpu["whole"] else limit(gpu),
                ("?" if entry["account_problem"] else "") if used is None else output.size(used),
                "" if gpu["whole"] else entry["boundary"],
                compute(gpu["compute"], gpu["compute_limit"]),
                *last,
            )
        )
    return rows


def limit(gpu: dict[str, Any]) -> str:
    return words.limit(gpu["memory_mib"], gpu.get("booked_mib", gpu["memory_mib"]))  # an agent of before does not say


def state(grant: Grant) -> str:
    return stopped(grant) or stage(grant)[0]


def state_words(grant: Grant, wait: Wait | None, grants: Sequence[Grant] = ()) -> str:
    """The state for people, with who stopped the container and since when. grants: of those that it may name."""

    def other(id: str) -> str:
        return next((events.title(g.who) for g in grants if g.who.id == id), output.short(id))

    for word, since in (("suspended", grant.suspended), ("moving", grant.moving)):
        if since:
            by = f"for {other(grant.lent_to)}" if grant.lent_to else "by `suspend`"
            return time.strftime(f"{word} since %H:%M:%S {by}", time.localtime(since))
    if grant.frozen:
        return time.strftime("frozen since %H:%M:%S by `freeze`", time.localtime(grant.frozen))
    if wait:
        return time.strftime("waits since %H:%M:%S for ", time.localtime(wait[1])) + other(wait[0])
    return in_words(grant)


def compute(guarantee: int, ceiling: int) -> str:
    """30%; with a ceiling below the whole GPU 30-80%; empty if none is guaranteed."""
    if not guarantee:
        return ""
    return f"{guarantee}-{ceiling}%" if guarantee < ceiling < 100 else f"{guarantee}%"
