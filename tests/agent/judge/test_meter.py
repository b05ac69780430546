"""Shares against promises, from made-up slot files; nothing runs."""

import pytest

from oci_hook.agent.judge.meter import Meter, Party, look
from oci_hook.core.slot_page import Gate

OFFLINE, DEFAULT, ONLINE = 0, 1, 2


class Tenant:
    """One container whose charged time grows at a given pace."""

    def __init__(self, promise: int = 0, rank: int = DEFAULT) -> None:
        self.meter, self.promise, self.rank = Meter(), promise, rank
        self.charged = self.wanted = 0.0
        self.has = self.wants = 0.0  # per second
        self.busy: int | None = None
        self.stopped = self.silent = False

    def party(self, seconds: float) -> Party:
        self.charged += self.has * seconds
        self.wanted += self.wants * seconds
        gate = None if self.silent else Gate(self.charged, self.wanted)
        return Party(self.meter, gate, self.busy, self.promise, self.rank, self.stopped)

    def at(self, has: float, wants: float) -> None:
        self.has, self.wants = has, wants


class Node:
    def __init__(self, *tenants: Tenant) -> None:
        self.tenants, self.now = tenants, 1000.0
        self.run(0)

    def run(self, seconds: float, every: float = 5.0) -> None:
        left = seconds
        while True:
            step = min(left, every)
            self.now += step
            look(self.now, [t.party(step) for t in self.tenants])
            left -= step
            if left <= 0:
                return


def test_who_gets_less_than_promised() -> None:
    short, long, free = Tenant(60), Tenant(30), Tenant(0)
    node = Node(short, long, free)
    short.at(0.4, 1)
    long.at(0.5, 1)
    free.at(0.1, 1)
    node.run(60)
    assert short.meter.shortfall == pytest.approx(20) and long.meter.shortfall == pytest.approx(-20)
    assert free.meter.shortfall is None and free.meter.used == pytest.approx(10)
    short.at(0.6, 1)
    node.run(30)
    assert short.meter.shortfall == pytest.approx(10)
    node.run(35)
    assert short.meter.shortfall == pytest.approx(0)


def test_who_wants_nothing_is_owed_nothing() -> None:
    half, idle = Tenant(60), Tenant(40)
    node = Node(half, idle)
    half.at(0.3, 0.5)  # works half of the time, and has then what it was promised
    node.run(60)
    assert half.meter.shortfall == pytest.approx(0) and idle.meter.shortfall is None and idle.meter.used is None
    half.at(0.25, 0.5)
    node.run(65)
    assert half.meter.shortfall == pytest.approx(5)
    half.at(0, 0)
    node.run(70)
    assert half.meter.shortfall is None


def test_what_the_driver_saw_where_the_books_say_much_more() -> None:
    """A third process, which is charged to no container, takes a third of the GPU."""
    first, second = Tenant(60), Tenant(30)
    node = Node(first, second)
    first.at(0.65, 1)
    second.at(0.34, 1)
    first.busy, second.busy = 36, 21
    node.run(60)
    assert first.meter.shortfall == pytest.approx(24) and second.meter.shortfall == pytest.approx(-4)


def test_a_driver_that_says_a_quarter_too_little_takes_nobodys_time_away() -> None:
    """As NVML's means may be, on an H200 with driver 580; and of a few seconds, as low as it likes."""
    most, rest = Tenant(70), Tenant(30)
    node = Node(most, rest)
    most.at(0.7, 1)
    rest.at(0.3, 1)
    most.busy, rest.busy = 30, 99
    node.run(5, every=0.5)
    assert most.meter.shortfall == pytest.approx(0)
    most.busy, rest.busy = 53, 23
    node.run(90)
    assert most.meter.shortfall == pytest.approx(0) and rest.meter.shortfall == pytest.approx(0)


def test_the_frozen_and_the_lower_classes_make_way() -> None:
    online, default = Tenant(30, ONLINE), Tenant(50)
    node = Node(online, default)
    default.at(0.1, 1)
    online.at(0.3, 0.4)
    node.run(60)
    assert default.meter.shortfall is None and online.meter.shortfall == pytest.approx(-18)
    assert default.meter.outranked == pytest.approx(60) and online.meter.outranked == 0
    online.at(0, 0)
    node.run(60)
    assert default.meter.shortfall == pytest.approx(40) and default.meter.outranked == pytest.approx(60)
    default.stopped = True
    node.run(65)
    assert default.meter.shortfall is None


def test_harvest_by_the_books_or_else_by_the_driver() -> None:
    offline, online = Tenant(20, OFFLINE), Tenant(50, ONLINE)
    node = Node(offline, online)
    offline.at(0.25, 1)
    online.at(0.5, 0.6)
    node.run(60)
    assert offline.meter.harvest == pytest.approx(25) and offline.meter.harvested == pytest.approx(15)
    assert online.meter.harvest is None
    online.at(0, 0)
    offline.at(0, 0)  # alone: the gate counts nothing
    offline.busy = 100
    node.run(60)
    assert offline.meter.harvest == pytest.approx(100) and offline.meter.harvested == pytest.approx(75)


def test_whatever_a_tenant_writes() -> None:
    liar, honest = Tenant(50), Tenant(50)
    node = Node(liar, honest)
    honest.at(0.5, 1)
    for has, wants in ((1e15, 0), (-1e15, 1e15), (0, -1e15), (5, 5)):
        liar.at(has, wants)
        liar.silent = not liar.silent
        node.run(10)
        for tenant in (liar, honest):
            assert tenant.meter.shortfall is None or -100 <= tenant.meter.shortfall <= 100
            assert tenant.meter.used is None or 0 < tenant.meter.used <= 100
    assert honest.meter.shortfall == pytest.approx(0)
