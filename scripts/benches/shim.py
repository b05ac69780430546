"""What a call costs through the stand-in beside a driver that does nothing. Lower deciles, one process."""

import platform
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).parent / "shim_c"
PROCESSES = 16


def _box(place: Path) -> list[str]:
    """Build driver and client, lay out a private directory; returns the command prefix that makes it /run/gpu-hook."""
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
    (place / "policy").write_bytes(page)
    mounts = f'mount -t tmpfs none /run && mkdir /run/gpu-hook && mount --bind {place} /run/gpu-hook && exec "$@"'
    return ["unshare", "-Urm", "sh", "-c", mounts, "sh", "/run/gpu-hook/client"]


def _figures(text: str) -> dict[str, float]:
    return {name: float(ours) - float(bare) for name, bare, ours in (line.split() for line in text.splitlines())}


def _figure(value: float, unit: str, budget: float | None) -> dict[str, object]:
    return {"value": round(value, 2), "unit": unit, "budget": budget, "ok": budget is None or value <= budget}


def run(short: bool) -> dict[str, dict[str, object]]:
    """Added nanoseconds per call; `contended` is alloc+free with 16 processes at once, over the single figure."""
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build"), "--part", "shim"], check=True, stdout=subprocess.DEVNULL
    )
    rounds, calls = ("5", "5000") if short else ("31", "20000")
    env = {"LD_LIBRARY_PATH": str(ROOT / "build" / platform.machine()), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with tempfile.TemporaryDirectory() as folder:
        client = _box(Path(folder))

        def start(live: int) -> "subprocess.Popen[str]":
            argv = [*client, rounds, calls, str(live)]
            return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)

        def finish(process: "subprocess.Popen[str]") -> dict[str, float]:
            out, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(f"the client failed with {process.returncode}: {out}")
            return _figures(out)

        one, many = finish(start(1)), finish(start(10000))
        crowd = [finish(p) for p in [start(1) for _ in range(PROCESSES)]]
    contended = sorted(f["alloc_free"] for f in crowd)[PROCESSES // 2]
    return {
        "launch_added_ns": _figure(one["launch"], "ns", 15),
        "alloc_free_added_ns": _figure(one["alloc_free"], "ns", 150),
        "alloc_free_10000_added_ns": _figure(many["alloc_free"], "ns", 150),
        "meminfo_added_ns": _figure(one["meminfo"], "ns", 100),
        "first_call_ms": _figure(one["first"] / 1e6, "ms", 1),
        "contended_16_ratio": _figure(contended / max(one["alloc_free"], 1), "x", 2),
    }
