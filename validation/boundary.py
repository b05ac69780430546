"""Run "boundary": the driver's memory limit per cgroup (R615 and later), as programs meet it that no shim stops.

Each phase's "answers" are compared with boundary_predictions.json, which the results' file has before anything is tried.
Every program runs without the shim, in a cgroup of its own. No phase asks for much more memory than the limit that it
sets, so that the GPU stays usable.
"""

import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testbed import REPO

from . import apart, syscalls
from .boxes import BUILD, Node
from .frame import Json, Run
from .gpu_user import MARK
from .limits import MAX, Nvml

CGROUPS = Path("/sys/fs/cgroup")
TOP = "gpu-validate"
USER = Path(__file__).with_name("gpu_user.py")
STATIC = (
    BUILD / "sim" / "gpu-probe-static"
)  # the simulator's program that needs no library; no driver of a GPU has its like
PREDICTIONS = REPO / "data/validation/boundary-predictions.json"
LIMIT = 2048  # MiB
PIECE = 64
BEYOND = LIMIT + 512
WAYS = ("alloc", "create", "pool", "graph", "array", "managed")
MIB = 1 << 20


class Stage:
    """The GPU, its NVML, and cgroups of version 2 below one folder."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.cuda, self.nvml_path = node.inventory.libcuda, node.inventory.libnvml
        self.folder = folder
        self.nvml = Nvml(self.nvml_path)
        self.numbers = iter(range(100000))

    def is_v2(self) -> bool:
        return (CGROUPS / "cgroup.procs").exists()

    @contextlib.contextmanager
    def cgroup(self, name: str = "", below: Path | None = None) -> Iterator[Path]:
        path = (below or CGROUPS / TOP) / (name or f"c{next(self.numbers)}")
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            for line in (path / "cgroup.procs").read_text().split() if path.exists() else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line), 9)
            remove(path)

    @contextlib.contextmanager
    def user(self, cgroup: Path | None, library: str = "", init: bool = True) -> Iterator["User"]:
        program = User(cgroup, library or self.cuda, self.nvml_path)
        try:
            if init:
                program.ask("init")
            yield program
        finally:
            program.close()

    def limited(self, cgroup: Path, hard: int = LIMIT) -> None:
        if code := self.nvml.set(cgroup, hard * MIB):
            raise RuntimeError(f"set {hard} MiB for {cgroup}: NVML error {code}")
        said = self.nvml.get(cgroup)
        if said.get("hard") != hard * MIB:
            raise RuntimeError(f"read back after setting {hard} MiB: {said}")


def remove(path: Path) -> None:
    """A cgroup is busy until the last of its killed processes is gone."""
    for _ in range(200):
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)


class User:
    """gpu_user.py in a cgroup."""

    def __init__(self, cgroup: Path | None, cuda: str, nvml: str) -> None:
        join = f"echo 0 > '{cgroup}/cgroup.procs'; " if cgroup else ""
        argv = ["sh", "-c", f'{join}exec "$@"', "sh", sys.executable, str(USER), cuda, nvml]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def ask(self, line: str, seconds: float = 40) -> Json:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"{line}: no answer within {seconds} s")
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError(f"{line}: the program ended with {self.process.wait()}")
        return dict(json.loads(text))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def driver(stage: Stage, node: Node, cgroup: str) -> Json:
    """Which driver and kernel this is, and whether the limits are there at all."""
    nvml, said = stage.nvml, ""
    if not nvml.has():
        said = f"the NVML of driver {node.inventory.driver_version} has no memory limits; they came with 615"
    elif not stage.is_v2():
        said = "no cgroup v2 at /sys/fs/cgroup, and none could be mounted there"
    out: Json = {
        "driver": node.inventory.driver_version,
        "nvml_init_ms": nvml.init_ms,
        "functions": nvml.has(),
        "cgroup": cgroup,
        "controllers": _text(CGROUPS / "cgroup.controllers"),
        "dmem.capacity": _text(CGROUPS / "dmem.capacity"),
        "misc.capacity": _text(CGROUPS / "misc.capacity"),
    }
    if not said:
        with stage.cgroup() as own:
            out["without_a_limit"] = nvml.get(own)
            set_code = nvml.set(own, LIMIT * MIB)
            out["set"] = set_code
            out["files"] = {p.name: _text(p) for p in own.iterdir() if p.name.startswith(("dmem", "misc"))}
            if set_code or out["without_a_limit"]["code"]:
                said = f"NVML refuses: set {set_code}, get {out['without_a_limit']['code']} (3 is NOT_SUPPORTED)"
            else:
                unlimited = out["without_a_limit"]
                hard = {"hard_without_a_limit_is_max": unlimited["hard"] == MAX}
                out["answers"] = {"soft_without_a_limit": unlimited["soft"], **hard}
    if said:
        out["boundary"] = f"not available: {said}"
    return out


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()[:500]
    except OSError:
        return None


def arguments(stage: Stage) -> Json:
    """NVML's answers to arguments that are not as they should be; 0 is success."""
    nvml, size = stage.nvml, LIMIT * MIB
    with stage.cgroup() as own:
        file = stage.folder / "file"
        file.write_text("")
        codes = {
            "no such cgroup": nvml.set(own / "none", size),
            "not a cgroup": nvml.set(stage.folder, size),
            "a file": nvml.set(file, size),
            "a path below the mount": nvml.set("/" + str(own.relative_to(CGROUPS)), size),
            "the root cgroup": nvml.get(CGROUPS)["code"],
            "soft above hard": nvml.set(own, size, 2 * size),
            "hard 0": nvml.set(own, 0),
            "more than the GPU has": nvml.set(own, 1 << 50),
            "not a multiple of a page": nvml.set(own, size + 1),
            "cleared": nvml.clear(own),
        }
        odd = nvml.get(own)
        codes["set by another user"] = _as_nobody(lambda: nvml.set(own, size))
        codes["get by another user"] = _as_nobody(lambda: int(nvml.get(own)["code"]))
        return {"codes": codes, "after_clear": odd, "answers": {"set by another user": codes["set by another user"]}}


