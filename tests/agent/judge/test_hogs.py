"""hogs-gate from made-up looks: who is named, and whom a lying neighbour cannot have named. Nothing runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oci_hook.agent.judge import hogs
from oci_hook.agent.judge.audit_rules import REPORTED, Auditor, Finding, NodeLook
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.judge.hogs import Hogs, Party
from oci_hook.core.slot_page import Gate
from tests.agent.judge.test_audit_rules import GPU, grant, process

LOOK = 5.0


class Tenant:
    """A container over several looks. Per look of 5 s: seconds of GPU time, seconds held by slot, what its slot shows."""

    def __init__(self, slot: int, weight: int = 5000, rank: int = 1, busy: bool = True) -> None:
        self.slot, self.weight, self.rank = slot, weight, rank
        self.charged, self.held, self.epoch, self.shows_work = 0.0, dict[int, float](), 0, busy
        self.had = self.starved = 0.0

    def step(self, had: float, held: "dict[int, float] | None" = None, says: float | None = None) -> "Tenant":
        """says: the GPU time that it publishes; else what it had."""
        self.had = had
        self.charged += had if says is None else says
        for slot, seconds in (held or {}).items():
            self.held[slot] = self.held.get(slot, 0.0) + seconds
        return self

    def party(self, nvml: bool = True) -> Party:
        gate = Gate(
            charged=self.charged,
            held_for=tuple(sorted(self.held.items())),
            shows_work=self.shows_work,
            epoch=self.epoch,
        )
        busy = round(100 * self.had / LOOK) if nvml else None
        return Party(f"t{self.slot}", self.slot, self.weight, self.rank, gate, busy, starved=self.starved)

    def waited(self, seconds: float) -> "Tenant":
        """For a processor."""
        self.starved = seconds
        return self


def second_look(*tenants: Tenant, nvml: bool = True) -> list[str]:
    """The keys that a span of LOOK seconds suspects, at whose begin nothing had happened yet."""
    now = [t.party(nvml) for t in tenants]
    blank = {p.key: p.replace(gate=Gate(shows_work=p.gate.shows_work) if p.gate else None) for p in now}
    return [h.key for h in hogs.suspects(LOOK, blank, now)]


class Looks:
    """Looks at honest or lying tenants, every so many seconds."""

    def __init__(self, *tenants: Tenant, every: float = 0.5) -> None:
        self.hogs, self.tenants, self.every, self.now = Hogs(), tenants, every, 100.0

    def look(self, *busy: int) -> list[tuple[str, bool]]:
        """busy: per cent by NVML of each."""
        self.now += self.every
        parties = [t.party().replace(busy=n) for t, n in zip(self.tenants, busy, strict=True)]
        return [(h.key, h.again) for h in self.hogs.look(self.now, GPU, parties)]


# Two trainers on an H200 with driver 580, weights 70 and 30: what they had was 64 and 29 %. NVML's figures of half a second
# jump as those did, with means a quarter lower, which is all that longer ones are.
TRAINERS = [(33, 50), (99, 1), (33, 33), (66, 0), (33, 33), (1, 16), (66, 20)]


@pytest.mark.parametrize(("every", "figures"), [(0.5, TRAINERS), (5.0, [(48, 22)])])
def test_honest_trainers_by_nvmls_figures_on_an_h200(every: float, figures: list[tuple[int, int]]) -> None:
    looks = Looks(big := Tenant(1, 7000), small := Tenant(2, 3000), every=every)
    for n in range(70):
        big.step(0.645 * every, {2: 0.2 * every})
        small.step(0.293 * every, {1: 0.66 * every})
        assert looks.look(*figures[n % len(figures)]) == [], n


@pytest.mark.parametrize(("every", "first", "second"), [(0.5, 16, 32), (5.0, 3, 6), (20.0, 3, 6)])
def test_a_liar_is_named_by_two_spans(every: float, first: int, second: int) -> None:
    """Of three looks and eight seconds at least, whatever the interval."""
    looks = Looks(victim := Tenant(1), Tenant(2), every=every)
    for n in range(second + 3):
        found = [("t2", n >= second)] if n >= first else []
        assert looks.look(2, 0) == found, n
        victim.step(0.02 * every, {2: 0.96 * every})
    looks.tenants = looks.tenants[:1]
    assert looks.look(2) == []  # it has ended


def test_waits_for_a_processor_are_added_up_over_the_span() -> None:
    looks = Looks(victim := Tenant(1), slow := Tenant(2))
    for _ in range(20):
        victim.step(0.4 * 0.5, {2: 0.56 * 0.5})
        slow.step(0.2 * 0.5).waited(0.35 * 0.5)
        assert looks.look(40, 20) == []
    for _ in range(40):
        victim.step(0.4 * 0.5, {2: 0.56 * 0.5})
        slow.step(0.2 * 0.5).waited(0.0)
        found = looks.look(40, 20)
    assert found == [("t2", True)]


def test_a_liar_that_claims_and_does_not_work() -> None:
    """As measured: the neighbour had 2 % of the GPU and was held for the rest."""
    assert second_look(Tenant(1).step(0.1, {2: 4.8}), Tenant(2).step(0)) == ["t2"]


@pytest.mark.parametrize("weights", [(9000, 1000), (1000, 9000)])
def test_whatever_the_weights(weights: tuple[int, int]) -> None:
    victim, liar = (Tenant(i, weight) for i, weight in enumerate(weights, 1))
    assert second_look(victim.step(0.05, {2: 4.9}), liar.step(0)) == ["t2"]


def test_a_liar_that_says_it_had_the_gpu() -> None:
    """NVML's figure counts; what the container says beyond it, only as far as NVML may miss a burst."""
    assert second_look(Tenant(1).step(0.1, {2: 4.8}), Tenant(2).step(0, says=5)) == ["t2"]


