"""Memory limits of cgroups, which driver 615 keeps: real cgroups of version 2, at /sys/fs/cgroup in a mount namespace."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_hook_simulator import release
from simulator.tests import cgroups
from simulator.tests.cgroups import Groups
from simulator.tests.conftest import CONTEXT_MIB, Sim

pytestmark = pytest.mark.root
TOP = cgroups.top()
if TOP is None:
    pytest.skip("cgroup v2 is not mounted", allow_module_level=True)


@pytest.fixture(params=["dmem", "misc"])
def groups(request: pytest.FixtureRequest, tmp_path: Path, simulated: Path) -> Iterator[Groups]:
    sim = Sim(tmp_path, simulated, release=release.release("615", request.param))
    assert TOP
    made = Groups(sim, TOP)
    yield made
    sim.close()
    made.close()


def test_an_allocation_beyond_the_limit_fails(groups: Groups) -> None:
    groups.make("a")
    groups.set("a", 200)
    assert groups.get("a") == [0, 200, 0]
    code = (
        f"context(); alloc({200 - CONTEXT_MIB} * MIB); print(code('cuMemAlloc_v2', byref(c_uint64()), c_size_t(512)))"
    )
    assert groups.python("a", code) == "2\n"
    assert groups.python(None, code) == "0\n"
