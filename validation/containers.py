"""Run "containers": containers by runc through the shipped wrapper, beside a running agent: starts, the limit, a program that
goes past the shim, suspend and resume, memory that is lent, and PyTorch under shares."""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import boxes
from .boundary import User
from .boxes import REPO, Node
from .clients import PROGRAMS
from .frame import Json, Run, run

KEY = "gpu-hook.io/"
LIMIT = 4096  # MiB
PIECE = 64  # MiB
HERE = Path(__file__).resolve().parent
LOAD = HERE / "torch_load.py"


class Program(User):
    """A program in a container, or beside all where name is ""; `ask` gives its answer of one line of JSON."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self.log = log
        with open(log, "w") as err:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True)
        self.pid = self.process.pid

    def ask(self, line: str, seconds: float = 40) -> Json:
        try:
            return super().ask(line, seconds)
        except RuntimeError as e:
            raise RuntimeError(f"{e}: {self.log.read_text()[-1500:]}") from None

    def ready(self, seconds: float) -> None:
        self.ask("", seconds)


class Stage:
    """Containers whose root is an overlay of this machine's own files, all below one folder."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder / "containers"
        self.folder.mkdir()
        self.names: list[str] = []
        self.numbers = iter(range(1000))

    def cli(self, *words: str, status: int | None = 0) -> str:
        argv = [sys.executable, "-m", "oci_hook", *words, "--prefix", str(self.node.prefix)]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=REPO, timeout=120)
        if status is not None and done.returncode != status:
            raise RuntimeError(f"gpu-hook {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}"[-1500:])
        return done.stdout + done.stderr

    def runtime(self, *words: str, program: str = "") -> list[str]:
        return [program or f"{self.node.prefix}/bin/gpu-hook-runtime", "--root", str(self.folder / "runc"), *words]

    def bundle(self, argv: list[str], annotations: Json) -> tuple[str, Path]:
        """(id, folder)."""
        name = f"gpu-validate-{os.getpid()}-{next(self.numbers)}"
        self.names.append(name)
        folder = self.folder / name
        (folder / "rootfs").mkdir(parents=True)
        boxes.overlay(folder / "rootfs", folder, self.node.inventory.libcuda)
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        spec = json.loads((folder / "config.json").read_text())
        hidden = ("LD_LIBRARY_PATH", "GPU_HOOK_SIM_GPUS")
        env = [f"{k}={v}" for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "HOME") and k not in hidden]
        spec["process"].update(terminal=False, args=argv, env=[*env, "PYTHONDONTWRITEBYTECODE=1"])
        spec["root"]["readonly"] = False
        spec["annotations"] = {KEY + k: str(v) for k, v in annotations.items()}
        spec["linux"]["cgroupsPath"] = f"/{name}"
        (folder / "config.json").write_text(json.dumps(spec))
        return name, folder

    @contextlib.contextmanager
    def container(self, argv: list[str], **annotations: Any) -> Iterator[tuple[str, Program]]:
        """(id, the program)."""
        name, folder = self.bundle(argv, annotations)
        program = Program(self.runtime("run", "--bundle", str(folder), name), folder / "log")
        try:
            yield name, program
        finally:
            self.end(name)
            program.close()

    def user(self, **annotations: Any) -> "contextlib.AbstractContextManager[tuple[str, Program]]":
        """With gpu_user.py."""
        return self.container([sys.executable, str(HERE / "gpu_user.py"), "libcuda.so.1", "-"], **annotations)

    def end(self, name: str) -> None:
        subprocess.run(self.runtime("delete", "--force", name), capture_output=True, timeout=60)
        if name in self.names:
            self.names.remove(name)
        boxes.unmount(self.folder / name)

    @contextlib.contextmanager
    def agent(self) -> Iterator[subprocess.Popen[bytes]]:
        argv = [sys.executable, "-m", "oci_hook", "agent", "--prefix", str(self.node.prefix)]
        argv += ["--interval", "1", "--address", "127.0.0.1:0"]
        with open(self.folder / "agent.log", "w") as log:
            agent = subprocess.Popen(argv, cwd=REPO, stderr=log, stdout=log)
        try:
            yield agent
        finally:
            agent.terminate()
            agent.wait(30)

    def events(self) -> list[Json]:
        return [json.loads(line) for line in self.cli("events", "--json").splitlines()]

    def close(self) -> None:
        for name in list(self.names):
            self.end(name)

    def empty(self) -> None:
        """Wait until the containers of the last phase have ended for the ledger: a process that had much memory ends slowly."""
        end = time.monotonic() + 20
        while json.loads(self.cli("ps", "--json"))["containers"] and time.monotonic() < end:
            time.sleep(0.2)


