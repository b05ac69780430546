"""Run "suspend": the driver's checkpoints of processes (570 and later), as `gpu-hook suspend` uses them.

Each phase's "answers" are compared with suspend-predictions.json, which the results' file has before anything is tried. The
programs run bare, without the shim; the calls are those of the shipped helper, oci_hook/discovery/checkpoint.py, and single
ones by ctypes where a state in between matters.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from testbed import REPO

from .boundary import User, verdict
from .boxes import Node
from .frame import Json, Run

PREDICTIONS = REPO / "data/validation/suspend-predictions.json"
MIB = 1 << 20
PIECE = 64  # MiB
SIZES, SHORT_SIZES = (1024, 8192), (256,)  # MiB; what does not fit the GPU is left out
SMALL = 256
QUIET = 1.0  # seconds in which a call that waits gives no answer
RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2


class Driver:
    """The calls one by one."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cuda = ctypes.CDLL(node.inventory.libcuda)

    def start(self) -> Json:
        there = hasattr(self.cuda, "cuCheckpointProcessLock")
        return {"init": self.cuda.cuInit(0), "answers": {"has_the_calls": there}}

    def state(self, pid: int) -> int:
        """The state; minus the error code where there is none."""
        found = ctypes.c_int()
        code = self.cuda.cuCheckpointProcessGetState(pid, ctypes.byref(found))
        return -int(code) if code else found.value

    def call(self, name: str, pid: int) -> tuple[int, float]:
        """(CUresult, milliseconds)."""
        begin = time.monotonic()
        code = getattr(self.cuda, f"cuCheckpointProcess{name}")(pid, None)
        return int(code), round((time.monotonic() - begin) * 1e3, 2)

    def helper(self, what: str, *pids: int) -> Json:
        """The shipped helper's answer."""
        from oci_hook.linux.proc import process_life
        from oci_hook.suspend import gpu_processes

        fd = os.open(os.devnull, os.O_RDONLY)
        try:
            return gpu_processes.call(self.node.inventory, what, tuple(process_life(p) for p in pids), 120.0, (fd,))
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def user(self, mib: int = 0) -> Iterator[User]:
        program = User(None, self.node.inventory.libcuda, self.node.inventory.libnvml)
        try:
            program.ask("init")
            if mib and program.ask(f"fill alloc {PIECE} {mib}", 120)["mib"] != mib:
                raise RuntimeError(f"no room for {mib} MiB")
            if mib:
                program.ask("stamp", 120)
            yield program
        finally:
            program.close()

    def used_mib(self) -> int:
        """In use on the GPU."""
        with self.user() as other:
            return int(other.ask("info")["cuMemGetInfo"]["used"])


def tell(user: User, line: str) -> None:
    assert user.process.stdin
    user.process.stdin.write(line + "\n")
    user.process.stdin.flush()


def is_quiet(user: User, seconds: float = QUIET) -> bool:
    return not select.select([user.process.stdout], [], [], seconds)[0]


def hear(user: User) -> Json:
    assert user.process.stdout
    if is_quiet(user, 30):
        raise TimeoutError("no answer within 30 s")
    return dict(json.loads(user.process.stdout.readline()))


def rss_mib(pid: int) -> int:
    words = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(words.split()[1]) >> 10


def others(driver: Driver) -> Json:
    """States of processes that use no CUDA, of one that is not there, and of one that does."""
    idle = subprocess.Popen(["sleep", "60"])
    try:
        with driver.user() as user:
            answers = {
                "a_program_without_cuda_has_no_state": driver.state(idle.pid) < 0,
                "a_pid_that_is_not_there_has_no_state": driver.state(4_000_000) < 0,
                "a_program_with_cuda_runs": driver.state(user.pid) == RUNNING,
            }
            return {"without_cuda": driver.state(idle.pid), "not_there": driver.state(4_000_000), "answers": answers}
    finally:
        idle.kill()
        idle.wait()


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_pages(driver: Driver, sizes: tuple[int, ...]) -> Json:
    """The same where the kernel gives processes huge pages unasked."""
    before = HUGE_PAGES.read_text()
    try:
        HUGE_PAGES.write_text("always")
        return {"before": before.strip(), **{k: v for k, v in moved(driver, sizes).items() if k != "answers"}}
    finally:
        HUGE_PAGES.write_text(before.partition("[")[2].partition("]")[0])


