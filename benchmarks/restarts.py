"""Restarts of one container id beside four busy loops, a storm of mounts, and a tenant that makes every look at all
processes dear: 120 processes of uid 1000 in user namespaces with 2 500 mounts each, without a capability or a share.

Most restarts are of the ledger and the launcher alone, since runc takes ten times as long: a process that is granted the
share, then a container's init in its cgroup and runc's state file; the launcher keeps that at `delete`. Of every second one
nobody tells the launcher that it ended. The other ones are of real runc, through the shipped runtime.

refused: restarts that failed. double_bookings: a second container of the id was granted beside a living one, the GPU was
booked beyond its memory, or the neighbour's grant was lost. look_*: one look at all processes, and how long a mount and an
unmount of somebody else take beside looks without end, and beside a busy loop.
"""

import argparse
import ctypes
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import crash

from oci_hook.config import settings as node_settings
from oci_hook.core.grant import Identity, Life
from oci_hook.core.layout import MARKER
from oci_hook.core.request import parse
from oci_hook.errors import GhError
from oci_hook.ledger import admit, holders, life, slot_files, store
from oci_hook.ledger.inventory import load
from oci_hook.linux.proc import boot_id, pid_space, process_life, start_time

LOOPS = 4
PROCESSES, MOUNTS = 120, 2500
PLACES = 50  # to mount on, in layers
NEWNS, NEWUSER = 0x20000, 0x10000000  # unshare(2)
BIND, REC, PRIVATE, DETACH = 0x1000, 0x4000, 1 << 18, 2  # mount(2), umount2(2)
DUMPABLE, SUBREAPER = 4, 36  # prctl(2), PR_SET_...
LIBC = ctypes.CDLL(None, use_errno=True)
CHECK_EVERY = 20


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _unshare(flags: int) -> None:
    _done(LIBC.unshare(flags))
    _done(LIBC.mount(b"none", b"/", None, REC | PRIVATE, None))