def kind(events: list[Json]) -> list[str]:
    return [" ".join(str(e.get(k)) for k in ("event", "finding", "kind", "reason") if e.get(k))[:160] for e in events]


def starts(stage: Stage) -> Json:
    """Milliseconds of a container of /bin/true, by runc and by the wrapper with a share, in turn."""
    took: dict[str, list[float]] = {"runc": [], "gpu-hook": []}
    for _ in range(6):
        for who, times in took.items():
            asks = {"memory": LIMIT} if who == "gpu-hook" else {}
            name, folder = stage.bundle(["/bin/true"], asks)
            argv = stage.runtime("run", "--bundle", str(folder), name, program="runc" if who == "runc" else "")
            begin = time.monotonic()
            run(argv, 60)
            times.append((time.monotonic() - begin) * 1e3)
            stage.end(name)
    return {"ms": {who: [round(t, 1) for t in times] for who, times in took.items()},
            "added_ms": round(statistics.median(took["gpu-hook"]) - statistics.median(took["runc"]), 1)}  # fmt: skip


def limit(stage: Stage) -> Json:
    """Each way to allocate stops at the limit."""
    out: Json = {}
    for how in ("alloc", "create", "pool", "graph", "array", "managed"):
        with stage.user(memory=LIMIT) as (_, program):
            out[how] = {
                **program.ask("init"),
                **program.ask("info"),
                **program.ask(f"fill {how} {PIECE} {2 * LIMIT}", 60),
            }
    over = {how: said for how, said in out.items() if said.get("mib", 0) > LIMIT}
    if over:
        raise RuntimeError(f"over the limit: {over}")
    return out


def views(stage: Stage) -> Json:
    with stage.user(memory=LIMIT, compute=50) as (name, program):
        program.ask("init")
        program.ask(f"fill alloc {PIECE} 1024")
        time.sleep(2)
        return {what: stage.cli(*what.split(), status=None)[-2500:] for what in ("ps", "gpus", f"why {name}", "doctor")}


def past(stage: Stage) -> Json:
    """A program that opens the driver's own library takes what is another container's."""
    ended = 0.0
    half = stage.node.inventory.gpus[0].memory_mib // 2 // PIECE * PIECE
    with stage.user(memory="60%") as (_, honest):
        honest.ask("init")
        honest.ask(f"fill alloc {PIECE} 2048")
        argv = [sys.executable, str(HERE / "gpu_user.py"), "/run/gpu-hook/driver/cuda", "-"]
        with stage.container(argv, memory=1024) as (name, program):
            begin = time.monotonic()
            said: Json = {}
            with contextlib.suppress(RuntimeError, TimeoutError):
                said = program.ask("init")
                said = {**said, **program.ask(f"fill alloc {PIECE} {half}", 60)}
                begin = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(25)
                ended = time.monotonic() - begin
            out = {"said": said, "ended_after_s": round(ended, 2), "events": kind(stage.events())[-6:]}
            out["ps"] = stage.cli("ps", status=None)[-1200:]
            out["log"] = program.log.read_text()[-300:]
        out["honest_lives"] = honest.ask("info")
    if not ended:
        raise RuntimeError(f"nobody ended it: {out}")
    return out


def suspended(stage: Stage, torch: bool) -> Json:
    """`gpu-hook suspend` and `resume` of a program with the shim."""
    argv = [sys.executable, str(LOAD), "train"]
    with stage.container(argv, memory=16384) if torch else stage.user(memory=8192) as (name, program):
        if torch:
            program.ready(60)
            program.ask("run 1")
            held = program.ask("hold 4096", 60)
        else:
            program.ask("init")
            held = program.ask(f"fill alloc {PIECE} 4096")
            program.ask("stamp")
        right = program.ask("check" if torch else "digest", 60)
        begin = time.monotonic()
        said = json.loads(stage.cli("suspend", name, "--json", status=None))
        middle = time.monotonic()
        listing = stage.cli("ps")
        began_back = time.monotonic()
        back = json.loads(stage.cli("resume", name, "--json", status=None))
        end = time.monotonic()
        same = program.ask("check" if torch else "digest", 60)
        more = program.ask("run 1" if torch else "work 100", 60)
        out = {"held": held, "suspend": said, "resume": back, "ps": listing, "more": more, "right": same == right}
        out["seconds"] = [round(middle - begin, 2), round(end - began_back, 2)]
        if same != right or "error" in said:
            raise RuntimeError(f"not as before: {out}")
        return out


