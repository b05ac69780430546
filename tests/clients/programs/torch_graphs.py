"""torch: CUDA graphs, with the memory that they keep, and captures that fail."""

import threading

import torch
from torch_steps import MIB, REFUSED, fill, free_and_total, outcome, refused, release, said, tensor


def simple(name: str = "a graph") -> None:
    x = tensor(8)
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.memory_allocated()
    with torch.cuda.graph(graph):
        y = x + 1
        z = y * 2
        z.add_(y)
    said(f"{name}: kept by it in MiB", (torch.cuda.memory_allocated() - before) / MIB)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    said(f"{name}: reserved with it in MiB", torch.cuda.memory_reserved() / MIB)
    del y, z, x
    release()
    said(f"{name}: reserved with it and no tensor in MiB", torch.cuda.memory_reserved() / MIB)
    graph.reset()
    del graph
    release()
    said(f"{name}: reserved without it in MiB", torch.cuda.memory_reserved() / MIB)


def memory_operations() -> None:
    """Copies and memsets do happen on a simulated GPU, so a replay's effect can be seen."""
    data = torch.arange(1024, dtype=torch.int32)
    source, target = data.cuda(), torch.zeros(1024, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source)
    said("before the replay", int(target.cpu().sum()))
    graph.replay()
    torch.cuda.synchronize()
    said("after the replay", bool((target.cpu() == data).all()))
    source.copy_(data * 2)
    graph.replay()
    torch.cuda.synchronize()
    said("after another replay", bool((target.cpu() == data * 2).all()))


def shared_pool() -> None:
    pool = torch.cuda.graph_pool_handle()
    graphs, kept = [torch.cuda.CUDAGraph() for _ in range(3)], []
    x = tensor(4)
    for graph in graphs:
        with torch.cuda.graph(graph, pool=pool):
            kept.append(x + 1)
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    said("three graphs of one pool, reserved in MiB", torch.cuda.memory_reserved() / MIB)
    del graphs, kept, x, graph
    release()
    said("free and total MiB after them", free_and_total())


def too_large() -> None:
    """A capture that asks for more than there is, and life after it."""

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            kept = [tensor(256) for _ in range(64)]
            del kept

    refused("beyond the limit while captured", capture)
    release()
    outcome("capture after one that failed", lambda: simple("after one that failed"))


def forbidden() -> None:
    graph = torch.cuda.CUDAGraph()

    def synchronize() -> None:
        with torch.cuda.graph(graph):
            torch.cuda.synchronize()

    outcome("synchronize while captured", synchronize)
    outcome("life after it", lambda: (tensor(1).add_(1), torch.cuda.synchronize())[1])


def modes() -> None:
    """Another thread allocates and frees while this one captures; it may under the relaxed modes."""
    for mode in ("thread_local", "relaxed"):
        graph, errors = torch.cuda.CUDAGraph(), []
        release()

        def other(errors: list[str] = errors) -> None:
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for _ in range(20):
                        tensor(64)
                        torch.cuda.current_stream().synchronize()
            except Exception as e:
                errors.append(f"{type(e).__name__}: {e}")

        thread = threading.Thread(target=other)
        x = tensor(1)
        with torch.cuda.graph(graph, capture_error_mode=mode):
            thread.start()
            for _ in range(50):
                x.add_(1)
            thread.join()
        graph.replay()
        torch.cuda.synchronize()
        said(f"another thread allocates, mode {mode}", errors or "ok")


def callables() -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).relu()

    module = Scale()
    made = torch.cuda.make_graphed_callables(module, (torch.ones(1024, device="cuda", requires_grad=True),))
    for _ in range(3):
        made(torch.ones(1024, device="cuda", requires_grad=True)).sum().backward()
    torch.cuda.synchronize()
    said("gradient of a graphed module", list(module.weight.grad.shape))


def full() -> None:
    """Graphs whose memory fills the share."""
    graphs, kept = [], []
    pool = torch.cuda.graph_pool_handle()
    while True:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool):
                kept.append(tensor(128).add_(1))
        except REFUSED:
            break
        graphs.append(graph)
        graph.replay()
    said("graphs of 128 MiB until refused", len(graphs))
    del graph
    graphs.clear()
    kept.clear()
    release()
    held, _ = fill(32)
    said("tensors of 32 MiB after the graphs", len(held))


torch.cuda.init()
said("backend", torch.cuda.get_allocator_backend())
parts = [simple, memory_operations, shared_pool, modes, callables]
if torch.cuda.get_allocator_backend() == "native":  # the other one's graphs take their memory at the launch
    parts += [too_large, full]
for part in (*parts, forbidden):
    outcome(part.__name__, part)
