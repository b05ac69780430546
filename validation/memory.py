"""Run "memory": the limit as programs meet it."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oci_hook.core.inventory import Gpu
from oci_hook.discovery.blocks import USUAL

from . import predict
from .boxes import PROBE, Node, box
from .frame import Json, Run, run

LIMIT_MIB = 4096


def limit(inside: Callable[..., str]) -> dict[str, Any]:
    """The limit as a plain driver API program meets it."""
    text = inside([str(PROBE), "info", "fill", "64"])
    total, free = map(int, re.findall(r"(\d+) MiB (?:total|free)", text)[:2])
    filled = int(re.search(r"fill: (\d+) MiB", text).group(1))  # type: ignore[union-attr]
    if not (total == LIMIT_MIB and filled <= LIMIT_MIB and filled >= free - 64 and "OUT_OF_MEMORY" in text):
        raise RuntimeError(f"the limit of {LIMIT_MIB} MiB did not hold as it should: {text}")
    return {"total_mib": total, "free_mib": free, "filled_mib": filled, "said": text.strip()}


def after(inside: Callable[..., str]) -> dict[str, Any]:
    """A process that died gave everything back."""
    text = inside([str(PROBE), "alloc", str(LIMIT_MIB // 2), "free", "alloc", str(LIMIT_MIB // 2)])
    return {"said": text.strip()}


TORCH = """
import json, torch
free, total = torch.cuda.mem_get_info()
held, n = [], 0
try:
    while True:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda")); n += 1
except torch.OutOfMemoryError as e:
    stop = type(e).__name__
del held; torch.cuda.empty_cache()
a = torch.randn(2048, 2048, device="cuda"); b = (a @ a).sum().item()
print(json.dumps({"total": total >> 20, "free": free >> 20, "pieces_of_64": n, "stopped_by": stop, "after": b == b}))
"""
NVML = """
import json, pynvml as n
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); m = n.nvmlDeviceGetMemoryInfo(h)
try:
    n.nvmlDeviceSetPersistenceMode(h, 1); mutator = "allowed"
except n.NVMLError as e:
    mutator = str(e)
print(json.dumps({"count": n.nvmlDeviceGetCount(), "total": m.total >> 20, "used": m.used >> 20, "mutator": mutator,
                  "processes": len(n.nvmlDeviceGetComputeRunningProcesses(h))}))
"""


# Linear memory by the piece, from what the driver says is free: the rule of docs/internals/account-page.md#blocks.
SIZES = {name: int(mib * (1 << 20)) for name, mib in {"4 KiB": 1 / 256, "256 KiB": 0.25, "700 KiB": 700 / 1024,
                                                     "1.1 MiB": 1.1, "2 MiB": 2, "2.1 MiB": 2.1, "7 MiB": 7}.items()}  # fmt: skip
PIECES = """
import ctypes, json, sys
cuda, context, free, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
def left():
    assert not cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value
def take(size, n):
    held = [ctypes.c_uint64() for _ in range(n)]
    for p in held:
        assert not cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(size))
    return held
