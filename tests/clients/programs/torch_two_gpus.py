"""torch: two GPUs, in one process and with a process for each by gloo."""

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch_steps import MIB, REFUSED, outcome, release, said

WAIT = 240  # seconds
COUNT = 1 << 16


def one_process() -> None:
    said("devices", torch.cuda.device_count())
    a = torch.arange(COUNT, dtype=torch.int32).to("cuda:0")
    b = a.to("cuda:1")
    said("copy to the other GPU", bool((b.cpu() == torch.arange(COUNT, dtype=torch.int32)).all()))
    said("and back", bool((b.to("cuda:0").cpu() == a.cpu()).all()))
    said("peer access", [torch.cuda.can_device_access_peer(0, 1), torch.cuda.can_device_access_peer(1, 0)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(1):
        x = torch.zeros(1024, device="cuda:1")
        with torch.cuda.graph(graph):
            x.add_(1)
        graph.replay()
        torch.cuda.synchronize(1)
    said("a graph on the second GPU", "ok")


def to_the_limits() -> None:
    for gpu in (0, 1):
        held = []
        try:
            while True:
                held.append(torch.empty(32 * MIB, dtype=torch.uint8, device=f"cuda:{gpu}"))
        except REFUSED as e:
            said(f"GPU {gpu}: the refusal names it", f"GPU {gpu} has" in str(e))
        said(f"GPU {gpu}: tensors of 32 MiB until refused", len(held))
        said(f"GPU {gpu}: free MiB of both then", [torch.cuda.mem_get_info(other)[0] // MIB for other in (0, 1)])
        held.clear()
        release()


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(COUNT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def rank(me: int, answers: Any) -> None:
    torch.cuda.set_device(me)
    dist.init_process_group("gloo", init_method="file:///tmp/gloo", rank=me, world_size=2)
    x = torch.full((COUNT,), me + 1, dtype=torch.int32).cuda()
    dist.all_reduce(x)
    answers.put((f"rank {me}: all_reduce", int(x.cpu().sum()) // COUNT))
    y = torch.full((4,), 5 if me == 0 else 0, dtype=torch.int32).cuda()
    dist.broadcast(y, 0)
    answers.put((f"rank {me}: broadcast", y.cpu().tolist()))
    model = torch.nn.parallel.DistributedDataParallel(Scale().cuda(), device_ids=[me])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(COUNT, device="cuda")).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
    answers.put((f"rank {me}: three steps of DDP", list(model.module.weight.grad.shape)))
    answers.put((f"rank {me}: capacity in MiB", torch.cuda.mem_get_info()[1] // MIB))
    dist.barrier()
    dist.destroy_process_group()


def by_gloo() -> None:
    context = mp.get_context("spawn")
    answers = context.Queue()
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    ranks = [context.Process(target=rank, args=(me, answers)) for me in (0, 1)]
    for process in ranks:
        process.start()
    try:
        for step, value in sorted(answers.get(timeout=WAIT) for _ in range(8)):
            said(step, value)
        for process in ranks:
            process.join(WAIT)
        said("the ranks ended", [process.exitcode for process in ranks])
    finally:
        for process in ranks:
            process.kill()


if __name__ == "__main__":
    outcome("two GPUs in one process", one_process)
    release()
    outcome("two limits", to_the_limits)
    outcome("gloo", by_gloo)