def moved(driver: Driver, sizes: tuple[int, ...]) -> Json:
    """Milliseconds of each call by size, and what came back."""
    out: Json = {"ms": {}, "gb_per_s": {}, "rss_mib": {}}
    kept, freed, states, memory = [], [], [], []
    for mib in sizes:
        try:
            with driver.user(mib) as user:
                before, rss, busy = user.ask("digest", 120), rss_mib(user.pid), driver.used_mib()
                ms = {}
                for name in ("Lock", "Checkpoint"):
                    code, ms[name] = driver.call(name, user.pid)
                    if code:
                        raise RuntimeError(f"{name}: CUDA error {code}")
                states.append(driver.state(user.pid))
                freed.append(busy - driver.used_mib() >= mib)
                out["rss_mib"][str(mib)] = grown = rss_mib(user.pid) - rss
                memory.append(grown >= mib * 9 // 10)
                for name in ("Restore", "Unlock"):
                    code, ms[name] = driver.call(name, user.pid)
                    if code:
                        raise RuntimeError(f"{name}: CUDA error {code}")
                kept.append(user.ask("digest", 120) == before)
                out["ms"][str(mib)] = ms
                for name in ("Checkpoint", "Restore"):
                    out["gb_per_s"][f"{name} {mib}"] = round(mib * MIB / max(ms[name], 0.01) / 1e6, 2)
        except RuntimeError as e:
            out[f"left out {mib}"] = str(e)
    rates = [rate for name, rate in out["gb_per_s"].items() if int(name.split()[1]) >= 8192]
    out["answers"] = {
        "memory_comes_back": all(kept) and bool(kept),
        "the_gpu_is_free_meanwhile": all(freed) and bool(freed),
        "the_state_is_checkpointed": set(states) == {CHECKPOINTED},
        "it_is_in_the_processs_own_memory": all(memory) and bool(memory),
        "at_least_2_gb_per_s": all(rate >= 2 for rate in rates) if rates else None,
    }
    return out


def waits(driver: Driver) -> Json:
    """Calls of a locked and of a checkpointed process give no answer until it is unlocked."""
    with driver.user(SMALL) as user:
        answers = {}
        driver.call("Lock", user.pid)
        tell(user, f"fill alloc {PIECE} {PIECE}")
        answers["an_allocation_waits_while_locked"] = is_quiet(user)
        driver.call("Unlock", user.pid)
        answers["and_succeeds_then"] = hear(user).get("mib") == PIECE
        driver.helper("suspend", user.pid)
        tell(user, "work 100")
        answers["launches_wait_while_suspended"] = is_quiet(user)
        driver.helper("resume", user.pid)
        answers["and_are_done_then"] = hear(user).get("launches") == 100
        return {"answers": answers}


def full(driver: Driver, left: int, mib: int) -> Json:
    """A restore of `mib` MiB to a GPU on which others have left `left` MiB, and again when they have gone."""
    with driver.user(mib) as user:
        before = user.ask("digest")
        driver.helper("suspend", user.pid)
        with driver.user() as other:
            room = other.ask("info")["cuMemGetInfo"]
            other.ask(f"fill alloc {PIECE} {room['total'] - room['used'] - left - PIECE}", 120)
            other.ask(f"fill alloc 2 {PIECE}", 120)
            was = other.ask("info")["cuMemGetInfo"]
            said, state = driver.helper("resume", user.pid), driver.state(user.pid)
        out: Json = {"left_mib": was["total"] - was["used"], "said": said, "state": state}
        tries = [driver.helper("resume", user.pid)]
        if not tries[-1].get("done"):
            tries += [{name: driver.call(name, user.pid)} for name in ("Restore", "Unlock", "Restore")]
        out.update(used_mib_then=driver.used_mib(), again=tries, state_then=driver.state(user.pid))
        with contextlib.suppress(RuntimeError, TimeoutError):
            out["digest"] = user.ask("digest", 3)
        out["answers"] = {
            "it_is_refused": "failed" in said,
            "it_stays_checkpointed": state == CHECKPOINTED,
            "it_succeeds_later": tries[0].get("done") is True and out.get("digest") == before,
        }
        return out


def room(node: Node, mib: int) -> int:
    """MiB that such a process has on the GPU, and one piece more."""
    return mib + node.inventory.gpus[0].context_mib + PIECE


def two(driver: Driver) -> Json:
    """Two processes, one of which cannot be moved: both run again."""
    out: Json = {}
    with driver.user(SMALL) as good, driver.user(SMALL) as bad:
        before = good.ask("digest")
        bad.ask("fill managed 16 16")
        out["said"] = said = driver.helper("suspend", good.pid, bad.pid)
        out["states"] = [driver.state(good.pid), driver.state(bad.pid)]
        out["answers"] = {
            "managed_memory_is_refused": "failed" in said,
            "both_run_again": out["states"] == [RUNNING, RUNNING],
            "the_other_one_is_well": good.ask("digest") == before,
        }
        with contextlib.suppress(RuntimeError, TimeoutError):
            out["bad"] = bad.ask("digest")
    return out


def shared(driver: Driver) -> Json:
    """Memory with an IPC handle, which drivers before 610 do not move."""
    with driver.user(SMALL) as user:
        user.ask("share")
        before = user.ask("digest")
        said = driver.helper("suspend", user.pid)
        back = driver.helper("resume", user.pid)
        old = int(driver.node.inventory.driver_version.partition(".")[0]) < 610
        return {
            "said": said,
            "back": back,
            "comes_back": user.ask("digest", 10) == before,
            "answers": {"refused_before_610": ("failed" in said) == old},
        }


def killed(driver: Driver, mib: int) -> Json:
    """The helper is killed while it moves memory; a second one brings all back."""
    with driver.user(mib) as user:
        before = user.ask("digest", 120)
        code = f"import sys; sys.path.insert(0, {str(REPO)!r})\n"
        code += f"from validation.suspend import moves\nmoves({driver.node.inventory.libcuda!r}, {user.pid})"
        helper = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert helper.stdout
        helper.stdout.readline()
        time.sleep(0.02)
        helper.send_signal(signal.SIGKILL)
        helper.communicate()
        state = driver.state(user.pid)
        said = driver.helper("resume", user.pid)
        well = user.ask("digest", 120) == before
        return {"state": state, "said": said, "answers": {"all_is_well_again": said.get("done") is True and well}}


def moves(library: str, pid: int) -> None:
    """In a process of its own: a checkpoint that is to be cut off."""
    cuda = ctypes.CDLL(library)
    cuda.cuInit(0)
    cuda.cuCheckpointProcessLock(pid, None)
    sys.stdout.write("locked\n")
    sys.stdout.flush()
    cuda.cuCheckpointProcessCheckpoint(pid, None)


def validate(run: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    run.results["predictions"] = json.loads(PREDICTIONS.read_text())
    run.flush()
    driver = Driver(node)
    there = run.phase("driver", 30, driver.start)
    why = "" if there.get("answers", {}).get("has_the_calls") else "the driver has no checkpoints of processes"
    sizes = SHORT_SIZES if short else SIZES
    phases: list[tuple[str, float, Callable[[], Json]]] = [
        ("others", 30, lambda: others(driver)),
        ("full", 90, lambda: full(driver, PIECE, SMALL)),
        ("nearly full", 90, lambda: full(driver, 1024, 2048)),
        ("hardly room", 90, lambda: full(driver, room(node, 2048), 2048)),
        ("moved", 200, lambda: moved(driver, sizes)),
        ("moved, huge pages", 200, lambda: huge_pages(driver, sizes)),
        ("shared", 30, lambda: shared(driver)),
        ("killed", 60, lambda: killed(driver, sizes[0])),
        ("waits", 60, lambda: waits(driver)),
        ("two", 60, lambda: two(driver)),  # last: it may leave a process that hangs
    ]
    for name, seconds, work in phases:
        run.phase(name, seconds, (lambda: {"skipped": why}) if why else work)
    run.phase("verdict", 5, lambda: verdict(run))
