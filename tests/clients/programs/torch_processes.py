"""torch: processes that share tensors and events by IPC, and a data loader's workers with pinned memory."""

import os
import sys
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
from torch_steps import MIB, fill, free_and_total, outcome, release, said, tensor

WAIT = 120  # seconds


def child(tasks: Any, answers: Any) -> None:
    x, event = tasks.get(timeout=WAIT)
    said_free = free_and_total()
    event.synchronize() if event else None
    answers.put(("sum", int(x.sum(dtype=torch.int64).cpu()) if x.device.type == "cpu" else int(x.cpu().sum())))
    answers.put(("free", said_free))
    x.copy_(torch.full(x.shape, 7, dtype=x.dtype))
    torch.cuda.synchronize()
    answers.put(("written", True))
    tasks.get(timeout=WAIT)  # the parent has looked
    held, _ = fill(32)
    answers.put(("tensors of 32 MiB", len(held)))
    del held, x
    tasks.get(timeout=WAIT)


def shared(with_event: bool) -> None:
    name = "with an event" if with_event else "tensor"
    context = mp.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    x = torch.arange(1 << 20, dtype=torch.int32).cuda()
    pad = tensor(100)
    event = torch.cuda.Event(interprocess=True) if with_event else None
    if event:
        event.record()
    process = context.Process(target=child, args=(tasks, answers))
    process.start()
    try:
        tasks.put((x, event))
        for _ in range(3):
            what, value = answers.get(timeout=WAIT)
            said(f"IPC, {name}: {what} in the other process", value)
        torch.cuda.synchronize()
        said(f"IPC, {name}: what it wrote", int(x.cpu().sum()) // (1 << 20))
        tasks.put(None)
        what, value = answers.get(timeout=WAIT)
        said(f"IPC, {name}: {what} in the other process", value)
        tasks.put(None)
        process.join(WAIT)
        said(f"IPC, {name}: it ended", process.exitcode)
    finally:
        process.kill()
    del pad, x
    release()
    torch.cuda.ipc_collect()


def killed_child(size: int) -> None:
    held = tensor(size)
    held.add_(1)
    torch.cuda.synchronize()
    print("held", flush=True)
    os.kill(os.getpid(), 9)


def killed() -> None:
    """Memory of a process that dies comes back at once."""
    before = free_and_total()
    process = mp.get_context("spawn").Process(target=killed_child, args=(256,))
    process.start()
    process.join(WAIT)
    said("a killed process", process.exitcode)
    said("free MiB as before it", free_and_total() == before)


def forked() -> None:
    """A forked child may not use CUDA; torch itself says so."""
    pid = os.fork()
    if pid == 0:
        outcome("CUDA in a forked child", lambda: tensor(1))
        sys.stdout.flush()
        os._exit(0)
    said("the forked child ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    outcome("CUDA in its parent", lambda: (tensor(1).add_(1), torch.cuda.synchronize())[1])


def loader(workers: int, pin: bool) -> None:
    name = f"loader with {workers} workers{', pinned' if pin else ''}"
    data = TensorDataset(torch.arange(4096 * 64, dtype=torch.int32).reshape(4096, 64))
    total, pinned = 0, set()
    for (batch,) in DataLoader(data, batch_size=256, num_workers=workers, pin_memory=pin):
        pinned.add(batch.is_pinned())
        total += int(batch.cuda(non_blocking=True).cpu().sum(dtype=torch.int64))
    said(f"{name}: batches pinned", sorted(pinned))
    said(f"{name}: sum", total == (4096 * 64) * (4096 * 64 - 1) // 2)


def main() -> None:
    torch.cuda.init()
    torch.cuda.synchronize()
    said("context in MiB", free_and_total()[1] - free_and_total()[0])
    outcome("a tensor in another process", lambda: shared(False))
    outcome("an event in another process", lambda: shared(True))
    outcome("a process that is killed", killed)
    outcome("a process that forks", forked)
    for workers, pin in ((0, False), (0, True), (2, False), (2, True)):
        outcome(f"loader {workers} {pin}", lambda workers=workers, pin=pin: loader(workers, pin))
    held = outcome(
        "many pinned buffers", lambda: len([torch.empty(MIB, dtype=torch.uint8).pin_memory() for _ in range(64)])
    )
    del held
    said("MiB in use beside pinned memory", free_and_total()[1] - free_and_total()[0])


if __name__ == "__main__":
    main()
