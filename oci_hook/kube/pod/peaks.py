"""A pod's peak use of each GPU: init containers run before the others, so the larger of both counts."""

from collections.abc import Iterable
from typing import NamedTuple

from oci_hook.kube.pod.asked import INIT, SIDECAR


class Row(NamedTuple):
    """One container's share of one GPU. alone: no other container may be on the GPU (core/grant.py, Grant.exclusive). offline:
    its class. apart: the namespace and the word of its apart-from, or ""."""

    uuid: str
    memory_mib: int
    compute: int
    whole: bool
    alone: bool
    offline: bool = False
    apart: str = ""


def containers(rows: Iterable[Row]) -> int:
    """The number of containers on a GPU, by its rows."""
    return sum(bool(row.whole or row.memory_mib or not row.compute) for row in rows)


Part = tuple[str, tuple[Row, ...]]  # (RUN | SIDECAR | INIT, the container's rows)


def together(parts: Iterable[Part]) -> tuple[Row, ...]:
    """The rows that count for the pod. parts: its containers, in the order in which they start.

    An init container (INIT) ends before the next container starts. It runs beside the earlier sidecars only. If they need more of
    a GPU than the containers that run later, the excess is added to a later container's row on that GPU, so a GPU has no more
    rows than containers at any time. Excess compute of a class without such a row gets a row of compute only, which does not
    count as a container (core/allocate.py). A word of apart-from counts as long as the pod, on a row without another word: of several
    words that containers of one pod have on one GPU, some may be lost.
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
    """Raises `rows` to at least the use of `phase` on each GPU."""
    for uuid in dict.fromkeys(row.uuid for row in phase):
        now = [row for row in phase if row.uuid == uuid]
        later = [row for row in rows if row.uuid == uuid]
        all_whole = all(r.whole for r in (*now, *later))
        rows += [Row(uuid, 0, 0, all_whole, False, now[0].offline)] * max(0, len(now) - containers(later))
        words = {row.apart for row in now} - {row.apart for row in later} - {""}
        for i, row in enumerate(rows):
            if words and row.uuid == uuid and not row.apart:
                rows[i] = row._replace(apart=min(words))
                words.discard(min(words))
        at = next(i for i, row in enumerate(rows) if row.uuid == uuid)
        memory = sum(r.memory_mib for r in now) - sum(r.memory_mib for r in later)
        whole = any(r.whole for r in (*now, *later))
        # Containers with and without limits refuse each other, so no other container fits beside both kinds.
        mixed = whole and not all_whole
        rows[at] = rows[at]._replace(
            memory_mib=rows[at].memory_mib + max(0, memory),
            whole=whole,
            alone=mixed or any(r.alone for r in (*now, *later)),
        )
        for offline in (False, True):
            compute = _compute(now, offline) - _compute(later, offline)
            if compute > 0:
                real = (
                    i for i, row in enumerate(rows) if row.uuid == uuid and row.offline == offline and row.memory_mib
                )
                if (place := next(real, None)) is None:
                    rows.append(Row(uuid, 0, compute, False, False, offline))
                else:
                    rows[place] = rows[place]._replace(compute=rows[place].compute + compute)


def _compute(rows: list[Row], offline: bool) -> int:
    return sum(row.compute for row in rows if row.offline == offline)
