"""The ledger under load and under kill -9: time of a commit beside 15 other writers, and leftovers of crashes.

The campaign keeps a crowd of processes that admit, hold and release shares of two small GPUs, and kills each of them
at a random step of a transaction or at a random moment. Auditors take the ledger's lock every few kills and compare it
with the processes that are there; tests/ledger/test_store.py runs a short campaign by the same code.
"""

import contextlib
import ctypes
import gc
import json
import mmap
import os
import random
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import psutil

from oci_hook.config.settings import Settings
from oci_hook.core.gpu_page import gpu_page, head, on_gpu
from oci_hook.core.grant import Grant, Identity, Life
from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.layout import MARKER, SLOT_DIR, slot_file
from oci_hook.core.request import GpuRequest, Request
from oci_hook.errors import GhError
from oci_hook.ledger import admit, gpu_owner, messages, slot_files, store
from oci_hook.ledger.deliver import page_file
from oci_hook.ledger.proof import Judge
from oci_hook.linux.proc import boot_id, process_life
from testbed import kill_points as _kill_points

WRITERS = 16
WARM_UP = 5  # rounds in which the forked writers still copy their pages
CROWD = 8
PR_SET_CHILD_SUBREAPER = 36
SLOT = struct.Struct("<q32s")  # the process that a grant lives by (0: none is promised), the grant's key
HOLDER = struct.Struct("<q")
FREE, DEAD = 0, -1  # in place of a worker's pid: no process; ended, its container may live
NO_ROOM = 4


def inventory(memory: int, simulated: bool = True) -> Inventory:
    gpus = tuple(Gpu(f"GPU-bench-{i}", i, i, memory, simulated=simulated) for i in range(2))
    return Inventory(boot_id(), "0", "/", simulated, gpus, (), (), "", "")


def own_life() -> Life:
    return Life(boot_id(), process_life(os.getpid()))


