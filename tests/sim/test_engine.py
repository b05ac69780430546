"""The simulated card's time: the engine as a pure function of memory, in virtual time. Nothing here measures."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.sim import driver_root

SIM = Path(driver_root.__file__).parent
SLICE, LOADED, IDLE = 1_000_000, 100_000, 20_000
MS = 1_000_000
KERNEL, TO, FROM, MARK, AFTER, WAIT, WRITE, SPIN = range(8)
WHOLE = 100  # SMs of the card


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """engine.c and a harness, with their functions visible."""
    out = tmp_path_factory.mktemp("engine") / "engine.so"
    cc = [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O1", "-g", "-shared", "-fPIC", "-pthread"]
    harness = Path(__file__).with_name("engine_harness.c")
    subprocess.run([*cc, f"-I{SIM}", "-o", str(out), str(SIM / "engine.c"), str(harness)], check=True)
    library = ctypes.CDLL(str(out))
    library.bench_new.restype = ctypes.c_void_p
    for name in ("bench_submit", "bench_head", "bench_mark", "bench_busy", "bench_served", "bench_foresee"):
        getattr(library, name).restype = ctypes.c_uint64
    return library


class Card:
    """16 contexts with two channels each; channel 2N is the first of context N. Each work is followed by a mark."""

    def __init__(self, engine: ctypes.CDLL) -> None:
        self.engine = engine
        self.bench = ctypes.c_void_p(engine.bench_new(*map(ctypes.c_uint64, (SLICE, LOADED, IDLE))))
        self.marks: dict[int, list[int]] = {}

    def close(self) -> None:
        self.engine.bench_free(self.bench)

    def raw(
        self, queue: int, at: int, kind: int, duration: int = 0, width: int = WHOLE, other: int = 0, seq: int = 0
    ) -> int:
        u64, u32 = ctypes.c_uint64, ctypes.c_uint32
        args = (u64(at), u32(kind), u64(duration), u32(width), u32(other), u64(seq))
        return int(self.engine.bench_submit(self.bench, queue, *args))

    def submit(self, queue: int, at: int, duration: int, kind: int = KERNEL, width: int = WHOLE) -> int:
        seq = self.raw(queue, at, kind, duration, width)
        self.marks.setdefault(queue, []).append(self.raw(queue, at, MARK))
        return seq

    def advance(self, now: int) -> None:
        self.engine.bench_advance(self.bench, ctypes.c_uint64(now))

    def foresee(self, queue: int, seq: int, end: int) -> int:
        """When this work will be done, by what is known now."""
        return int(self.engine.bench_foresee(self.bench, ctypes.c_uint64(end), queue, ctypes.c_uint64(seq)))

    def done(self, queue: int) -> list[int]:
        head = int(self.engine.bench_head(self.bench, queue))
        passed = [seq for seq in self.marks.get(queue, []) if seq < head]
        return [int(self.engine.bench_mark(self.bench, queue, ctypes.c_uint64(seq))) for seq in passed]

    def busy(self) -> int:
        return int(self.engine.bench_busy(self.bench))

    def served(self, context: int) -> int:
        return int(self.engine.bench_served(self.bench, context))


@pytest.fixture
def card(engine: ctypes.CDLL) -> Iterator[Card]:
    made = Card(engine)
    yield made
    made.close()


def test_alone_work_runs_in_order_and_back_to_back(card: Card) -> None:
    for duration in (5 * MS, 0, 2 * MS):
        card.submit(6, 10, duration)
    card.advance(100 * MS)
    assert card.done(6) == [10 + 5 * MS, 10 + 5 * MS, 10 + 7 * MS]
    assert card.busy() == card.served(3) == 7 * MS


def test_a_mark_is_foreseen_with_the_kernel_before_it(card: Card) -> None:
    """Who waits for it does not sleep until something else happens."""
    seq = card.submit(0, 0, MS // 2)
    assert card.foresee(0, seq, 100 * MS) == card.foresee(0, seq + 1, 100 * MS) == MS // 2
    card.advance(100 * MS)
    assert card.done(0) == [MS // 2]


def test_idle_card_does_nothing_until_work_comes(card: Card) -> None:
    card.advance(MS)
    card.submit(0, 5 * MS, MS)
    card.advance(4 * MS)
    assert card.done(0) == []
    card.advance(6 * MS)
    assert card.done(0) == [6 * MS]


def test_two_contexts_take_turns_and_pay_for_the_change(card: Card) -> None:
    card.submit(0, 0, 10 * MS)
    card.submit(2, 0, 10 * MS)
    card.advance(100 * MS)
    # 20 slices with a change between each two; context 0 has the 1st, 3rd, ... 19th; it ends, and is left idle.
    assert card.done(0) == [19 * SLICE + 18 * LOADED]
    assert card.done(2) == [20 * SLICE + 18 * LOADED + IDLE]


def test_a_container_of_three_processes_has_three_turns(card: Card) -> None:
    """The card knows contexts, not containers."""
    for queue in (0, 2, 4, 6):
        card.submit(queue, 0, 100 * MS)
    card.advance(44 * MS)
    assert [card.served(context) for context in range(4)] == [10 * MS] * 4


def test_a_short_work_beside_a_long_one_waits_for_its_turn_only(card: Card) -> None:
    card.submit(0, 0, 50 * MS)
    card.submit(2, 3 * MS + 200_000, 50_000)
    card.advance(100 * MS)
    assert card.done(2) == [4 * MS + LOADED + 50_000]
    assert card.done(0) == [50 * MS + 50_000 + LOADED + IDLE]


def test_time_of_an_idle_context_goes_to_the_other(card: Card) -> None:
    for _ in range(100):
        card.submit(0, 0, MS // 2)
    card.submit(2, 0, MS // 2)
    card.advance(1000 * MS)
    assert card.done(0)[-1] == 50 * MS + MS // 2 + LOADED + IDLE


def test_copies_hold_no_slice_and_each_direction_has_its_engine(card: Card) -> None:
    card.submit(0, 0, 4 * MS)
    for queue, kind in ((2, TO), (4, FROM), (6, TO)):
        card.submit(queue, 0, 3 * MS, kind)
    card.advance(100 * MS)
    assert [card.done(q) for q in (0, 2, 4, 6)] == [[4 * MS], [3 * MS], [3 * MS], [6 * MS]]
    assert card.busy() == 4 * MS


@pytest.mark.parametrize(("widths", "ends"), [((40, 60), [5, 5]), ((40, 61), [5, 10]), ((1, WHOLE), [5, 10])])
def test_kernels_of_one_context_overlap_when_both_are_small(
    card: Card, widths: tuple[int, int], ends: list[int]
) -> None:
    for queue, width in enumerate(widths):
        card.submit(queue, 0, 5 * MS, width=width)
    card.advance(100 * MS)
    assert [card.done(queue)[0] // MS for queue in (0, 1)] == ends
    assert card.busy() == max(ends) * MS


def test_work_after_other_work_of_another_channel(card: Card) -> None:
    first = card.submit(0, 0, 5 * MS)
    card.raw(2, 0, AFTER, other=0, seq=first)
    card.submit(2, 0, 1 * MS)
    card.raw(4, 0, AFTER, other=0, seq=first + 1000)  # never submitted: nothing to wait for
    card.submit(4, 0, 1 * MS, TO)
    card.advance(100 * MS)
    assert card.done(2) == [5 * MS + IDLE + MS]
    assert card.done(4) == [1 * MS]


def test_a_wait_holds_its_channel_only_and_no_slice(card: Card) -> None:
    wait = card.raw(0, 0, WAIT)
    card.submit(0, 0, MS)
    card.submit(2, 0, 20 * MS)
    card.advance(10 * MS)
    assert card.done(0) == [] and card.served(1) == 10 * MS
    card.engine.bench_met(card.bench, 0, ctypes.c_uint64(wait), ctypes.c_uint64(12 * MS + MS // 2))
    card.advance(100 * MS)
    assert card.done(0) == [13 * MS + LOADED + MS]


def test_a_spinning_kernel_holds_its_slices_until_the_value_is_seen(card: Card) -> None:
    spin = card.submit(0, 0, 0, SPIN)
    card.submit(2, 0, 5 * MS)
    card.advance(20 * MS)
    assert card.done(0) == [] and card.done(2) == [10 * MS + 9 * LOADED]
    card.engine.bench_met(card.bench, 0, ctypes.c_uint64(spin), ctypes.c_uint64(30 * MS))
    card.advance(100 * MS)
    assert card.done(0) == [30 * MS]


def test_controls_of_channel_groups(card: Card) -> None:
    group = ctypes.cast(card.engine.bench_group, ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int))
    card.submit(0, 0, 300 * MS)
    card.submit(2, 0, 300 * MS)
    ctypes.c_uint64.from_address(group(card.bench, 0) + 8).value = 4 * SLICE
    card.advance(10 * (5 * MS + 2 * LOADED))
    assert (card.served(0), card.served(1)) == (40 * MS, 10 * MS)
    ctypes.c_uint32.from_address(group(card.bench, 0) + 4).value = 1
    card.advance(100 * (MS))
    assert card.served(0) == 40 * MS
    assert card.served(1) >= 57 * MS


def test_work_of_the_dead_is_void(card: Card) -> None:
    card.submit(0, 0, 500 * MS)
    card.submit(2, 0, 500 * MS)
    card.advance(10 * MS)
    card.engine.bench_void(card.bench, 0)
    before = card.served(1)
    card.advance(20 * MS)
    assert card.served(1) - before >= 9 * MS


works = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 30 * MS), st.integers(0, 4 * MS), st.sampled_from((1, 50, 100))),
    min_size=1,
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(submitted=works, looks=st.lists(st.integers(0, 200 * MS), max_size=6))
def test_nothing_is_lost_and_looking_changes_nothing(
    engine: ctypes.CDLL, submitted: list[tuple[int, int, int, int]], looks: list[int]
) -> None:
    """All work is done, in order per channel; and when somebody looks makes no difference."""
    submitted = sorted(submitted, key=lambda work: work[1])
    once, often = Card(engine), Card(engine)
    for one in (once, often):
        for queue, at, duration, width in submitted:
            one.submit(queue, at, duration, width=width)
    for now in sorted(looks):
        often.advance(now)
    for one in (once, often):
        one.advance(1000 * MS)
    total = sum(duration for _, _, duration, _ in submitted)
    longest = sum(d for _, _, d, width in submitted if width == WHOLE)
    assert longest <= once.busy() <= total
    for queue in range(10):
        own = [(at, duration) for q, at, duration, _ in submitted if q == queue]
        done = once.done(queue)
        assert len(done) == len(own) and done == sorted(done)
        assert often.done(queue) == done
        for (at, duration), end in zip(own, done, strict=True):
            assert end >= at + duration
    once.close()
    often.close()


@settings(max_examples=25, deadline=None)
@given(contexts=st.integers(2, 6), kernel=st.integers(10_000, 5 * MS))
def test_saturated_contexts_get_equal_time(engine: ctypes.CDLL, contexts: int, kernel: int) -> None:
    card = Card(engine)
    for context in range(contexts):
        for _ in range(min(500, 200 * MS // kernel)):
            card.submit(2 * context, 0, kernel)
    horizon = min(5 * contexts * MS, 500 * kernel)
    card.advance(horizon)
    served = [card.served(context) for context in range(contexts)]
    assert max(served) - min(served) <= SLICE
    assert card.busy() == sum(served) <= horizon
    card.close()


def test_head_and_sizes_are_those_of_the_c_headers(tmp_path: Path) -> None:
    source = tmp_path / "sizes.c"
    source.write_text(
        f"""#include <stdio.h>
