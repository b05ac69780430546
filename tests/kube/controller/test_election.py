"""Who leads, and until when: the clock of nobody else counts."""

from hypothesis import given
from hypothesis import strategies as st

from oci_hook.kube.controller.election import DEADLINE, DURATION, MOST_DURATION, Election, Seen


def test_a_lease_without_a_holder_is_free() -> None:
    election = Election("a")
    assert not election.may_take(0)  # not even looked at
    election.observe(Seen("", "1"), 0)
    assert election.may_take(0)


def test_another_s_lease_is_free_after_its_duration_without_a_change_by_our_clock() -> None:
    election = Election("a")
    election.observe(Seen("b", "1"), 100)
    election.observe(Seen("b", "1"), 100 + DURATION - 0.1)
    assert not election.may_take(100 + DURATION - 0.1)
    assert election.may_take(100 + DURATION)
    election.observe(Seen("b", "2"), 100 + DURATION)  # renewed at the last moment
    assert not election.may_take(100 + DURATION + 1)


def test_nobody_holds_the_lease_for_ever_by_writing_a_long_duration() -> None:
    election = Election("a")
    election.observe(Seen("b", "1", duration=1 << 30), 0)
    assert not election.may_take(MOST_DURATION - 1) and election.may_take(MOST_DURATION)
    election.observe(Seen("b", "2", duration=0), 100)  # nor is one with a short duration taken too soon
    assert not election.may_take(100 + DURATION - 1)


def test_our_name_in_a_lease_that_we_do_not_lead_by_is_an_earlier_life_s() -> None:
    election = Election("a")
    election.observe(Seen("a", "1"), 0)
    assert not election.may_take(1) and election.may_take(DURATION)


def test_who_sees_another_s_name_leads_no_longer() -> None:
    election = Election("a")
    election.took(Seen("a", "1"), 0)
    assert election.leads(1)
    election.observe(Seen("b", "2"), 2)
    assert not election.leads(2) and not election.may_take(2)


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(-0.4, 0.4))
def test_two_never_lead_at_once_by_whatever_clocks(began: float, pause: float, skew: float) -> None:
    """A renews at `began` and is paused; B, whose clock has another zero, sees that write at once and waits."""
    a, b, zero = Election("a"), Election("b"), 10_000.0
    a.took(Seen("a", "1"), began)
    b.observe(Seen("a", "1"), began + zero)
    now = began + pause
    if b.may_take(now + zero):
        assert not a.leads(now)
        assert pause >= DURATION > DEADLINE + 2  # an answer of the old leader has arrived, or the webhook call is over
