"""Whose memory leaves a lent GPU, and who comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.agent.judge.turns import GRACE, MOVES, Doubt, LentTenant, MemoryMove, Pace, decide, stuck

GIB = 1 << 30
RATE = 1 / (10 * GIB)  # seconds for a byte
TURN = 30.0
NOW = 1000.0


def at(name: str, used: float, request: float, waits: float = 0, level: int = 1, **more: object) -> LentTenant:
    size, asks = int(used * GIB), int(waits * GIB)
    return LentTenant(name, level, size, int(request * GIB), asks, **{"since": NOW - 1, "here": 0.0, **more})  # type: ignore[arg-type]


def move(*tenants: LentTenant, free: float = 0, now: float = NOW) -> MemoryMove | None:
    return decide(tenants, int(free * GIB), now, TURN, Pace(0.0, RATE))


def test_while_there_is_room_nobody_is_moved() -> None:
    assert move(at("a", 10, 2), at("b", 10, 2), free=4) is None
    assert move(at("a", 10, 2), at("b", 10, 2, waits=4, since=NOW), free=4) is None


def test_who_is_within_its_request_has_room_made_at_once() -> None:
    new = {"here": NOW}
    assert move(at("a", 10, 2, **new), at("b", 2, 8, waits=4), free=2) == MemoryMove("a", "b")
    assert move(at("a", 10, 10), at("b", 2, 8, waits=4), free=2) is None  # it has no more than its own
    assert move(at("a", 10, 2, level=2), at("b", 2, 8, waits=4), free=2) is None  # a higher class
    lower = at("c", 10, 2, level=0, **new)
    assert move(at("a", 10, 2, **new), lower, at("b", 2, 8, waits=4), free=2) == MemoryMove("c", "b")


def test_as_few_are_moved_as_make_room() -> None:
    tenants = at("a", 3, 2, level=0), at("c", 9, 2, level=0), at("b", 2, 20, waits=8)
    assert move(*tenants) == MemoryMove("c", "b")
    assert move(at("a", 3, 2), at("b", 2, 20, waits=8)) is None  # not where it would not be enough
    both = at("a", 5, 2, level=0), at("c", 5, 2, level=0, here=1.0), at("b", 2, 20, waits=8)
    assert move(*both) == MemoryMove("a", "b")
    assert move(both[0].replace(away=True), *both[1:], free=5) == MemoryMove("c", "b")  # the other half


def test_of_one_class_they_take_turns() -> None:
    a, b = at("a", 10, 2, here=NOW - 29), at("b", 4, 2, waits=8)
    assert move(a, b) is None
    assert move(a, b, now=NOW + 1) == MemoryMove("a", "b")
    big = at("a", 80, 2, here=NOW - 100), at("b", 80, 2, away=True, here=NOW - 100)
    assert move(*big) is None  # moving 160 GiB takes 16 s
    assert move(*big, now=NOW + 59) is None and move(*big, now=NOW + 60) == MemoryMove("a", "b")
    assert move(at("a", 10, 2, level=0, here=NOW), b) == MemoryMove("a", "b")  # a lower class goes at once


def test_two_that_wait_for_each_other_come_apart() -> None:
    a, b = at("a", 10, 2, waits=4, since=NOW - 3, here=NOW - 5), at("b", 10, 2, waits=4, since=NOW - 2, here=NOW - 5)
    assert move(a, b, free=2) == MemoryMove("b", "a")
    away = b.replace(away=True, here=NOW)
    assert move(a, away, free=12) is None  # the room is kept for a
    assert move(a.replace(used=14 * GIB, waits=0), away, free=8, now=NOW + 20) is None
    assert move(a.replace(used=14 * GIB, waits=0), away, free=14, now=NOW + 20) == MemoryMove(
        "b"
    )  # with what it waited for


def test_it_comes_back_once_there_is_room_and_not_too_soon() -> None:
    """At once, unless it came back a short time ago."""
    away = at("a", 10, 2, away=True, here=NOW)
    stay = MOVES * 2 * 10 * GIB * RATE
    assert move(away, free=12) == move(away.replace(back=NOW - stay), free=12) == MemoryMove("a")
    assert move(away, free=9, now=NOW + 1e6) is None
    assert move(away.replace(fixed=True), free=12) is None
    again = away.replace(back=NOW - 1)
    assert move(again, free=12, now=NOW + stay - 2) is None
    assert move(again, free=12, now=NOW + stay - 1) == MemoryMove("a")
    assert move(again.replace(request=10 * GIB), free=12) == MemoryMove("a")  # all of it is its own by now


@pytest.mark.parametrize("beside", [0, 70])
def test_who_is_moved_all_the_time_spends_a_tenth_of_it_on_the_way(beside: int) -> None:
    """Its neighbour allocates within its request once it is there, and frees once it is away. beside: GiB on its other GPUs."""
    it, neighbour, now, hours = at("a", 10, 2, beside=beside * GIB), at("b", 0, 8), NOW, 2 * 3600
    one, moves = (10 + beside) * GIB * RATE, 0
    while now < NOW + hours:
        asks = neighbour.replace(waits=0 if it.away else 8 * GIB)
        found = move(it, asks, free=12 if it.away else 2, now=now)
        now += one if found else 0.1
        if found:
            moves += 1
            it = it.replace(away=bool(found.lent_to), here=now, back=it.back if found.lent_to else now)
    assert 0.9 * hours / MOVES <= moves * one <= hours / MOVES + 2 * one


def test_a_turn_is_longer_where_other_gpus_move_as_well() -> None:
    a, b = at("a", 10, 2, here=NOW - 40, beside=70 * GIB), at("b", 4, 2, waits=8)
    assert move(a, b) is None and move(a.replace(beside=0), b) == MemoryMove("a", "b")
    assert move(a, b, now=NOW + 44) == MemoryMove("a", "b")


def test_a_claim_that_does_not_take_its_room_counts_for_nothing_for_a_turn() -> None:
    away, liar, doubt = at("a", 10, 2, away=True), at("b", 0, 8, waits=8), Doubt()

    def then(seconds: float, free: float) -> MemoryMove | None:
        now, size = NOW + seconds, int(free * GIB)
        return decide(doubt.believed((away, liar), size, now, TURN), size, now, TURN, Pace(0.0, RATE))

    assert then(0, 7) is None and then(9, 12) is None and then(9 + GRACE - 0.1, 12) is None
    assert then(9 + GRACE, 12) == MemoryMove("a")
    back = away.replace(away=False)
    for seconds in (9 + GRACE, 9 + GRACE + TURN - 0.1):  # it has nobody moved meanwhile
        now = NOW + seconds
        assert decide(doubt.believed((back, liar), 2 * GIB, now, TURN), 2 * GIB, now, TURN, Pace(0.0, RATE)) is None
    now = NOW + 9 + GRACE + TURN
    believed = doubt.believed((back, liar), 2 * GIB, now, TURN)
    assert decide(believed, 2 * GIB, now, TURN, Pace(0.0, RATE)) == MemoryMove("a", "b")


def test_nobody_leaves_for_one_that_does_not_come_back_yet() -> None:
    """Else the GPU lies idle until it may."""
    away, there = at("a", 10, 2, away=True, here=NOW, back=NOW), at("b", 10, 2)
    stay = MOVES * 2 * 10 * GIB * RATE
    assert move(away, there, free=2, now=NOW + stay - 1) is None
    assert move(away, there, free=2, now=NOW + stay) == MemoryMove("b", "a")
    assert move(away.replace(fixed=True), there, free=2, now=NOW + stay) is None
    own = away.replace(request=10 * GIB)  # by now
    assert move(own, there, free=2, now=NOW + 1) == MemoryMove("b", "a")


def test_who_cannot_be_moved_and_keeps_anothers_own() -> None:
    fixed, claim = at("a", 10, 2, fixed=True), at("b", 0, 8, waits=8)
    assert move(fixed, claim) is None
    assert stuck((fixed, claim), 0) == ("b", "a")
    assert stuck((fixed, claim.replace(request=4 * GIB)), 0) is None  # not within its request
    assert stuck((fixed, claim, at("c", 9, 2)), 0) is None  # another one makes room
    assert stuck((fixed.replace(request=10 * GIB), claim), 0) is None
    assert stuck((fixed.replace(level=2), claim), 0) is None
    assert stuck((fixed, claim), 8 * GIB) is None


def test_a_small_move_does_not_make_large_ones_look_slow() -> None:
    """A process of its own takes as long for each."""
    pace = Pace()
    pace.measured(GIB // 4, 1.0)
    assert pace.seconds(8 * GIB) < 6
    pace.measured(8 * GIB, 1.8)
    assert abs(pace.seconds(8 * GIB) - 1.8) < 1e-6 and abs(pace.seconds(GIB // 4) - 1.0) < 1e-6
    pace.measured(6 * GIB, 3.0)
    assert abs(pace.seconds(6 * GIB) - 3.0) < 1e-6
    one = Pace()
    one.measured(8 * GIB, 2.0)
    assert abs(one.seconds(8 * GIB) - 2.0) < 1e-6


def test_a_claim_that_changes_its_size_is_not_believed_longer() -> None:
    """Else it keeps the room of those who were moved for it, and they never come back."""
    doubt, liar, believed = Doubt(), at("b", 2, 1, waits=8), 0
    for i in range(20):
        claim = liar.replace(waits=(30 if i % 4 == 3 else 8) * GIB)
        believed += bool(doubt.believed((claim,), 10 * GIB, NOW + i, TURN)[0].waits)
    assert GRACE < believed <= 2 * GRACE
    doubt, first, second = Doubt(), at("b", 2, 1, waits=8), at("b", 10, 1, waits=4)
    assert doubt.believed((first,), 10 * GIB, NOW, TURN) == (first,)
    for i in range(20):  # it took the room, and another thread waits
        assert doubt.believed((second,), 2 * GIB, NOW + 1 + i, TURN) == (second,)
    for i in range(20):  # somebody else took it
        assert doubt.believed((first,), (10 if not i else 2) * GIB, NOW + 30 + i, TURN) == (first,)


def test_a_claim_that_pauses_is_not_believed_longer() -> None:
    """Else it keeps the room all the time. Who took what it waited for, or has not waited for a turn, is believed anew."""
    doubt, liar, believed = Doubt(), at("b", 2, 1, waits=8), 0
    for i in range(50 * 10):  # tenths of a second
        claim = liar.replace(waits=0) if i % 50 > 47 else liar
        believed += bool(doubt.believed((claim,), 10 * GIB, NOW + i / 10, TURN)[0].waits)
    assert GRACE * 10 < believed <= 2.2 * GRACE * 10
    for pause, freed in ((1.0, 10), (TURN, 2)):
        doubt, now = Doubt(), NOW
        for _round in range(3):
            for _ in range(40):
                now += 0.1
                assert doubt.believed((liar,), 10 * GIB, now, TURN) == (liar,)
            doubt.believed((at("b", freed, 1),), 2 * GIB, now + pause, TURN)
            now += 2 * pause


def test_nobody_ends_for_a_claim_that_is_not_believed() -> None:
    fixed, liar, doubt = at("a", 10, 2, fixed=True), at("b", 0, 8, waits=8), Doubt()
    for seconds in (1.0, 1.0 + GRACE):  # there is room, and it does not take it
        doubt.believed((fixed, liar), 8 * GIB, NOW + seconds, TURN)
    believed = doubt.believed((fixed, liar), 0, NOW + 7, TURN)
    assert stuck((fixed, liar), 0) == ("b", "a") and stuck(believed, 0) is None


SIZES = st.integers(0, 24).map(lambda n: n * GIB)
TENANTS = st.lists(
    st.builds(
        LentTenant,
        key=st.uuids().map(str),
        level=st.integers(0, 2),
        used=SIZES,
        request=SIZES,
        waits=st.sampled_from([0, 0, GIB, 4 * GIB, 30 * GIB]),
        since=st.floats(0, NOW),
        here=st.floats(0, NOW),
        away=st.booleans(),
        fixed=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda t: t.key,
).map(tuple)


@given(TENANTS, SIZES)
def test_whatever_they_write(tenants: tuple[LentTenant, ...], free: int) -> None:
    found = decide(tenants, free, NOW, TURN, Pace(0.0, RATE))
    by_key = {t.key: t for t in tenants}
    if found is None:
        for claim in tenants:  # nobody within its request waits while others could make room
            over = [t for t in tenants if not t.away and not t.fixed and t.used > t.request and t.level <= claim.level]
            if claim.waits and not claim.away and claim.entitled and claim.need > free:
                assert sum(t.used for t in over if t is not claim) < claim.need - 0 or _served_first(
                    tenants, claim, free
                )
        return
    who = by_key[found.key]
    assert not who.fixed
    if not found.lent_to:
        assert who.away and who.need <= free
        return
    claim = by_key[found.lent_to]
    assert not who.away and who.used > who.request and who is not claim and who.level <= claim.level
    assert claim.need > 0
    if who.level == claim.level and not claim.entitled and not who.waits:
        assert NOW - who.here >= TURN


def _served_first(tenants: tuple[LentTenant, ...], claim: LentTenant, free: int) -> bool:
    """Somebody else's claim is served before."""
    return any(t is not claim and (t.waits or t.away) and t.need <= free for t in tenants)
