"""torch: its CUDA build from PyPI, with the simulator's CUDA runtime and without the GB of libraries it only links."""

import shutil
from collections.abc import Callable
from pathlib import Path

from testbed import REPO
from testbed import pinned as fetch
from testbed.stage import ARCH, CONTEXT_MIB, GPU_MIB, LIMIT_MIB, MULTIARCH
from tests.clients import empty_libraries
from tests.clients.frame import Case, Client, Limit

ROOM, SHARE_ROOM = GPU_MIB - CONTEXT_MIB, LIMIT_MIB - CONTEXT_MIB
# Which libraries torch links but these programs do not call, and how the names begin that it asks of them.
EMPTY = {
    "libcublas.so.13": "",
    "libcublasLt.so.13": "",
    "libcudnn.so.9": "",
    "libcufft.so.12": "",
    "libcufile.so.0": "cuFile",
    "libcupti.so.13": "",
    "libcurand.so.10": "",
    "libcusolver.so.12": "",
    "libcusparse.so.12": "",
    "libcusparseLt.so.0": "cusparseLt",
    "libnccl.so.2": "nccl",
    "libnvrtc.so.13": "",
    "libnvshmem_host.so.3": "nvshmem",
}
HUGE = "1024.00 GiB"  # what a step asks for in vain
NO_LIMIT = "17179869184.00 GiB"  # as the back end cudaMallocAsync calls it


def prepare(root: Path, driver: Path) -> None:
    libraries = root / f"usr/lib/{MULTIARCH}"
    shutil.copy(REPO / f"build/{ARCH}/sim/runtime/libcudart.so.13", libraries)
    torch = next(fetch.wheels("torch").glob("torch/lib"))
    empty_libraries.make(libraries, sorted(torch.glob("*.so")), EMPTY)


def amount(mib: float) -> str:
    """As torch writes it."""
    return "0 bytes" if mib == 0 else f"{mib / 1024:.2f} GiB" if mib > 1024 else f"{mib:.2f} MiB"


def amounts(*mib: float) -> list[str]:
    return [amount(one) for one in mib]


def between(low: int, high: int) -> Callable[[object], bool]:
    def judge(value: object) -> bool:
        return isinstance(value, int) and low <= value <= high

    judge.__doc__ = f"{low} to {high}"
    return judge


def both(value: Callable[[int], object]) -> Limit:
    """What a step says on a GPU of GPU_MIB and on one of LIMIT_MIB."""
    return Limit(value(GPU_MIB), value(LIMIT_MIB))


def room(mib: int) -> int:
    return mib - CONTEXT_MIB


