"""Containers that take turns on a GPU whose memory is lent: the agent's own rule (oci_hook/agent/judge/turns.py) in a model of a
GPU, in virtual time. All figures are simulated; how fast memory is moved was measured on an H200 with driver 580.

Trainers always have work, each needs all of its memory at once, and those on the GPU share its time. They are compared with the
same trainers one after the other, and with managed memory that is paged: there each step of STEP seconds finds its memory
evicted by the others'. A server of class online is silent, and then allocates its request at once.
"""

from benchmarks._report import figure
from oci_hook.agent.act.moving import BUSY_SECONDS, IDLE_SECONDS
from oci_hook.agent.judge.turns import LentTenant, Pace, decide

GIB = 1 << 30
OUT, BACK = 1.9 * GIB, 4.6 * GIB  # bytes a second (data/validation/H200-580)
START = 0.4  # seconds of a move that are not the copy's: a process, the driver's lock, the ledger
BUS = 25 * GIB  # bytes a second, one way, of paged memory
TURN = 30.0
STEP = 0.25
HOUR = 3600.0
CELLS = (  # GiB of each trainer, how many, GiB of the GPU
    ("3 x 8 GiB on 16", 8, 3, 16),
    ("8 x 8 GiB on 24", 8, 8, 24),
    ("3 x 40 GiB on 80", 40, 3, 80),
    ("4 x 40 GiB on 48", 40, 4, 48),
    ("2 x 80 GiB on 80", 80, 2, 80),
    ("6 x 80 GiB on 141", 80, 6, 141),
)


class Gpu:
    """Trainers in virtual time. work: seconds of the whole GPU that each got."""

    def __init__(self, sizes, request, gpu_gib, server=0):
        self.free = int(gpu_gib * GIB)
        self.now = 0.0
        self.pace = Pace(START, 1 / OUT)
        self.tenants = {}
        self.work = dict.fromkeys([f"t{i}" for i in range(len(sizes))], 0.0)
        self.moves = 0
        for i, size in enumerate(sizes):
            self.tenants[f"t{i}"] = LentTenant(f"t{i}", 0, 0, int(request * GIB), int(size * GIB), here=0.0)
        if server:
            self.tenants["server"] = LentTenant("server", 2, 0, int(server * GIB))
        self.move, self.arrives = None, 0.0

    def step(self):
        """To the agent's next look, or to the end of a move."""
        claims = any(t.waits or t.away for t in self.tenants.values())
        then = self.now + (BUSY_SECONDS if claims else IDLE_SECONDS)
        if self.move is not None:
            then = min(then, self.arrives) if self.arrives > self.now else then
        self.run(then - self.now)
        self.now = then
        if self.move is not None:
            if self.now >= self.arrives:
                self.end()
            return
        self.move = decide(tuple(self.tenants.values()), self.free, self.now, TURN, self.pace)
        if self.move is not None:
            t = self.tenants[self.move.key]
            self.arrives = self.now + START + t.used / (OUT if self.move.lent_to else BACK)
            if not self.move.lent_to:
                self.free -= t.used
            self.moves += 1

    def run(self, seconds):
        moving = self.move.key if self.move else ""
        for key, t in self.tenants.items():  # what fits is had at once
            if t.waits and not t.away and key != moving and t.waits <= self.free:
                self.free -= t.waits
                self.tenants[key] = t.replace(used=t.used + t.waits, waits=0)
        there = [k for k in self.work if not (t := self.tenants[k]).away and not t.waits and t.used and k != moving]
        for key in there:
            self.work[key] += seconds / len(there)

    def end(self):
        t = self.tenants[self.move.key]
        if self.move.lent_to:
            self.free += t.used
        away = bool(self.move.lent_to)
        self.tenants[t.key] = t.replace(away=away, here=self.now, back=t.back if away else self.now)
        if away and not (other := self.tenants[self.move.lent_to]).away:
            self.tenants[other.key] = other.replace(here=self.now)
        self.move = None

    def claim(self, gib):
        self.tenants["server"] = self.tenants["server"].replace(waits=int(gib * GIB), since=self.now)
        began = self.now
        while self.tenants["server"].waits:
            self.step()
        return self.now - began


def paged(size_gib, gpu_gib, count):
    """The part of the GPU's time that is work where managed memory is paged: each step needs all of a trainer's memory, and the
    others' steps have evicted it (least recently used first)."""
    return 1.0 if size_gib * count <= gpu_gib else STEP / (STEP + size_gib * GIB / BUS)


def cell(name, size, count, gpu_gib, hours):
    gpu = Gpu([size] * count, size / 8, gpu_gib)
    while gpu.now < hours * HOUR:
        gpu.step()
    done = sum(gpu.work.values()) / gpu.now
    fair = min(gpu.work.values()) / (sum(gpu.work.values()) / count)
    server = Gpu([size] * count, size / 8, gpu_gib, server=size)
    while server.now < HOUR:
        server.step()
    return {
        "name": name,
        "overfill": size * count / gpu_gib,
        "throughput": done,
        "paged": paged(size, gpu_gib, count),
        "least_of_fair": fair,
        "moves_per_hour": gpu.moves / hours,
        "first_allocation_s": server.claim(size),
    }


def run(short):
    hours = 2 if short else 24
    figures = {}
    for row in CELLS:
        c, name = cell(*row, hours=hours), row[0].replace(" ", "_")
        figures[f"throughput_{name}"] = figure(c["throughput"], "of in sequence", 0.9, least=True)
        figures[f"paged_{name}"] = figure(c["paged"], "of in sequence", None)
        figures[f"least_of_fair_{name}"] = figure(c["least_of_fair"], "of its equal part", 0.95, least=True)
        figures[f"first_allocation_s_{name}"] = figure(c["first_allocation_s"], "s", bound(row))
        figures[f"moves_per_hour_{name}"] = figure(c["moves_per_hour"], "", None)
    return figures


def bound(row):
    """Seconds until a silent server has its memory: a look, a move that is under way, those that make room, the next try."""
    _, size, _, gpu_gib = row
    one = START + size * GIB / OUT
    return round(IDLE_SECONDS + one + one * max(1, gpu_gib // size) + 2 * BUSY_SECONDS, 1)
