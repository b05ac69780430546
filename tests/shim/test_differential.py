"""Random calls by every route from several processes, with kills, through the shipped shim over the simulated
driver; compared with what the simulated GPU itself counts. The model is in differential.py, the calls in
random_calls.py.
"""

import os
import sys
from pathlib import Path

import pytest

from testbed.sim.gpus import build_simulated
from tests.shim.box import MIB
from tests.shim.differential import CONTEXT, LIMIT, Bench, Failure, minimised, play, replay

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def over_simulated(shim: Path) -> Path:
    build_simulated()
    return shim


def test_short(tmp_path: Path, over_simulated: Path) -> None:
    bench = play(tmp_path, over_simulated, 1, 4)
    assert bench.granted and bench.refused and bench.samples and bench.kills


@pytest.mark.slow
@pytest.mark.parametrize("seed", [int(os.environ.get("GH_SEED", "3")), 4])
def test_long(tmp_path: Path, over_simulated: Path, seed: int) -> None:
    bench = play(tmp_path, over_simulated, seed, float(os.environ.get("GH_SECONDS", "15")))
    assert bench.granted and bench.refused and bench.samples and bench.kills
    every = {"alloc", "pitch", "managed", "create", "map", "array", "shape", "mipmap", "context", "external", "async",
             "ptsz", "pool", "shared", "doomed", "graph", "upload", "captured", "within", "export"}  # fmt: skip
    assert not every - set(bench.routes), bench.routes


def test_a_failing_sequence_is_made_short(tmp_path: Path, over_simulated: Path) -> None:
    """With a model whose limit is lower than the granted one, any sequence fails; one allocation is enough."""
    bench = Bench(tmp_path / "bench", over_simulated, 6, allowed=100 * MIB)
    try:
        with pytest.raises(Failure) as failure:
            bench.crew(2)
            bench.serial(1000)
    finally:
        bench.close()
    assert failure.value.kind == "over" and len(bench.calls) > 3
    calls = minimised(tmp_path, over_simulated, bench, "over", seconds=60)
    assert calls[0] == ("start",) and len(calls) < min(6, len(bench.calls)), calls
    again = replay(tmp_path / "again", over_simulated, 6, calls, 100 * MIB)
    assert again is not None and again.kind == "over"


RESETS = """
import ctypes, sys
lib = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert lib.cuInit(0) == 0
for turn in range(40):
    assert lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0, turn
    assert lib.cuCtxSetCurrent(context) == 0
    assert lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(free.value >> 20)
    assert lib.cuDevicePrimaryCtxReset_v2(0) == 0
"""


def test_a_context_that_is_reset_is_charged_once(tmp_path: Path, over_simulated: Path) -> None:
    """The simulated driver gives a primary context another handle after each reset."""
    bench = Bench(tmp_path, over_simulated, seed=1)
    bench.close()
    done = bench.box.run([sys.executable, "-c", RESETS])
    assert set(done.stdout.split()) == {str((LIMIT - CONTEXT) // MIB)}, done.stdout
