"""The load generator's side channel: a folder with a FIFO of commands and a file of answers per process."""

import json
import mmap
import os
import shlex
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
TRACE_RING = 1 << 19
_other = {"weight", "cap", "limit", "class", "linger", "procs", "quiet"}  # of a tenant, not of its program


def words(tenant: Json) -> str:
    """A tenant's program in the load generator's words."""
    return " ".join(f"{k}={v}" for k, v in tenant.items() if k not in _other)


class Tenant:
    """One container's load generators. They get the same commands, at about the same time."""

    def __init__(self, name: str, work: Path, procs: int = 1) -> None:
        self.name, self.work, self.procs = name, work, procs
        self.read = [0] * procs
        self.serial = 0
        self.trace: mmap.mmap | None = None

    def lay(self) -> None:
        """Make the folder."""
        self.work.mkdir(parents=True)
        for i in range(self.procs):
            os.mkfifo(self.work / f"c{i}")

    def command_lines(
        self, program: Sequence[str], inside: str, options: str, start: str = "", restart: float = 0
    ) -> str:
        """Script for a shell in the container; `inside` is the folder's path there. program: its path and
        first words. start: a first command, done anew so many seconds after the program was killed."""
        command = shlex.join(program)
        lines = [f"{command} --control {inside}/c{i} --out {inside}/o{i} {options}" for i in range(self.procs)]
        if start:
            return f"while :; do {lines[0]} --start '{start}'; sleep {restart}; done"
        return " & ".join(lines) + " & wait" if self.procs > 1 else "exec " + lines[0]

    def wait_ready(self, seconds: float = 20) -> None:
        for i in range(self.procs):
            self._answer(i, lambda a: "ready" in a, seconds)

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

    def results(self, seconds: float = 300) -> list[Json]:
        """The processes' reports of the last run, when it has ended."""
        return [self._answer(i, lambda a: a.get("id") == self.serial, seconds) for i in range(self.procs)]

    def stop(self) -> list[Json]:
        self.tell("stop")
        return self.results()

    def ends(self, process: int = 0) -> list[int]:
        """When each command of the process's last run ended; CLOCK_MONOTONIC ns."""
        raw = (self.work / f"o{process}.ends").read_bytes()
        return list(struct.unpack(f"<{len(raw) // 8}Q", raw))

    def launches(self) -> tuple[int, int]:
        """Number of traced launches, and the time when the last returned."""
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

    def close(self) -> None:
        if self.trace is not None:
            self.trace.close()
            self.trace = None
