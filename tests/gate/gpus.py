"""A shared simulated GPU and containers on it, made by hand: mount namespaces with GPU page and slot files."""

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from oci_hook.core import gpu_page, slot_page
from oci_hook.linux.schedstat import run_delays
from testbed.sim.gpus import CLIENT, ahead
from testbed.until import until

PAGE, SLOT = 4096, slot_page.SLOT_FILE_SIZE
GPU_MAGIC = 0x3130555047504847
POLICY_MAGIC = 0x31594C4F50484755
OFFLINE, DEFAULT, ONLINE = 0, 1, 2
AHEAD = ahead()
LONG = 120.0  # seconds, which only a fault takes
T = TypeVar("T")


class Tenant:
    """What the GPU page says of one slot."""

    def __init__(self, weight: int = 100, cap: float = 0, class_: int = DEFAULT, freeze: int = 0, linger: int = 0):
        self.weight, self.cap, self.class_, self.freeze, self.linger = weight, cap, class_, freeze, linger


class Gpu:
    """One simulated GPU, slowed down `scale` times, and its share directory."""

    def __init__(self, place: Path, sim: Any, tenants: list[Tenant], scale: int, number: int = 0) -> None:
        self.place, self.sim, self.tenants, self.scale = place, sim, tenants, scale
        self.seq = 2
        self.tiers = 0  # bits of core/tiers.py
        self.copies: list[tuple[Path, int]] = []
        self.born = list(range(1, len(tenants) + 1))
        (place / "slot").mkdir(parents=True)
        self.file = sim.gpus / str(number)
        with open(self.file, "r+b") as f:
            f.seek(16)
            self.uuid = f.read(48).rstrip(b"\0")
            f.seek(260)
            f.write(struct.pack("<I", scale))
        for i in range(len(tenants)):
            self.new_slot(i)
        self.write()

    def copy_rate(self, bytes_per_us: int) -> None:
        """Of copies and fills within the GPU; before a program uses it."""
        with open(self.file, "r+b") as f:
            os.pwrite(f.fileno(), struct.pack("<Q", bytes_per_us), 320)

    def slot_file(self, i: int) -> Path:
        return self.place / "slot" / f"{i:02}"

    def new_slot(self, i: int) -> None:
        """A fresh inode of zeros."""
        self.slot_file(i).unlink(missing_ok=True)
        self.slot_file(i).write_bytes(bytes(SLOT))

    def write(self) -> None:
        """The GPU page, in place, under its seqlock."""
        page = bytearray(PAGE)
        present = (1 << len(self.tenants)) - 1
        struct.pack_into("<QIIIIQQ48s", page, 0, GPU_MAGIC, 1, PAGE, self.seq, self.scale, 1, present, self.uuid)
        for i, t in enumerate(self.tenants):
            at = 128 + 32 * i
            struct.pack_into("<BBHII", page, at, t.class_, t.freeze, t.weight, round(t.cap * 1e6), t.linger)
            struct.pack_into("<Q", page, at + 16, self.born[i])
        struct.pack_into("<I", page, 88, self.tiers)
        self.page = bytes(page)
        for policy, number in self.copies:
            self.give(policy, number)
        self.seq += 2

    def let(self, tiers: int) -> None:
        """Containers may use these tiers from now on."""
        self.tiers = tiers
        self.write()

    def give(self, policy: Path, number: int) -> None:
        """Put the GPU page into one container's page file."""
        at = PAGE * (1 + number)
        with open(policy, "r+b") as f:
            os.pwrite(f.fileno(), struct.pack("<I", self.seq - 1), at + 16)
            os.pwrite(f.fileno(), self.page[:16], at)
            os.pwrite(f.fileno(), self.page[20:], at + 20)
            os.pwrite(f.fileno(), self.page[16:20], at + 16)

    def count(self, contexts: dict[int, int], seconds: float = LONG) -> None:
        """As the agent does at a look: how many processes of each slot are on the GPU."""
        words = gpu_page.counts({slot + 1: n for slot, n in contexts.items()}, time.monotonic_ns() + int(seconds * 1e9))
        for policy, number in self.copies:
            with open(policy, "r+b") as f:
                os.pwrite(f.fileno(), words, PAGE * (1 + number) + gpu_page.COUNTS_OFFSET)

    def share_with(self, policy: Path, number: int) -> None:
        """A container gets this GPU as its GPU `number`; it gets every change from now on."""
        self.copies.append((policy, number))
        self.give(policy, number)

    def scribble(self, data: bytes) -> None:
        """Overwrite every GPU page with other bytes."""
        for policy, number in self.copies:
            with open(policy, "r+b") as f:
                os.pwrite(f.fileno(), data, PAGE * (1 + number))


