"""Attacks by locks and leases on slot files. Simulated GPU.

A neighbour has the files of the others open for reading, and may put read locks and leases on them; its own it may lock
as often as it likes.
"""

import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oci_hook.core.slot_page import PROCESSES, parse
from oci_hook.linux import inotify
from testbed.until import until
from tests.gate.gpus import OFFLINE, ONLINE, Tenant, has, have, one_tenant, processes, records
from tests.gate.strangers import MANY_LOCKS, MANY_READ_LOCKS, READ_LEASE, READ_LOCK, WRITE_LEASE, holds

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]


def write_locked(path: Path) -> bool:
    """Some process holds a write lock on a process record's byte."""
    with open(path, "rb") as f:
        asked = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, PROCESSES, 0)
        kind: int = struct.unpack_from("h", fcntl.fcntl(f, fcntl.F_GETLK, asked))[0]
        return kind == fcntl.F_WRLCK


def living(gpu: Any, slot: int) -> list[tuple[int, bool]]:
    """pid and withheld of each process record in use."""
    return [(process[7], bool(process[10])) for process in processes(gpu, slot) if process[0]]


@pytest.mark.parametrize("what", [READ_LOCK, MANY_READ_LOCKS + "; " + READ_LOCK])
def test_read_locks_of_others_hide_nobody(place: Make, what: str) -> None:
    """Each process has a record, and its share; when the locks are gone, each has its own lock."""
    p = place(Tenant(), Tenant())
    file = p.gpu.slot_file(0)
    with holds(file, what):
        loads = [p.kernels(slot, "plain", 80) for slot in (0, 0, 1)]
        until(lambda: len(living(p.gpu, 0)) == 2)
        one_tenant(loads, 0.5, 0.1)
        assert [withheld for _, withheld in living(p.gpu, 0)] == [True, True] and not write_locked(file)
        loads[0].kill()
        until(lambda: loads[0].process.poll() is not None)
        loads.append(p.kernels(0, "plain", 80))  # in the place of the exited one: within a container, locks work
        loads[3].ready()
        assert len(records(p.gpu, 0)) == 2
        one_tenant([loads[1], loads[3], loads[2]], 0.5, 0.1)
    until(lambda: write_locked(file) and not any(withheld for _, withheld in living(p.gpu, 0)))


def test_a_process_kept_from_its_lock_is_not_taken_for_exited(place: Make) -> None:
    """An idle container of a higher class whose lock is withheld: lower ones keep to the small window beside it."""
    p = place(Tenant(cap=0.8, class_=OFFLINE), Tenant(class_=ONLINE))
    with holds(p.gpu.slot_file(1), READ_LOCK):
        online = p.kernels(1, "plain", 80, 5, 100_000 * p.gpu.scale)
        online.ready()
        offline = p.kernels(0, "plain", 80)
        until(lambda: bound(p, 0) > 0)
        seen = [bound(p, 0) for _ in range(100) if not time.sleep(0.01)]
        assert max(seen) < 0.0009, seen
        offline.kill()


def bound(p: Any, slot: int) -> float:
    """In seconds of the GPU: the window, and the longest command."""
    told = parse(p.gpu.slot_file(slot).read_bytes(), 1)
    return told.preempt_bound if told else 0


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_read_locks_of_others_make_nobody_immortal(place: Make, sign: signal.Signals) -> None:
    """A killed container of a higher class leaves the window to lower ones; one that is only stopped does not."""
    p = place(Tenant(cap=0.8, class_=OFFLINE), Tenant(class_=ONLINE))
    online = p.kernels(1, "plain", 80, 5, 100_000 * p.gpu.scale)
    online.ready()
    offline = p.kernels(0, "plain", 80)
    until(lambda: bound(p, 0) > 0)
    with (
        holds(p.gpu.slot_file(1), f"fcntl.lockf(fd, fcntl.LOCK_SH, 1 << 20, {PROCESSES})"),
        holds(p.gpu.slot_file(1), f"fcntl.lockf(fd, fcntl.LOCK_SH, {PROCESSES - 1}, 1)"),
    ):
        online.process.send_signal(sign)
        if sign == signal.SIGKILL:
            until(lambda: bound(p, 0) > 0.0009)
        else:
            time.sleep(1)
            assert bound(p, 0) < 0.0009
    assert offline.process.poll() is None