said = {}
for size in map(int, sys.argv[1:]):
    before, n = left(), 256 if size > 65536 else 8192
    held = take(size, n)
    taken = before - left()
    for p in held[1::2]:
        cuda.cuMemFree_v2(p)
    half = before - left()
    for p in held[::2]:
        cuda.cuMemFree_v2(p)
    said[size] = {"each": taken // n, "every_other_freed": half // n, "kept_after_all_freed": before - left()}
print(json.dumps(said))
"""


def taken(size: int, block: int) -> int:
    """What a piece of linear memory is charged, in bytes."""
    step = 512
    units, whole = -(-size // step), block // step
    if whole < 2:
        return units * step
    return step * (whole // (whole // units) if units < whole else -(-units // whole) * whole)


def expected() -> Json:
    """By the rule, of a driver with the usual blocks. Each free of a piece smaller than a block is assumed to keep its block."""
    return {
        name: {
            "each": taken(size, USUAL),
            "every_other_freed": taken(size, USUAL) if size <= USUAL // 2 else taken(size, USUAL) // 2,
        }
        for name, size in SIZES.items()
    }


def pieces(inside: Callable[..., str], gpu: Gpu) -> Json:
    """What the bare driver takes for pieces, beside the shim's charge: it may charge more, never less."""
    argv = [sys.executable, "-c", PIECES, *map(str, SIZES.values())]
    bare, charged = (
        json.loads(text.strip().splitlines()[-1]) for text in (run(argv, 90, env=dict(os.environ)), inside(argv, 90))
    )
    before, rows, missed, other = predict.load().get("memory", {}), {}, [], []
    for name, size in SIZES.items():
        rows[name] = {"driver": bare[str(size)], "shim": charged[str(size)]["each"]}
        if bare[str(size)]["each"] > charged[str(size)]["each"]:
            missed.append(f"{name}: the driver takes {bare[str(size)]['each']}, charged {charged[str(size)]['each']}")
        other += [
            f"{name}: {k} {bare[str(size)][k]}, predicted {v}"
            for k, v in before.get(name, {}).items()
            if bare[str(size)][k] != v
        ]
    if missed:
        raise RuntimeError(f"pieces hold more than they are charged: {missed}")
    return {"block_bytes": gpu.block_bytes, "pieces": rows, "not_as_predicted": other}


def python(inside: Callable[..., str], program: str, **env: str) -> dict[str, Any]:
    settings = [f"{k}={v}" for k, v in env.items()]
    text = inside(["env", *settings, sys.executable, "-c", program], 90)
    answer = json.loads(text.strip().splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def torch_fill(inside: Callable[..., str], **env: str) -> dict[str, Any]:
    answer = python(inside, TORCH, **env)
    if answer["total"] != LIMIT_MIB or answer["pieces_of_64"] * 64 > LIMIT_MIB:
        raise RuntimeError(f"PyTorch got past the limit: {answer}")
    return answer


def nvml_view(inside: Callable[..., str]) -> dict[str, Any]:
    answer = python(inside, NVML)
    if answer["total"] != LIMIT_MIB or answer["mutator"] == "allowed":
        raise RuntimeError(f"NVML does not show the share: {answer}")
    return answer


def overhead(inside: Callable[..., str]) -> dict[str, Any]:
    """Median ns of the same program in the container and on the bare driver, in turn."""
    figures: dict[str, dict[str, list[int]]] = {"bare": {}, "shim": {}}
    bare = {**os.environ, "GPU_HOOK_SIM_GPUS": os.environ.get("GPU_HOOK_SIM_GPUS", "")}
    for _ in range(5):
        for name in figures:
            argv = [str(PROBE), "bench", "20000"]
            text = inside(argv) if name == "shim" else run(argv, 60, env=bare)
            for what, ns in re.findall(r"(launch|alloc\+free|meminfo) (\d+) ns", text):
                figures[name].setdefault(what, []).append(int(ns))
    medians = {n: {k: sorted(v)[len(v) // 2] for k, v in f.items()} for n, f in figures.items()}
    added = {k: medians["shim"][k] - medians["bare"][k] for k in medians["bare"]}
    return {**medians, "added_ns": added}


def two_tenants(node: Node, folder: Path) -> dict[str, Any]:
    """Two containers fill the GPU side by side, each to its own limit."""
    said = []
    with (
        box(node, folder / "a", {"gpu-hook.io/memory": "30%"}) as a,
        box(node, folder / "b", {"gpu-hook.io/memory": "60%"}) as b,
    ):
        for inside in (a, b):
            said.append(inside([str(PROBE), "info", "fill", "256"], 100).strip())
    totals = [int(re.search(r"(\d+) MiB total", text).group(1)) for text in said]  # type: ignore[union-attr]
    filled = [int(re.search(r"fill: (\d+) MiB", text).group(1)) for text in said]  # type: ignore[union-attr]
    if any(f > t for f, t in zip(filled, totals, strict=True)):
        raise RuntimeError(f"over the limit: {said}")
    return {"total_mib": totals, "filled_mib": filled}


def validate(run_: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    with contextlib.ExitStack() as stack:
        boxes: list[Callable[..., str]] = []

        def start() -> dict[str, Any]:
            wish = {"gpu-hook.io/memory": str(LIMIT_MIB), "gpu-hook.io/devices": "0"}
            boxes.append(stack.enter_context(box(node, folder / "box", wish)))
            return {"libraries": boxes[0](["sh", "-c", "ls -l /run/gpu-hook/driver"]).strip().splitlines()}

        run_.phase("container", 30, start)
        if not boxes:
            return
        inside = boxes[0]
        run_.phase("limit", 60, lambda: limit(inside))
        run_.phase("after a death", 60, lambda: after(inside))
        run_.phase("nvml", 60, lambda: nvml_view(inside))
        if not simulated:
            run_.phase("nvidia-smi", 40, lambda: {"said": inside(["nvidia-smi"])[-3000:]})
            run_.phase("torch", 100, lambda: torch_fill(inside))
            allocator = "backend:cudaMallocAsync"
            run_.phase("torch async", 100, lambda: torch_fill(inside, PYTORCH_CUDA_ALLOC_CONF=allocator))
            expandable = "expandable_segments:True"
            run_.phase("torch vmm", 100, lambda: torch_fill(inside, PYTORCH_CUDA_ALLOC_CONF=expandable))
        run_.phase("pieces", 200, lambda: pieces(inside, node.inventory.gpus[0]))
        run_.phase("launch", 60, lambda: {"said": inside([str(PROBE), "launch", "1000", "100"]).strip()})
        run_.phase("overhead", 100, lambda: overhead(inside))
    run_.phase("two tenants", 120, lambda: two_tenants(node, folder))