class Box:
    """One container, with the same slot on each of its GPUs."""

    def __init__(self, gpus: list[Gpu], slot: int, shim: Path) -> None:
        self.gpus, self.slot, self.shim = gpus, slot, shim
        self.place = gpus[0].place.parent / f"box{slot}"
        for folder in ("driver", "account", "slot", *(f"share/{n}" for n in range(len(gpus)))):
            (self.place / folder).mkdir(parents=True)
        for name, library in (("cuda", "libcuda.so.1"), ("ml", "libnvidia-ml.so.1")):
            (self.place / "driver" / name).write_bytes((gpus[0].sim.libraries / library).read_bytes())
        page = bytearray(PAGE)
        struct.pack_into("<QIIIIII40s", page, 0, POLICY_MAGIC, 1, PAGE, 0, len(gpus), 0, 1, b"key")
        for n, gpu in enumerate(gpus):
            (self.place / "slot" / str(n)).touch()
            record = (gpu.uuid, 512 << 20, 1024 << 20, 0, 0, 0, n, 0, 1 + slot)
            struct.pack_into("<48sQQIIIIQI", page, 128 + 128 * n, *record)
        (self.place / "policy").write_bytes(page + bytes(PAGE * len(gpus)))
        for n, gpu in enumerate(gpus):
            gpu.share_with(self.place / "policy", n)
        self.running: list[Load] = []

    def command(self, argv: list[str], first: bool = False) -> list[str]:
        """argv, as it would run in the box: all slots read-only, the own one also read-write. first: before the other programs
        of the machine. One that computes a lot must not be."""
        gpus = "".join(
            f"mount --bind {c.place} {self.place}/share/{n} && mount -o remount,bind,ro {self.place}/share/{n} && "
            f"mount --bind {c.place}/slot/{self.slot:02} {self.place}/slot/{n} && "
            for n, c in enumerate(self.gpus)
        )
        script = (
            f"mount --bind {self.place} {self.place} && {gpus}"
            "mount -t tmpfs none /run && mkdir -p /run/gpu-hook /run/lock && "
            f'mount --rbind {self.place} /run/gpu-hook && exec "$@"'
        )
        return [*(AHEAD if first else ["nice", "-n", "-10"]), "unshare", "-m", "sh", "-c", script, "sh", *argv]

    def env(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "ASAN_OPTIONS", "TSAN_OPTIONS")}
        kept["GPU_HOOK_SIM_GPUS"] = str(self.gpus[0].sim.gpus)
        return {**kept, "LD_LIBRARY_PATH": str(self.shim), "PYTHONPATH": str(CLIENT), **more}

    def start(self, argv: list[str], first: bool = False, **env: str) -> "Load":
        load = Load(self.command(argv, first), self.env(**env))
        self.running.append(load)
        return load

    def close(self) -> None:
        for load in self.running:
            load.close()


class Load:
    """A running load.c: its kernels over time."""

    living: ClassVar[set["Load"]] = set()

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self.process = subprocess.Popen(
            argv, env=env, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, start_new_session=True
        )
        self.points: list[tuple[int, int]] = []
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        self.living.add(self)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            at, count = line.split()
            self.points.append((int(at), int(count)))

    def rate(self, since: int, until: int) -> float:
        """Launches between two moments of time.monotonic_ns(), interpolated."""
        return self.at(until) - self.at(since)

    def at(self, when: int) -> float:
        last = (0, 0)
        for point in list(self.points):
            if point[0] > when:
                part = (when - last[0]) / (point[0] - last[0]) if last[0] else 0
                return last[1] + part * (point[1] - last[1])
            last = point
        return last[1]

    def waits(self) -> bool:
        """Whether its thread sleeps at the gate."""
        return "futex" in Path(f"/proc/{self.process.pid}/wchan").read_text()

    def ready(self) -> None:
        """Wait until it has launched something."""
        end = time.monotonic() + LONG
        while not self.points:
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.01)

    def said(self) -> str:
        self.kill()
        self.errors.seek(0)
        return self.errors.read()

    def kill(self) -> None:
        self.living.discard(self)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # and its children
        self.process.wait()
        self.thread.join()

    def close(self) -> None:
        self.kill()
        assert self.process.stdin and self.process.stdout
        for file in (self.process.stdin, self.process.stdout, self.errors):
            file.close()


