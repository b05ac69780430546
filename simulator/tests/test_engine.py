"""The simulated GPU's time: the engine alone, on private memory and in virtual time."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_hook_simulator import driver_root
from testbed.compiled import ZIG
from testbed.long import draws

SIM = Path(__file__).resolve().parents[1] / "driver"
SLICE, LOADED, IDLE = 1_000_000, 100_000, 20_000
MS = 1_000_000
KERNEL, TO, FROM, MARK, AFTER, WAIT, WRITE, SPIN = range(8)
WHOLE = 100  # SMs of the GPU


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """engine.c and a harness, with their functions visible."""
    out = tmp_path_factory.mktemp("engine") / "engine.so"
    cc = [*ZIG, "-std=c11", "-shared", "-fPIC", "-pthread"]
    harness = Path(__file__).with_name("engine_harness.c")
    subprocess.run([*cc, f"-I{SIM}", "-o", str(out), str(SIM / "engine.c"), str(harness)], check=True)
    library = ctypes.CDLL(str(out))
    library.bench_new.restype = ctypes.c_void_p
    for name in ("bench_submit", "bench_head", "bench_mark", "bench_busy", "bench_served", "bench_foresee"):
        getattr(library, name).restype = ctypes.c_uint64
    return library


class Gpu:
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
        """When this work will be done if nothing else is submitted."""
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
def gpu(engine: ctypes.CDLL) -> Iterator[Gpu]:
    made = Gpu(engine)
    yield made
    made.close()


def test_alone_work_runs_in_order_and_back_to_back(gpu: Gpu) -> None:
    for duration in (5 * MS, 0, 2 * MS):
        gpu.submit(6, 10, duration)
    gpu.advance(100 * MS)
    assert gpu.done(6) == [10 + 5 * MS, 10 + 5 * MS, 10 + 7 * MS]
    assert gpu.busy() == gpu.served(3) == 7 * MS


def test_a_mark_is_foreseen_with_the_kernel_before_it(gpu: Gpu) -> None:
    """A process that waits for the mark does not sleep until something else happens."""
    seq = gpu.submit(0, 0, MS // 2)
    assert gpu.foresee(0, seq, 100 * MS) == gpu.foresee(0, seq + 1, 100 * MS) == MS // 2
    gpu.advance(100 * MS)
    assert gpu.done(0) == [MS // 2]


def test_idle_gpu_does_nothing_until_work_comes(gpu: Gpu) -> None:
    gpu.advance(MS)
    gpu.submit(0, 5 * MS, MS)
    gpu.advance(4 * MS)
    assert gpu.done(0) == []
    gpu.advance(6 * MS)
    assert gpu.done(0) == [6 * MS]


def test_two_contexts_take_turns_and_pay_for_the_change(gpu: Gpu) -> None:
    gpu.submit(0, 0, 10 * MS)
    gpu.submit(2, 0, 10 * MS)
    gpu.advance(100 * MS)
    # 20 slices with a switch between each two. Context 0 has the 1st, 3rd ... 19th, and no work left after that.
    assert gpu.done(0) == [19 * SLICE + 18 * LOADED]
    assert gpu.done(2) == [20 * SLICE + 18 * LOADED + IDLE]


def test_a_container_of_three_processes_has_three_turns(gpu: Gpu) -> None:
    """Time slices go to contexts, not to containers."""
    for queue in (0, 2, 4, 6):
        gpu.submit(queue, 0, 100 * MS)
    gpu.advance(44 * MS)
    assert [gpu.served(context) for context in range(4)] == [10 * MS] * 4


def test_a_short_work_beside_a_long_one_waits_for_its_turn_only(gpu: Gpu) -> None:
    gpu.submit(0, 0, 50 * MS)
    gpu.submit(2, 3 * MS + 200_000, 50_000)
    gpu.advance(100 * MS)
    assert gpu.done(2) == [4 * MS + LOADED + 50_000]
    assert gpu.done(0) == [50 * MS + 50_000 + LOADED + IDLE]


def test_time_of_an_idle_context_goes_to_the_other(gpu: Gpu) -> None:
    for _ in range(100):
        gpu.submit(0, 0, MS // 2)
    gpu.submit(2, 0, MS // 2)
    gpu.advance(1000 * MS)
    assert gpu.done(0)[-1] == 50 * MS + MS // 2 + LOADED + IDLE


def test_copies_hold_no_slice_and_each_direction_has_its_engine(gpu: Gpu) -> None:
    gpu.submit(0, 0, 4 * MS)
    for queue, kind in ((2, TO), (4, FROM), (6, TO)):
        gpu.submit(queue, 0, 3 * MS, kind)
    gpu.advance(100 * MS)
    assert [gpu.done(q) for q in (0, 2, 4, 6)] == [[4 * MS], [3 * MS], [3 * MS], [6 * MS]]
    assert gpu.busy() == 4 * MS


@pytest.mark.parametrize(("widths", "ends"), [((40, 60), [5, 5]), ((40, 61), [5, 10]), ((1, WHOLE), [5, 10])])
def test_kernels_of_one_context_overlap_when_both_are_small(gpu: Gpu, widths: tuple[int, int], ends: list[int]) -> None:
    for queue, width in enumerate(widths):
        gpu.submit(queue, 0, 5 * MS, width=width)
    gpu.advance(100 * MS)
    assert [gpu.done(queue)[0] // MS for queue in (0, 1)] == ends
    assert gpu.busy() == max(ends) * MS


def test_work_after_other_work_of_another_channel(gpu: Gpu) -> None:
    first = gpu.submit(0, 0, 5 * MS)
    gpu.raw(2, 0, AFTER, other=0, seq=first)
    gpu.submit(2, 0, 1 * MS)
    gpu.raw(4, 0, AFTER, other=0, seq=first + 1000)  # never submitted: nothing to wait for
    gpu.submit(4, 0, 1 * MS, TO)
    gpu.advance(100 * MS)
    assert gpu.done(2) == [5 * MS + IDLE + MS]
    assert gpu.done(4) == [1 * MS]


def test_a_wait_holds_its_channel_only_and_no_slice(gpu: Gpu) -> None:
    wait = gpu.raw(0, 0, WAIT)
    gpu.submit(0, 0, MS)
    gpu.submit(2, 0, 20 * MS)
    gpu.advance(10 * MS)
    assert gpu.done(0) == [] and gpu.served(1) == 10 * MS
    gpu.engine.bench_met(gpu.bench, 0, ctypes.c_uint64(wait), ctypes.c_uint64(12 * MS + MS // 2))
    gpu.advance(100 * MS)
    assert gpu.done(0) == [13 * MS + LOADED + MS]


def test_a_spinning_kernel_holds_its_slices_until_the_value_is_seen(gpu: Gpu) -> None:
    spin = gpu.submit(0, 0, 0, SPIN)
    gpu.submit(2, 0, 5 * MS)
    gpu.advance(20 * MS)
    assert gpu.done(0) == [] and gpu.done(2) == [10 * MS + 9 * LOADED]
    gpu.engine.bench_met(gpu.bench, 0, ctypes.c_uint64(spin), ctypes.c_uint64(30 * MS))
    gpu.advance(100 * MS)
    assert gpu.done(0) == [30 * MS]


def test_work_of_the_dead_is_void(gpu: Gpu) -> None:
    gpu.submit(0, 0, 500 * MS)
    gpu.submit(2, 0, 500 * MS)
    gpu.advance(10 * MS)
    gpu.engine.bench_void(gpu.bench, 0)
    before = gpu.served(1)
    gpu.advance(20 * MS)
    assert gpu.served(1) - before >= 9 * MS


works = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 30 * MS), st.integers(0, 4 * MS), st.sampled_from((1, 50, 100))),
    min_size=1,
    max_size=40,
)


@settings(max_examples=draws(80), deadline=None)
@given(submitted=works, looks=st.lists(st.integers(0, 200 * MS), max_size=6))
def test_nothing_is_lost_and_looking_changes_nothing(
    engine: ctypes.CDLL, submitted: list[tuple[int, int, int, int]], looks: list[int]
) -> None:
    """All work is done, in order per channel, and it makes no difference when a process looks."""
    submitted = sorted(submitted, key=lambda work: work[1])
    once, often = Gpu(engine), Gpu(engine)
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


@settings(max_examples=draws(25), deadline=None)
@given(contexts=st.integers(2, 6), kernel=st.integers(10_000, 5 * MS))
def test_saturated_contexts_get_equal_time(engine: ctypes.CDLL, contexts: int, kernel: int) -> None:
    gpu = Gpu(engine)
    for context in range(contexts):
        for _ in range(min(500, 200 * MS // kernel)):
            gpu.submit(2 * context, 0, kernel)
    horizon = min(5 * contexts * MS, 500 * kernel)
    gpu.advance(horizon)
    served = [gpu.served(context) for context in range(contexts)]
    assert max(served) - min(served) <= SLICE
    assert gpu.busy() == sum(served) <= horizon
    gpu.close()


def test_head_and_sizes_are_those_of_the_c_headers(tmp_path: Path) -> None:
    source = tmp_path / "sizes.c"
    source.write_text(
        f"""#include <stdio.h>
#include "{SIM / "gpu.h"}"
int main(void) {{
    printf("%zu %llx %u", sizeof(struct gpu_file), (unsigned long long)(GPU_MAGIC), GPU_VERSION);
    printf(" %zu %zu %zu %zu", offsetof(struct gpu_head, memory_total), offsetof(struct gpu_head, minor),
           offsetof(struct gpu_head, slice_ns), offsetof(struct gpu_head, kernel_ns));
    printf(" %zu %d %zu", offsetof(struct gpu_head, fail_every), GPU_SLOTS, sizeof(struct gpu_slot));
    printf(" %d %zu", GPU_QUEUES, sizeof(struct gpu_queue));
}}
"""
    )
    cc = [*ZIG, "-o", str(tmp_path / "sizes"), str(source)]
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
