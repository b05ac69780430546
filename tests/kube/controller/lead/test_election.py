"""Leader election: at most one controller decides at a time, by its own clock only."""

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from oci_hook.kube.controller.lead import election as rules
from oci_hook.kube.controller.lead.election import (
    DEADLINE,
    DURATION,
    LOOK,
    MOST_DURATION,
    RENEW,
    SETTLE,
    Election,
    SeenLease,
)


def looked(election: Election, seen: SeenLease, now: float) -> Election:
    election.looked(seen, now)
    return election


def leader(name: str, now: float) -> Election:
    election = looked(Election(name), SeenLease("", "0"), now)
    term = election.writes(now)
    election.wrote(SeenLease(name, "1", transitions=term), now, now)
    return election


def test_nobody_writes_before_a_look_and_a_lease_without_a_holder_is_free() -> None:
    election = Election("a")
    assert election.next(0) == (False, 0)
    assert looked(election, SeenLease("", "1"), 0).next(0) == (True, 0)


def test_another_s_lease_is_free_after_its_duration_without_a_change_by_our_clock() -> None:
    election = looked(Election("a"), SeenLease("b", "1"), 100)
    write, wait = looked(election, SeenLease("b", "1"), 100 + DURATION - 1).next(100 + DURATION - 1)
    assert not write and wait == pytest.approx(LOOK)
    write, wait = looked(election, SeenLease("b", "1"), 100 + DURATION - 0.1).next(100 + DURATION - 0.1)
    assert write and wait == pytest.approx(0.1)  # at the moment itself, not at the next look
    write, _ = looked(election, SeenLease("b", "2"), 100 + DURATION).next(100 + DURATION)  # renewed at the last moment
    assert not write


def test_nobody_holds_the_lease_for_ever_by_writing_a_long_duration() -> None:
    election = looked(Election("a"), SeenLease("b", "1", duration=1 << 30), 0)
    assert looked(election, SeenLease("b", "1", duration=1 << 30), MOST_DURATION).next(MOST_DURATION)[0]
    looked(election, SeenLease("b", "2", duration=0), 100)  # nor is one with a short duration taken too soon
    assert not looked(election, SeenLease("b", "2", duration=0), 100 + DURATION - 1).next(100 + DURATION - 1)[0]


def test_the_15_seconds_that_version_0_1_wrote_are_waited_for() -> None:
    election = looked(Election("a"), SeenLease("b", "1", duration=15), 0)
    assert not looked(election, SeenLease("b", "1", duration=15), 14).next(14)[0]
    assert looked(election, SeenLease("b", "1", duration=15), 15).next(15)[0]


def test_our_name_in_a_lease_of_another_term_is_not_ours() -> None:
    election = looked(Election("a"), SeenLease("a", "1", transitions=7), 0)
    assert not looked(election, SeenLease("a", "1", transitions=7), 1).next(1)[0]


def test_who_sees_another_s_name_leads_no_longer() -> None:
    election = leader("a", 0)
    assert election.leads(1)
    looked(election, SeenLease("b", "2", transitions=2), 1)
    assert not election.leads(1) and not election.next(1)[0]


def test_a_leader_writes_once_a_second_and_stops_without_an_answer() -> None:
    election = leader("a", 0)
    assert election.next(0.25) == (True, RENEW - 0.25)
    assert election.leads(DEADLINE - 0.01) and not election.leads(DEADLINE)
    assert election.next(DEADLINE)[0]  # nobody else has taken it, so it goes on as soon as a write works
    election.writes(DEADLINE)
    election.failed(DEADLINE + 1)
    assert not election.next(DEADLINE + 1)[0]  # the write may have been carried out, so read first


def test_a_call_whose_answer_comes_after_the_deadline_gives_nothing() -> None:
    election = looked(Election("a"), SeenLease("", "0"), 0)
    term = election.writes(0)
    election.wrote(SeenLease("a", "1", transitions=term), 0, DEADLINE)
    assert not election.leads(DEADLINE)


