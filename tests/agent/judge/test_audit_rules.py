"""The auditor's conclusions from made-up samples; nothing runs."""

import pytest

from oci_hook.agent.judge.audit_rules import REPORTED, Auditor, NodeLook, TenantProcess, Verdict
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.terms import Terms
from oci_hook.core.units import MIB
from oci_hook.observe.account import PageFigures

GPU, OTHER = "GPU-0", "GPU-1"


def grant(key: str = "a", *shares: Share, **more: object) -> Grant:
    return Grant(key, Identity("/run/runc", key, "/"), Life("boot", init=(1, 2)), shares or (Share(GPU, 1000),))


def sample(*processes: tuple[int, int | None]) -> GpuSample:
    return GpuSample(sum(p[1] or 0 for p in processes), 1 << 40, 0, tuple((p, u, 10) for p, u in processes))


def process(pid: int, key: str = "a") -> tuple[str, TenantProcess]:
    return key, TenantProcess(pid, pid * 100, "worker", pid % 100)


def account(total_mib: float, *pids: int, surcharge: int = 0) -> PageFigures:
    owners = frozenset(next(iter(process(pid)[1].owners)) for pid in pids)
    return PageFigures((int(total_mib * MIB),), (surcharge,), owners)


class Case:
    def __init__(self, tolerance: int = 10, grants: tuple[Grant, ...] = ()) -> None:
        self.auditor, self.now = Auditor(tolerance), 1000.0
        self.grants = {g.key: g for g in grants or (grant(),)}

    def look(
        self, gpus: dict[str, GpuSample], kept: "PageFigures | str | None", members: tuple[int, ...] = (101,)
    ) -> Verdict:
        key = next(iter(self.grants))
        return self.auditor.judge(NodeLook(self.grants, gpus, {pid: process(pid, key) for pid in members}, {key: kept}))


def kinds(verdict: Verdict) -> list[tuple[str, str, int]]:
    return sorted((f.kind, f.uuid, f.pid) for f in verdict.findings)


def test_an_honest_container() -> None:
    case = Case()
    for used in (0, 500, 990, 100):
        seen = case.look({GPU: sample((101, used * MIB))}, account(used + 5, 101))
        assert not seen.findings and seen.surcharges == {("a", 0): 0}
        assert seen.uses["a", GPU].used == used * MIB and seen.uses["a", GPU].busy == 10


def test_memory_of_an_exited_process_is_explained_by_the_account_page() -> None:
    """A forked child keeps it; NVML lists no process for it. It is neither found nor charged twice."""
    kept = PageFigures((900 * MIB,), (0,), account(0, 101).owners, {(7, 7): (800 * MIB,)}, (800 * MIB,))
    for used in (100, 150, 150):
        gpu = sample((101, used * MIB)).replace(used=(used + 800 + 30) * MIB)
        seen = (case := Case()).look({GPU: gpu}, kept), case.look({GPU: gpu}, kept)
        assert not seen[1].findings
        assert seen[1].surcharges == {("a", 0): max(0, used - 100) * MIB}  # of the process that runs


def test_more_memory_than_the_limit_without_a_listed_process_is_no_proof() -> None:
    """By the page alone it is reported; by the driver's figure it is proved, which is news."""
    kept = PageFigures((1100 * MIB,), (0,), frozenset(), {}, (1100 * MIB,))
    auditor, gpu = Auditor(10), sample().replace(used=2000 * MIB)
    for charged, proved in (({}, False), ({"a": 1100 * MIB}, True)):
        seen = NodeLook({"a": grant()}, {GPU: gpu.replace(charged=charged)}, {}, {"a": kept})
        assert not auditor.judge(seen).news
        verdict = auditor.judge(seen)
        (found,) = verdict.findings
        assert verdict.news == (found,) and (found.kind, found.proved) == ("over-memory", proved)
        assert found.evidence.startswith("1100 MiB in use (1100 MiB by no listed process)")


def test_what_nvml_lists_is_not_counted_again_as_kept() -> None:
    """The process exits between the look at the driver and the look at the page; or its pid cannot be matched."""
    kept = PageFigures((900 * MIB,), (0,), account(0, 101).owners, {}, (900 * MIB,))
    case, gpu = Case(), {GPU: sample((101, 900 * MIB))}
    case.look(gpu, kept)
    assert not case.look(gpu, kept).findings