#include "{SIM / "card.h"}"
int main(void) {{
    printf("%zu %llx %u", sizeof(struct card_file), (unsigned long long)(CARD_MAGIC), CARD_VERSION);
    printf(" %zu %zu %zu %zu", offsetof(struct card_head, memory_total), offsetof(struct card_head, minor),
           offsetof(struct card_head, slice_ns), offsetof(struct card_head, kernel_ns));
    printf(" %zu %d %zu", offsetof(struct card_head, fail_every), CARD_SLOTS, sizeof(struct card_slot));
    printf(" %d %zu", CARD_QUEUES, sizeof(struct card_queue));
}}
"""
    )
    cc = [sys.executable, "-m", "ziglang", "cc", "-o", str(tmp_path / "sizes"), str(source)]
    subprocess.run(cc, check=True)
    said = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout.split()
    here = [driver_root.FILE_SIZE, f"{driver_root.MAGIC:x}", driver_root.FORMAT, 224, 240, 264, 280]
    assert driver_root.FAULTS["fail_every"] == driver_root.HEAD.size
    sizes = (
        *here,
        driver_root.HEAD.size,
        driver_root.SLOTS,
        driver_root.SLOT_SIZE,
        driver_root.QUEUES,
        driver_root.QUEUE_SIZE,
    )
    assert said == [str(value) for value in sizes]
