"""Boxes on one simulated GPU, slowed down so that a loaded machine with two cores keeps up."""

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from testbed.compiled import ZIG, compiled
from testbed.sim.gpus import Sim, build_simulated
from tests.gate.gpus import Box, Gpu, Tenant
from tests.shim.box import ROOT

SCALE = 5
simulated = cache(build_simulated)


class Place:
    """A GPU with tenants (or several GPUs with the same tenants), a box for each tenant, and the load program."""

    def __init__(
        self,
        place: Path,
        load: Path,
        shim: Path,
        tenants: list[Tenant],
        scale: int,
        mib: int,
        more: list[list[Tenant]],
    ) -> None:
        self.sim = Sim(place, simulated(), mib)
        self.gpu = Gpu(place / "share", self.sim, tenants, scale)
        self.gpus = [self.gpu, *(Gpu(place / f"share{n}", self.sim, t, scale, n) for n, t in enumerate(more, 1))]
        self.boxes = [Box(self.gpus, i, shim) for i in range(len(tenants))]
        self.load = str(load)

    def kernels(self, slot: int, way: str, us: float, *more: int):  # type: ignore[no-untyped-def]
        """Kernels of so many microseconds of GPU time, for ever, in a slot's box."""
        return self.boxes[slot].start([self.load, way, str(round(us)), *(str(n) for n in more)], first=True)

    def close(self) -> None:
        for box in self.boxes:
            box.close()
        self.sim.close()


@pytest.fixture(scope="session")
def shim() -> Path:
    """The folder of the shim libraries as they are shipped."""
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build"), "--part", "shim"], check=True, stdout=subprocess.DEVNULL
    )
    return ROOT / "build" / platform.machine()


def program(name: str, *flags: str) -> Path:
    source = Path(__file__).parent / f"{name}.c"
    return compiled(name, [*ZIG, "-w", *flags, str(source), "-ldl", "-lpthread"])


@pytest.fixture(scope="session")
def load() -> Path:
    """The compiled load.c."""
    return program("load")


@pytest.fixture(scope="session")
def waiter() -> str:
    """The compiled wait.c."""
    return str(program("wait"))


@pytest.fixture(scope="session")
def calls() -> str:
    """The compiled calls.c."""
    return str(program("calls"))


@pytest.fixture
def place(tmp_path: Path, load: Path, shim: Path) -> Iterator[Callable[..., Place]]:
    """Makes GPUs; everything on them ends with the test."""
    made: list[Place] = []

    def make(
        *tenants: Tenant, scale: int = SCALE, libraries: Path = shim, mib: int = 1024, more: Sequence[Any] = ()
    ) -> Place:
        """more: for each further GPU, how the same tenants share it."""
        made.append(Place(tmp_path / f"gpu{len(made)}", load, libraries, list(tenants), scale, mib, list(more)))
        return made[-1]

    yield make
    for one in made:
        one.close()