def test_several_liars_that_take_turns() -> None:
    liars = [Tenant(i).step(0, says=1) for i in range(2, 7)]
    assert second_look(Tenant(1).step(0.1, {t.slot: 0.95 for t in liars}), *liars) == [f"t{i}" for i in range(2, 7)]


def test_a_liar_whose_slot_rests_at_the_look_but_claims_between() -> None:
    liar = Tenant(2, busy=False).step(0)
    liar.epoch = 7
    assert second_look(Tenant(1).step(0.1, {2: 4.8}), liar) == ["t2"]


def test_a_liar_that_the_gate_bounds() -> None:
    """As measured with the gate's bound: the neighbour has 86 % and is held for 9."""
    assert second_look(Tenant(1).step(4.3, {2: 0.45}), Tenant(2).step(0)) == ["t2"]


def test_a_liar_that_keeps_to_its_share_wastes_it() -> None:
    """The neighbour has its half, and is held for the other half, which nobody uses."""
    assert second_look(Tenant(1).step(2.5, {2: 2.4}), Tenant(2).step(0)) == ["t2"]


def test_an_offline_liar_before_an_online_container() -> None:
    online, liar = Tenant(1, rank=2).step(0.5, {2: 2.0}), Tenant(2, rank=0).step(0)
    assert second_look(online, liar) == ["t2"]


def test_honest_rotation() -> None:
    assert second_look(Tenant(1).step(2.5, {2: 2.4}), Tenant(2).step(2.5, {1: 2.4})) == []


def test_honest_and_unequal() -> None:
    assert second_look(Tenant(1, 1000).step(0.5, {2: 4.4}), Tenant(2, 9000).step(4.5, {1: 0.4})) == []


def test_a_small_part_of_a_full_gpu_is_not_the_neighbours_doing() -> None:
    """It had less than its share, but the others had the GPU meanwhile: their time explains it."""
    assert second_look(Tenant(1).step(1, {2: 4}), Tenant(2).step(4, {1: 1})) == []


def test_an_online_container_that_keeps_offline_ones_out() -> None:
    assert second_look(Tenant(1, rank=0).step(0, {2: 5}), Tenant(2, rank=2).step(0.5)) == []


def test_who_is_given_no_processor_is_not_accused_for_what_it_could_not_do() -> None:
    """On an overloaded machine it has its turn and cannot launch: no other one has the GPU meanwhile."""
    victim, slow = Tenant(1).step(2.0, {2: 2.8}), Tenant(2).step(1.0)
    assert second_look(victim, slow) == ["t2"]
    assert second_look(victim, slow.waited(1.7)) == []


def test_who_is_given_no_processor_cannot_tell_how_long_it_was_held() -> None:
    victim, other = Tenant(1).step(2.0, {2: 2.8}), Tenant(2).step(2.0)
    assert second_look(victim, other) == ["t2"]
    assert second_look(victim.waited(1.0), other) == []


def test_a_short_wait_for_a_processor_excuses_no_liar() -> None:
    assert second_look(Tenant(1).step(0.1, {2: 4.8}).waited(0.5), Tenant(2).step(0).waited(0.5)) == ["t2"]