def test_a_bypass_is_found_by_the_second_sample_and_told_once() -> None:
    case = Case()
    gpus = {GPU: sample((101, 600 * MIB))}
    first = case.look(gpus, account(0))
    assert not first.findings and first.surcharges == {("a", 0): 0}
    second = case.look(gpus, account(0))
    assert kinds(second) == [("no-shim", GPU, 101)] and second.news == second.findings
    assert second.surcharges == {("a", 0): 600 * MIB}
    assert "process 101 (worker)" in second.news[0].evidence
    third = case.look(gpus, account(0, surcharge=600 * MIB))
    assert kinds(third) == kinds(second) and not third.news
    after = case.look({GPU: sample()}, account(0))
    assert not after.findings and kinds(second) == sorted((f.kind, f.uuid, f.pid) for f in after.over)
    assert after.surcharges == {("a", 0): 0}


def test_without_books_there_is_nothing_to_charge_but_a_finding() -> None:
    case = Case()
    for _ in range(2):
        seen = case.look({GPU: sample((101, MIB))}, None)
    assert kinds(seen) == [("no-shim", GPU, 101)] and seen.surcharges == {}


def test_over_the_limit_by_more_than_the_tolerance() -> None:
    for used, expected in ((1009, []), (1011, [("over-memory", GPU, 0)])):
        case = Case()
        for _ in range(2):
            seen = case.look({GPU: sample((101, used * MIB))}, account(900, 101))
        assert kinds(seen) == expected
        assert seen.surcharges == {("a", 0): (used - 900) * MIB}


def test_processes_count_together() -> None:
    case = Case()
    for _ in range(2):
        seen = case.look({GPU: sample((101, 600 * MIB), (102, 600 * MIB))}, account(1000, 101, 102), (101, 102))
    assert kinds(seen) == [("over-memory", GPU, 0)]


def load(at: float, *busy: tuple[int, int]) -> dict[str, GpuSample]:
    """(pid, per cent)"""
    return {GPU: GpuSample(0, 1 << 40, 0, tuple((pid, MIB, n) for pid, n in busy), at=at)}


def capped(percent: int, policy: str = "fixed-share", frozen: int = 0, **more: int) -> Grant:
    share = Share(GPU, 1000, percent, slot=1)
    who = Identity("/", "a", "/")
    return Grant("a", who, Life("b", init=(1, 2)), (share,), Terms(policy), frozen=frozen, **more)


def beside(*grants: Grant) -> tuple[Grant, ...]:
    """With a neighbour."""
    return (*grants, Grant("b", Identity("/", "b", "/"), Life("b"), (Share(GPU, 10, 30, slot=2),)))


def loaded(
    case: Case, *busy: int, gated: bool = True, every: float = 5.0, on_page: bool = True, moved: float | None = None
) -> Verdict:
    """Looks at a process that has so many per cent of the GPU's time. moved: Seen.moved, in seconds before the first look."""
    at = frozenset({("a", GPU)}) if gated else frozenset()
    begin, kept = case.now, account(5, 101) if on_page else account(5)
    for n in busy:
        case.now += every
        seen = NodeLook(case.grants, load(case.now, (101, n)), {101: process(101)}, {"a": kept})
        verdict = case.auditor.judge(
            seen if moved is None else seen.replace(moved={"a": begin + every - moved}), gated=at
        )
    return verdict


def mine(verdict: Verdict) -> list[str]:
    return [f.kind for f in verdict.findings if f.key == "a"]


def test_more_compute_than_its_ceiling() -> None:
    case = Case(grants=(capped(30),))
    assert mine(loaded(case, 30, 60, 10, 45, 44, 40, 33)) == []  # a burst, and what one look may be off
    assert mine(loaded(case, 60, 60)) == []
    seen = loaded(case, 60)
    assert mine(seen) == ["over-compute"] and seen.news == seen.findings
    assert "60 % of the GPU's time over 10 s, ceiling 30 %" in seen.findings[0].evidence
    seen = loaded(case, 60)
    assert mine(seen) == ["over-compute"] and not seen.news
    assert mine(loaded(case, 20, 20, 20)) == []


