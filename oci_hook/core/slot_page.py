"""What a container's slot file says of its compute (docs/internals/compute-gate.md). Twin of
shim/pages/slot_page.h; a test compares.

A tenant wrote it: shown, compared with the driver's figures, never relied on. Any bytes give bounded figures, or None.
"""

from struct import Struct

from oci_hook.core.gpu_page import SLOT_FILE_SIZE
from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAGIC = 0x31544F4C53504847
VERSION = 1
HEAD = Struct("<QIIQIIQQQQQQQQQQIBBBBQQQQQQ16Q")
SUB = Struct("<QQQQQQIIII")
SUB_OFFSET = 512
SUBS = 120
WAITS = 16
WAIT_BOUNDS = tuple(64e-6 * (1 << i) for i in range(WAITS - 1))  # seconds; the last bin has none
MODES = ("open", "guarded", "rotate", "mix", "frozen", "capped", "drain")  # enum gh_mode of shim/gate/decide.h
SANE = 1 << 62  # no counter of nanoseconds or commands gets there
BOUND_MAX = 1 << 42  # more than an hour: nobody's longest command
THREADS_MAX = 1024  # of one process at the gate
SECOND = 1_000_000_000


class Gate(Value):
    """charged: seconds of GPU time had. wanted: seconds in which there was work in flight or at the gate, None where
    the shim is of a release that does not count that. launches: commands submitted through the gate. waiting:
    threads held now. waits, waited: the gate's waits by length (the bin i: shorter than WAIT_BOUNDS[i]) and their sum
    in seconds; None as wanted. mode: of MODES, since when in seconds of CLOCK_MONOTONIC. waits_for: the slot it waits
    for, as Share.slot has it, 0 none. preempt_bound: seconds, 0 unknown."""

    charged: float = 0.0
    wanted: float | None = None
    launches: int = 0
    waiting: int = 0
    waits: tuple[int, ...] | None = None
    waited: float = 0.0
    mode: str = "open"
    since: float = 0.0
    waits_for: int = 0
    preempt_bound: float = 0.0


def parse(data: bytes, scale: int = 1) -> Gate | None:
    """A whole slot file, in this machine's seconds. scale: the GPU page's. None: nothing yet, or nothing that makes
    sense."""
    if len(data) != SLOT_FILE_SIZE:
        return None
    words: tuple[Any, ...] = HEAD.unpack_from(data)
    magic, version, top, _, _, _, _, charged, *_ = words
    mode, by, counts, since, bound, _, wanted, _, waited, *waits = words[18:]
    if (magic, version) != (MAGIC, VERSION) or mode >= len(MODES) or by > 64:
        return None
    if max(charged, since, wanted, waited, *waits) > SANE:
        return None
    launches = waiting = 0
    for i in range(min(top, SUBS)):
        sub = SUB.unpack_from(data, SUB_OFFSET + SUB.size * i)
        launches += min(sub[1], SANE)
        waiting += bool(sub[0]) and min(max(sub[6], sub[8]), THREADS_MAX)  # the latter: not by every release
    return Gate(
        charged=charged * scale / SECOND,
        wanted=wanted * scale / SECOND if counts == 1 else None,
        launches=launches,
        waiting=waiting,
        waits=tuple(waits) if counts == 1 else None,
        waited=waited / SECOND,
        mode=MODES[mode],
        since=since * scale / SECOND,
        waits_for=by,
        preempt_bound=bound * scale / SECOND if bound <= BOUND_MAX else 0.0,
    )
