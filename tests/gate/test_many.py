"""More processes in a container than its slot file has process records for. Simulated GPU."""

import fcntl
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from oci_hook.core.slot_page import PROCESSES, parse
from testbed.until import until
from tests.gate.gpus import LONG, Tenant, one_tenant, records

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]


def test_a_process_without_a_record_is_gated_and_charged(place: Make) -> None:
    """All records but one belong to others; when they become free, all are taken."""
    p = place(Tenant(), Tenant())
    with open(p.gpu.slot_file(0), "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, PROCESSES - 1, 0)
        loads = [p.kernels(slot, "plain", 80) for slot in (0, 0, 0, 1)]
        one_tenant(loads, 0.5, 0.2)
        assert sum(owner != 0 for owner, _ in records(p.gpu, 0)) == 1
    until(lambda: sum(owner != 0 for owner, _ in records(p.gpu, 0)) == 3)


def test_a_hundred_and_twenty_five_processes(place: Make) -> None:
    """About as many as the simulated GPU allows: each launches, under a cap, while all run; none fails."""
    p = place(Tenant(cap=0.5), Tenant(), scale=1, mib=10240)
    script = f"exec 3<&0; for i in $(seq 125); do {shlex.quote(str(p.load))} brief 20 <&3 & done; wait"
    crowd = p.boxes[0].start(["sh", "-c", script])
    until(lambda: len(crowd.points) == 125 or crowd.process.poll() is not None)
    assert len(crowd.points) == 125, crowd.said()
    assert len(records(p.gpu, 0)) == PROCESSES
    assert all(owner and launched for owner, launched in records(p.gpu, 0))
    crowd.process.stdin.close()
    assert crowd.process.wait(LONG) == 0 and not crowd.said()
    assert parse(p.gpu.slot_file(0).read_bytes(), 1).charged > 125 * 6 * 20e-6 * 0.8
