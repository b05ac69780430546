"""Runs a case in two real containers of one image: on the bare simulated driver, and on a share."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from testbed import pinned as fetch
from testbed.stage import LIMIT_MIB, MULTIARCH, Edit, Stage, python_image
from tests.clients import compare
from tests.clients.compare import Verdict
from tests.clients.frame import Case, Client, Steps
from tests.clients.known import KNOWN

PROGRAMS = Path(__file__).resolve().parent / "programs"
ENV = {
    "PYTHONUTF8": "1",
    "PYTHONPYCACHEPREFIX": "/bytecode",  # the first run compiles for all
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "200",
    "LINES": "60",
    "HOME": "/tmp",
    "PYTHONPATH": "/programs",  # for its sitecustomize.py
    "TERM": "xterm",
    "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1",
}
NVIDIA = 195  # the major number of the driver's device nodes
READ_ONLY = ["rbind", "ro", "nosuid", "nodev"]
SITE = f"/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
LIBDIR = f"/usr/lib/{MULTIARCH}"


def mount(source: Path | str, destination: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "source": str(source), "type": "bind", "options": list(options) or READ_ONLY}


def bare_gpus(spec: dict[str, Any], stage: Stage, gpus: int) -> None:
    """Gives a container the simulated driver as it is, and these GPUs: their files, and the device nodes that JAX looks for."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        spec["mounts"].append(mount(stage.driver / name, f"{LIBDIR}/{name}"))
    nodes = [("/dev/nvidiactl", 255)]
    for minor in range(gpus):
        file = stage.state / f"sim/gpus/{minor}"
        spec["mounts"].append(mount(file, f"/dev/nvidia-sim/{minor}", "bind", "rw", "nosuid", "nodev"))
        nodes.append((f"/dev/nvidia{minor}", minor))
    for path, minor in nodes:
        node = {"path": path, "type": "c", "major": NVIDIA, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0}
        spec["linux"].setdefault("devices", []).append(node)
        rule = {"allow": True, "type": "c", "major": NVIDIA, "minor": minor, "access": "rwm"}
        spec["linux"]["resources"]["devices"].append(rule)


class Image:
    """The image of one client."""

    def __init__(self, stage: Stage, client: Client) -> None:
        self.root = stage.folder / f"image-{client.name}"
        self.mounts = python_image(self.root, "psutil", "cuda.bindings.driver")
        self.mounts.append(mount(PROGRAMS, "/programs"))
        bytecode = stage.folder / "bytecode"
        bytecode.mkdir(exist_ok=True)
        bytecode.chmod(0o1777)
        self.mounts.append(mount(bytecode, "/bytecode", "bind", "rw"))
        (self.root / "root").mkdir(exist_ok=True)
        for folder in (fetch.packages(name) for name in client.debs):
            shutil.copytree(folder, self.root, symlinks=True, dirs_exist_ok=True)
        self.mounts += [mount(fetch.wheels(name), f"/wheels/{name}{SITE}") for name in client.pins]
        if client.prepare:
            client.prepare(self.root, stage.driver)


class Ran:
    """What one side gave."""

    def __init__(self, case: Case, status: int, out: str, err: str, seconds: float) -> None:
        self.text = f"exit status {status}, {seconds:.1f} s\n{out[-6000:]}\n{err[-6000:]}"
        self.seconds = seconds
        self.steps: Steps = case.parse(out) | {"exit status": status}


class Pair:
    """The two sides, on two GPUs of an install of their own; one install for each version of the driver."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stages: dict[str, Stage] = {}
        self._images: dict[str, Image] = {}

    def stage(self, client: Client) -> Stage:
        version = client.driver
        if version not in self._stages:
            self._stages[version] = Stage(self._folder / version, "--driver", version)
        return self._stages[version]

    def image(self, client: Client) -> Image:
        if client.name not in self._images:
            self._images[client.name] = Image(self.stage(client), client)
        return self._images[client.name]

    def close(self) -> None:
        for stage in self._stages.values():
            stage.close()

    def bare(self, client: Client, case: Case) -> Ran:
        """By plain runc."""
        stage = self.stage(client)
        return self._run(client, case, {}, "runc", lambda spec: bare_gpus(spec, stage, case.gpus))

    def share(self, client: Client, case: Case) -> Ran:
        """By gpu-hook-runtime."""
        devices = ",".join(map(str, range(case.gpus)))
        asked = {"gpu-hook.io/devices": devices, "gpu-hook.io/memory": f"{LIMIT_MIB}Mi"}
        return self._run(client, case, asked, self.stage(client).program, lambda spec: None)

    def _run(self, client: Client, case: Case, asked: dict[str, str], program: str, edit: Edit) -> Ran:
        stage, image = self.stage(client), self.image(client)
        words = [sys.executable if word == "python" else word for word in case.run]

        def edited(spec: dict[str, Any]) -> None:
            spec["mounts"] += image.mounts
            spec["process"]["user"] = {"uid": case.uid, "gid": case.uid}
            edit(spec)

        folder = stage.bundle(image.root, words, asked, ENV | dict(case.env), edited)
        shutil.rmtree(image.root / "tmp", ignore_errors=True)
        (image.root / "tmp").mkdir()
        (image.root / "tmp").chmod(0o1777)
        runc = stage.runc
        id = runc.new_id()
        out, err = folder / "out", folder / "err"
        began = time.monotonic()
        with out.open("w") as o, err.open("w") as e:
            running = runc.popen(
                "run", "--bundle", str(folder), id, program=program, stdout=o, stderr=e, stdin=subprocess.DEVNULL
            )
            try:
                status = running.wait(case.seconds)
            except subprocess.TimeoutExpired:
                status = -1
                runc("kill", id, "KILL")
                running.wait(60)
        seconds = time.monotonic() - began
        runc("delete", "--force", id, program=program)
        return Ran(case, status, out.read_text(errors="replace"), err.read_text(errors="replace"), seconds)

    def judge(self, client: Client, case: Case) -> tuple[Verdict, Ran, Ran]:
        bare, share = self.bare(client, case), self.share(client, case)
        return compare.judge(client.name, case, bare.steps, share.steps, KNOWN), bare, share
