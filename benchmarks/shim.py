"""Cost of a call through the shim, with a driver that does nothing: lower deciles in one process, and means
while many processes do the same at once."""

import platform
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from gpu_hook_simulator import driver_root
from testbed import REPO

SOURCES = Path(__file__).parent / "shim_c"
SIMULATOR = REPO / "build" / platform.machine() / "sim" / "libcuda.so.1"
PROCESSES = 16
MANY = 40  # processes of one container that hold memory, one of which asks for figures


def _box(place: Path, shared: bool = False, active: bool = False) -> list[str]:
    """Build driver and client, lay out a private directory; returns the command prefix that makes it /run/gpu-hook.

    shared: the GPU is shared in time with a tenant that does nothing. active: it did something a moment ago, at any time.
    """
    cc = [sys.executable, "-m", "ziglang", "cc", "-O2"]
    for folder in ("driver", "account"):
        (place / folder).mkdir()
    driver = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(place / "driver" / "cuda")]
    subprocess.run([*cc, *driver, str(SOURCES / "noop.c")], check=True)
    subprocess.run([*cc, "-o", str(place / "client"), str(SOURCES / "client.c"), "-ldl"], check=True)
    page = bytearray(4096)
    struct.pack_into("<QIIIIII", page, 0, 0x31594C4F50484755, 1, 4096, 0, 1, 0, 1)
    uuid = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0"
    struct.pack_into("<48sQQ", page, 128, uuid.encode(), 64 << 30, 128 << 30)
    if shared:
        struct.pack_into("<I", page, 128 + 88, 1)
        (place / "share/0/slot").mkdir(parents=True)
        (place / "slot").mkdir()
        gpu = bytearray(4096)
        struct.pack_into("<QIIIIQQ48s", gpu, 0, 0x3130555047504847, 1, 4096, 2, 1, 1, 3, uuid.encode())
        for slot in range(2):
            struct.pack_into("<BBHIIIQ", gpu, 128 + 32 * slot, 1, 0, 100, 0, 0, 0, 1 + slot)
            (place / f"share/0/slot/{slot:02}").write_bytes(bytes(8192))
        if active:
            head = struct.pack("<QI76xQ", 0x31544F4C53504847, 2, 1 << 62)  # active_at
            (place / "share/0/slot/01").write_bytes(head.ljust(8192, b"\0"))
        (place / "slot/0").write_bytes(bytes(8192))
        page += gpu
    (place / "policy").write_bytes(page)
    mounts = f'mount -t tmpfs none /run && mkdir /run/gpu-hook && mount --bind {place} /run/gpu-hook && exec "$@"'
    return ["unshare", "-Urm", "sh", "-c", mounts, "sh", "/run/gpu-hook/client"]


def _simulated(place: Path) -> dict[str, str]:
    """Have a box's driver be the simulated one; returns the environment by which it finds its GPU."""
    (place / "driver" / "cuda").write_bytes(SIMULATOR.read_bytes())
    (place / "gpus").mkdir()
    uuid = driver_root.make_gpu(place / "gpus/0", 0, 128 << 10)
    page = bytearray((place / "policy").read_bytes())
    struct.pack_into("<48s", page, 128, uuid.encode())
    (place / "policy").write_bytes(page)
    return {driver_root.ENVIRONMENT: "/run/gpu-hook/gpus"}


def _figures(text: str) -> dict[str, float]:
    return {name: float(ours) - float(bare) for name, bare, ours in (line.split() for line in text.splitlines())}