EVERYWHERE = {
    "capacity in MiB": both(lambda all: all),
    "free and total MiB at first": both(lambda all: [room(all), all]),
    "100 MiB: free MiB afterwards": both(lambda all: [room(all), all]),
    "free and total MiB when all is free": both(lambda all: [room(all), all]),
    "four threads: free and total MiB when all is free": both(lambda all: [room(all), all]),
}
FULL = EVERYWHERE | {
    "tensors of 32 MiB until refused": both(lambda all: room(all) // 32),
    "free and total MiB then": both(lambda all: [0, all]),
    "largest tensor in MiB": both(room),
    "four threads: tensors of 16 MiB together": both(lambda all: room(all) // 16),
}
CACHING = FULL | {
    "refusal: amounts": both(lambda all: amounts(32, all, 0, all, room(all), 0)),
    "another refusal: amounts": both(lambda all: amounts(64, all, 0, all, room(all), 0)),
    "a tensor larger than any GPU: amounts": both(lambda all: [HUGE, *amounts(all, room(all), CONTEXT_MIB, 0, 0)]),
    "half of it: tensors of 32 MiB": both(lambda all: all // 64),
    "half of it: amounts": both(
        lambda all: amounts(32, all, all // 2 - CONTEXT_MIB, all // 2 + CONTEXT_MIB, all // 2, all // 2, 0)
    ),
}
NO_CACHE = FULL | {"half of it: tensors of 32 MiB": both(lambda all: room(all) // 32)}
ASYNC = FULL | {
    "refusal: amounts": both(lambda all: [*amounts(room(all), 32, all, 0), NO_LIMIT]),
    "another refusal: amounts": both(lambda all: [*amounts(room(all), 64, all, 0), NO_LIMIT]),
    "a tensor larger than any GPU: amounts": both(lambda all: ["0 bytes", HUGE, *amounts(all, room(all)), NO_LIMIT]),
    "half of it: tensors of 32 MiB": both(lambda all: all // 64),
    "half of it: amounts": both(lambda all: amounts(all // 2, 32, all, all // 2 - CONTEXT_MIB, all // 2)),
}


def mapped(n: int) -> int:
    """What a segment that grows by pieces of 20 MiB takes for n tensors of 32 MiB."""
    return -(-n * 32 // 20) * 20


def expandable(all: int) -> dict[str, object]:
    held = max(n for n in range(all) if mapped(n) <= room(all))
    half = min(n for n in range(all) if mapped(n) + 32 > all // 2)
    used = [all, room(all) - mapped(held), CONTEXT_MIB + mapped(held), held * 32, mapped(held) - held * 32]
    used_half = [
        all,
        room(all) - mapped(half),
        CONTEXT_MIB + mapped(half),
        all // 2,
        half * 32,
        mapped(half) - half * 32,
    ]
    return {
        "tensors of 32 MiB until refused": held,
        "free and total MiB then": [room(all) - mapped(held), all],
        "largest tensor in MiB": room(all) // 20 * 20,
        "four threads: tensors of 16 MiB together": between(room(all) // 16 - 4, room(all) // 16),
        "refusal: amounts": amounts(32, *used),
        "another refusal: amounts": amounts(64, *used),
        "a tensor larger than any GPU: amounts": [HUGE, *amounts(all, room(all), CONTEXT_MIB, 0, 0)],
        "half of it: tensors of 32 MiB": half,
        "half of it: amounts": amounts(32, *used_half),
    }


EXPANDABLE = EVERYWHERE | {step: both(lambda all, step=step: expandable(all)[step]) for step in expandable(GPU_MIB)}
# A graph keeps 2 MiB for what is small; what a failed capture leaves is 58 MiB of the last 256.
GRAPHS = {
    "free and total MiB after them": both(lambda all: [room(all), all]),
    "beyond the limit while captured: amounts": both(
        lambda all: amounts(256, all, 58, all - 58, room(all) // 256 * 256 + 2.01, 1.99, 131.99)
    ),
    "graphs of 128 MiB until refused": Limit(62, 6),
    "tensors of 32 MiB after the graphs": Limit(249, 25),
}
TWO_GPUS = {f"rank {rank}: capacity in MiB": both(lambda all: all) for rank in (0, 1)}
for gpu in (0, 1):
    TWO_GPUS[f"GPU {gpu}: tensors of 32 MiB until refused"] = both(lambda all: room(all) // 32)
    TWO_GPUS[f"GPU {gpu}: free MiB of both then"] = both(lambda all, gpu=gpu: [0, room(all)][:: -1 if gpu else 1])
PROCESSES: dict[str, Limit] = {}
for kind in ("tensor", "with an event"):
    PROCESSES[f"IPC, {kind}: free in the other process"] = both(lambda all: [all - 2 * CONTEXT_MIB - 120, all])
    PROCESSES[f"IPC, {kind}: tensors of 32 MiB in the other process"] = both(
        lambda all: (all - 2 * CONTEXT_MIB - 120) // 32
    )


def case(name: str, program: str, what: str, least: int, limits: dict[str, Limit], gpus: int = 1, **env: str) -> Case:
    return Case(name, ("python", f"/programs/{program}.py"), what, least, limits, {"USER": "root"} | env, gpus=gpus)


MEMORY = "torch_memory"
CLIENT = Client(
    "torch",
    "2.11.0",
    (
        case(
            "caching", MEMORY, "allocator with cache: limit, texts of refusals, threads, copies, streams", 44, CACHING
        ),
        case(
            "no-cache",
            MEMORY,
            "the same without cache (`PYTORCH_NO_CUDA_MEMORY_CACHING`)",
            44,
            NO_CACHE,
            PYTORCH_NO_CUDA_MEMORY_CACHING="1",
        ),
        case(
            "expandable",
            MEMORY,
            "the same with expandable segments (virtual memory management)",
            44,
            EXPANDABLE,
            PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
        ),
        case(
            "async",
            MEMORY,
            "the same with the back end cudaMallocAsync",
            44,
            ASYNC,
            PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
        ),
        case("graphs", "torch_graphs", "CUDA graphs: replays, pools, captures that fail", 32, GRAPHS),
        case(
            "graphs-async",
            "torch_graphs",
            "graphs with the back end cudaMallocAsync",
            20,
            {"free and total MiB after them": both(lambda all: [room(all) - 16, all])},
            PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
        ),
        case("processes", "torch_processes", "IPC of tensors and events, a killed process, data loader", 30, PROCESSES),
        case("two-gpus", "torch_two_gpus", "two GPUs: in one process; two ranks by gloo, DDP", 20, TWO_GPUS, gpus=2),
    ),
    pins=("torch",),
    driver="580",
    heavy=True,
    prepare=prepare,
)
