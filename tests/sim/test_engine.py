"""The simulated card's time: the engine as a pure function of its file, in virtual time. Nothing here measures."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.sim import driver_root

SIM = Path(driver_root.__file__).parent
SLOTS, RING, SLOT_SIZE = 256, 1024, 33232
SLICE, SWITCH = 1_000_000, 100_000
MS = 1_000_000
HEAD_PAGE = 4096
TAIL, HEAD = 8, 16  # in a slot
WORKS = SLOT_SIZE - RING * 32


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """card.c alone, with its functions visible."""
    out = tmp_path_factory.mktemp("engine") / "engine.so"
    cc = [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O1", "-g", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*cc, "-o", str(out), str(SIM / "card.c")], check=True)
    return ctypes.CDLL(str(out))


class Card:
    """A card file in memory; work is submitted for a slot at a time, and done times read back."""

    def __init__(self, engine: ctypes.CDLL, path: Path) -> None:
        driver_root.make_card(path, 0, 1024)
        self.engine = engine
        self.data = ctypes.create_string_buffer(path.read_bytes(), driver_root.FILE_SIZE)
        self.u64 = lambda at: ctypes.c_uint64.from_buffer(self.data, at)
        self.u64(264).value = SLICE
        self.u64(272).value = SWITCH
        ctypes.c_int32.from_buffer(self.data, 512 + 24).value = -1
        ctypes.c_uint32.from_buffer(self.data, 512 + 28).value = 8

    def submit(self, slot: int, at: int, duration: int) -> int:
        base = HEAD_PAGE + slot * SLOT_SIZE
        seq = self.u64(base + TAIL).value
        work = base + WORKS + seq % RING * 32
        self.u64(work).value = at
        self.u64(work + 8).value = duration
        self.u64(base + TAIL).value = seq + 1
        return seq

    def advance(self, now: int) -> None:
        self.engine.card_advance(self.data, ctypes.c_uint64(now))

    def done(self, slot: int) -> list[int]:
        base = HEAD_PAGE + slot * SLOT_SIZE
        return [self.u64(base + WORKS + seq % RING * 32 + 16).value for seq in range(self.u64(base + HEAD).value)]

    def busy(self) -> int:
        return self.u64(512 + 32).value


@pytest.fixture
def card(engine: ctypes.CDLL, tmp_path: Path) -> Card:
    return Card(engine, tmp_path / "0")


def test_alone_work_runs_in_order_and_back_to_back(card: Card) -> None:
    for duration in (5 * MS, 0, 2 * MS):
        card.submit(3, 10, duration)
    card.advance(100 * MS)
    assert card.done(3) == [10 + 5 * MS, 10 + 5 * MS, 10 + 7 * MS]
    assert card.busy() == 7 * MS


def test_idle_card_does_nothing_until_work_comes(card: Card) -> None:
    card.advance(MS)
    card.submit(0, 5 * MS, MS)
    card.advance(4 * MS)
    assert card.done(0) == []
    card.advance(6 * MS)
    assert card.done(0) == [6 * MS]


def test_two_contexts_take_turns_and_pay_for_the_change(card: Card) -> None:
    card.submit(0, 0, 10 * MS)
    card.submit(1, 0, 10 * MS)
    card.advance(100 * MS)
    # 20 slices with a change between each two; context 0 has the 1st, 3rd, ... 19th.
    assert card.done(0) == [19 * SLICE + 18 * SWITCH]
    assert card.done(1) == [20 * SLICE + 19 * SWITCH]


def test_a_short_work_beside_a_long_one_waits_for_its_turn_only(card: Card) -> None:
    card.submit(0, 0, 50 * MS)
    card.submit(1, 3 * MS + 200_000, 50_000)
    card.advance(100 * MS)
    assert card.done(1) == [4 * MS + SWITCH + 50_000]
    assert card.done(0) == [50 * MS + 50_000 + 2 * SWITCH]


def test_time_of_an_idle_context_goes_to_the_other(card: Card) -> None:
    for _ in range(100):
        card.submit(0, 0, MS // 2)
    card.submit(1, 0, MS // 2)
    card.advance(1000 * MS)
    assert card.done(0)[-1] == 50 * MS + MS // 2 + 2 * SWITCH


works = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30 * MS), st.integers(0, 4 * MS)), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None)
@given(submitted=works, looks=st.lists(st.integers(0, 200 * MS), max_size=6))
def test_nothing_is_lost_and_looking_changes_nothing(
    engine: ctypes.CDLL,
    tmp_path_factory: pytest.TempPathFactory,
    submitted: list[tuple[int, int, int]],
    looks: list[int],
) -> None:
    """All work is done, in order per context, never two at once; and when somebody looks makes no difference."""
    submitted = sorted(submitted, key=lambda work: work[1])
    place = tmp_path_factory.mktemp("card")
    once, often = Card(engine, place / "0"), Card(engine, place / "1")
    for one in (once, often):
        for slot, at, duration in submitted:
            one.submit(slot, at, duration)
    for now in sorted(looks):
        often.advance(now)
    for one in (once, often):
        one.advance(1000 * MS)
    total = sum(duration for _, _, duration in submitted)
    assert once.busy() == total
    for slot in range(5):
        own = [(at, duration) for s, at, duration in submitted if s == slot]
        done = once.done(slot)
        assert len(done) == len(own) and done == sorted(done)
        assert often.done(slot) == done
        for (at, duration), end in zip(own, done, strict=True):
            assert end >= at + duration


@settings(max_examples=25, deadline=None)
@given(contexts=st.integers(2, 6), kernel=st.integers(10_000, 5 * MS))
def test_saturated_contexts_get_equal_time(
    engine: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory, contexts: int, kernel: int
) -> None:
    card = Card(engine, tmp_path_factory.mktemp("card") / "0")
    for slot in range(contexts):
        for _ in range(min(RING, 200 * MS // kernel)):
            card.submit(slot, 0, kernel)
    horizon = 5 * contexts * MS
    card.advance(horizon)
    done = [len(card.done(slot)) * kernel for slot in range(contexts)]
    assert max(done) - min(done) <= SLICE + kernel
    assert card.busy() <= horizon


def test_head_and_sizes_are_those_of_the_c_headers(tmp_path: Path) -> None:
    source = tmp_path / "sizes.c"
    source.write_text(
        f"""#include <stdio.h>
#include "{SIM / "card.h"}"
int main(void) {{
    printf("%zu %zu %zu %llx %u", sizeof(struct card_file), sizeof(struct card_slot),
           offsetof(struct card_slot, ring), (unsigned long long)(CARD_MAGIC), CARD_VERSION);
    printf(" %zu %zu %zu %zu", offsetof(struct card_head, memory_total), offsetof(struct card_head, minor),
           offsetof(struct card_head, slice_ns), offsetof(struct card_head, kernel_ns));
}}
"""
    )
    cc = [sys.executable, "-m", "ziglang", "cc", "-o", str(tmp_path / "sizes"), str(source)]
    subprocess.run(cc, check=True)
    said = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout.split()
    here = [driver_root.FILE_SIZE, SLOT_SIZE, WORKS, f"{driver_root.MAGIC:x}", driver_root.FORMAT, 224, 240, 264, 280]
    assert said == [str(value) for value in here]
    assert driver_root.HEAD.size == 336
