"""What processes do to contexts and GPUs while their work is in flight. Simulated GPU."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.slot_page import parse
from testbed.until import until
from tests.gate.conftest import program
from tests.gate.gpus import Load, Tenant, forged, have, measure, records, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]


def charged(gpu: Any, slot: int) -> float:
    return parse(gpu.slot_file(slot).read_bytes(), 1).charged


def test_one_process_on_two_gpus_has_its_share_of_each(place: Make) -> None:
    """A wait on one GPU does not keep it from the other."""
    p = place(Tenant(cap=0.2), Tenant(), more=[[Tenant(cap=0.6), Tenant()]])
    load = p.kernels(0, "gpus", 80)
    load.ready()
    until(lambda: min(charged(gpu, 0) for gpu in p.gpus) > 0.1)
    until(lambda: 2.2 < charged(p.gpus[1], 0) / charged(p.gpus[0], 0) < 3.8)
    p.gpus[0].tenants[0].freeze = 1
    p.gpus[0].write()
    until(load.waits)
    had = charged(p.gpus[1], 0)
    until(lambda: charged(p.gpus[1], 0) > had + 0.02)


@pytest.mark.parametrize(("way", "gpu"), [("elsewhere", 1), ("beside", 0), ("nowhere", 0)])
def test_work_goes_to_its_streams_gpu_whichever_context_is_current(place: Make, way: str, gpu: int) -> None:
    p = place(Tenant(cap=0.1 * (gpu == 0)), more=[[Tenant(cap=0.1 * (gpu == 1))]])
    load = p.kernels(0, way, 1500)
    settles(lambda: measure([load], 2)[0] * 1500e-6 * p.gpu.scale / 2, lambda part: 0.07 < part < 0.12)
    assert [charged(p.gpus[n], 0) > 0 for n in (0, 1)] == [gpu == 0, gpu == 1]


@pytest.mark.parametrize("way", ["contexts", "reset"])
def test_a_context_that_goes_with_work_in_flight(place: Make, way: str) -> None:
    """The program goes on in the next context and is charged; the other tenant has most of its share."""
    p = place(Tenant(), Tenant())
    loads = [p.kernels(0, way, 80), p.kernels(1, "plain", 80)]
    busy = 0.3 / 80e-6 / p.gpu.scale
    settles(lambda: measure(loads, 1), lambda counts: counts[0] > 60 and counts[1] > busy)
    assert charged(p.gpu, 0) > 0.01
    alive(loads)


def test_children_leave_their_parents_slot_alone(place: Make) -> None:
    """CUDA refuses to work in a forked child. That ends as a program does, and its parent goes on."""
    p = place(Tenant(), Tenant())
    loads = [p.kernels(0, "child", 80), p.kernels(1, "plain", 80)]
    until(lambda: loads[0].points and records(p.gpu, 0))
    (owner, _), *_ = records(p.gpu, 0)
    have(loads, [0.5, 0.5], 0.15)
    assert records(p.gpu, 0)[0][0] == owner
    alive(loads)


def test_an_exited_process_leaves_its_successor_no_tenure(place: Make) -> None:
    """The slot file of a container that has just been killed: it shows work in flight and a long claim."""
    p = place(Tenant(), Tenant())
    now = time.monotonic_ns() // p.gpu.scale
    end = now + 95_000_000  # 0.95 s for the simulated GPU
    head = [10**9, 10**9, 0, 3, now, end, 0, now, now, now]
    p.gpu.slot_file(0).write_bytes(forged(now, head))
    load = p.kernels(0, "plain", 80)
    load.ready()
    (ends,) = struct.unpack_from("<Q", p.gpu.slot_file(0).read_bytes(), 72)
    assert records(p.gpu, 0)[0][0] == 2 and ends < end


def test_pacers_that_end_leave_nothing(place: Make) -> None:
    """A program with more static thread-local data than a pacer's stack: each pause ends the pacer, each launch makes a new one."""
    p = place(Tenant(cap=0.5))
    p.load = str(program("load", f"-DTHREAD_LOCAL={512 << 10}"))
    load = p.kernels(0, "plain", 80, 1, 150_000 * p.gpu.scale)

    def size() -> int:
        """Bytes of address space, after three more launches."""
        until(lambda count=load.points[-1][1]: load.points[-1][1] > count + 3)
        return int(Path(f"/proc/{load.process.pid}/statm").read_text().split()[0]) * 4096

    load.ready()
    before = size()
    assert size() < before + (8 << 20)


def alive(loads: list[Load]) -> None:
    assert all(load.process.poll() is None for load in loads), [load.said() for load in loads]