def test_the_thread_that_waited_longest_counts() -> None:
    before = {"a": {1: 10**9, 2: 0}, "b": {}, "ended": {9: 1}}
    now = {"a": {1: 2 * 10**9, 2: 3 * 10**9, 3: 9 * 10**9}, "b": {4: 10**9}, "new": {5: 1}}
    assert hogs.starvation(before, now) == {"a": 3.0, "b": 0.0}


def test_one_that_hardly_wanted_the_gpu_is_no_witness() -> None:
    assert second_look(Tenant(1).step(0, {2: 0.2}), Tenant(2).step(0)) == []


def test_a_frozen_container_is_no_witness() -> None:
    parties = [Tenant(1).step(0, {2: 5}).party().replace(stopped=True), Tenant(2).party()]
    assert hogs.suspects(5, {p.key: p.replace(gate=Gate()) for p in parties}, parties) == []


@given(st.integers(0, 100), st.lists(st.floats(0, 1e18), min_size=1, max_size=6), st.floats(0, 1e18))
def test_nobody_who_works_for_what_it_holds_can_be_accused(busy: int, held: list[float], says: float) -> None:
    """The accuser writes what it likes; the honest container had the GPU in all the time that the accuser had not."""
    had = LOOK * busy / 100
    liar = Tenant(1).step(LOOK - had, {i + 2: seconds for i, seconds in enumerate(held)}, says=says)
    assert second_look(liar, Tenant(2).step(had)) == []


def test_an_idle_container_cannot_be_accused() -> None:
    """Its slot shows neither work nor a new claim, so nobody can have been held for it."""
    assert second_look(Tenant(1).step(0, {2: 5}), Tenant(2, busy=False).step(0)) == []


def test_without_nvmls_figures_two_witnesses_are_needed() -> None:
    def seen(*tenants: Tenant) -> list[str]:
        return second_look(*tenants, nvml=False)

    assert seen(Tenant(1).step(0.1, {2: 4.8}), Tenant(2).step(0)) == []
    assert seen(Tenant(1).step(0.1, {3: 4.8}), Tenant(2).step(0.1, {3: 4.8}), Tenant(3).step(0)) == ["t3"]


def test_a_new_container_in_the_slot_of_an_old_one_is_not_accused_for_it() -> None:
    victim = Tenant(1)
    before = {p.key: p for p in (victim.party(), Tenant(2).party())}
    victim.step(0.1, {2: 4.8})
    assert hogs.suspects(5, before, [victim.party(), Tenant(2).party().replace(key="new")]) == []


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 1e18), st.floats(0, 1e18)), max_size=8), st.floats(-1, 1e9))
def test_any_figures_give_an_answer(said: list[tuple[int, float, float]], later: float) -> None:
    hog = Hogs()
    for at in (0.0, 1.0, 2.0, later, later + 9):
        parties = [
            Party(
                str(slot),
                slot,
                1,
                1,
                Gate(charged=at * charged, held_for=((1, held), (2, at * held)), shows_work=True),
                50,
            )
            for slot, charged, held in {slot: (slot, *rest) for slot, *rest in said}.values()
        ]
        for found in hog.look(at, GPU, parties):
            assert 0 <= found.held <= 100.01 and 0 <= found.had <= 100


def test_the_second_look_names_it_and_no_policy_kills_for_it() -> None:
    assert "hogs-gate" in REPORTED
    auditor = Auditor(10)
    seen = NodeLook({"a": grant()}, {GPU: GpuSample(0, 1, 0, ())}, {}, {})
    hog = Finding("hogs-gate", "a", GPU, 0, 0, "b: held")
    assert not auditor.judge(seen, more=(hog,)).findings
    assert auditor.judge(seen, more=(hog,)).news == (hog,)
    assert auditor.judge(seen).over == (hog,)


def test_who_is_on_the_gpu_and_what_nvml_says_of_it() -> None:
    def parties(busy: int, *processes: tuple[int, int]) -> list[int | None]:
        sample = GpuSample(0, 1, busy, tuple((pid, 1, percent) for pid, percent in processes))
        shares = [g.shares[0] for g in (grant("a"), grant("b"))]
        grants = {k: grant(k, s.replace(slot=n)) for n, (k, s) in enumerate(zip("ab", shares, strict=True), 1)}
        seen = NodeLook(grants, {GPU: sample}, {1: process(1, "a"), 2: process(2, "b")}, {})
        return [p.busy for p in hogs.parties(GPU, sample, seen, {}, {})]

    assert parties(60, (1, 40), (2, 20)) == [40, 20]
    assert parties(0) == [0, 0]
    assert parties(90, (1, 0), (2, 0)) == [None, None]  # no figures by process
    assert parties(-1, (1, 0)) == [None, None]
