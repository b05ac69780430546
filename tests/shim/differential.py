"""The model of the differential test, its processes, and how a failing sequence of calls is made short.

The model: the GPU counts what its driver has handed out, contexts included. Then at every instant: counted <= limit;
a refusal: counted + need > limit; when all is still: cuMemGetInfo's free = limit - counted, and that much, and not one
piece more, is granted. What processes hold that the GPU does not count (external memory, exports) counts as well once
they have said how much that is. What its maker has freed, or left by its exit, while an importer holds it is kept
charged, unless it was imported with a pool: that is nobody's charge, a known gap, and does not count here.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.shim.sim_box import CONTEXT, LIMIT, SimBox

HERE = Path(__file__).parent
Process = subprocess.Popen[str]
Call = tuple[str | int, ...]  # ("start",), ("one", process, seed), ("share", process, to, kind), ("exec", process), ...


class Failure(AssertionError):
    """Something differs from the model. `kind` tells failures of different causes apart."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Bench:
    """A box over the simulated driver, its processes and what they were told. `allowed`: what the model allows."""

    def __init__(self, place: Path, shim: Path, seed: int, allowed: int = LIMIT, **env: str) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.allowed = allowed
        self.charge = CONTEXT if seed % 2 else 0  # what a context takes, and the page says so
        self.box = SimBox(place, shim, self.charge)
        self.gpu = self.box.figures
        self.env = env
        self.log: list[str] = []
        self.calls: list[Call] = []  # since the last time that no process ran, if
        self.told = True  # no storm came in between
        self.running: list[Process] = []
        self.started: list[Process] = []
        self.beyond: dict[int, int] = {}  # pid: bytes charged though the GPU does not count them
        self.samples = self.refused = self.granted = self.kills = self.again = 0
        self.routes: dict[str, int] = {}
        self.judge = self.launch()
        assert self.answer(self.judge) == "ready\n"

    def launch(self) -> Process:
        """A process; it is not ready yet."""
        command = [sys.executable, str(HERE / "random_calls.py"), str(self.charge)]
        p = self.box.start(command, **self.env)
        self.started.append(p)
        return p

    def close(self) -> None:
        """End all processes."""
        for p in self.started:
            p.kill()
            p.communicate()
        self.gpu.close()

    def tell(self, p: Process, line: str = "") -> None:
        """Send a line, without waiting for the answer."""
        assert p.stdin
        print(line, file=p.stdin, flush=True)

    def ask(self, p: Process, line: str) -> str:
        """Send a line; its answer."""
        self.tell(p, line)
        return self.answer(p)

    def answer(self, p: Process) -> str:
        """The next line that a process says."""
        assert p.stdout
        if answer := p.stdout.readline():
            return answer
        _, said = p.communicate()
        return self.fail("ended", f"a process ended by itself: {p.returncode} {said}")

    def fail(self, kind: str, why: str) -> str:
        """Raise Failure with the last calls."""
        raise Failure(kind, f"seed {self.seed}: {why}\nthe last calls:\n" + "\n".join(self.log[-12:]))

    def room(self, exactly: bool = False) -> int:
        """Bytes that the model still allows; exactly: what the GPU does not count is counted as well."""
        counted, left = self.gpu.counted(), self.gpu.left()
        if not exactly:
            return self.allowed - (counted - left)
        beyond = sum(self.beyond.get(p.pid, 0) for p in self.running)
        left = min(left, max(0, counted + beyond - self.box.total()))  # less what is kept charged
        return self.allowed - (counted - left) - beyond

    def kill(self, p: Process) -> None:
        """SIGKILL it and forget it."""
        p.kill()
        p.communicate()
        self.started.remove(p)
        if p in self.running:
            self.running.remove(p)
        self.kills += 1

    def until_ready(self, p: Process) -> None:
        """A process may have to wait for room for its context."""
        for _ in range(20):  # what it says may be from before the last kill
            if (said := self.answer(p)) == "ready\n":
                return
            if others := [q for q in self.running if q is not p]:
                self.kill(others[0])
            self.tell(p)
        self.fail("context", f"no context: {said}, room {self.room()}, booked {self.box.total()}")

    def crew(self, many: int) -> None:
        """Start that many processes and wait until they are ready."""
        while len(self.running) < many:
            self.do(("start",))

    def do(self, call: Call) -> None:
        """Make one call and compare it with the model; does nothing if the process does not exist."""
        self.calls.append(call)
        what, *rest = call
        if what == "start":
            p = self.launch()
            self.until_ready(p)
            self.running.append(p)
            return
        p = self.running[int(rest[0]) % len(self.running)] if self.running else None
        if p is None:
            return
        if what == "look":
            for q in self.running:
                self.look(q)
        elif what == "exec":
            self.beyond.pop(p.pid, None)
            self.tell(p, "exec")
            self.until_ready(p)
        elif what == "kill":
            self.kill(p)
        elif what == "share":
            to = self.running[int(rest[1]) % len(self.running)]
            if to is not p:
                self.compare(p, f"share {rest[2]} {to.pid}")
                self.compare(to, "take")
        else:
            self.compare(p, f"one {rest[1]}")
        if (room := self.room()) < 0:
            self.fail("over", f"{-room} bytes over the limit")

    def look(self, p: Process) -> None:
        """Let a process see what its driver's pools have released, and which of its exports others still use."""
        self.beyond[p.pid] = int(self.ask(p, "look").split()[1])

    def compare(self, p: Process, line: str) -> None:
        """Ask for one call and judge its result."""
        route, need, result, beyond = self.ask(p, line).rsplit(" ", 3)
        self.beyond[p.pid] = int(beyond)
        room, n, r = self.room(exactly=True), int(need), int(result)
        name = self.running.index(p)
        self.log.append(f"process {name}: {line}: {route}, {n} bytes: {r}, then room for {room}")
        if r == 2 and n <= room and self.refused_again(p, line):
            self.fail("refused", f"{route} of {n} bytes refused, with room for {room}")
        if r not in (0, 2):
            self.fail(f"result {route} {r}", f"{route}: {r}")
        self.granted += r == 0
        self.refused += r == 2
        self.routes[route] = self.routes.get(route, 0) + (r == 0)

    def refused_again(self, p: Process, line: str) -> bool:
        """Repeat the call after every process has seen what its driver's pools have released."""
        for q in self.running:
            self.look(q)
        self.again += 1
        _, need, result, beyond = self.ask(p, line).rsplit(" ", 3)
        self.beyond[p.pid] = int(beyond)
        return int(result) == 2 and int(need) <= self.room(exactly=True)

    def serial(self, steps: int) -> None:
        """One call at a time, each compared."""
        for _ in range(steps):
            i, n = self.rng.randrange(4), self.rng.random()
            if n < 0.04:
                self.do(("share", i, self.rng.randrange(4), self.rng.choice(("ipc", "vmm", "pool"))))
            elif n < 0.05:
                self.do(("exec", i))
            else:
                self.do(("one", i, self.rng.randrange(1 << 30)))

    def storm(self, samples: int, routes: str) -> None:
        """All processes call at once. The GPU is read while they are stopped in the middle of calls, and one is killed."""
        self.told = False
        for p in self.running:
            self.tell(p, f"many {self.rng.randrange(1 << 30)} {self.rng.randrange(200, 600)} {routes}")
        for _ in range(samples):
            time.sleep(self.rng.random() * 0.005)
            for p in self.running:
                p.send_signal(signal.SIGSTOP)
            for p in self.running:
                os.waitid(os.P_PID, p.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            room = self.room()
            for p in self.running:
                p.send_signal(signal.SIGCONT)
            self.samples += 1
            if room < 0:
                self.fail("storm", f"{-room} bytes over the limit while all run")
        self.kill(self.rng.choice(self.running))
        for p in self.running:
            self.beyond[p.pid], *odd = self.answer(p).split()  # type: ignore[assignment]
            self.beyond[p.pid] = int(self.beyond[p.pid])
            if odd:
                self.fail("storm", " ".join(odd))

    def still(self) -> None:
        """No call runs: what is shown as free is what the GPU has room for, and can be allocated."""
        self.do(("look", 0))
        time.sleep(0.15)  # cuMemGetInfo sweeps ten times a second
        free, total, most, more, after, bad = map(int, self.ask(self.judge, "full").split())
        room = self.room(exactly=True)
        self.log.append(f"still: free {free}, room {room}, granted {most}, one more {more}")
        if (free, total, most, more, after, bad) != (max(room, 0), LIMIT, 0, 2, free, 0):
            why = f"free {free} of {total}; all of it: {most}; one byte more: {more}; after: {after}; room {room}"
            self.fail("figures", why)

    def clear(self) -> None:
        """End all processes, so that what follows depends on its own calls alone."""
        while self.running:
            self.kill(self.running[0])
        self.beyond.clear()
        self.calls.clear()
        self.told = True

    def play(self, seconds: float) -> None:
        """Calls one at a time, then all at once without pools and with them, then judged again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.clear()
            self.crew(4)
            self.serial(60)
            self.still()
            for routes in ("plain", "all"):
                self.crew(4)
                self.do(("look", 0))
                self.storm(20, routes)
                self.do(("look", 0))
                self.serial(8)  # after a storm, nothing is refused for which there is room
                self.still()


def replay(place: Path, shim: Path, seed: int, calls: list[Call], allowed: int = LIMIT) -> Failure | None:
    """Runs the calls in fresh processes and returns how they fail."""
    bench = Bench(place, shim, seed, allowed)
    try:
        for call in calls:
            bench.do(call)
        if bench.running:
            bench.still()
    except Failure as failure:
        return failure
    finally:
        bench.close()
    return None


def minimised(place: Path, shim: Path, bench: Bench, kind: str, seconds: float = 120) -> list[Call]:
    """The calls of a bench that failed, without those that the same failure does not need. []: no calls fail so."""
    end, runs = time.monotonic() + seconds, 0

    def fails(calls: list[Call]) -> bool:
        nonlocal runs
        runs += 1
        failure = replay(place / f"replay{runs}", shim, bench.seed, calls, bench.allowed)
        return failure is not None and failure.kind == kind

    calls, size = list(bench.calls), max(len(bench.calls) // 2, 1)
    if not fails(calls):
        return []
    while time.monotonic() < end:
        at = 0
        while at < len(calls) and time.monotonic() < end:
            fewer = calls[:at] + calls[at + size :]
            if fewer and fails(fewer):
                calls = fewer
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return calls


def play(place: Path, shim: Path, seed: int, seconds: float, **env: str) -> Bench:
    """Play; after a failure, report the shortest sequence found that fails in the same way."""
    bench = Bench(place / "play", shim, seed, **env)
    try:
        bench.play(seconds)
    except Failure as failure:
        bench.close()
        short = minimised(place, shim, bench, failure.kind) if bench.told else []
        if not short:
            raise
        raise Failure(failure.kind, f"{failure}\nshortest: replay(place, shim, {seed}, {short})") from None
    bench.close()
    return bench