def _fork(work: "Callable[[], object]") -> int:
    """A child that does this work and ends."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException as e:
        os.write(2, f"{type(e).__name__}: {e}\n".encode())
        os._exit(1)


class Beside:
    """Processes of one group that run until the end of the `with`."""

    def __init__(self) -> None:
        self.leaders: list[int] = []

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.leaders:
            os.killpg(pid, signal.SIGKILL)
        for pid in self.leaders:
            while True:  # what a leader leaves is ours
                try:
                    os.waitpid(-pid, 0)
                except ChildProcessError:
                    break

    def start(self, work: "Callable[[Callable[[], None]], object]") -> None:
        """Run it in a group of its own; returns when it calls its argument."""
        reader, writer = os.pipe()

        def child() -> None:
            os.setsid()
            work(lambda: (os.write(writer, b"."), None)[1])

        pid = _fork(child)
        os.close(writer)
        self.leaders.append(pid)
        if os.read(reader, 1) != b".":
            raise SystemExit("restarts: what was to run beside did not start")
        os.close(reader)


def _spin(ready: "Callable[[], None]") -> None:
    ready()
    while True:
        pass


def _storm(ready: "Callable[[], None]") -> None:
    _unshare(NEWNS)
    ready()
    for _ in itertools.count():
        _pair(b"/mnt")


def _pair(at: bytes) -> None:
    _done(LIBC.mount(b"none", at, b"tmpfs", 0, b"size=4k"))
    _done(LIBC.umount2(at, DETACH))


def _tenant(place: Path) -> "Callable[[Callable[[], None]], None]":
    def work(ready: "Callable[[], None]") -> None:
        places = [bytes(place / str(i)) for i in range(PLACES)]
        os.setgroups([])
        os.setgid(1000)
        os.setuid(1000)
        LIBC.prctl(DUMPABLE, 1, 0, 0, 0)  # its /proc files are root's since it changed its user
        _unshare(NEWUSER | NEWNS)
        # Without these, it can make no further user namespace.
        for name, text in (("uid_map", "1000 1000 1"), ("setgroups", "deny"), ("gid_map", "1000 1000 1")):
            Path("/proc/self", name).write_text(text)
        for i in range(MOUNTS):
            _done(LIBC.mount(places[i % PLACES], places[i % PLACES], None, BIND, None))
        reader, writer = os.pipe()

        def copy() -> None:
            os.close(reader)
            _done(LIBC.unshare(NEWUSER | NEWNS))
            os.write(writer, b".")
            signal.pause()

        for _ in range(PROCESSES - 1):
            _fork(copy)
        os.close(writer)
        if sum(len(os.read(reader, 1)) for _ in range(PROCESSES - 1)) == PROCESSES - 1:
            ready()
            signal.pause()

    return work


def _looks(ready: "Callable[[], None]") -> None:
    ready()
    while True:
        holders.holders(2.0)


class Quick:
    """An install whose runtime is /bin/true, and restarts that do by hand what runc does, as far as the ledger sees it."""

    def __init__(self, folder: Path) -> None:
        self.place = crash.Place(folder, runtime="/bin/true")
        self.settings = node_settings.load(str(self.place.prefix))
        self.inventory = load(self.settings)
        path = f"/gpu-hook-crash-{os.getpid()}"
        self.cgroup = Path(life.planned_cgroup(path + "/again", "again"))
        self.place.root.mkdir(exist_ok=True)

    def admit(self, id: str = "again", memory: int = crash.GPU_MIB - crash.SHARE_MIB) -> str:
        """The key of the grant."""
        request = parse({"gpu-hook.io/memory": str(memory)}, {}, "", self.settings.rules)
        assert request is not None
        who = Identity(id=id, root=str(self.place.root), bundle=str(self.place.folder / id))
        cgroup = str(self.cgroup) if id == "again" else ""
        me = Life(boot_id(), creator=process_life(os.getpid()), cgroup=cgroup, space=pid_space())
        return admit.admit_on(self.inventory, request, who, me, self.settings).grant.key

    def start(self) -> str:
        """Start the container, in a process of its own; "" or why not."""
        reader, writer = os.pipe()

        def create() -> None:
            try:
                key = self.admit()
            except GhError as e:
                os.write(writer, str(e.problems[0]).encode())
                return
            self.cgroup.mkdir(parents=True)
            init = _fork(lambda: (os.close(writer), signal.pause()))
            (self.cgroup / "cgroup.procs").write_text(str(init))
            folder = self.place.root / "again"
            folder.mkdir()
            state = {
                "init_process_pid": init,
                "init_process_start": start_time(init),
                "cgroup_paths": {"devices": str(self.cgroup)},
                "config": {"labels": [f"{MARKER}={key} []"]},
            }
            (folder / "state.json").write_text(json.dumps(state))

        pid = _fork(create)
        os.close(writer)
        said = os.read(reader, 4096).decode()
        os.close(reader)
        _, status = os.waitpid(pid, 0)
        return said or ("it crashed" if status else "")

    def end(self, told: bool) -> None:
        folder = self.place.root / "again"
        if not folder.is_dir():
            return
        if told:
            program = str(self.place.prefix / "bin/gpu-hook-runtime")
            subprocess.run([program, "--root", str(self.place.root), "delete", "--force", "again"], check=True)
        init = json.loads((folder / "state.json").read_text())["init_process_pid"]
        os.kill(init, signal.SIGKILL)
        os.waitpid(init, 0)  # it came to us when its parent ended
        for _ in range(1000):
            try:
                self.cgroup.rmdir()
                break
            except OSError:
                time.sleep(0.001)
        shutil.rmtree(folder)

    def wrong(self, neighbour: str) -> int:
        """While the container lives: 1 where the books are wrong, else 0."""
        try:
            self.admit()
            return 1
        except GhError as e:
            wrong = e.problems[0].code != "GH-407"
        with store.open_ledger(str(self.place.state)) as ledger:
            keys = sorted(g.key for g in ledger.grants)
            booked = sum(s.memory_mib for g in ledger.grants for s in g.shares)
        both = {neighbour, store.grant_key(str(self.place.root), "again")}
        return int(wrong or set(keys) != both or len(keys) != 2 or booked > crash.GPU_MIB)


def _quick(folder: Path, rounds: int) -> tuple[int, int, list[float]]:
    """(refused, double bookings, seconds of each start)"""
    quick = Quick(folder)
    refused = double = 0
    times = []
    neighbour = quick.admit("neighbour", crash.SHARE_MIB)
    try:
        for i in range(rounds):
            began = time.monotonic()
            why = quick.start()
            times.append(time.monotonic() - began)
            if why:
                refused += 1
                print(f"restarts: restart {i} was refused: {why}", file=sys.stderr)
            elif i % CHECK_EVERY == 0:
                double += quick.wrong(neighbour)
            quick.end(told=i % 2 == 0)
    finally:
        quick.end(told=False)
        slot_files.drop(str(quick.place.state))
    return refused, double, times


def _real(folder: Path, rounds: int) -> tuple[int, int, list[float]]:
    """The same of real runc; every second container is removed without the launcher."""
    place = crash.Place(folder, crash.GPU_MIB - crash.SHARE_MIB)
    program = str(place.prefix / "bin/gpu-hook-runtime")
    refused = double = 0
    times = []
    try:
        for i in range(rounds):
            began = time.monotonic()
            process = place.create("again")
            refused += process.wait() != 0
            times.append(time.monotonic() - began)
            double += crash.audit(place)[0]
            shutil.rmtree(folder / "again")
            remover = program if i % 2 == 0 else "runc"
            subprocess.run([remover, "--root", str(place.root), "delete", "--force", "again"], capture_output=True)
    finally:
        place.delete("again")
        slot_files.drop(str(place.state))
    return refused, double, times


def _bystander(beside: "Callable[[Callable[[], None]], object]", seconds: float) -> list[float]:
    """Microseconds of each mount and unmount of somebody else."""
    with Beside() as others, tempfile.TemporaryFile() as out:
        others.start(beside)

        def measure() -> None:
            _unshare(NEWNS)
            found = []
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                began = time.perf_counter_ns()
                _pair(b"/mnt")
                found.append((time.perf_counter_ns() - began) / 1000)
            out.write(json.dumps(found).encode())
            out.flush()

        _, status = os.waitpid(_fork(measure), 0)
        out.seek(0)
        return [] if status else list(json.loads(out.read()))


def _look() -> tuple[float, float]:
    """(seconds of processor time, seconds) of one look."""
    cpu, wall = time.thread_time(), time.monotonic()
    holders.holders(60.0)
    return time.thread_time() - cpu, time.monotonic() - wall


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--restarts", type=int, help="how many without runc")


def run(short: bool, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left
    rounds = options.restarts or (500 if short else 10000)
    _done(LIBC.prctl(SUBREAPER, 1, 0, 0, 0))
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-restarts-"))
    folder.chmod(0o755)
    places = folder / "places"
    for i in range(PLACES):
        (places / str(i)).mkdir(parents=True)
    (folder / "quick").mkdir()
    (folder / "real").mkdir()
    alone, beside = [], []
    try:
        with Beside() as tenant:
            tenant.start(_tenant(places))
            looks = [_look() for _ in range(2 if short else 5)]
            for _ in range(2 if short else 5):
                alone += _bystander(_spin, 2)
                beside += _bystander(_looks, 2)
            for _ in range(LOOPS):
                tenant.start(_spin)
            tenant.start(_storm)
            refused, double, times = _quick(folder / "quick", rounds)
            real_refused, real_double, real_times = _real(folder / "real", 10 if short else 200)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        crash.remove_cgroups()

    def figure(value: float, unit: str = "", budget: "float | None" = None) -> dict[str, object]:
        return {"value": value, "unit": unit, "budget": budget, "ok": budget is None or value <= budget}

    def p99(values: list[float]) -> float:
        return statistics.quantiles(values, n=100)[-1]

    return {
        "restarts": figure(len(times)),
        "refused": figure(refused, "", 0),
        "double_bookings": figure(double, "", 0),
        "start_p99_ms": figure(1000 * p99(times), "ms"),
        "start_max_ms": figure(1000 * max(times), "ms"),
        "runc_restarts": figure(len(real_times)),
        "runc_refused": figure(real_refused, "", 0),
        "runc_double_bookings": figure(real_double, "", 0),
        "runc_create_median_ms": figure(1000 * statistics.median(real_times), "ms"),
        "look_cpu_ms": figure(1000 * statistics.median(cpu for cpu, _ in looks), "ms"),
        "mount_median_us": figure(statistics.median(alone), "us"),
        "mount_p99_us": figure(p99(alone), "us"),
        "look_mount_median_us": figure(statistics.median(beside), "us"),
        "look_mount_p99_us": figure(p99(beside), "us"),
        "look_mount_max_us": figure(max(beside), "us"),
    }
