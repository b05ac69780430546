"""Real containers on simulated cards, with the load generator in them: through the shipped runtime wrapper and the
shipped stand-in, or on the bare simulated driver by plain runc (`native`)."""

import contextlib
import json
import mmap
import os
import platform
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[3]
for folder in (REPO, REPO / "scripts"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import demo_story  # noqa: E402
import tiny_image  # noqa: E402

from oci_hook.node.driver_files import MULTIARCH  # noqa: E402

Json = dict[str, Any]
LOAD = REPO / "build" / platform.machine() / "bench" / "load"
MEMORY = "1Gi"
TRACE_RING = 1 << 19
_words = {"weight", "cap", "class", "linger", "procs"}  # of a tenant, not of its program


def words(tenant: Json) -> str:
    """A tenant's program in the load generator's words."""
    return " ".join(f"{k}={v}" for k, v in tenant.items() if k not in _words)


class Stage(demo_story.Stage):
    """An install with `cards` simulated cards that are `scale` times slower than they say."""

    def __init__(self, cards: int, scale: int) -> None:
        subprocess.run([sys.executable, str(REPO / "scripts/build")], check=True, stdout=subprocess.DEVNULL)
        super().__init__(simulated=True)
        self.scale = scale
        self.numbers = iter(range(100000))
        self.rootfs = tiny_image.with_c_library(self.dir / "rootfs")
        shutil.copy(LOAD, self.rootfs / "bin/load")
        (self.rootfs / "work").mkdir()
        subprocess.run(["runc", "spec"], cwd=self.dir, check=True)
        self.spec = (self.dir / "config.json").read_text()
        try:
            self.cli("install", "--no-engines", "--state-dir", str(self.state))
            self.cli("sim", "up", "--cards", str(cards), "--memory", "16Gi", "--time-scale", str(scale))
        except BaseException:
            self.close()
            raise

    def wait(self, card_seconds: float) -> None:
        time.sleep(card_seconds * self.scale)

    @contextlib.contextmanager
    def tenant(self, card: int, annotations: Json | None, procs: int = 1, start: str = "") -> Iterator["Tenant"]:
        """A container with load generators; annotations None: native. start: their first command, repeated by a new
        one whenever one is killed."""
        tenant = Tenant(self, f"t{next(self.numbers)}", card, annotations, procs, start)
        try:
            tenant.begin()
            yield tenant
        finally:
            tenant.end()


class Tenant:
    """One container. Its programs are told the same, at about the same time."""

    def __init__(self, stage: Stage, name: str, card: int, annotations: Json | None, procs: int, start: str) -> None:
        self.stage, self.name, self.card, self.annotations = stage, name, card, annotations
        self.procs, self.start = procs, start
        self.bundle = stage.dir / name
        self.work = self.bundle / "work"
        self.read = [0] * procs
        self.serial = 0
        self.trace: mmap.mmap | None = None

    def begin(self) -> None:
        self.work.mkdir(parents=True)
        (self.work / "tmp").mkdir()
        lines = []
        for i in range(self.procs):
            os.mkfifo(self.work / f"c{i}")
            words = f"load --control /work/c{i} --out /work/o{i} --scale {self.stage.scale}"
            lines.append(f"{words} --start '{self.start}'" if self.start else words)
        if self.start:
            script = f"while :; do {lines[0]}; done"
        else:
            script = " & ".join(lines) + " & wait" if self.procs > 1 else "exec " + lines[0]
        spec = json.loads(self.stage.spec)
        spec["process"].update(terminal=False, args=["/bin/sh", "-c", f"exec 2>/work/log; {script}"])
        spec["root"].update(path=str(self.stage.rootfs), readonly=False)
        spec["annotations"] = {k: str(v) for k, v in (self.annotations or {}).items()}
        spec["linux"]["cgroupsPath"] = f"/{self.stage.dir.name}/{self.name}"
        spec["linux"]["resources"].pop("memory", None)
        self._bind(spec, self.work, "/work")
        if self.annotations is None:
            folder = "usr/lib/" + MULTIARCH[platform.machine()]
            library = f"{folder}/libcuda.so.1"
            self._bind(spec, (self.stage.prefix / "sim/root" / library).resolve(), f"/{library}")
            self._bind(spec, self.stage.state / f"sim/cards/{self.card}", f"/dev/nvidia-sim/{self.card}")
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
        for i in range(self.procs):
            self._answer(i, lambda a: "ready" in a, 20)

    @staticmethod
    def _bind(spec: Json, source: Path, destination: str) -> None:
        options = ["rbind", "rw"]
        spec["mounts"].append({"destination": destination, "type": "bind", "source": str(source), "options": options})

    def _answer(self, i: int, wanted: Any, seconds: float) -> Json:
        """The next line of process i's output that is wanted; others are dropped."""
        path = self.work / f"o{i}"
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if path.exists():
                with open(path) as f:
                    f.seek(self.read[i])
                    while (line := f.readline()).endswith("\n"):
                        self.read[i] = f.tell()
                        answer = json.loads(line)
                        if wanted(answer):
                            return dict(answer)
            time.sleep(0.02)
        log = self.work / "log"
        raise RuntimeError(f"{self.name}: no answer in {seconds} s; {log.read_text()[-500:] if log.exists() else ''}")

    def tell(self, text: str) -> None:
        for i in range(self.procs):
            fifo = os.open(self.work / f"c{i}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(fifo, text.encode() + b"\n")
            os.close(fifo)

    def run(self, program: str) -> None:
        self.serial += 1
        self.tell(f"run id={self.serial} {program}")

    def results(self, seconds: float = 60) -> list[Json]:
        """What the processes report of the last run, when it has ended."""
        return [self._answer(i, lambda a: a.get("id") == self.serial, seconds) for i in range(self.procs)]

    def stop(self) -> list[Json]:
        self.tell("stop")
        return self.results()

    def ends(self) -> list[int]:
        """When each command of the last run ended; CLOCK_MONOTONIC ns."""
        raw = (self.work / "o0.ends").read_bytes()
        return list(struct.unpack(f"<{len(raw) // 8}Q", raw))

    def pid(self) -> int:
        """The load generator's, on the host."""
        init = int(json.loads((self.stage.root / self.name / "state.json").read_text())["init_process_pid"])
        if not self.start:
            return init
        children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        return int(children[0]) if children else 0

    def launches(self) -> tuple[int, int]:
        """How many launches were traced, and when the last returned."""
        count = self._word(0)
        return count, self._word(1 + (count - 1) % TRACE_RING) if count else 0

    def traced(self) -> list[int]:
        """When each launch of the last run returned (the newest TRACE_RING), in order."""
        count = self._word(0)
        ring = struct.unpack(f"<{TRACE_RING}Q", self._trace()[8 : 8 * (TRACE_RING + 1)])
        return sorted(ring[:count] if count < TRACE_RING else ring)

    def first_launch_after(self, ns: int, count: int) -> int | None:
        """The first after ns among those from number `count` on."""
        now = self._word(0)
        for n in range(count, now):
            at = self._word(1 + n % TRACE_RING)
            if at > ns:
                return at
        return None

    def _trace(self) -> mmap.mmap:
        if self.trace is None:
            with open(self.work / "o0.trace", "rb") as f:
                self.trace = mmap.mmap(f.fileno(), 8 * (TRACE_RING + 1), prot=mmap.PROT_READ)
        return self.trace

    def _word(self, i: int) -> int:
        return int(struct.unpack_from("<Q", self._trace(), 8 * i)[0])

    def end(self) -> None:
        if self.trace is not None:
            self.trace.close()
        if (self.stage.root / self.name).exists():
            self.stage.runtime("delete", "--force", self.name)
        with contextlib.suppress(ValueError):
            self.stage.ids.remove(self.name)