def test_a_lease_that_was_deleted_is_not_free_at_once() -> None:
    election = looked(Election("a"), SeenLease("b", "5", transitions=4), 0)
    assert not looked(election, SeenLease("", "9", transitions=0), 1).next(1)[0]
    assert looked(election, SeenLease("", "9", transitions=0), 1 + DURATION).next(1 + DURATION)[0]


def test_who_resigned_leads_and_writes_no_more() -> None:
    election = leader("a", 0)
    election.resign()
    assert not election.leads(0.1) and not looked(election, SeenLease("", "3", transitions=1), 1).next(9)[0]


# ---- schedules ---------------------------------------------------------------------------------------------------------


class Lease:
    """The API server's side: one object. A write must name the version that it replaces."""

    def __init__(self) -> None:
        self.seen = SeenLease("", "0", transitions=0)

    def put(self, version: str, holder: str, term: int) -> bool:
        if version != self.seen.version:
            return False
        self.seen = SeenLease(holder, str(int(version) + 1), duration=1, transitions=term)
        return True


class Interval:
    """A time in which a candidate may decide. end: its last moment, by the candidate's knowledge."""

    def __init__(self, term: int, begin: float, end: float) -> None:
        self.term, self.begin, self.end = term, begin, end


class Candidate:
    """A process with its own clock. Like Leader.run, it follows Election.next, one call after another."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.election = Election(name)
        self.name, self.offset, self.speed = name, chance.uniform(0, 1e6), chance.uniform(0.99, 1.01)
        self.decides: list[Interval] = []
        self.barriers: list[tuple[int, float]] = []  # (term, time at which it began to read earlier decisions)
        self.takes = 0

    def clock(self, real: float) -> float:
        return self.offset + real * self.speed

    def led(self, real: float) -> None:
        """Its deadline has just been moved."""
        until = (self.election._leads_until - self.offset) / self.speed
        if until <= real:
            return
        if self.takes != self.election.takes:
            self.takes = self.election.takes
            self.barriers.append((self.election.term, real))
        self.decides.append(Interval(self.election.term, real, until))

    def stops(self, real: float) -> None:
        for one in self.decides:
            one.end = min(one.end, max(real, one.begin))


class World:
    """Runs candidates against one Lease. Every step's delay is drawn from `chance`."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.lease = Lease()
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.latency = chance.choice((0.01, 0.1, 1.0, 1.5, 3.0))
        self.lost, self.pauses = chance.choice((0.0, 0.1, 0.5)), chance.choice((0.0, 0.02, 0.2))
        self.candidates = [Candidate(f"c{i}", chance) for i in range(chance.randint(2, 4))]
        for candidate in self.candidates:
            self.at(chance.uniform(0, 2), lambda now, c=candidate: self.step(c, now))  # type: ignore[misc]

    def at(self, when: float, do: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), do))

    def run(self, seconds: float) -> None:
        while self.events and self.events[0][0] < seconds:
            when, _, do = heapq.heappop(self.events)
            do(when)

    def delay(self) -> float:
        return self.chance.uniform(0, self.latency)

    def pause(self) -> float:
        """The pause of a process, also at the worst places: before it sends, and before it reads an answer."""
        return self.chance.uniform(0, 15) if self.chance.random() < self.pauses else 0.0

    def step(self, c: Candidate, now: float) -> None:
        write, wait = c.election.next(c.clock(now))
        if self.chance.random() < 0.01:
            self.resigns(c, now)
        self.at(now + wait / c.speed + self.pause(), lambda at: self.write(c, at) if write else self.look(c, at))

    def resigns(self, c: Candidate, now: float) -> None:
        """The candidate is told to end and sends its last answer now. Another process replaces it."""
        c.stops(now)
        c.election.resign()

        def give_back(at: float) -> None:
            if self.lease.seen.holder == c.name:
                self.lease.put(self.lease.seen.version, "", self.lease.seen.transitions)

        self.at(now + SETTLE / c.speed + self.pause() + self.delay(), give_back)
        self.candidates.append(new := Candidate(f"{c.name}'", self.chance))
        self.at(now + self.chance.uniform(0, 5), lambda at: self.step(new, at))

    def look(self, c: Candidate, now: float) -> None:
        if c.election._resigned:
            return

        def read(at: float) -> None:
            seen = self.lease.seen
            self.at(at + self.delay() + self.pause(), lambda back: answered(seen, back))

        def answered(seen: SeenLease, at: float) -> None:
            c.election.looked(seen, c.clock(at))
            if seen.holder != c.name:
                c.stops(at)
            self.step(c, at)

        self.at(now + self.delay(), read)

    def write(self, c: Candidate, now: float) -> None:
        if c.election._resigned:
            return
        began = c.clock(now)
        term = c.election.writes(began)
        version = c.election.seen.version if c.election.seen else ""

        def arrives(at: float) -> None:
            worked = self.lease.put(version, c.name, term)
            seen = self.lease.seen
            if self.chance.random() < self.lost:
                self.at(at + 1 + self.pause(), failed)
            else:
                self.at(at + self.delay() + self.pause(), lambda back: answered(worked, seen, back))

        def failed(at: float) -> None:
            c.election.failed(c.clock(at))
            self.step(c, at)

        def answered(worked: bool, seen: SeenLease, at: float) -> None:
            if worked:
                c.election.wrote(seen, began, c.clock(at))
                c.led(at)
            else:
                c.election.failed(c.clock(at))
            self.step(c, at)

        if self.chance.random() < self.lost / 2:
            self.at(now + 1, failed)  # it never arrived
        else:
            self.at(now + self.delay() + self.pause(), arrives)

    def wrong(self) -> list[str]:
        """Finds answers of an old leader that may take effect after a newer one has begun to read earlier decisions."""
        lands = rules.ANSWER + 0.2  # the API server waits that long for an answer, and then writes the Binding
        return [
            f"{a.name} until {one.end:.2f}, {b.name} from {begun:.2f}"
            for a in self.candidates
            for b in self.candidates
            if a is not b
            for term, begun in b.barriers
            for one in a.decides
            if one.term < term and one.end + lands > begun
        ]


