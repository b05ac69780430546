"""Time that gpu-hook adds to the start of a container and to every other runtime call; rounds of everything, interleaved.

An added time is the median over rounds of (through gpu-hook - plain runc) in the same round; its p90 likewise. The yard
stick is the start of a Python that imports json, in the same rounds: machines differ, ratios less so.
"""

import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from oci_hook.config.settings import Settings
from oci_hook.core.inventory import DeviceFile, DriverFile, Gpu, Inventory
from oci_hook.discovery.save import save_inventory
from oci_hook.install import prefix as installs
from oci_hook.install import settings_edit
from oci_hook.ledger import slot_files
from oci_hook.linux.proc import boot_id
from testbed import tiny_image

PYTHON = ("/usr/bin/python3", "-I", "-S", "-c", "import json")
DRIVER = "550.163.01"
# Files of a 550 driver for the capabilities compute and utility.
LIBRARIES = "cudadebugger nvidia-gpucomp nvidia-ptxjitcompiler nvidia-allocator nvidia-pkcs11 nvidia-nvvm nvidia-cfg"
BINARIES = "nvidia-smi nvidia-debugdump nvidia-persistenced nvidia-cuda-mps-control nvidia-cuda-mps-server"
RATIO_BUDGET = 1.7
OTHER_BUDGET = 1.0  # ms
EXEC_BUDGET = 5.0  # ms


