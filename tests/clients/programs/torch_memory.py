"""torch: one of its allocators, chosen by the environment. Memory to the limit and beyond, and what is said of it."""

import gc
import threading

import torch
from torch_steps import MIB, REFUSED, fill, free_and_total, outcome, refused, release, said, tensor, told

SEGMENTS = "segment.all.current"


def properties() -> list[str]:
    shown = torch.cuda.get_device_properties(0)
    names = [n for n in dir(shown) if not n.startswith("_") and n not in ("total_memory", "uuid", "name")]
    return [f"{name}={getattr(shown, name)}" for name in names]


def one_tensor() -> None:
    torch.cuda.reset_peak_memory_stats()
    before, free = torch.cuda.memory_allocated(), free_and_total()[0]
    held = tensor(100)
    said("100 MiB: allocated by them", (torch.cuda.memory_allocated() - before) / MIB)
    said("100 MiB: taken from the GPU", free - free_and_total()[0])
    del held
    said("100 MiB: still reserved when they are gone", torch.cuda.memory_reserved() / MIB)
    release()
    said("100 MiB: free MiB afterwards", free_and_total())


def to_the_limit() -> None:
    held, text = fill(32)
    said("tensors of 32 MiB until refused", len(held))
    said("free and total MiB then", free_and_total())
    told("refusal", text)
    outcome("a kernel after the refusal", lambda: (held[0].add_(1), torch.cuda.synchronize())[1])
    refused("another refusal", lambda: tensor(64))
    said("refusals counted", torch.cuda.memory_stats().get("num_ooms"))
    held.clear()
    release()
    said("free and total MiB when all is free", free_and_total())


def largest() -> int:
    """The largest single tensor, in MiB of 2."""
    low, high = 0, 16384
    while low < high:
        middle = (low + high + 1) // 2
        try:
            tensor(2 * middle)
            low = middle
        except REFUSED:
            high = middle - 1
        release()
    return 2 * low


def half() -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    held, text = fill(32)
    said("half of it: tensors of 32 MiB", len(held))
    told("half of it", text)
    held.clear()
    release()
    torch.cuda.set_per_process_memory_fraction(1.0)


def threads() -> None:
    """Four threads, each with a stream of its own, until each was refused."""
    counts = [0] * 4
    everything: list[list[torch.Tensor]] = [[] for _ in counts]

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            everything[i], _ = fill(16)
            counts[i] = len(everything[i])

    running = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    said("four threads: tensors of 16 MiB together", sum(counts))
    everything.clear()
    release()
    said("four threads: free and total MiB when all is free", free_and_total())


def shrink() -> None:
    """A cache that must be emptied to serve: pieces of one size freed, then another size asked for."""
    held, _ = fill(32)
    count = len(held)
    del held[::2]
    big = outcome("a tensor of 64 MiB in place of freed ones of 32", lambda: tensor(64)) if count > 2 else None
    del big, held
    gc.collect()
    release()


def copies() -> None:
    data = torch.arange(1 << 20, dtype=torch.int32)
    pinned = data.pin_memory()
    said("pinned", [pinned.is_pinned(), data.is_pinned()])
    for name, source in (("pageable", data), ("pinned", pinned)):
        there = source.to("cuda", non_blocking=True)
        back = torch.empty_like(data)
        back.copy_(there)
        said(f"{name} memory to the GPU and back", bool((back == data).all()))
    there = data.to("cuda")
    second = there.clone()
    said("copy within the GPU", bool((second.cpu() == data).all()))
    zero = torch.zeros(4096, dtype=torch.uint8, device="cuda")
    said("zeros", int(zero.cpu().sum()))


def streams() -> None:
    said("priorities", list(torch.cuda.Stream.priority_range()))
    a, b = torch.cuda.Stream(priority=-1), torch.cuda.Stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(a):
        begin.record()
        x = tensor(1)
        for _ in range(20):
            x.add_(1)
        end.record()
    b.wait_event(end)
    b.synchronize()
    said("time between events is positive", begin.elapsed_time(end) > 0)
    said("query after synchronize", [a.query(), end.query()])


def main() -> None:
    said("backend", torch.cuda.get_allocator_backend())
    said("available", [torch.cuda.is_available(), torch.cuda.device_count()])
    torch.cuda.init()
    said("name", torch.cuda.get_device_name())
    said("properties", properties())
    said("capacity in MiB", torch.cuda.get_device_properties(0).total_memory // MIB)
    torch.cuda.synchronize()
    said("free and total MiB at first", free_and_total())
    outcome("memory in use by NVML", lambda: torch.cuda.device_memory_used() // MIB)
    one_tensor()
    to_the_limit()
    outcome("largest tensor in MiB", largest)
    refused("a tensor larger than any GPU", lambda: tensor(1 << 20))
    outcome("half", half)
    outcome("a full cache", shrink)
    outcome("threads", threads)
    outcome("copies", copies)
    outcome("streams", streams)
    outcome("segments at the end", lambda: torch.cuda.memory_stats().get(SEGMENTS))


main()