def test_a_frozen_container_that_goes_on() -> None:
    case = Case(grants=(capped(0, "burst-share", frozen=7),))
    assert mine(loaded(case, 40, 0, 0, 0)) == []  # what was in flight
    assert "though it is frozen" in loaded(case, 50, 50, 50, 50).findings[0].evidence


@pytest.mark.parametrize(("gated", "shared", "found"), [(True, True, 0), (False, False, 0), (False, True, 1)])
def test_who_never_comes_to_the_gate(gated: bool, shared: bool, found: int) -> None:
    one = capped(20, "burst-share")
    case = Case(grants=beside(one) if shared else (one,))
    assert mine(loaded(case, 90, 90, 90, 90, gated=gated)) == ["over-compute"] * found
    assert mine(loaded(case, 30, 30, 30, 30, gated=gated)) == []


# NVML's figures of half a second on an H200 with driver 580 (data/validation/H200-580/nvml.json).
ALLOCATES = (11, 86, 87, 84, 86, 87, 84)
HALF = (38, 66, 50, 33, 50, 99, 66), (1, 33, 50, 66, 50, 99, 33)  # each had 45 %
MOVED = (48, 0, 0, 19, 20, 0, 31, 31)


def test_who_only_allocates_is_reported_without_a_claim_of_proof() -> None:
    """All of it by a process on the account page: nobody is killed for that. Past the shim, it is proved."""
    for on_page in (True, False):
        case = Case(grants=beside(capped(20, "burst-share")))
        seen = loaded(case, *(ALLOCATES * 5), gated=False, every=0.5, on_page=on_page)
        (found,) = (f for f in seen.findings if f.kind == "over-compute")
        assert found.past is not on_page and found.proved
        assert ("NVML counts allocations, copies and memsets as well" in found.evidence) == on_page
        assert ("% by processes that are not on its account page" in found.evidence) != on_page


def test_one_look_without_an_entry_proves_nothing() -> None:
    """The page is read a little later than the driver is asked."""
    case = Case(grants=beside(capped(20, "burst-share")))
    loaded(case, 90, 90, 90, gated=False)
    loaded(case, 90, gated=False, on_page=False)
    (found,) = loaded(case, 90, gated=False).findings
    assert not found.past
    page_unread = NodeLook(case.grants, load(case.now + 5, (101, 90)), {101: process(101)}, {"a": None}, frozenset("a"))
    (found,) = case.auditor.judge(page_unread).findings
    assert not found.past


@pytest.mark.parametrize("figures", HALF)
@pytest.mark.parametrize("every", [0.2, 0.5])
def test_single_figures_of_a_real_driver_find_nobody(figures: tuple[int, ...], every: float) -> None:
    """Its ceiling is what it had, nearly."""
    case = Case(grants=beside(capped(45)))
    for _ in range(20):
        for n in figures:
            assert mine(loaded(case, n, every=every)) == []


def test_the_mean_covers_ten_seconds_whatever_the_interval() -> None:
    for every, looks in ((0.2, 41), (0.5, 17), (2.0, 5), (5.0, 3), (60.0, 3)):
        case = Case(grants=(capped(30),))
        assert mine(loaded(case, *[60] * looks, every=every)) == []
        assert mine(loaded(case, 60, every=every)) == ["over-compute"]
        assert len(case.auditor._loads["a", GPU]) in (looks, looks + 1)  # the oldest are dropped


def test_what_the_driver_needs_for_a_move_is_not_the_containers() -> None:
    case = Case(grants=(capped(30, moving=9),))
    assert mine(loaded(case, *[99] * 40, every=0.5)) == []
    case.grants = {"a": capped(30, suspended=9)}
    assert mine(loaded(case, *MOVED[1:], every=0.5, moved=0)) == []
    assert mine(loaded(case, *[0] * 20, every=0.5, moved=3.5)) == []
    # What it goes on to have, though it is away, is found.
    assert "though it is suspended" in loaded(case, *[40] * 40, every=0.5, moved=14).findings[0].evidence


