"""What a pod takes of each GPU at most: init containers run before the others, so the larger of both counts."""

from collections.abc import Iterable
from typing import NamedTuple

from oci_hook.kube.pods import INIT, SIDECAR


class Row(NamedTuple):
    """What one container takes of one GPU. alone: nobody else may be on the GPU (core/grant.py, Grant.exclusive). offline: it
    is of that class."""

    uuid: str
    memory_mib: int
    compute: int
    whole: bool
    alone: bool
    offline: bool = False


Part = tuple[str, tuple[Row, ...]]  # (RUN | SIDECAR | INIT, what this container takes)


def together(parts: Iterable[Part]) -> tuple[Row, ...]:
    """The rows that count for the pod. parts: its containers, in the order in which they start.

    A container that runs to its end before the next one starts (INIT) counts with the sidecars started before it, and by
    what it takes above all that run later. That goes into the row of one of them on the same GPU, so that as many rows
    are on a GPU as containers at most.
    """
    parts = tuple(parts)
    rows = [row for kind, found in parts if kind != INIT for row in found]
    if all(kind != INIT for kind, _ in parts):
        return tuple(rows)
    before: list[Row] = []
    for kind, found in parts:
        if kind == SIDECAR:
            before += found
        elif kind == INIT:
            _raise_to([*before, *found], rows)
    return tuple(rows)


def _raise_to(phase: list[Row], rows: list[Row]) -> None:
    """Has `rows` take at least what `phase` takes of each GPU."""
    for uuid in dict.fromkeys(row.uuid for row in phase):
        now = [row for row in phase if row.uuid == uuid]
        later = [row for row in rows if row.uuid == uuid]
        all_whole = all(r.whole for r in (*now, *later))
        rows += [Row(uuid, 0, 0, all_whole, False, now[0].offline)] * max(0, len(now) - len(later))
        at = next(i for i, row in enumerate(rows) if row.uuid == uuid)
        memory = sum(r.memory_mib for r in now) - sum(r.memory_mib for r in later)
        compute = sum(r.compute for r in now) - sum(r.compute for r in later)
        whole = any(r.whole for r in (*now, *later))
        # Nobody else fits beside both: a container with limits refuses others without, and the other way round.
        mixed = whole and not all_whole
        rows[at] = Row(
            uuid,
            rows[at].memory_mib + max(0, memory),
            rows[at].compute + max(0, compute),
            whole,
            mixed or any(r.alone for r in (*now, *later)),
            rows[at].offline,
        )