def measure(loads: list[Load], seconds: float, settle: float = 0.5) -> list[float]:
    """Launches of each program during the same time."""
    for load in loads:
        load.ready()
    time.sleep(settle)
    since = time.monotonic_ns()
    time.sleep(seconds)
    until = time.monotonic_ns()
    for load in loads:  # whose last word is newer, unless it is held
        soon = time.monotonic() + 0.1
        while load.points[-1][0] < until and time.monotonic() < soon:
            time.sleep(0.005)
    return [load.rate(since, until) for load in loads]


def settles(read: Callable[[], Any], holds: Callable[[Any], bool], tries: int = 6) -> Any:
    """What `read` measures, once it is as it should be: anew when it is not. What is wrong stays wrong; fails with all that
    was measured. What was measured while the programs waited for processors is no try, unless it is right."""
    seen: list[Any] = []
    end = time.monotonic() + LONG
    while tries:
        assert time.monotonic() < end, seen
        began, before = time.monotonic(), starved()
        seen.append(read())
        if holds(seen[-1]):
            return seen[-1]
        tries -= starved() - before < 0.1 * (time.monotonic() - began)
    raise AssertionError(seen)


def starved() -> float:
    """Seconds for which threads of the running programs have waited for a processor, all together."""
    return sum(sum(run_delays(load.process.pid).values()) for load in list(Load.living)) / 1e9


@contextlib.contextmanager
def forging(path: Path, pause: float, write: Callable[[Any], object]) -> Iterator[None]:
    """Beside the test, `write` is called with the open file again and again, `pause` seconds after it was done."""
    stop = threading.Event()

    def forge() -> None:
        with contextlib.suppress(PermissionError):  # it is as quick as the programs are
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        with open(path, "r+b", buffering=0) as file:
            while not stop.wait(pause):
                write(file)

    thread = threading.Thread(target=forge)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def has(gpu: Gpu, load: Load, us: float, least: float, seconds: float = 0.5, settle: float = 0.2) -> None:
    """Kernels of so many microseconds take at least that part of the GPU."""
    settles(lambda: measure([load], seconds, settle)[0] * us * 1e-6 * gpu.scale / seconds, lambda got: got > least)


def have(loads: list[Load], wanted: list[float], within: float, seconds: float = 1, settle: float = 0.5) -> None:
    """These are their parts of all launches."""

    def right(got: list[float]) -> bool:
        return all(abs(part - want) < within for part, want in zip(got, wanted, strict=True))

    settles(lambda: parts(loads, seconds, settle), right)


def parts(loads: list[Load], seconds: float = 1.5, settle: float = 1) -> list[float]:
    """Each one's part of all launches."""
    counts = measure(loads, seconds, settle)
    assert sum(counts) > 0, [load.said() for load in loads]
    return [n / sum(counts) for n in counts]


def one_tenant(loads: list[Load], wanted: float, within: float) -> None:
    """Together these have that part of all launches, and each goes on, whichever of them the kernel wakes more often. The
    last one is of another container."""
    settles(lambda: parts(loads), lambda got: abs(sum(got[:-1]) - wanted) < within)
    before = [load.points[-1][1] for load in loads]
    until(lambda: all(load.points[-1][1] > n + 50 for load, n in zip(loads, before, strict=True)))


def records(gpu: Gpu, slot: int) -> list[tuple[int, int]]:
    """Owner and launches of each process record ever used."""
    return [(process[0], process[1]) for process in processes(gpu, slot)]


def processes(gpu: Gpu, slot: int) -> list[tuple[int, ...]]:
    """The process records ever used, as slot_page.PROCESS has them."""
    page = gpu.slot_file(slot).read_bytes()
    (top,) = struct.unpack_from("<I", page, 12)
    at, size = slot_page.PROCESS_OFFSET, slot_page.PROCESS.size
    return [slot_page.PROCESS.unpack_from(page, at + size * i) for i in range(top)]


def forged(now: int, head: list[int]) -> bytes:
    """A slot file with one process that has work in flight. head: from v to woke_at."""
    unlearned, mode, rest = (10**6, 1), (2, 0, 0), [0] * (6 + slot_page.WAITS + 64)
    page = slot_page.HEAD.pack(slot_page.MAGIC, slot_page.VERSION, 1, 1, 0, 0, *head, *unlearned, *mode, *rest)
    process = slot_page.PROCESS.pack(1, 9, 8, now, now, 10**6, 0, 1, 1, 0, 0)
    return (page.ljust(slot_page.PROCESS_OFFSET, b"\0") + process).ljust(SLOT, b"\0")