def _as_nobody(call: Callable[[], int]) -> int:
    """The call's result in a child that is uid 65534; -1 if the child did not get so far."""
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            os._exit(min(call(), 254))
        finally:
            os._exit(255)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return -1 if code == 255 else code


def way(stage: Stage, how: str, library: str = "") -> Json:
    """Memory that one way to allocate gets below a limit, and each source's figure for it."""
    with stage.cgroup() as own:
        stage.limited(own)
        with stage.user(own, library) as user:
            context = stage.nvml.used(own)
            filled = user.ask(f"fill {how} {PIECE} {BEYOND}")
            figures = {"driver_mib": stage.nvml.used(own), "nvml_process_mib": stage.nvml.of_process(user.pid)}
            user.ask("free")
            freed = stage.nvml.used(own)
        out = {"context_mib": context, "filled": filled, **figures, "after_free_mib": freed, "limit_mib": LIMIT}
        return {**out, "answers": {"stopped": filled.get("mib", BEYOND) <= LIMIT and "said" in filled}}


def own_library(stage: Stage) -> Json:
    """The driver's library under another name, as a program brings it that avoids the mounted one."""
    copy = stage.folder / "libmine.so"
    shutil.copyfile(stage.cuda, copy)
    return way(stage, "alloc", str(copy))