class _Crowd:
    """Clients in one container that wait for a signal to allocate and free."""

    def __init__(self, client: list[str], env: dict[str, str], size: int) -> None:
        pipe = subprocess.PIPE
        self.clients = [
            subprocess.Popen([*client, "crowd"], env=env, stdin=pipe, stdout=pipe, text=True) for _ in range(size)
        ]
        for i in range(size):
            if self._line(i) != "ready":
                raise RuntimeError("a client did not start")

    def _line(self, i: int) -> str:
        out = self.clients[i].stdout
        return out.readline().strip() if out else ""

    def pair(self, which: str, members: range, seconds: float) -> float:
        """CPU time in ns of one alloc and free, on average over all that these did in the same time."""
        begin = time.monotonic_ns() + 20_000_000
        for i in members:
            if stdin := self.clients[i].stdin:
                stdin.write(f"{which} {begin} {begin + int(seconds * 1e9)}\n")
                stdin.flush()
        done, took = map(sum, zip(*(map(float, self._line(i).split()) for i in members), strict=True))
        return took / done

    def added(self, members: range, seconds: float) -> float:
        """What the shim adds to a call."""
        return self.pair("ours", members, seconds) - self.pair("bare", members, seconds)

    def close(self) -> None:
        """The clients end with their input."""
        for client in self.clients:
            client.communicate()


def _figure(value: float, unit: str, budget: float | None) -> dict[str, object]:
    return {"value": round(value, 2), "unit": unit, "budget": budget, "ok": budget is None or value <= budget}


def run(short: bool) -> dict[str, dict[str, object]]:
    """Added nanoseconds of CPU time per call; `contended`: alloc+free with 16 processes at once, over one of them."""
    subprocess.run(
        [sys.executable, str(REPO / "scripts" / "build"), "--part", "shim"], check=True, stdout=subprocess.DEVNULL
    )
    rounds, calls = ("5", "5000") if short else ("31", "20000")
    env = {"LD_LIBRARY_PATH": str(REPO / "build" / platform.machine()), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as other,
        tempfile.TemporaryDirectory() as third,
        tempfile.TemporaryDirectory() as fourth,
    ):
        alone, shared, streams = _box(Path(folder)), _box(Path(other), shared=True), _box(Path(third))
        awake = _box(Path(fourth), shared=True, active=True)
        simulated = {**env, **_simulated(Path(third))}

        def start(live: int, client: list[str] = alone) -> "subprocess.Popen[str]":
            argv = [*client, rounds, calls, str(live)]
            return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)

        def finish(process: "subprocess.Popen[str]") -> dict[str, float]:
            out, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(f"the client failed with {process.returncode}: {out}")
            return _figures(out)

        one, many, beside = finish(start(1)), finish(start(10000)), finish(start(1, shared))
        counted = finish(start(1, awake))
        crowd = _Crowd(alone, env, PROCESSES)
        # Means, not deciles, since pairs that met another process have to count. In turns, as the machine's pace changes.
        single, contended = [], []
        for i in range(3 if short else 9):
            single.append(crowd.added(range(i, i + 1), 0.2))
            contended.append(crowd.added(range(PROCESSES), 0.2))
        crowd.close()
        crowd = _Crowd(alone, env, MANY - 1)
        among = finish(start(1))
        crowd.close()
        argv = [*streams, "streams", rounds, calls]
        said = subprocess.run(argv, env=simulated, capture_output=True, text=True, check=True).stdout
        ordered = _figures(said)
    return {
        "launch_added_ns": _figure(one["launch"], "ns", 5),
        "launch_peer_idle_added_ns": _figure(beside["launch"], "ns", 20),
        "launch_peer_active_added_ns": _figure(counted["launch"], "ns", 150),
        "alloc_free_added_ns": _figure(one["alloc_free"], "ns", 60),
        "alloc_free_10000_added_ns": _figure(many["alloc_free"], "ns", 60),
        "meminfo_added_ns": _figure(one["meminfo"], "ns", 50),
        f"meminfo_{MANY}_processes_added_ns": _figure(among["meminfo"], "ns", 100),
        "pool_alloc_free_added_ns": _figure(ordered["pool"], "ns", 150),
        "stream_synchronize_added_ns": _figure(ordered["synchronize"], "ns", 50),
        "first_call_ms": _figure(one["first"] / 1e6, "ms", 1),
        "contended_16_ns": _figure(median(contended), "ns", None),
        "contended_16_ratio": _figure(median(contended) / max(median(single), 1), "x", 2),
    }
