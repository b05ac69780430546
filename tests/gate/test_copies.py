"""Copies and fills within the GPU pass the gate. Simulated GPU."""

from collections.abc import Callable
from typing import Any

import pytest

from testbed.until import until
from tests.gate.gpus import Tenant, measure, settles

pytestmark = [pytest.mark.root, pytest.mark.slow]
Make = Callable[..., Any]
MEGABYTE = 1 << 20
WAYS = ["copy", "copy any", "copy now", "copy rows", "copy peer", "copy to array", "copy from array", "copy arrays"]
WAYS += ["copy peer box", "copy batch", "copy batch 12.8", "copy boxes", "copy boxes 12.8", "copy box attributed"]
WAYS += ["copy attributed", "fill", "fill rows"]


@pytest.mark.parametrize(
    ("way", "size"), [(way, MEGABYTE) for way in WAYS] + [("copy little", 4096), ("fill little", 4096)]
)
def test_they_are_charged_what_they_take(place: Make, way: str, size: int) -> None:
    """Each takes this GPU 80 us."""
    p = place(Tenant(cap=0.4))
    p.gpu.copy_rate(size // 80)
    load = p.kernels(0, way, 80)
    settles(lambda: measure([load], 0.8, 0.3)[0] * 80e-6 * p.gpu.scale / 0.8, lambda got: 0.33 < got < 0.45)


@pytest.mark.parametrize(
    ("way", "waits"),
    [
        ("copy", True),
        ("copy little", True),
        ("copy nothing", False),
        ("copy in", False),
        ("copy out", False),
        ("copy into array", False),
    ],
)
def test_only_those_within_the_gpu_wait(place: Make, way: str, waits: bool) -> None:
    p = place(Tenant(freeze=1), Tenant())
    load = p.kernels(0, way, 80)
    if waits:
        until(load.waits)
        assert not load.points
    else:
        load.ready()