def test_a_list_of_locks_costs_its_neighbours_nothing(place: Make) -> None:
    """A container with 20 000 lock ranges has exited: testing its locks takes as long as the kernel needs to search them."""
    p = place(Tenant(cap=0.8), Tenant(), scale=1)
    honest, other = p.kernels(0, "plain", 80), p.kernels(1, "plain", 80)
    other.ready()
    other.kill()
    with holds(p.gpu.slot_file(1), MANY_LOCKS, write=True):
        has(p.gpu, honest, 80, 0.6)


def heard(watch: int) -> bool:
    events = select.poll()  # select(2) takes no descriptor from 1024 on
    events.register(watch, select.POLLIN)
    return bool(events.poll(0))


def test_nobody_is_told_of_reads_of_slot_files(place: Make) -> None:
    """Whoever is told of a read makes the reader pay for it."""
    p = place(Tenant(), Tenant())
    loads = [p.kernels(slot, "plain", 80) for slot in (0, 1)]
    for load in loads:
        load.ready()
    until(lambda: all(parse(p.gpu.slot_file(slot).read_bytes(), 1).charged for slot in (0, 1)))
    slots = p.gpu.slot_file(0).parent
    told: list[int] = []
    signal.signal(signal.SIGIO, lambda *_: told.append(1))
    folder = os.open(slots, os.O_RDONLY)
    watch = inotify.watch(str(slots), 1)  # IN_ACCESS, there and of the files in it
    try:
        fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT)
        before = [load.at(time.monotonic_ns()) for load in loads]
        until(lambda: all(load.at(time.monotonic_ns()) > had + 1000 for load, had in zip(loads, before, strict=True)))
        assert not told and not heard(watch)
        p.gpu.slot_file(0).read_bytes()
        assert told and heard(watch)
    finally:
        os.close(folder)
        os.close(watch)
        signal.signal(signal.SIGIO, signal.SIG_DFL)


@pytest.mark.parametrize("lease", [WRITE_LEASE, READ_LEASE])
def test_a_lease_on_the_own_file_keeps_nobody(place: Make, lease: str) -> None:
    """It starts at once and is gated. Its file is opened as soon as possible and then has what was charged until then."""
    p = place(Tenant(cap=0.5), Tenant())
    since = time.monotonic()
    with holds(p.gpu.slot_file(0), lease):
        load = p.kernels(0, "plain", 80)
        load.ready()
        assert time.monotonic() - since < 40, "an open that sleeps waits for fs.lease-break-time, 45 s"
        has(p.gpu, load, 80, 0.3)
        if lease == READ_LEASE:  # a reader behind the other one would wait, too
            assert parse(p.gpu.slot_file(0).read_bytes()) is None
    until(lambda: records(p.gpu, 0))
    until(lambda: parse(p.gpu.slot_file(0).read_bytes(), 1).charged > 0.1)
    have([load, p.kernels(1, "plain", 80)], [0.5, 0.5], 0.15)


def test_a_lease_on_a_neighbours_file_is_its_own_loss(place: Make) -> None:
    """A slot that cannot be read counts as empty until it can be read."""
    p = place(Tenant(), Tenant())
    with holds(p.gpu.slot_file(1), WRITE_LEASE):
        load = p.kernels(0, "plain", 80)
        has(p.gpu, load, 80, 0.7)
    have([load, p.kernels(1, "plain", 80)], [0.5, 0.5], 0.1)
