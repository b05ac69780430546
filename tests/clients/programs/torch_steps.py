"""What the programs of the torch client share."""

import re
from collections.abc import Callable
from typing import Any

import torch
from steps import outcome, said

MIB = 1 << 20
REFUSED = (torch.cuda.OutOfMemoryError, torch.AcceleratorError)  # with the allocator's cache, and without
AMOUNT = re.compile(r"[\d.]+ (?:[KMG]iB|bytes)")


def free_and_total() -> list[int]:
    free, total = torch.cuda.mem_get_info()
    return [free // MIB, total // MIB]


def tensor(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def fill(mib: int) -> tuple[list[torch.Tensor], str]:
    """Tensors of so many MiB until one is refused, and what the refusal said."""
    held: list[torch.Tensor] = []
    while True:
        try:
            held.append(tensor(mib))
        except REFUSED as e:
            return held, str(e)


def told(step: str, text: str) -> None:
    """An error's text, without its amounts; and these, which are limits."""
    said(f"{step}: text", AMOUNT.sub("#", text))
    said(f"{step}: amounts", AMOUNT.findall(text))


def refused(step: str, work: Callable[[], Any]) -> None:
    try:
        work()
        said(step, "failed: it was not refused")
    except REFUSED as e:
        told(step, str(e))


def release() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


__all__ = ["MIB", "REFUSED", "fill", "free_and_total", "outcome", "refused", "release", "said", "tensor", "told"]