def static(stage: Stage) -> Json:
    if not STATIC.exists():
        return {"skipped": "there is no program that speaks to the driver without a library; the limit is the kernel's"}
    with stage.cgroup() as own:
        stage.limited(own)
        join = f"echo 0 > '{own}/cgroup.procs'; exec '{STATIC}' fill {PIECE}"
        done = subprocess.run(["sh", "-c", join], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        words = done.stdout.split()
        mib = int(words[words.index("MiB") - 1]) if "MiB" in words else BEYOND
        return {"said": done.stdout[-300:], "answers": {"stopped": 0 < mib <= LIMIT}}


def contexts(stage: Stage, short: bool) -> Json:
    with stage.cgroup() as own:
        stage.limited(own, LIMIT // 2)
        with stage.user(own) as user:
            before = stage.nvml.used(own)
            made = user.ask(f"contexts {20 if short else 64}", 90)
            after = stage.nvml.used(own)
    each = (after - before) / made["made"] if made.get("made") else None
    out = {"first_mib": before, "after_mib": after, **made, "each_mib": each}
    return {**out, "answers": {"contexts_count": before > 0, "within": after <= LIMIT // 2}}


def together(stage: Stage) -> Json:
    """Two processes of one cgroup share its limit."""
    with stage.cgroup() as own:
        stage.limited(own)
        with stage.user(own) as one, stage.user(own) as two:
            first = one.ask(f"fill alloc {PIECE} {LIMIT // 2}")
            second = two.ask(f"fill alloc {PIECE} {BEYOND}")
            used = stage.nvml.used(own)
    held = first.get("mib", 0) + second.get("mib", 0)
    return {"first": first, "second": second, "driver_mib": used, "answers": {"together_within": held <= LIMIT}}


def inside(stage: Stage) -> Json:
    """The figures that a program below a limit sees."""
    with stage.cgroup() as own:
        stage.limited(own)
        with stage.user(own) as user:
            user.ask(f"fill alloc {PIECE} {LIMIT // 2}")
            info = user.ask("info")
    two = info.get("nvmlDeviceGetMemoryInfo_v2")
    total = info.get("cuMemGetInfo", {}).get("total")
    shown = {"nvml_v2_total_is_limit": isinstance(two, dict) and two["total"] == LIMIT}
    return {**info, "answers": {**shown, "cuMemGetInfo_total_is_limit": total == LIMIT}}


def elsewhere(stage: Stage) -> Json:
    """Who is charged for a client that was made in one cgroup and allocates in another, and do ancestors' limits hold?"""
    with stage.cgroup() as maker, stage.cgroup() as other, stage.cgroup() as parent:
        stage.limited(maker)
        with stage.user(maker) as user:
            user.ask(f"join {other}/cgroup.procs")
            filled = user.ask(f"fill alloc {PIECE} {BEYOND}")
            moved = {"maker_mib": stage.nvml.used(maker), "other_mib": stage.nvml.used(other)}
        stage.limited(parent)
        with stage.cgroup(below=parent) as child, stage.user(child) as user:
            total = user.ask("info").get("cuMemGetInfo", {}).get("total")
            below = user.ask(f"fill alloc {PIECE} {BEYOND}")
            chain = {"parent_mib": stage.nvml.used(parent), "child_mib": stage.nvml.used(child)}
    answers = {
        "moved_stays_limited": filled.get("mib", BEYOND) <= LIMIT and moved["maker_mib"] > moved["other_mib"],
        "limit_of_the_parent_holds": below.get("mib", BEYOND) <= LIMIT,
        "total_below_it_is_the_whole_gpu": total is not None and total > LIMIT,
    }
    return {"moved": {**filled, **moved}, "below_a_limit": {**below, **chain}, "answers": answers}


def forked(stage: Stage) -> Json:
    """A child that inherited the memory of its parent, which has ended."""
    with stage.cgroup() as own:
        stage.limited(own)
        with stage.user(own) as user:
            user.ask(f"fill alloc {PIECE} {LIMIT // 2}")
            before = stage.nvml.used(own)
            child = user.ask("fork")["pid"]
            time.sleep(0.5)
            held = {"driver_mib": stage.nvml.used(own), "nvml_parent_mib": stage.nvml.of_process(user.pid)}
            held["nvml_child_mib"] = stage.nvml.of_process(child)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)
    return {"before_mib": before, **held, "answers": {"held_memory_stays_charged": held["driver_mib"] >= LIMIT // 2}}


def path_again(stage: Stage) -> Json:
    """A cgroup that is made again with the path of one that had a limit."""
    with stage.cgroup("again") as own:
        stage.limited(own)
        remove(own)
        gone = stage.nvml.get(own)
        own.mkdir()
        again = stage.nvml.get(own)
        cleared = stage.nvml.clear(own)
    inherits = again.get("hard") not in (None, MAX)
    return {"gone": gone, "again": again, "cleared": cleared, "answers": {"a_new_cgroup_inherits_the_limit": inherits}}


def reservation(stage: Stage) -> Json:
    """The soft limit of the cgroup above one with a soft limit: while that is there, and after it was removed."""
    size = LIMIT * MIB
    with stage.cgroup() as parent, stage.cgroup(below=parent) as child:
        code = stage.nvml.set(child, size, size)
        during = stage.nvml.get(parent)
        remove(child)
        after = stage.nvml.get(parent)
    answers = {"is_added_above": during.get("soft") == size, "stays_above_when_removed": after.get("soft") == size}
    return {"code": code, "above": during, "above_after_removal": after, "answers": answers}


def changed(stage: Stage) -> Json:
    """A limit that is set below what is in use, and raised again."""
    with stage.cgroup() as own:
        stage.limited(own)
        with stage.user(own) as user:
            user.ask(f"fill alloc {PIECE} {LIMIT // 2}")
            code = stage.nvml.set(own, LIMIT // 4 * MIB)
            lowered = {"code": code, **stage.nvml.get(own), "then": user.ask(f"fill alloc {PIECE} {BEYOND}")}
            stage.nvml.set(own, LIMIT * MIB)
            raised = user.ask(f"fill alloc {PIECE} {LIMIT // 4}")
    answers = {"lowered_below_use_is_taken": code == 0, "raised_lets_go_on": raised.get("mib", 0) == LIMIT // 4}
    return {"lowered": lowered, "raised": raised, "answers": answers}


def cost(stage: Stage, short: bool) -> Json:
    """Milliseconds of set and get, alone and beside many limited cgroups; the median."""
    out: Json = {}
    for beside in (0, 16 if short else 256):
        with contextlib.ExitStack() as stack:
            for _ in range(beside):
                stage.limited(stack.enter_context(stage.cgroup()))
            own = stack.enter_context(stage.cgroup())
            times: dict[str, list[float]] = {"set": [], "get": []}
            for _ in range(20):
                begin = time.monotonic()
                stage.nvml.set(own, LIMIT * MIB)
                middle = time.monotonic()
                stage.nvml.get(own)
                times["set"].append(middle - begin)
                times["get"].append(time.monotonic() - middle)
            out[f"beside {beside}"] = {k: round(sorted(v)[len(v) // 2] * 1e3, 3) for k, v in times.items()}
    return out


def ioctls(stage: Stage, short: bool) -> Json:
    """Calls of a program to the driver's kernel module: until its context exists, and in steady state."""
    count = 100 if short else 1000
    argv = [sys.executable, str(USER), stage.cuda, "-"]
    try:
        parts = syscalls.count_ioctls(argv, dict(os.environ), MARK, f"init\nwork {count}\n".encode())
    except OSError as e:
        return {"skipped": f"ptrace: {e.strerror or e}"}
    names = {"start": "before", "1": "cuInit", "2": "context and module", "3": f"{count} launches"}
    names |= {"4": f"{count // 10} allocations and frees", "5": f"{count // 10} copies", "9": "at the end"}
    found = {names[part]: dict(counts) for part, counts in parts.items()}
    launches = parts.get("3")
    per_launch = None if launches is None else sum(n for file, n in launches.items() if file != syscalls.OTHER) / count
    return {"ioctls": found, "answers": {"launches_need_ioctls": None if per_launch is None else per_launch > 0.05}}


def verdict(run: Run) -> Json:
    """Compares the answers with the predictions."""
    predicted = {name: row["expect"] for name, row in run.results["predictions"]["answers"].items()}
    came: dict[str, Any] = {}
    for name, phase in run.results["phases"].items():
        came.update({f"{name}: {what}": value for what, value in phase.get("answers", {}).items()})
    other = {
        name: {"came": v, "predicted": predicted.get(name)} for name, v in came.items() if v != predicted.get(name)
    }
    return {
        "as_predicted": len(came) - len(other),
        "not_as_predicted": other,
        "not_tried": sorted(set(predicted) - set(came)),
    }


def validate(run: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    run.results["predictions"] = json.loads(PREDICTIONS.read_text())
    run.flush()
    cgroup = apart.cgroup2()
    stages: list[Stage] = []

    def start() -> Json:
        stages.append(Stage(node, folder))
        return {"init_ms": stages[0].nvml.init_ms}

    run.phase("nvml", 60, start)
    if not stages:
        return
    stage = stages[0]
    if stage.is_v2():
        (CGROUPS / TOP).mkdir(exist_ok=True)
    try:
        there = run.phase("driver", 30, lambda: driver(stage, node, cgroup))
        why = there.get("boundary", "")
        phases: list[tuple[str, float, Callable[[], Json]]] = [
            ("alloc", 60, lambda: way(stage, "alloc")),
            ("own library", 60, lambda: own_library(stage)),
            ("static program", 70, lambda: static(stage)),
            *((how, 60, functools.partial(way, stage, how)) for how in WAYS[1:]),
            ("contexts", 100, lambda: contexts(stage, short)),
            ("two processes", 60, lambda: together(stage)),
            ("inside", 60, lambda: inside(stage)),
            ("made elsewhere", 80, lambda: elsewhere(stage)),
            ("forked holder", 60, lambda: forked(stage)),
            ("path again", 20, lambda: path_again(stage)),
            ("soft limit", 20, lambda: reservation(stage)),
            ("changed", 60, lambda: changed(stage)),
            ("arguments", 30, lambda: arguments(stage)),
            ("cost", 60, lambda: cost(stage, short)),
        ]
        for name, seconds, work in phases:
            run.phase(name, seconds, (lambda: {"skipped": why}) if why else work)
        run.phase("ioctls", 120, lambda: ioctls(stage, short))
    finally:
        stage.nvml.close()
        if stage.is_v2():
            remove(CGROUPS / TOP)
    run.phase("verdict", 5, lambda: verdict(run))
