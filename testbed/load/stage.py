"""Real containers on simulated GPUs, with the load generator in them: through the shipped runtime wrapper and the
shipped shim, or on the bare simulated driver by plain runc (`native`)."""

import contextlib
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oci_hook.discovery.driver_files import MULTIARCH
from testbed import REPO, demo_stage, tiny_image
from testbed.load.tenant import Tenant

Json = dict[str, Any]
PROGRAMS = REPO / "build" / platform.machine() / "bench"


class Stage(demo_stage.Stage):
    """An install with `gpus` simulated GPUs that are `scale` times slower than they say."""

    memory = "3Gi"

    def __init__(self, gpus: int, scale: int, *sim: str) -> None:
        """sim: more words for `sim up`."""
        subprocess.run([sys.executable, str(REPO / "scripts/build")], check=True, stdout=subprocess.DEVNULL)
        super().__init__(simulated=True)
        self.scale = scale
        self.numbers = iter(range(100000))
        self.rootfs = tiny_image.with_c_library(self.dir / "rootfs")
        for name in ("load", "liar"):
            shutil.copy(PROGRAMS / name, self.rootfs / "bin" / name)
        (self.rootfs / "work").mkdir()
        subprocess.run(["runc", "spec"], cwd=self.dir, check=True)
        self.spec = (self.dir / "config.json").read_text()
        try:
            self.cli("install", "--no-engines", "--state-dir", str(self.state))
            self.cli("sim", "up", "--gpus", str(gpus), "--memory", "16Gi", "--time-scale", str(scale), *sim)
        except BaseException:
            self.close()
            raise

    def wait(self, gpu_seconds: float) -> None:
        time.sleep(gpu_seconds * self.scale)

    @contextlib.contextmanager
    def tenant(
        self, gpu: int, annotations: Json | None, procs: int = 1, start: str = "", program: Sequence[str] = ("load",)
    ) -> Iterator["Container"]:
        """A container with load generators; annotations None: native. start: their first command, repeated by a new
        one whenever one is killed. program: another program, which says when it is ready, as they do."""
        tenant = Container(self, f"t{next(self.numbers)}", gpu, annotations, procs, start, program)
        try:
            tenant.begin()
            yield tenant
        finally:
            tenant.end()


class Container(Tenant):
    """Made by runc, through the shipped wrapper unless it is native."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        gpu: int,
        annotations: Json | None,
        procs: int,
        start: str,
        program: Sequence[str],
    ) -> None:
        self.bundle = stage.dir / name
        self.program = program
        super().__init__(name, self.bundle / "work", procs)
        self.stage, self.gpu, self.annotations, self.start = stage, gpu, annotations, start

    def begin(self) -> None:
        self.lay()
        script = self.command_lines(
            self.program, "/load", f"--scale {self.stage.scale}", self.start, 0.05 * self.stage.scale
        )
        spec = json.loads(self.stage.spec)
        spec["process"].update(terminal=False, args=["/bin/sh", "-c", f"exec 2>/load/log; {script}"])
        spec["root"].update(path=str(self.stage.rootfs), readonly=False)
        spec["annotations"] = {k: str(v) for k, v in (self.annotations or {}).items()}
        spec["linux"]["cgroupsPath"] = f"/{self.stage.dir.name}/{self.name}"
        spec["linux"]["resources"].pop("memory", None)
        self._bind(spec, self.work, "/load")
        if self.annotations is None:
            folder = "usr/lib/" + MULTIARCH[platform.machine()]
            library = f"{folder}/libcuda.so.1"
            self._bind(spec, (self.stage.prefix / "sim/root" / library).resolve(), f"/{library}")
            self._bind(spec, self.stage.state / f"sim/gpus/{self.gpu}", f"/dev/nvidia-sim/{self.gpu}")
        (self.bundle / "config.json").write_text(json.dumps(spec))
        command = ["run", "--detach", "--bundle", str(self.bundle), self.name]
        self.stage.ids.append(self.name)
        if self.annotations is None:
            argv = ["runc", "--root", str(self.stage.root), *command]
            with open(self.bundle / "said", "w") as said:
                status = subprocess.run(argv, stdout=said, stderr=said, stdin=subprocess.DEVNULL).returncode
            text = (self.bundle / "said").read_text()
        else:
            r = self.stage.runtime(*command)
            status, text = r.returncode, r.stdout
        if status:
            raise RuntimeError(f"container {self.name} {self.annotations} did not start: {text[-600:]}")
        self.wait_ready()

    @staticmethod
    def _bind(spec: Json, source: Path, destination: str) -> None:
        options = ["rbind", "rw"]
        spec["mounts"].append({"destination": destination, "type": "bind", "source": str(source), "options": options})

    def pid(self) -> int:
        """The load generator's, on the host."""
        init = int(json.loads((self.stage.root / self.name / "state.json").read_text())["init_process_pid"])
        if not self.start:
            return init
        children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        return int(children[0]) if children else 0

    def end(self) -> None:
        self.close()
        if (self.stage.root / self.name).exists():
            self.stage.runtime("delete", "--force", self.name)
        with contextlib.suppress(ValueError):
            self.stage.ids.remove(self.name)
