"""Small programs of what people use a GPU with, each by its name: prints one line of JSON, "right" if its result is.

usage: clients.py NAME
"""

import json
import sys
from typing import Any

PIECE = 64 << 20


def cupy() -> dict[str, Any]:
    """Also takes memory until its limit."""
    import cupy

    x = cupy.arange(1 << 20, dtype=cupy.float64)
    held: list[Any] = []
    try:
        while len(held) < 200:
            held.append(cupy.zeros(PIECE, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError:
        pass
    total = cupy.cuda.runtime.memGetInfo()[1] >> 20
    right = float(x.sum()) == (1 << 19) * ((1 << 20) - 1)
    return {"right": right and len(held) * 64 < total, "total_mib": total, "mib": len(held) * 64}


def torch_compile() -> dict[str, Any]:
    """Triton compiles what it makes of this."""
    import torch

    def plain(x: Any) -> Any:
        return torch.nn.functional.gelu(x * 2 + 1).sum(-1)

    x = torch.randn(4096, 1024, device="cuda")
    return {"right": bool(torch.allclose(torch.compile(plain)(x), plain(x), rtol=1e-3, atol=1e-2))}


def torch_graphs() -> dict[str, Any]:
    import torch

    x, stream, graph = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        y = x * 2
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    x.fill_(5)
    for _ in range(2000):
        graph.replay()
    pinned = torch.ones(1 << 22, pin_memory=True)
    there = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return {"right": bool((y == 11).all()) and int(there.sum()) == 1 << 22}


def torch_limit() -> dict[str, Any]:
    """Takes all, gives it back, and takes it again."""
    import torch

    held: list[Any] = []
    said = ""
    try:
        while len(held) < 200:
            held.append(torch.zeros(PIECE, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as e:
        said = str(e)[:160]
    n, total = len(held), torch.cuda.mem_get_info()[1] >> 20
    held.clear()
    torch.cuda.empty_cache()
    again = torch.zeros((n - 2) * PIECE, dtype=torch.uint8, device="cuda")
    right = said != "" and n * 64 < total and again.numel() == (n - 2) * PIECE
    return {"right": right, "total_mib": total, "mib": n * 64, "said": said}


def numba() -> dict[str, Any]:
    import numpy
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def twice(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= 2

    x = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
    twice[8, 128](x)
    return {"right": bool((x.copy_to_host() == 2 * numpy.arange(1000)).all())}


def jax() -> dict[str, Any]:
    import jax

    x = jax.numpy.ones((2048, 2048))
    right = float((x @ x).sum()) == 2048.0**3
    limit = jax.devices()[0].memory_stats()["bytes_limit"] >> 20
    return {"right": right and limit < 4096, "limit_mib": limit}


PROGRAMS = {f.__name__: f for f in (cupy, torch_compile, torch_graphs, torch_limit, numba, jax)}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