@contextlib.contextmanager
def state_dir():
    """A fresh state directory on tmpfs, as an install has it."""
    path = tempfile.mkdtemp(prefix="gh-ledger-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    before, gpu_owner.OWNERS = gpu_owner.OWNERS, path + "/claims"
    try:
        yield path + "/state"
    finally:
        gpu_owner.OWNERS = before
        for name in os.listdir(path):
            slot_files.drop(f"{path}/{name}")
        shutil.rmtree(path)


# --- how long a commit takes ------------------------------------------------------------------------------------------


def commit_times(rounds: int) -> list[int]:
    """Nanoseconds of each admission (lock, sweep, choice, page, grant) when WRITERS processes begin one at once.

    Between rounds everything is released, not counted: writers that never pause would time the scheduler, not the
    ledger.
    """
    with state_dir() as state:
        with store.open_ledger(state):
            pass
        go, done, back = os.pipe(), os.pipe(), os.pipe()
        writers = []
        for writer in range(WRITERS):
            pid = os.fork()
            if pid == 0:
                try:
                    gc.disable()  # this program's heap is no hook's
                    os.close(go[1])
                    write_commits(state, writer, go[0], done[1], back[0])
                finally:
                    os._exit(0)
            writers.append(pid)
        times: list[int] = []
        for n in range(WARM_UP + rounds):
            os.write(go[1], b"g" * WRITERS)
            taken = struct.unpack(f"<{WRITERS}q", read_all(done[0], 8 * WRITERS))
            times += taken if n >= WARM_UP else ()
            os.write(back[1], b"b" * WRITERS)
            read_all(done[0], 8 * WRITERS)
        os.close(go[1])
        for pid in writers:
            os.waitpid(pid, 0)
        for fd in (go[0], *done, *back):
            os.close(fd)
        return times


def write_commits(state: str, writer: int, go: int, done: int, back: int) -> None:
    node, settings, request = (
        inventory(24576),
        Settings("/", state_dir=state),
        Request((GpuRequest(memory=("mib", 512)),)),
    )
    n = 0
    while os.read(go, 1):
        who = Identity("/run/bench", f"w{writer}-{n}", f"/w{writer}-{n}")
        start = time.perf_counter_ns()
        given = admit.admit_on(node, request, who, own_life(), settings)
        os.write(done, struct.pack("<q", time.perf_counter_ns() - start))
        os.read(back, 1)
        admit.release(given.grant.key, settings, force=True)
        os.write(done, bytes(8))
        n += 1


def read_all(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(fd, size - len(data))
    return data


# --- what crashes leave -----------------------------------------------------------------------------------------------


class Campaign:
    """Kills processes, and counts the faults found after them.

    double_bookings: GPUs booked beyond what they have, or a living holder whose grant is lost. leaks: grants of ended
    processes and files of no grant after a sweep. Which processes live is known from the parent's own children, not
    from the ledger.
    With two installs, their ledgers compete for the same (as if real) GPUs by the node-wide claims.
    """

    def __init__(self, folder: str, seed: int, installs: int) -> None:
        self.random = random.Random(seed)
        self.states = [f"{folder}{n}" for n in range(installs)]
        self.node = inventory(8, simulated=False)
        self.runtime = folder + ".runc"
        self.slots = mmap.mmap(-1, SLOT.size * CROWD)
        self.workers = [FREE] * CROWD
        self.kills = self.audits = self.held = self.double_bookings = self.leaks = 0
        self.problems: list[str] = []
        os.makedirs(self.runtime)

    def run(self, kills: int) -> None:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # containers outlive their creators and come to us
        try:
            while self.kills < kills:
                self.turn()
        finally:
            self.end()
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def turn(self) -> None:
        """Fill the crowd, let it work for a moment, kill some, look."""
        for i, pid in enumerate(self.workers):
            if pid == FREE:
                self.workers[i] = self.start(i)
        time.sleep(self.random.random() * 0.006)
        ours = set(children())
        for i, pid in enumerate(self.workers):
            if self.random.random() < 0.3:
                for victim in {pid, self.slot(i)[0]} & ours:
                    os.kill(victim, signal.SIGKILL)
        self.reap()
        if self.random.random() < 0.3:
            self.audit()

    def start(self, i: int) -> int:
        SLOT.pack_into(self.slots, i * SLOT.size, 0, b"")
        seed = self.random.random()
        pid = os.fork()
        if pid == 0:
            try:
                gc.disable()
                work(self, i, random.Random(seed))
            except BaseException as e:
                os.write(2, f"worker: {e!r}\n".encode())
            finally:
                os._exit(3)
        return pid

    def slot(self, i: int) -> tuple[int, str]:
        holder, key = SLOT.unpack_from(self.slots, i * SLOT.size)
        return holder, key.decode(errors="replace")

    def reap(self) -> None:
        gone = set()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            gone.add(pid)
            self.count(pid, status)
        ours = set(children())
        for i, pid in enumerate(self.workers):
            if pid in gone:
                self.workers[i] = pid = DEAD
            if pid == DEAD and self.slot(i)[0] not in ours:
                self.workers[i] = FREE

    def count(self, pid: int, status: int) -> None:
        self.kills += os.WIFSIGNALED(status)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) not in (0, NO_ROOM):
            self.double_bookings += 1  # not known to be one; it must not pass
            self.problems.append(f"process {pid} failed")

    def audit(self) -> None:
        """With the locks held, no commit is under way: the ledgers have exactly the living containers."""
        self.audits += 1
        before = [self.slot(i) for i in range(CROWD)]
        with contextlib.ExitStack() as stack:
            grants = []
            for state in self.states:
                found = stack.enter_context(store.open_ledger(state)).grants
                self.check_files(state, found)
                grants.append(found)
            # A container that died after its ledger was swept is no double booking: the other install may have seen it first.
            grants = [tuple(g for g in found if Judge("").current(g)) for found in grants]
            keys = {g.key for found in grants for g in found}
            self.held += len(keys)
            ours = {pid for pid in children() if running(pid)}
            for i, (holder, key) in enumerate(before):
                # Promised before the lock was ours and still, by a living process: it must be there.
                if holder in ours and running(holder) and self.slot(i) == (holder, key) and key not in keys:
                    self.found("double_bookings", f"the grant of the living process {holder} is lost")
            for gpu in self.node.gpus:
                self.check_gpu(gpu, grants)
            for g in (g for found in grants for g in found):
                by = g.life.init or g.life.creator
                if by is None or not os.path.exists(f"/proc/{by[0]}"):
                    self.found("leaks", f"the grant of the ended process {by} stays")

    def check_gpu(self, gpu: Gpu, grants: list[tuple[Grant, ...]]) -> None:
        on = [(n, g, s) for n, found in enumerate(grants) for g in found for s in g.shares if s.uuid == gpu.uuid]
        limited = [s for _, _, s in on if not s.whole]
        if len({n for n, _, _ in on}) > 1:
            self.found("double_bookings", f"{gpu.uuid} is booked by both installs")
        if any(g.exclusive for _, g, _ in on) and len(on) > 1:
            self.found("double_bookings", f"{gpu.uuid} is not held alone")
        if sum(s.memory_mib for s in limited) > gpu.memory_mib or sum(s.compute for s in limited) > 100:
            self.found("double_bookings", f"{gpu.uuid} is booked beyond what it has")

    def check_files(self, state: str, grants: tuple[Grant, ...]) -> None:
        expected = {f"ledger/{g.key}.json" for g in grants} | {f"pages/{g.key}" for g in grants} | {"ledger/lock"}
        there = {f"{d}/{name}" for d in ("ledger", "pages") for name in os.listdir(f"{state}/{d}")}
        if expected != there:
            self.found("leaks", f"missing or left behind: {expected ^ there}")

        for gpu in self.node.gpus:
            self.check_shared(state, gpu.uuid, grants)

    def check_shared(self, state: str, uuid: str, grants: tuple[Grant, ...]) -> None:
        """The GPU page and the slot files match the grants."""
        folder = slot_files.folder(state, uuid)
        there = [held.slot for _, held in on_gpu(uuid, grants)]
        page = slot_files.page(state, uuid)
        if not page:
            if there:
                self.found("leaks", f"{uuid} has no GPU page")
            return
        if messages.GPU + uuid in messages.pending(messages.names(state)):
            return  # the transaction before this one is telling, or was killed while it did: the next one goes on
        for grant in grants:
            for number, held in enumerate(grant.shares, 1):
                with open(page_file(state, grant.key), "rb") as f:
                    if held.slot and held.uuid == uuid and os.pread(f.fileno(), 4096, 4096 * number) != page:
                        self.found("double_bookings", f"{grant.who.id} has an outdated page of {uuid}")
        seq, generation, scale = head(page)
        if seq % 2 or page != gpu_page(uuid, grants, generation, scale, seq):
            self.found("double_bookings", f"the GPU page of {uuid} is not what the grants say")
        try:
            slots = set(os.listdir(f"{folder}/{SLOT_DIR}"))
        except FileNotFoundError:  # no container lived until it was mounted
            slots = set()
        if len(set(there)) < len(there):
            self.found("double_bookings", f"two containers have one slot on {uuid}")
        if {os.path.basename(slot_file(slot)) for slot in there} != slots:
            self.found("leaks", f"slot files of {uuid} are missing or left behind")

    def found(self, kind: str, what: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.problems.append(what)

    def end(self) -> None:
        """Kill all; the next sweep must leave nothing."""
        while ours := children():
            for pid in ours:
                os.kill(pid, signal.SIGKILL)
            pid, status = os.waitpid(-1, 0)
            self.count(pid, status)
        for state in self.states:
            with store.open_ledger(state) as ledger:
                for g in ledger.grants:
                    self.found("leaks", f"the grant of {g.life} stays")
                self.check_files(state, ())


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def work(campaign: Campaign, i: int, rng: random.Random) -> None:
    """One creator: admit at random until there is room; then hold, release, or become a container and end."""
    if rng.random() < 0.7:
        left = rng.randrange(1, 200)

        def die(_: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

        _kill_points.install(die)
    me = os.getpid()
    settings = Settings("/", state_dir=rng.choice(campaign.states))
    for n in range(50):
        wish = GpuRequest(memory=("mib", rng.randrange(1, 5)), compute=rng.choice([None, 20, 60]))
        request = Request((wish,) * rng.choice([1, 1, 2]), exclusive=rng.random() < 0.15)
        who = Identity(campaign.runtime, f"c{me}-{n}", f"/c{me}-{n}")
        try:
            given = admit.admit_on(campaign.node, request, who, own_life(), settings)
        except GhError as e:
            if e.problems[0].code not in ("GH-201", "GH-304"):
                raise
            time.sleep(rng.random() * 0.001)
            continue
        promise(campaign, i, me, given.grant.key)
        if rng.random() < 0.4:
            become_container(campaign, i, given.grant)
        if rng.random() < 0.5:
            signal.pause()
        promise(campaign, i, 0, given.grant.key)
        admit.release(given.grant.key, settings, force=True)
    os._exit(NO_ROOM)


def promise(campaign: Campaign, i: int, holder: int, key: str) -> None:
    """Say for the auditor that `holder` lives and has the grant. The number comes last: its store is not torn."""
    at = i * SLOT.size
    HOLDER.pack_into(campaign.slots, at, 0)
    SLOT.pack_into(campaign.slots, at, 0, key.encode())
    HOLDER.pack_into(campaign.slots, at, holder)


def become_container(campaign: Campaign, i: int, grant: Grant) -> None:
    """Does a runtime's part: an init that lives on, its state file, the end of the creator."""
    read, write = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(write)
        if os.read(read, 1) != b"g":
            os._exit(NO_ROOM)  # the creator died before its time: runc's init ends as well
        signal.pause()
    os.close(read)
    folder = f"{campaign.runtime}/{grant.who.id}"
    os.mkdir(folder)
    pid, start = process_life(init)
    told = {"init_process_pid": pid, "init_process_start": start, "config": {"labels": [f"{MARKER}={grant.key} []"]}}
    Path(folder + "/tmp").write_text(json.dumps(told))
    os.rename(folder + "/tmp", folder + "/state.json")
    promise(campaign, i, init, grant.key)
    os.write(write, b"g")
    os._exit(0)


def campaign(kills: int, seed: int, installs: int = 1) -> Campaign:
    with state_dir() as state:
        found = Campaign(state, seed, installs)
        found.run(kills)
        return found


def run(short: bool) -> dict[str, dict[str, object]]:
    # The median of several batches: a machine's other work hits some of them.
    batches = [sorted(commit_times(20 if short else 80)) for _ in range(5)]
    p50, p99 = (statistics.median(b[int(len(b) * q)] for b in batches) / 1e6 for q in (0.5, 0.99))
    seed = random.randrange(1 << 32)
    parts = [campaign(200 if short else 9_000, seed), campaign(100 if short else 1_000, seed, installs=2)]
    for problem in (problem for part in parts for problem in part.problems):
        print(f"seed {seed}: {problem}", file=sys.stderr)
    kills = sum(part.kills for part in parts)
    twice = sum(part.double_bookings for part in parts)
    leaks = sum(part.leaks for part in parts)
    return {
        "commit_p50_ms": {"value": round(p50, 3), "unit": "ms", "budget": None, "ok": True},
        "commit_p99_ms": {"value": round(p99, 3), "unit": "ms", "budget": 10, "ok": p99 <= 10},
        "crash_kills": {"value": kills, "unit": "kills", "budget": None, "ok": True},
        "crash_double_bookings": {"value": twice, "unit": "", "budget": 0, "ok": twice == 0},
        "crash_leaks": {"value": leaks, "unit": "", "budget": 0, "ok": leaks == 0},
    }