def full(stage: Stage) -> Json:
    """`resume` to a GPU that another program has filled, and again when it has gone."""
    with stage.user(memory=8192) as (name, program):
        program.ask("init")
        program.ask(f"fill alloc {PIECE} 4096")
        program.ask("stamp")
        right = program.ask("digest")
        stage.cli("suspend", name)
        node = stage.node.inventory
        stranger = User(None, node.libcuda, node.libnvml)
        try:
            stranger.ask("init")
            room = stranger.ask("info")["cuMemGetInfo"]
            stranger.ask(f"fill alloc {PIECE} {room['total'] - room['used'] - 1024}")
            refused = stage.cli("resume", name, status=None)[-400:]
        finally:
            stranger.close()
        back = stage.cli("resume", name, status=None)[-400:]
        out = {"refused": refused, "back": back, "same": program.ask("digest", 20) == right}
        if "GH-201" not in refused or not out["same"]:
            raise RuntimeError(f"not as it should be: {out}")
        return out


def lent(stage: Stage) -> Json:
    """Three containers whose limits together are more than the GPU. One holds much for good; a trainer borrows the rest, and
    goes when a server within its request needs room, and comes back."""
    total = stage.node.inventory.gpus[0].memory_mib
    stage.cli("settings", "set", "oversubscribe=2.0", "memory_turn=5", "memory_wait=60")
    part = lambda percent: total * percent // 100 // PIECE * PIECE  # noqa: E731
    keep = {"memory": part(78), "class": "online"}
    borrow = {"memory": part(15), "memory-request": part(3), "class": "offline"}
    with (
        stage.user(**keep) as (_, filler),
        stage.user(**borrow) as (trainer_name, trainer),
        stage.user(memory=part(15), **{"class": "online"}) as (_, server),
    ):
        for program in (filler, trainer, server):
            program.ask("init")
        out: Json = {"filler": filler.ask(f"fill alloc {PIECE} {part(76)}", 60)}
        out["trainer"] = trainer.ask(f"fill alloc {PIECE} {part(12)}", 60)
        trainer.ask("stamp")
        right = trainer.ask("digest")
        begin = time.monotonic()
        out["server"] = server.ask(f"fill alloc {PIECE} {part(14)}", 50)
        out["server_s"] = round(time.monotonic() - begin, 2)
        out["ps"], out["why"] = stage.cli("ps"), stage.cli("why", trainer_name, status=None)[-600:]
        server.ask("free")
        begin = time.monotonic()
        with contextlib.suppress(TimeoutError):
            out["same"] = trainer.ask("digest", 30) == right
        out["trainer_back_s"] = round(time.monotonic() - begin, 2)
        out["events"] = [e for e in stage.events() if "suspended" in e["event"] or "resumed" in e["event"]]
        out["agent"] = (stage.folder / "agent.log").read_text()[-1500:]
        if not out.get("same") or out["server"].get("mib") != part(14):
            raise RuntimeError(f"not as it should be: {json.dumps(out)}")
        return out


def rate(said: Json) -> float:
    return float(said["steps"]) / float(said["seconds"])


def host(said: Json) -> list[float]:
    """What part of the time went into steps, not into waiting for the GPU; and processors in use."""
    return [round(said[k] / said["seconds"], 3) for k in ("in_steps", "processor")]


def both(a: Program, b: Program, seconds: float) -> list[Json]:
    for program in (a, b):
        assert program.process.stdin
        program.process.stdin.write(f"run {seconds}\n")
        program.process.stdin.flush()
    answers = []
    for program in (a, b):
        assert program.process.stdout
        answers.append(json.loads(program.process.stdout.readline()))
    return answers


def spent(before: list[Json], after: list[Json]) -> list[Json]:
    """Seconds that each was charged, wanted the GPU, and waited at the gate; and its launches."""
    old = before + [{}] * (len(after) - len(before))
    return [
        {k: round(v - o.get(k, 0), 3) if isinstance(v, int | float) else v for k, v in new.items()}
        for o, new in zip(old, after, strict=True)
    ]


def torch_shares(stage: Stage, first: str, other: str) -> Json:
    """`first` beside `other`: steps per second of each, relative to alone on the bare driver."""
    out: Json = {}
    with contextlib.ExitStack() as stack:
        command = {kind: [sys.executable, str(LOAD), kind] for kind in (first, other)}
        bare = [Program(command[k], stage.folder / f"bare{i}.log") for i, k in enumerate((first, other))]
        for program in bare:
            stack.callback(program.close)
        named = [
            stack.enter_context(stage.container(command[k], memory="25%", compute=share))
            for k, share in ((first, 70), (other, 30))
        ]
        ours = [program for _, program in named]
        for program in (*bare, *ours):
            program.ready(90)
        first_alone = [p.ask("run 2.5", 60) for p in bare]
        alone = [rate(said) for said in first_alone]
        inside = [rate(p.ask("run 2.5", 60)) for p in ours]
        out["host"] = {"alone": [host(said) for said in first_alone]}
        out["alone_steps_per_s"] = [round(r, 2) for r in alone]
        out["alone_in_container"] = [round(a / b, 3) for a, b in zip(inside, alone, strict=True)]

        def relative(name: str, programs: list[Program], seconds: float) -> None:
            said = both(programs[0], programs[1], seconds)
            out[name] = [round(rate(s) / one, 3) for s, one in zip(said, alone, strict=True)]
            out["host"][name] = [host(s) for s in said]

        relative("bare_both", bare, 3)
        before = boxes.gates(stage.node)
        relative("70_30", ours, 6)
        out["70_30_spent"] = spent(before, boxes.gates(stage.node))
        stage.cli("set", named[0][0], "--compute", "30")
        stage.cli("set", named[1][0], "--compute", "70")
        relative("30_70", ours, 6)
        out["alone_again"] = [round(rate(p.ask("run 2")) / alone[0], 3) for p in (bare[0], ours[0])]
    return out