def test_a_move_between_two_looks_is_known_by_the_ledger() -> None:
    case = Case(grants=(capped(5),))
    loaded(case, 5, 5)
    assert mine(loaded(case, 99, 6, 5, moved=1)) == []
    assert mine(loaded(case, 5, 5, moved=11)) == []


def test_a_gpu_that_was_not_granted() -> None:
    case = Case()
    for _ in range(2):
        seen = case.look({GPU: sample(), OTHER: sample((101, 5 * MIB))}, account(0, 101))
    assert kinds(seen) == [("not-granted", OTHER, 101)]
    assert f"granted: {GPU}" in seen.findings[0].evidence


def test_driver_files_alone_grant_no_gpu() -> None:
    case = Case(grants=(Grant("a", Identity("/", "a", "/"), Life("b"), ()),))
    for _ in range(2):
        seen = case.look({GPU: sample((101, None))}, None)
    assert kinds(seen) == [("not-granted", GPU, 101)]


def test_a_whole_gpu_has_no_limit_and_needs_no_account() -> None:
    case = Case(grants=(grant("a", Share(GPU, 1000, whole=True)),))
    for _ in range(2):
        seen = case.look({GPU: sample((101, 1 << 40))}, None)
    assert not seen.findings


def test_what_is_seen_once_is_no_cheat() -> None:
    """A process that has a context and no slot yet; memory that is freed between the look at NVML and at the account page."""
    case = Case()
    case.look({GPU: sample((101, 50 * MIB))}, account(0))
    assert not case.look({GPU: sample((101, 50 * MIB))}, account(50, 101)).findings
    case.look({GPU: sample((101, 900 * MIB))}, account(900, 101))
    seen = case.look({GPU: sample((101, 900 * MIB))}, account(100, 101))
    assert seen.surcharges == {("a", 0): 0}
    seen = case.look({GPU: sample((101, 100 * MIB))}, account(100, 101))
    assert seen.surcharges == {("a", 0): 0}


def test_a_new_process_is_looked_at_twice_even_if_its_pid_was_suspected() -> None:
    case = Case()
    case.look({GPU: sample((101, MIB))}, account(0))
    again = {101: ("a", TenantProcess(101, 7, "other", 1))}
    seen = case.auditor.judge(NodeLook(case.grants, {GPU: sample((101, MIB))}, again, {"a": account(0)}))
    assert not seen.findings


def test_a_damaged_page_is_a_finding_and_names_the_reason() -> None:
    case = Case()
    for _ in range(2):
        seen = case.look({GPU: sample((101, MIB))}, "it is not a regular file")
    assert kinds(seen) == [("bad-account-page", "", 0), ("no-shim", GPU, 101)]
    assert all("it is not a regular file" in f.evidence for f in seen.findings)


def test_a_gpu_that_cannot_be_looked_at_clears_nobody_and_changes_no_surcharge() -> None:
    case = Case()
    for _ in range(2):
        case.look({GPU: sample((101, 600 * MIB))}, account(0))
    seen = case.look({}, account(0))
    assert kinds(seen) == [("no-shim", GPU, 101)] and not seen.news and not seen.over and not seen.surcharges
    seen = case.look({GPU: sample((101, 600 * MIB))}, account(0))
    assert kinds(seen) == [("no-shim", GPU, 101)] and not seen.news
    assert seen.surcharges == {("a", 0): 600 * MIB}


def test_processes_of_no_container_are_counted_and_left_alone() -> None:
    case = Case()
    for _ in range(2):
        seen = case.look({GPU: sample((101, MIB), (7, 3 * MIB), (8, None))}, account(1, 101))
    assert not seen.findings and seen.unknown == {GPU: (2, 3 * MIB)}


@pytest.mark.parametrize("total", [0, 1 << 34 << 9])
def test_forged_books_end_at_what_the_driver_sees(total: int) -> None:
    """A page that says too little is surcharged, one that says too much charges its own container alone."""
    case = Case()
    for _ in range(2):
        seen = case.look({GPU: sample((101, 2000 * MIB))}, PageFigures((total,), (0,), frozenset()))
    assert ("over-memory", GPU, 0) in kinds(seen)
    assert seen.surcharges["a", 0] == max(0, 2000 * MIB - total)


