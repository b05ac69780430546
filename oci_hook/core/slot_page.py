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
VERSION = 2
HEAD = Struct("<QIIQIIQQQQQQQQQQIBBBBQQQQQQ16Q64Q")
PROCESS = Struct("<QQQQQQQIHBB")
PROCESS_OFFSET = 1024
PROCESSES = 112
WAITS = 16
WAIT_BOUNDS = tuple(64e-6 * (1 << i) for i in range(WAITS - 1))  # seconds; the last bin has no upper bound
MODES = ("open", "guarded", "rotate", "mix", "frozen", "capped", "drain")  # enum gh_mode of shim/gate/decide.h
SANE = 1 << 62  # more than any counter of nanoseconds or commands reaches
BOUND_MAX = 1 << 42  # more than an hour: longer than any command
SECOND = 1_000_000_000


class Gate(Value):
    """The state of a container's compute gate on one GPU.

    charged: seconds of GPU time that the container was charged. wanted: seconds in which it had work in flight or at the
    gate; None if its shim is of a release that does not count them. launches: commands submitted through the gate.
    waiting: threads that wait at the gate now. waits: how many waits were shorter than WAIT_BOUNDS[i], by i; None like
    wanted. waited: their sum in seconds. mode: one of MODES. since: when the mode began, seconds of CLOCK_MONOTONIC.
    waits_for: the slot of the container that it waits for, as Share.slot has it; 0: none. preempt_bound: the longest that
    it keeps the GPU after a higher class has work, in seconds; 0: unknown. held_for: (slot, seconds) of each container that has
    held this one at the gate while it had nothing in flight; slots as in `waits_for`. uncharged: seconds of estimated GPU
    time of the commands in flight, which `charged` does not contain yet. shows_work: it shows others work in flight or
    launches that wait for their turn. epoch: the number of its last tenure. beats: of each process record that shows work
    in flight, when its process last gave a sign of life, in seconds of CLOCK_MONOTONIC.
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
    held_for: tuple[tuple[int, float], ...] = ()
    uncharged: float = 0.0
    shows_work: bool = False
    epoch: int = 0
    beats: tuple[float, ...] = ()


def parse(data: bytes, scale: int = 1) -> Gate | None:
    """The gate's state from a whole slot file, in this machine's seconds. scale: the GPU page's time scale. None: the file
    is empty, or its figures make no sense."""
    if len(data) != SLOT_FILE_SIZE:
        return None
    words: tuple[Any, ...] = HEAD.unpack_from(data)
    magic, version, top, _, _, _, _, charged, _, epoch, *_ = words
    mode, by, counts, since, bound, _, wanted, _, waited, *waits = words[18 : 27 + WAITS]
    held_for = words[27 + WAITS :]
    if (magic, version) != (MAGIC, VERSION) or mode >= len(MODES) or by > 64:
        return None
    if max(charged, since, wanted, waited, *waits, *held_for) > SANE:
        return None
    launches = waiting = uncharged = 0
    shows_work = False
    beats = []
    for i in range(min(top, PROCESSES)):
        process = PROCESS.unpack_from(data, PROCESS_OFFSET + PROCESS.size * i)
        launches += min(process[1], SANE)
        if process[0]:
            waiting += process[9]
            uncharged += min(process[6], SECOND) if process[1] != process[2] else 0
            shows_work |= process[1] > process[2] or process[8] > 0
            if process[1] > process[2]:
                beats.append(min(process[4], SANE) * scale / SECOND)
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
        held_for=tuple((slot, held * scale / SECOND) for slot, held in enumerate(held_for, 1) if held),
        uncharged=uncharged * scale / SECOND,
        shows_work=shows_work,
        epoch=epoch,
        beats=tuple(beats),
    )
