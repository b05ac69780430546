"""The agent's knowledge of one container beyond its grant."""

import math
import time

from oci_hook.agent.judge.audit_rules import Use
from oci_hook.agent.judge.meter import Meter
from oci_hook.core.slot_page import Gate
from oci_hook.observe.account import PageFigures

SAMPLES = 120  # remembered for each container on each GPU


class Watched:
    """The agent's knowledge of one container beyond its grant."""

    def __init__(self) -> None:
        self.account: PageFigures | str | None = None  # as its account page says
        self.peaks: dict[str, int] = {}
        self.history: dict[str, list[tuple[float, int, int]]] = {}
        self.uses: dict[str, Use] = {}
        self.charged: dict[str, int] = {}  # bytes, by the driver's figure for its cgroup, by UUID
        self.gates: dict[str, Gate] = {}  # as its slot files publish, by UUID
        self.waits: dict[str, int] = {}  # bytes that an allocation waits for where memory is lent, by UUID
        self.meters: dict[str, Meter] = {}
        self.frozen_seconds = 0.0  # since the agent first saw it
        self.suspended_seconds = 0.0  # likewise
        self.stopped = ""  # by the agent: "frozen" or "killed"
        self.resumed = 0  # times that somebody has let it go on after the agent had frozen it
        self.answered: set[str] = set()  # UUIDs of GPUs on which it did harm and was answered
        self.moved = (
            -math.inf
        )  # until when its memory was on its way from or to its GPUs, as far as known; monotonic seconds

    def set_gate(self, uuid: str, gate: Gate | None) -> None:
        self.gates.pop(uuid, None)
        if gate is not None:
            self.gates[uuid] = gate

    def set_use(self, uuid: str, use: Use | None) -> None:
        self.uses.pop(uuid, None)
        if use is not None:
            self.uses[uuid] = use

    def set_charged(self, uuid: str, size: int | None) -> None:
        self.charged.pop(uuid, None)
        if size is not None:
            self.charged[uuid] = size

    def meter(self, uuid: str) -> Meter:
        return self.meters.setdefault(uuid, Meter())

    def note(self, uuid: str, used_mib: int, busy: int) -> None:
        line, at = self.history.setdefault(uuid, []), round(time.time(), 1)
        if line and line[-1][0] == at:  # a look that was slow is near the next one
            line.pop()
        line.append((at, used_mib, busy))
        del line[:-SAMPLES]
