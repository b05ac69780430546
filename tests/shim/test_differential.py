"""Random calls by every route from several processes, with kills, through the shipped stand-in over the simulated
driver; compared with what the simulated card itself counts. The model is in differential.py, the calls in
random_calls.py.
"""

import os
import sys
from pathlib import Path

import pytest
from box import MIB
from differential import CONTEXT, LIMIT, Bench, Failure, minimised, play, replay

from oci_hook.sim import build as sim_build

pytestmark = pytest.mark.root
<<<<<<< HEAD
CARD_MIB, LIMIT, CONTEXT = 8192, 1024 * MIB, driver_root.CONTEXT_MIB * MIB
CONTEXTS_AT = 8 + 8 + 4  # struct card_slot: used, start_ticks, pid, contexts


class Card:
    """The simulated card's own figures."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR)
        self.map = mmap.mmap(self.fd, driver_root.FILE_SIZE, prot=mmap.PROT_READ)

    def counted(self, context_charge: int) -> int:
        """Bytes that living processes hold, contexts at what the policy page charges for one."""
        total = 0
        for slot in range(driver_root.SLOTS):
            used, contexts = (struct.unpack_from(f, self.map, 4096 + slot * driver_root.SLOT_SIZE + at)[0]
                              for f, at in (("<Q", 0), ("<I", CONTEXTS_AT)))  # fmt: skip
            if not used:
                continue
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, (1 << 32) + slot, 1, 0)
            if struct.unpack("hhqqi4x", fcntl.fcntl(self.fd, fcntl.F_GETLK, lock))[0] != fcntl.F_UNLCK:
                total += used - contexts * (CONTEXT - context_charge)
        return total


class Bench:
    """A box over the simulated driver, its processes and what they were told."""

    def __init__(self, place: Path, stand_in: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.charge = CONTEXT if seed % 2 else 0  # what the page says of a context
        cards = place / "cards"
        cards.mkdir()
        uuid = driver_root.make_card(cards / "0", 0, CARD_MIB)
        self.box = Box(place / "box", stand_in, stand_in / "sim" / "libcuda.so.1")
        page = bytearray(policy({0: LIMIT}))
        struct.pack_into("<48s", page, 128, uuid.encode())
        struct.pack_into("<Q", page, 128 + 80, self.charge)
        self.box.write_policy(bytes(page))
        self.card = Card(cards / "0")
        self.cards = str(cards)
        self.log: list[str] = []
        self.running: list[subprocess.Popen[str]] = []
        self.fresh: list[subprocess.Popen[str]] = []
        self.samples = self.refused = self.granted = self.kills = self.again = self.over = 0

    def start(self) -> "subprocess.Popen[str]":
        command = [sys.executable, str(HERE / "random_calls.py"), str(self.charge)]
        return self.box.start(command, GPU_HOOK_SIM_CARDS=self.cards)

    def ask(self, p: "subprocess.Popen[str]", line: str) -> str:
        assert p.stdin and p.stdout
        print(line, file=p.stdin, flush=True)
        return self.answer(p)

    def answer(self, p: "subprocess.Popen[str]") -> str:
        assert p.stdout
        answer = p.stdout.readline()
        if not answer:
            _, said = p.communicate()
            self.fail(f"a process ended by itself: {p.returncode} {said}")
        return answer

    def fail(self, why: str) -> None:
        raise AssertionError(f"seed {self.seed}: {why}\nthe last calls:\n" + "\n".join(self.log[-12:]))

    def room(self) -> int:
        return LIMIT - self.card.counted(self.charge)

    def kill(self, p: "subprocess.Popen[str]") -> None:
        p.kill()
        p.communicate()
        self.kills += 1

    def crew(self, many: int) -> None:
        """That many processes that are ready."""
        fresh = self.fresh = [self.start() for _ in range(many - len(self.running))]
        for p in fresh:
            for _ in range(20):  # what it says may be from before the last kill
                if (said := self.answer(p)) == "ready\n":
                    break
                if self.running:
                    self.kill(self.running.pop(0))
                assert p.stdin
                print(file=p.stdin, flush=True)
            else:
                self.fail(f"no context: {said}, room {self.room()}, booked {self.box.total()}")
        self.running += fresh
        self.fresh = []

    def serial(self, steps: int) -> None:
        """One call at a time, each compared."""
        for _ in range(steps):
            i, seed = self.rng.randrange(len(self.running)), self.rng.randrange(1 << 30)
            route, need, result = self.ask(self.running[i], f"one {seed}").rsplit(" ", 2)
            room = self.room()
            self.log.append(f"process {i}: one {seed}: {route}, {need} bytes: {result.strip()}, then room for {room}")
            if room < 0:
                self.fail(f"{-room} bytes over the limit")
            if int(result) == 2 and int(need) <= room and self.refused_again(i, seed):
                self.fail(f"{route} of {need} bytes refused, with room for {room}")
            if int(result) not in (0, 2):
                self.fail(f"{route}: {result}")
            self.granted += int(result) == 0
            self.refused += int(result) == 2

    def refused_again(self, i: int, seed: int) -> bool:
        """The same call once every process has looked at what its driver's pools gave back by themselves."""
        for p in self.running:
            self.ask(p, "look")
        self.again += 1
        _, need, result = self.ask(self.running[i], f"one {seed}").rsplit(" ", 2)
        return int(result) == 2 and int(need) <= self.room()

    def storm(self, samples: int, routes: str) -> None:
        """All at once; the card is looked at while they are stopped in the middle of things; one is killed.

        A pool that grows although its idle memory should have done is over for the length of that call
        (docs/account-page.md, known gaps); so with pools only what is left when all is still is judged.
        """
        for p in self.running:
            assert p.stdin
            print(
                f"many {self.rng.randrange(1 << 30)} {self.rng.randrange(200, 600)} {routes}", file=p.stdin, flush=True
            )
        for _ in range(samples):
            time.sleep(self.rng.random() * 0.01)
            for p in self.running:
                p.send_signal(signal.SIGSTOP)
            for p in self.running:
                os.waitid(os.P_PID, p.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            room = self.room()
            for p in self.running:
                p.send_signal(signal.SIGCONT)
            self.samples += 1
            if room < 0:
                self.fail(f"{-room} bytes over the limit while all run")
            self.over = max(self.over, -room)
        self.kill(self.running.pop(self.rng.randrange(len(self.running))))
        for p in self.running:
            if (said := self.answer(p)) != "done\n":
                self.fail(said)

    def still(self, judge: "subprocess.Popen[str]") -> None:
        """All is still: what is shown as free is what the card has room for, and is granted."""
        for p in self.running:
            self.ask(p, "look")
        time.sleep(0.15)  # cuMemGetInfo sweeps ten times a second
        free, total, most, more, after, bad = map(int, self.ask(judge, "full").split())
        room = self.room()
        self.log.append(f"still: free {free}, room {room}, granted {most}, one more {more}")
        if (free, total, most, more, after, bad) != (max(room, 0), LIMIT, 0, 2, free, 0):
            self.fail(f"free {free} of {total}; all of it: {most}; one byte more: {more}; after: {after}; room {room}")


def play(place: Path, stand_in: Path, seed: int, seconds: float) -> Bench:
    bench = Bench(place, stand_in, seed)
    judge = bench.start()
    try:
        assert bench.answer(judge) == "ready\n"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            bench.crew(4)
            bench.serial(60)
            bench.still(judge)
            for routes in ("plain", "all"):
                bench.crew(4)
                for p in bench.running:
                    bench.ask(p, "look")
                bench.storm(10, routes)
                bench.still(judge)
    finally:
        for p in [*bench.running, *bench.fresh, judge]:
            p.kill()
            p.communicate()
    return bench
=======
>>>>>>> 70c3bd1 (Differential test: more routes, exec, resets, shares between processes, short reproducers; pools that fill the table; nvidia-smi on a simulated card)


@pytest.fixture(scope="module")
def over_simulated(stand_in: Path) -> Path:
    sim_build.build(stand_in / "sim", os.uname().machine, [sys.executable, "-m", "ziglang", "cc"])
    return stand_in


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
    """Judged by a smaller limit than is granted, any sequence fails; one allocation is enough."""
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
    done = bench.box.run([sys.executable, "-c", RESETS], GPU_HOOK_SIM_CARDS=bench.cards)
    assert set(done.stdout.split()) == {str((LIMIT - CONTEXT) // MIB)}, done.stdout