def run(short: bool) -> dict[str, dict[str, object]]:
    rounds = 40 if short else 200
    folder = Path(tempfile.mkdtemp(prefix="gpu-hook-bench-"))
    state = Path(tempfile.mkdtemp(prefix="gpu-hook-bench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    place = None
    try:
        place = _Place(folder, state)
        return _figures(_measure(place, rounds))
    finally:
        if place is not None:
            place.stop()
        slot_files.drop(str(state))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(state, ignore_errors=True)


class _Place:
    """An install with one simulated GPU, an image, and a bundle to copy."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder, self.root = folder, folder / "runc"
        settings = installs.lay(str(folder / "prefix"), state_dir=str(state))
        self.runtime, self.wrapper = settings.runtime, str(folder / "prefix/bin/gpu-hook-runtime")
        self.inventory(settings, folder / "driver", state)
        tiny_image.busybox(folder / "rootfs")
        subprocess.run([self.runtime, "spec"], cwd=folder, check=True)
        self.spec = json.loads((folder / "config.json").read_text())
        self.spec["process"].update(terminal=False, args=["/bin/true"])
        self.spec["root"]["path"] = str(folder / "rootfs")
        self.numbers = itertools.count()
        self.running = {asks: self.start(asks) for asks in (True, False)}
        process = {"args": ["/bin/true"], "env": ["PATH=/bin"], "cwd": "/", "user": {"uid": 0, "gid": 0}}
        (folder / "process.json").write_text(json.dumps(process))

    def start(self, asks: bool) -> str:
        """The id of a container that runs until stop()."""
        folder, id = self.bundle(asks, ["sleep", "100000"])
        with open(self.folder / "log", "w") as log:
            command = (self.wrapper, "--root", str(self.root), "run", "--detach", "--bundle", folder, id)
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return id

    def stop(self) -> None:
        for id in self.running.values():
            subprocess.run([self.runtime, "--root", str(self.root), "delete", "--force", id], check=False)

    def inventory(self, settings: Settings, driver: Path, state: Path) -> None:
        (driver / "lib").mkdir(parents=True)
        files = []
        for name in LIBRARIES.split():
            path = driver / f"lib/lib{name}.so.{DRIVER}"
            files.append(DriverFile(str(path), "library", "compute", (path.name, f"lib{name}.so.1")))
        files += [DriverFile(str(driver / "lib" / name), "binary", "utility") for name in BINARIES.split()]
        for file in (*(f.path for f in files), driver / "lib/libcuda.so", driver / "lib/libnvidia-ml.so"):
            Path(file).write_text("driver\n")
        (state / "sim/gpus").mkdir(parents=True)
        (state / "sim/gpus/0").write_text("gpu\n")
        compiled = settings_edit.set_driver_root(settings.prefix, str(driver))
        found = Inventory(
            boot_id=boot_id(),
            driver_version=DRIVER,
            driver_root=str(driver),
            simulated=True,
            gpus=(Gpu("GPU-0000", 0, 0, 1 << 20, simulated=True, file=str(state / "sim/gpus/0")),),
            control=(DeviceFile("/dev/nvidiactl", 195, 255), DeviceFile("/dev/nvidia-uvm", 510, 0)),
            files=tuple(files),
            libcuda=str(driver / "lib/libcuda.so"),
            libnvml=str(driver / "lib/libnvidia-ml.so"),
        )
        save_inventory(compiled, found)

    def bundle(self, asks: bool, args: Sequence[str] = ("/bin/true",)) -> tuple[str, str]:
        id = f"gh-bench-{os.getpid()}-{next(self.numbers)}"
        folder = self.folder / id
        folder.mkdir()
        annotations = {"gpu-hook.io/memory": "16", "gpu-hook.io/compute": "1"} if asks else {}
        spec = {**self.spec, "annotations": annotations, "process": {**self.spec["process"], "args": list(args)}}
        (folder / "config.json").write_text(json.dumps(spec))
        return str(folder), id

    def create(self, program: str, asks: bool) -> float:
        """Time one create. The container is gone again at the end, so that the next one finds the machine quiet."""
        bundle, id = self.bundle(asks)
        try:
            return _time((program, "--root", str(self.root), "create", "--bundle", bundle, id))
        finally:
            subprocess.run([program, "--root", str(self.root), "delete", "--force", id], check=False)  # as engines do
            shutil.rmtree(bundle)

    def exec(self, program: str, granted: bool) -> float:
        """Times an exec as engines call it."""
        file = str(self.folder / "process.json")
        return _time((program, "--root", str(self.root), "exec", "--process", file, self.running[granted]))

    def list(self, program: str) -> float:
        return _time((program, "--root", str(self.root), "list"))


def _time(command: Sequence[str]) -> float:
    """Milliseconds from spawn to end. Raises SystemExit when the command fails."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1)]
    begin = time.perf_counter_ns()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter_ns() - begin
    if status:
        raise SystemExit(f"{' '.join(command)}: status {os.waitstatus_to_exitcode(status)}")
    return took / 1e6


def _measure(place: _Place, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    dice = random.Random(1)
    work = [
        ("python", lambda: _time(PYTHON)),
        ("create", lambda: place.create(place.runtime, False)),
        ("create_with_share", lambda: place.create(place.wrapper, True)),
        ("create_unasked", lambda: place.create(place.wrapper, False)),
        ("exec", lambda: place.exec(place.runtime, False)),
        ("exec_unasked", lambda: place.exec(place.wrapper, False)),
        ("exec_granted_plain", lambda: place.exec(place.runtime, True)),
        ("exec_granted", lambda: place.exec(place.wrapper, True)),
        ("list", lambda: place.list(place.runtime)),
        ("list_through", lambda: place.list(place.wrapper)),
    ]
    for _ in range(rounds):
        dice.shuffle(work)  # each finds the caches that another one left
        for name, measure in work:
            times.setdefault(name, []).append(measure())
    return times


def _figures(times: dict[str, list[float]]) -> dict[str, dict[str, object]]:
    def figure(value: float, unit: str, budget: float | None = None) -> dict[str, object]:
        return {"value": value, "unit": unit, "budget": budget, "ok": budget is None or value <= budget}

    def p90(values: list[float]) -> float:
        return statistics.quantiles(values, n=10)[-1]

    def added(name: str, plain: str) -> list[float]:
        return [a - b for a, b in zip(times[name], times[plain], strict=True)]

    python = statistics.median(times["python"])
    create, unasked = added("create_with_share", "create"), added("create_unasked", "create")
    other = added("list_through", "list")
    granted, not_granted = added("exec_granted", "exec_granted_plain"), added("exec_unasked", "exec")
    return {
        "create_added_ratio": figure(statistics.median(create) / python, "x python", RATIO_BUDGET),
        "create_added_ratio_p90": figure(p90(create) / p90(times["python"]), "x python"),
        "create_added_ms": figure(statistics.median(create), "ms"),
        "create_added_ms_p90": figure(p90(create), "ms"),
        "other_call_added_ms": figure(statistics.median(other), "ms", OTHER_BUDGET),
        "other_call_added_ms_p90": figure(p90(other), "ms"),
        "create_unasked_added_ms": figure(statistics.median(unasked), "ms", OTHER_BUDGET),
        "exec_granted_added_ms": figure(statistics.median(granted), "ms", EXEC_BUDGET),
        "exec_granted_added_ms_p90": figure(p90(granted), "ms"),
        "exec_unasked_added_ms": figure(statistics.median(not_granted), "ms", OTHER_BUDGET),
        "runc_exec_ms": figure(statistics.median(times["exec"]), "ms"),
        "runc_create_ms": figure(statistics.median(times["create"]), "ms"),
        "runc_create_ms_p90": figure(p90(times["create"]), "ms"),
        "runc_list_ms": figure(statistics.median(times["list"]), "ms"),
        "python_json_ms": figure(python, "ms"),
        "python_json_ms_p90": figure(p90(times["python"]), "ms"),
    }