def test_books_that_we_cannot_read_accuse_and_clear_nobody() -> None:
    case = Case()
    gpus, of, unread = {GPU: sample((101, 600 * MIB))}, {101: process(101)}, frozenset({"a"})
    for _ in range(3):
        assert not case.auditor.judge(NodeLook(case.grants, gpus, of, {"a": None}, unread)).findings
    case.look(gpus, account(0))
    assert kinds(case.look(gpus, account(0))) == [("no-shim", GPU, 101)]
    seen = case.auditor.judge(NodeLook(case.grants, gpus, of, {"a": None}, unread))
    assert kinds(seen) == [("no-shim", GPU, 101)] and not seen.over
    assert case.look(gpus, account(600, 101)).over


def test_what_a_container_was_stopped_for_stands_until_it_ends() -> None:
    case = Case()
    gpus = {GPU: sample((101, 2000 * MIB))}
    for _ in range(2):
        seen = case.look(gpus, account(2000, 101))
    assert kinds(seen) == [("over-memory", GPU, 0)]
    for after in (gpus, {GPU: sample()}, {}):
        held = case.auditor.judge(NodeLook({}, after, {}, {}), stopped=frozenset("a"))
        assert kinds(held) == kinds(seen) and not held.news and not held.over
    ended = case.auditor.judge(NodeLook({}, {GPU: sample()}, {}, {}))
    assert not ended.findings and len(ended.over) == 1


def charged(size: float, *processes: tuple[int, int | None]) -> GpuSample:
    """A sample in which the driver charges so many MiB to the container's cgroup."""
    gpu = sample(*processes)
    return gpu.replace(charged={"a": int(size * MIB)}, used=max(gpu.used, int(size * MIB)))


@pytest.mark.parametrize("over", [0, 1])
def test_the_drivers_figure_of_a_cgroup_counts_what_forked_children_hold(over: int) -> None:
    """NVML lists nothing, and the account page has nothing."""
    case = Case()
    for look in (1, 2):
        seen = case.look({GPU: charged(1010 + over)}, account(0), members=())
        assert kinds(seen) == ([("over-memory", GPU, 0)] if over and look == 2 else [])
    assert seen.surcharges["a", 0] == (1010 + over) * MIB
    if over:
        assert "1011 MiB by the driver's figure for its cgroup" in seen.findings[0].evidence


def test_what_the_account_page_has_is_not_charged_again() -> None:
    kept = PageFigures((900 * MIB,), (0,), account(0, 101).owners, {(7, 7): (800 * MIB,)}, (800 * MIB,))
    case = Case()
    for more in (0, 10, 10):
        seen = case.look({GPU: charged(900 + more, (101, 100 * MIB))}, kept)
        assert not seen.findings and seen.surcharges["a", 0] == 0


def test_memory_that_is_charged_to_another_cgroup_is_reported() -> None:
    case = Case()
    for look in (1, 2):
        seen = case.look({GPU: charged(100, (101, 111 * MIB))}, account(111, 101))
        assert kinds(seen) == ([("charged-elsewhere", GPU, 0)] if look == 2 else [])
    assert "charged-elsewhere" in REPORTED
    assert not case.look({GPU: charged(100, (101, 110 * MIB))}, account(111, 101)).findings


def test_process_records_without_processes() -> None:
    """Twice in a row, and never where NVML lists nobody: it may not tell processes on that GPU."""
    assert "forged-records" in REPORTED
    case = Case(grants=(grant("a"), grant("b")))
    busy = {GPU: sample((101, 0), (102, 0))}
    processes = {101: process(101), 102: process(102, "b")}

    def look(working: int, gpus: dict[str, GpuSample] = busy) -> list[str]:
        said = {("a", GPU): working, ("b", GPU): 1}
        verdict = case.auditor.judge(NodeLook(case.grants, gpus, processes, {}, working=said))
        return [f"{f.key} {f.evidence}" for f in verdict.findings if f.kind == "forged-records"]

    assert not look(1) and not look(1)
    assert not look(3)
    assert look(3) == ["a 3 process records in its slot file show work in flight, NVML lists 1 of its processes"]
    assert not look(1)
    assert not look(112, {GPU: sample()}) and not look(112, {GPU: sample()})
