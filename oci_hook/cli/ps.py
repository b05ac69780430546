"""`gpu-hook ps`: the living grants, and what their containers use of them."""

import time
from typing import Any

import click

from oci_hook.cli import output
from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Grant, Share
from oci_hook.errors import GhError, Problem
from oci_hook.ledger import inventory as node_inventory
from oci_hook.ledger import store
from oci_hook.ledger.slot_files import read_gate
from oci_hook.observe.account import Books, look
from oci_hook.observe.stage import in_words, stage

MIB = 1 << 20
HEADER = ("CONTAINER", "NAME", "GPU", "UUID", "MEMORY", "USED", "COMPUTE", "POLICY", "CLASS", "STATE", "SINCE")

SPARE = ("UUID", "SINCE", "CLASS", "POLICY", "COMPUTE", "NAME")


@click.command()
@output.answers
def ps(prefix: str) -> output.Report:
    """List the containers that hold a share now.

    USED is what the container itself accounts for its living processes ("-": nothing yet; "?": its
    account page cannot be read, a warning says why). COMPUTE is
    its guarantee, and with another ceiling than the whole GPU, that. STATE says whether
    `freeze` stops it, or which container of a higher class has the GPU, and
    since when.
    """
    settings = node_settings.load(prefix)
    grants = sorted(store.snapshot(settings.state_dir), key=lambda grant: (grant.created, grant.who.id))
    indices, warnings = gpu_indices(settings)
    held = [suspended(settings.state_dir, grant, grants) for grant in grants]
    data = [as_data(grant, indices, by) for grant, by in zip(grants, held, strict=True)]
    rows = [row for grant, entry, by in zip(grants, data, held, strict=True) for row in as_rows(grant, entry, by)]
    lines = output.table(HEADER, rows, SPARE) if rows else ["no container holds a share"]
    pages = [(grant.who.id, entry["account"]) for grant, entry in zip(grants, data, strict=True) if entry["account"]]
    told = [f"account page of {output.short(id)}: {why}" for id, why in pages]
    return output.Report({"grants": data}, [*lines, *told], warnings)


def gpu_indices(settings: node_settings.Settings) -> tuple[dict[str, int | str], list[Problem]]:
    """UUID -> index. A node that is not fit to give GPUs can still say who holds them."""
    try:
        return {gpu.uuid: gpu.address if gpu.parent else gpu.index for gpu in node_inventory.load(settings).gpus}, []
    except GhError as e:
        return {}, list(e.problems)


def suspended(state_dir: str, grant: Grant, grants: list[Grant]) -> tuple[str, float] | None:
    """Who has a GPU that this container waits for, being of a lower class, and since when, in seconds since 1970."""
    for share in grant.shares:
        gate = read_gate(state_dir, share)
        if gate is None or gate.mode != "frozen" or not gate.waiting or not gate.waits_for:
            continue
        for other in grants:
            if any((part.uuid, part.slot) == (share.uuid, gate.waits_for) for part in other.shares):
                return other.who.id, time.time() - max(0.0, time.monotonic() - gate.since)
    return None


def as_data(grant: Grant, indices: dict[str, int | str], held: tuple[str, float] | None = None) -> dict[str, Any]:
    books = look(grant)
    used = [-(-n // MIB) for n in books.totals] if isinstance(books, Books) else [None] * len(grant.shares)
    gpus = [
        {"index": indices.get(share.uuid), **share.fields(), "used_mib": n}
        for share, n in zip(grant.shares, used, strict=True)
    ]
    return {
        "key": grant.key,
        **{name: value for name, value in grant.who.fields().items() if name != "id"},
        "container": grant.who.id,
        "name": grant.who.container,
        "pid": grant.life.init[0] if grant.life.init else None,
        "gpus": gpus,
        "policy": grant.policy,
        "class": grant.priority_class,
        "state": "suspended" if held and not grant.frozen else state(grant),
        "waits_seconds": stage(grant)[1],
        "frozen_since": at(grant.frozen) if grant.frozen else at(int(held[1])) if held else None,
        "frozen_by": "freeze" if grant.frozen else held[0] if held else None,
        "preempt_tolerance_us": grant.tolerance or None,
        "account": books if isinstance(books, str) else None,
        "exclusive": grant.exclusive,
        "capabilities": list(grant.capabilities),
        "driver_version": grant.driver_version,
        "since": at(grant.created),
    }


def as_rows(grant: Grant, entry: dict[str, Any], held: tuple[str, float] | None) -> list[tuple[object, ...]]:
    """A row per GPU; one without a GPU for a grant of driver files alone."""
    who = grant.who
    name = "/".join(filter(None, (who.namespace, who.pod, who.container)))
    first = (output.short(who.id), name)
    last = (
        grant.policy,
        grant.priority_class,
        stopped(grant, held),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(grant.created)),
    )
    if not grant.shares:
        return [(*first, "", "", "", "", "", *last)]
    rows: list[tuple[object, ...]] = []
    for share, gpu in zip(grant.shares, entry["gpus"], strict=True):
        index, used = gpu["index"], gpu["used_mib"]
        rows.append(
            (
                *first,
                "" if index is None else index,
                share.uuid,
                "whole" if share.whole else output.size(share.memory_mib),
                ("?" if entry["account"] else "") if used is None else output.size(used),
                compute(share),
                *last,
            )
        )
    return rows


def state(grant: Grant) -> str:
    return "frozen" if grant.frozen else stage(grant)[0]


def stopped(grant: Grant, held: tuple[str, float] | None) -> str:
    """The state for people: since when it is frozen, and by what."""
    if grant.frozen:
        return time.strftime("frozen since %H:%M:%S by `freeze`", time.localtime(grant.frozen))
    if held:
        return time.strftime("suspended since %H:%M:%S by ", time.localtime(held[1])) + output.short(held[0])
    return in_words(grant)


def at(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def compute(share: Share) -> str:
    """30%, with a ceiling of its own 30-80%; nothing where none is guaranteed."""
    if not share.compute:
        return ""
    ceiling = f"-{share.compute_limit}" if share.compute < share.compute_limit < 100 else ""
    return f"{share.compute}{ceiling}%"
