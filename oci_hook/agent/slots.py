"""What the gate in a container's stand-in publishes of its compute: its slot file on each card (docs/compute-gate.md).

Written by the tenant: read by pread from a regular file, bounded, shown, and never relied upon. Nothing is counted
while a container is alone on its card; then NVML's figure is all there is.
"""

import os
import stat
import time
from struct import Struct

from oci_hook.core.card_page import SLOT_FILE_SIZE, head
from oci_hook.core.grant import Share
from oci_hook.core.layout import CARD_FILE, slot_file
from oci_hook.core.slot_page import MAGIC, VERSION
from oci_hook.core.value import Value
from oci_hook.node.share import folder

# struct gh_slot_head and gh_sub_slot of shim/slot_page.h; a test compares.
HEAD = Struct("<QIIQIIQQQQQQQQQQIBBBBQQQ")
SUB = Struct("<QQQQQQIIQ")
SUB_OFFSET = 512
SUBS = 120
MODES = ("open", "guarded", "rotate", "mix", "frozen", "capped", "drain")  # enum gh_mode of shim/decide.h
SANE = 1 << 62  # no counter of nanoseconds or commands gets there
SECOND = 1_000_000_000


class Gate(Value):
    """charged: seconds of GPU time had. launches: commands submitted through the gate. waiting: threads held now.
    mode: of MODES, since when in seconds of CLOCK_MONOTONIC. waits_for: the slot it waits for, as Share.slot has it, 0
    none. preempt_bound: seconds."""

    __slots__ = ("charged", "launches", "waiting", "mode", "waits_for", "preempt_bound", "since")

    def __init__(
        self,
        charged: float,
        launches: int,
        waiting: int,
        mode: str,
        waits_for: int,
        preempt_bound: float,
        since: float = 0.0,
    ) -> None:
        self.charged = charged
        self.launches = launches
        self.waiting = waiting
        self.mode = mode
        self.waits_for = waits_for
        self.preempt_bound = preempt_bound
        self.since = since


def parse(data: bytes, scale: int = 1) -> Gate | None:
    """What a slot file says, in this machine's seconds; None: nothing yet, or nothing that makes sense."""
    if len(data) != SLOT_FILE_SIZE:
        return None
    magic, version, top, *words = HEAD.unpack_from(data)
    charged = words[4]
    mode, by, _, since, bound, _ = words[-6:]
    if (
        (magic, version) != (MAGIC, VERSION)
        or charged > SANE
        or mode >= len(MODES)
        or by > 64
        or max(since, bound) > SANE
    ):
        return None
    launches = waiting = 0
    for i in range(min(top, SUBS)):
        sub = SUB.unpack_from(data, SUB_OFFSET + SUB.size * i)
        launches += min(sub[1], SANE)
        waiting += bool(sub[0]) and min(sub[6], 1024)
    return Gate(
        charged * scale / SECOND, launches, waiting, MODES[mode], by, bound * scale / SECOND, since * scale / SECOND
    )


def read(state_dir: str, share: Share) -> Gate | None:
    """The gate of the container with this share; None where it has no slot, or says nothing."""
    if not share.slot:
        return None
    place = folder(state_dir, share.uuid)
    try:
        scale = head(_read(f"{place}/{CARD_FILE}", 128))[2]
        data = _read(f"{place}/{slot_file(share.slot)}", SLOT_FILE_SIZE + 1)
    except (OSError, ValueError):
        return None
    return parse(data, max(1, scale))


def _read(path: str, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(path)
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


class Meter:
    """Turns totals into shares of a card: per cent of the time between two looks. `add` gives None where nothing was
    counted meanwhile."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def add(self, charged: float, now: float | None = None) -> float | None:
        now = time.monotonic() if now is None else now
        last, self._last = self._last, (now, charged)
        if last is None or now <= last[0] or charged <= last[1]:
            return None
        return min(100.0, 100 * (charged - last[1]) / (now - last[0]))
