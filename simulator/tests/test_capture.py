"""Stream capture while other threads use the same streams: capture_storm.c over the driver's sources, with sanitizers."""

import subprocess
from pathlib import Path

import pytest

from gpu_hook_simulator import driver_root
from simulator.driver import build
from testbed.compiled import compiled, source
from testbed.sanitize import ADDRESS, THREAD, gcc, name
from testbed.sim.gpus import Sim

HERE = Path(__file__).parent
# What differs from one run to the next by design: the GPU's shared file, whose readers look twice, and the GPU's
# memory, which works of several streams write.
RACES = ("gpu_picture", "gpu_take_queue", "apply_log", "gpu_head_of", "gpu_advance", "engine_", "gpu_mark_ns")
RACES += ("fill_row", "copy_linear", "run")
# gcc 12's libtsan now and then ends at a check of its own locks while it looks whether a race is to be reported.
SANITIZER_ENDED = "ThreadSanitizer: CHECK failed: sanitizer_mutex.h"


@pytest.fixture(scope="module", params=(ADDRESS, THREAD), ids=name)
def storm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("storm")
    rest = source("rest.c", build.rest("libcuda-*.txt", 801))
    sources = [str(build.HERE / word) for word in build.CUDA if word.endswith(".c") and word != "cuda-rest.c"]
    command = [gcc(request.param), "-std=c11", "-g", *request.param, "-O0", "-w", "-pthread", f"-I{build.HERE}"]
    (out / "storm").symlink_to(compiled("storm", [*command, str(HERE / "capture_storm.c"), *sources, str(rest)]))
    (out / "races").write_text("".join(f"race:^{function}{'' if function[-1] == '_' else '$'}\n" for function in RACES))
    return out / "storm"


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
def test_every_call_on_streams_that_others_capture(storm: Path, tmp_path: Path, mode: int) -> None:
    (tmp_path / "gpus").mkdir()
    driver_root.make_gpu(tmp_path / "gpus/0", 0, 8192)
    env = {
        "GPU_HOOK_SIM_GPUS": str(tmp_path / "gpus"),
        "ASAN_OPTIONS": "detect_leaks=0",  # captures are kept: an event may still point to one
        "TSAN_OPTIONS": f"suppressions={storm.parent}/races die_after_fork=0",
    }
    for _ in range(5):
        done = subprocess.run([str(storm), str(mode), "60"], env=env, capture_output=True, text=True, timeout=120)
        if SANITIZER_ENDED not in done.stderr:
            break
    assert done.returncode == 0 and not done.stderr, done.stderr[:4000]
    succeeded, captured, refused, odd = map(int, done.stdout.split())
    assert succeeded > 100 and captured and refused and not odd, done.stdout


THREADS = """
import threading
context()
def stream():
    s = c_void_p(); cuda.cuStreamCreate(byref(s), 1); return s
def status(s):
    v = c_int(); cuda.cuStreamIsCapturing(s, byref(v)); return v.value
def in_thread(f):
    out = []; t = threading.Thread(target=lambda: out.append(f())); t.start(); t.join(); return out[0]
s, g = stream(), c_void_p()
"""


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
def test_which_thread_may_end_a_capture(sim: Sim, mode: int) -> None:
    out = sim.python(
        THREADS
        + f"""
cuda.cuStreamBeginCapture_v2(s, {mode})
print(in_thread(lambda: code("cuStreamEndCapture", s, byref(g))), status(s), code("cuStreamEndCapture", s, byref(g)))
"""
    )
    assert out.split() == (["0", "0", "401"] if mode == 2 else ["908", "1", "0"])


def test_a_captured_stream_is_destroyed(sim: Sim) -> None:
    """The stream that began the capture ends it; one that joined it makes it invalid."""
    out = sim.python(
        THREADS
        + """
a, b, e = stream(), stream(), c_void_p(); cuda.cuEventCreate(byref(e), 0)
def join():
    cuda.cuStreamBeginCapture_v2(a, 2); cuda.cuEventRecord(e, a); cuda.cuStreamWaitEvent(b, e, 0)
join(); cuda.cuStreamDestroy_v2(a); print(status(b), code("cuStreamQuery", b), code("cuEventQuery", e))
a = stream(); join(); cuda.cuStreamDestroy_v2(b); print(status(a), code("cuStreamEndCapture", a, byref(g)), g.value)
"""
    )
    assert out.split() == ["0", "0", "0", "2", "901", "None"]


STREAMS = """
def blocking():
    s = c_void_p(); cuda.cuStreamCreate(byref(s), 0); return s
def run(s): return code("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, s, NONE, NONE)
def begin(s): cuda.cuStreamBeginCapture_v2(s, 2)
def end(s): return code("cuStreamEndCapture", s, byref(g)), g.value is not None
def after(a, b): cuda.cuEventRecord(e, a); return code("cuStreamWaitEvent", b, e, 0)
f, e = kernel(10), c_void_p(); cuda.cuEventCreate(byref(e), 0); a, b, c = stream(), stream(), stream()
"""


def test_a_capture_ends_when_all_forks_are_joined(sim: Sim) -> None:
    out = sim.python(
        THREADS
        + STREAMS
        + """
begin(a); run(a); after(a, b); run(b); print(end(a), status(a), status(b))
begin(a); run(a); after(a, b); run(b); after(b, a); print(end(a))
begin(a); after(a, b); run(b); after(b, c); run(c); run(a); after(c, a); print(end(a))
begin(a); after(a, b); run(b); after(b, a); run(b); print(end(a))
begin(a); run(a); after(a, b); print(end(a))
"""
    )
    refused, done = "(904, False)", "(0, True)"
    assert out.split("\n") == [f"{refused} 0 0", done, done, refused, done, ""]


def test_captures_do_not_wait_for_each_other_nor_for_what_is_outside(sim: Sim) -> None:
    out = sim.python(
        THREADS
        + STREAMS
        + """
begin(a); begin(b); print(after(a, b), end(a), end(b))
begin(a); print(after(b, a), end(a))
"""
    )
    assert out.split("\n") == ["902 (901, False) (901, False)", "905 (901, False)", ""]


def test_the_legacy_stream_is_unusable_while_a_blocking_stream_is_captured(sim: Sim) -> None:
    """To ask whether it is captured is harmless."""
    out = sim.python(
        THREADS
        + STREAMS
        + """
d = blocking(); v = c_int(); begin(d)
print(code("cuStreamIsCapturing", NONE, byref(v)), status(d), run(blocking()), run(d), end(d))
for use in (lambda: run(NONE), lambda: code("cuStreamQuery", NONE), lambda: code("cuEventRecord", e, NONE)):
    begin(d); print(use(), end(d))
begin(a); print(run(NONE), end(a))
"""
    )
    invalid = "906 (901, False)"
    assert out.split("\n") == ["906 1 0 0 (0, True)", invalid, invalid, invalid, "0 (0, True)", ""]


def test_the_legacy_stream_does_not_join_a_capture(sim: Sim) -> None:
    out = sim.python(
        THREADS
        + """
e = c_void_p(); cuda.cuEventCreate(byref(e), 0)
cuda.cuStreamBeginCapture_v2(s, 2); cuda.cuEventRecord(e, s)
print(code("cuStreamWaitEvent", NONE, e, 0), status(s), code("cuStreamEndCapture", s, byref(g)))
"""
    )
    assert out.split() == ["900", "2", "901"]
