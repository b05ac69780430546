"""Parses a container's slot file, which describes its use of compute (docs/internals/compute-gate.md).
shim/pages/slot_page.h has the same layout; a test compares them.

The tenant writes the file, so its figures are shown and compared with the driver's, and nothing relies on them. Any bytes
give bounded figures, or None.
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
PROCESS = Struct("<QQQQQQIIII")
PROCESS_OFFSET = 512
PROCESSES = 120
WAITS = 16
WAIT_BOUNDS = tuple(64e-6 * (1 << i) for i in range(WAITS - 1))  # seconds; the last bin has no upper bound
MODES = ("open", "guarded", "rotate", "mix", "frozen", "capped", "drain")  # enum gh_mode of shim/gate/decide.h
SANE = 1 << 62  # more than any counter of nanoseconds or commands reaches
BOUND_MAX = 1 << 42  # more than an hour: longer than any command
THREADS_MAX = 1024  # of one process at the gate
SECOND = 1_000_000_000


class Gate(Value):
    """The state of a container's compute gate on one GPU.

    charged: seconds of GPU time that the container was charged. wanted: seconds in which it had work in flight or at the
    gate; None if its shim is of a release that does not count them. launches: commands submitted through the gate.
    waiting: threads that wait at the gate now. waits: how many waits were shorter than WAIT_BOUNDS[i], by i; None like
    wanted. waited: their sum in seconds. mode: one of MODES. since: when the mode began, seconds of CLOCK_MONOTONIC.
    waits_for: the slot of the container that it waits for, as Share.slot has it; 0: none. preempt_bound: the longest that
    it keeps the GPU after a higher class has work, in seconds; 0: unknown.
    """

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
    """The gate's state from a whole slot file, in this machine's seconds. scale: the GPU page's time scale. None: the file
    is empty, or its figures make no sense."""
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
    for i in range(min(top, PROCESSES)):
        process = PROCESS.unpack_from(data, PROCESS_OFFSET + PROCESS.size * i)
        launches += min(process[1], SANE)
        # process[8] is not written by every release
        waiting += bool(process[0]) and min(max(process[6], process[8]), THREADS_MAX)
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