def test_no_answer_of_an_old_leader_lands_after_the_next_has_begun_to_read() -> None:
    """Two to four candidates, calls of up to 3 s, lost calls and answers, pauses of up to 15 s, clocks that differ by 2 %."""
    terms = 0
    for seed in range(3000):
        world = World(seed)
        world.run(60)
        assert not world.wrong(), f"seed {seed}: {world.wrong()[:3]}"
        terms += sum(len(c.barriers) for c in world.candidates)
    assert terms > 4000  # the lease changed hands often, so the rules were exercised


@pytest.mark.parametrize("name, value", [("DURATION", DEADLINE + 1), ("DEADLINE", DURATION), ("SETTLE", 0.5)])
def test_the_schedules_find_a_constant_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(rules, name, value)
    if name == "SETTLE":
        monkeypatch.setitem(globals(), name, value)
    assert any(run_one(seed).wrong() for seed in range(1000))


def run_one(seed: int) -> World:
    world = World(seed)
    world.run(60)
    return world


@pytest.mark.parametrize("latency, least", [(0.01, 0.99), (1.0, 0.6), (1.5, 0.1)])
def test_a_slow_api_server_does_not_make_the_lease_change_hands(latency: float, least: float) -> None:
    for seed in range(20):
        world = World(seed)
        world.lost, world.pauses = 0.0, 0.0
        world.delay = lambda: latency / 2  # type: ignore[method-assign]
        world.resigns = lambda c, now: None  # type: ignore[method-assign]
        world.run(120)
        assert sum(len(c.barriers) for c in world.candidates) == 1
        spans = sorted((one.begin, one.end) for c in world.candidates for one in c.decides)
        led, at = 0.0, 10.0
        for begin, end in spans:
            led += max(0.0, min(end, 120.0) - max(begin, at))
            at = max(at, min(end, 120.0))
        assert led / 110 >= least
