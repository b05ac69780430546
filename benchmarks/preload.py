"""What it costs to have the shim loaded in every program, as /etc/ld.so.preload would: start and memory of a small one.

By LD_PRELOAD, which the loader treats alike. The shim needs the driver's library, so that it is loaded as well: an empty one, the
simulated one, and where it can be fetched NVIDIA's own. Starts are in turns, in a random order.
"""

import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from testbed import REPO, real_drivers
from testbed.compiled import ZIG

BUILT = REPO / "build" / platform.machine()
DRIVER = "550.163.01"
NEEDED = b"/run/gpu-hook/driver/cuda"
PROGRAM = "#include <unistd.h>\nint main(int n, char **words) { return words[1] ? pause() : n - 1; }\n"
TOGETHER = 20


def run(short: bool) -> dict[str, dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="gh-", dir="/tmp") as name:
        place = Path(name)
        program = str(_compiled(place / "small", PROGRAM))
        drivers = {"empty": _compiled(place / "none", "int gh;", "-shared"), "simulated": BUILT / "sim/libcuda.so.1"}
        try:
            drivers[f"driver_{DRIVER[:3]}"] = real_drivers.libraries(DRIVER)["libcuda"]
        except pytest.skip.Exception as e:
            print(f"bench: no driver {DRIVER}: {e}", file=sys.stderr)
        shims = {"without": ""} | {key: _shim(place, n, driver) for n, (key, driver) in enumerate(drivers.items())}
        starts = _starts(program, shims, 300 if short else 2000)
        figures: dict[str, dict[str, object]] = {}
        for key, shim in shims.items():
            memory = _memory(program, shim)
            for what, value, unit in (
                ("cpu", statistics.mean(cpu for _, cpu in starts[key]), "ms"),
                ("start", statistics.median(wall for wall, _ in starts[key]), "ms"),
                (
                    "start_ratio",
                    statistics.median(w / o for (w, _), (o, _) in zip(starts[key], starts["without"], strict=True)),
                    "x",
                ),
                ("rss", memory["Rss"], "kB"),
                ("pss", memory["Pss"], "kB"),
                ("dirty", memory["Private_Dirty"], "kB"),
            ):
                figures[f"{what}_{key}"] = {"value": round(value, 3), "unit": unit, "budget": None, "ok": True}
        return figures


def _compiled(out: Path, text: str, *words: str) -> Path:
    source = out.with_suffix(".c")
    source.write_text(text)
    subprocess.run([*ZIG, "-O2", "-fPIC", *words, "-o", str(out), str(source)], check=True)
    return out


def _shim(place: Path, number: int, driver: Path) -> str:
    """The path of a shim that loads this driver."""
    path = place / f"d{number}"
    shutil.copy(driver, path)
    shim = place / f"shim{number}.so"
    data = (BUILT / "libcuda.so.1").read_bytes()
    assert NEEDED in data
    shim.write_bytes(data.replace(NEEDED, bytes(path).ljust(len(NEEDED), b"\0")))
    return str(shim)


def _environment(shim: str) -> dict[str, str]:
    return {"LD_PRELOAD": shim} if shim else {}


def _starts(program: str, shims: dict[str, str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(ms until it has ended, ms of processor time) of each start."""
    found: dict[str, list[tuple[float, float]]] = {key: [] for key in shims}
    for _ in range(rounds):
        for key in random.sample(sorted(shims), len(shims)):
            began = time.perf_counter()
            pid = os.posix_spawn(program, [program], _environment(shims[key]))
            _, status, used = os.wait4(pid, 0)
            found[key].append((1000 * (time.perf_counter() - began), 1000 * (used.ru_utime + used.ru_stime)))
            assert status == 0, (key, status)
    return found


def _memory(program: str, shim: str) -> dict[str, float]:
    """Each process's part, in kB, where TOGETHER of them run."""
    pids = [os.posix_spawn(program, [program, "wait"], _environment(shim)) for _ in range(TOGETHER)]
    try:
        while not all(_waits(pid) for pid in pids):
            time.sleep(0.01)
        total: dict[str, float] = {}
        for pid in pids:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, value = line.split()[:2]
                total[name[:-1]] = total.get(name[:-1], 0) + int(value) / TOGETHER
        return total
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _waits(pid: int) -> bool:
    """Whether the program sleeps: it does so only when the loader has done its work."""
    return bool(psutil.Process(pid).status() == psutil.STATUS_SLEEPING)