def ends(stage: Stage) -> Json:
    """A trainer of 50 per cent beside one that is stopped with work in flight, has a kernel of 60 s, and is killed in it."""
    train = [sys.executable, str(LOAD), "train"]
    with (
        stage.container(train, memory="25%", compute=50) as (_, stays),
        stage.container(train, memory="25%", compute=50) as (name, goes),
    ):
        for program in (stays, goes):
            program.ready(90)
        alone = rate(stays.ask("run 2"))

        def left(seconds: float = 2) -> float:
            return round(rate(stays.ask(f"run {seconds}", 60)) / alone, 3)

        pid = json.loads(run(stage.runtime("state", name), 30))["pid"]
        out: Json = {"alone": round(alone, 2)}
        assert goes.process.stdin and goes.process.stdout
        goes.process.stdin.write("run 9\n")
        goes.process.stdin.flush()
        time.sleep(1)
        out["both_run"] = left()
        os.kill(pid, signal.SIGSTOP)
        out["other_stopped"] = left()
        os.kill(pid, signal.SIGCONT)
        out["goes_on"] = json.loads(goes.process.stdout.readline())
        goes.ask("stuck 60")
        out["other_in_a_long_kernel"] = left(3)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        goes.process.wait(60)
        out["died_after_s"] = round(time.monotonic() - begin, 2)
        out["other_killed"] = left()
        stage.end(name)
        out["ps"] = stage.cli("ps")
        return out


def clients(stage: Stage) -> Json:
    """Programs of frameworks (clients.py) under 4 GiB and 10 per cent each: all at once."""
    out: Json = {}
    with contextlib.ExitStack() as stack:
        argv = [sys.executable, str(HERE / "clients.py")]
        started = {
            name: stack.enter_context(stage.container([*argv, name], memory=LIMIT, compute=10))[1] for name in PROGRAMS
        }
        for name, program in started.items():
            said, _ = program.process.communicate(timeout=100)
            lines = said.strip().splitlines()
            out[name] = json.loads(lines[-1]) if lines else {"right": False, "log": program.log.read_text()[-800:]}
    wrong = [n for n, said in out.items() if not said["right"] or said.get("total_mib", LIMIT) != LIMIT]
    if wrong:
        raise RuntimeError(f"{wrong}: {json.dumps(out)}")
    return out


def validate(run_: Run, node: Node, folder: Path, simulated: bool, short: bool) -> None:
    if not shutil.which("runc"):
        run_.phase("runc", 5, lambda: {"skipped": "no runc here"})
        return
    stage = Stage(node, folder)
    try:
        phases: list[tuple[str, float, Callable[[], Json]]] = [
            ("starts", 40, lambda: starts(stage)),
            ("full", 60, lambda: full(stage)),
            ("lent", 110, lambda: lent(stage)),
            ("past the shim", 60, lambda: past(stage)),
            ("training beside decoding", 120, lambda: torch_shares(stage, "train", "decode")),
            ("training ahead beside decoding", 120, lambda: torch_shares(stage, "ahead", "decode")),
            ("training beside training", 120, lambda: torch_shares(stage, "train", "train")),
            ("stopped and killed", 100, lambda: ends(stage)),
            ("frameworks", 110, lambda: clients(stage)),
            ("limit", 60, lambda: limit(stage)),
            ("suspend", 40, lambda: suspended(stage, False)),
            ("suspend torch", 80, lambda: suspended(stage, True)),
            ("views", 30, lambda: views(stage)),
        ]
        frameworks = ("training", "stopped and killed", "frameworks", "suspend torch")
        with stage.agent():
            for name, seconds, work in phases:
                if not simulated or not name.startswith(frameworks):
                    run_.phase(name, seconds, work)
                    stage.empty()
            run_.phase("agent", 5, lambda: {"log": (stage.folder / "agent.log").read_text()[-2000:]})
    finally:
        stage.close()
