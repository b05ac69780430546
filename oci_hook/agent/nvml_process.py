"""NVML in a process of its own, `python -m oci_hook.agent.nvml_process`: it may hang, crash or be killed without the agent.

Lines on standard input ask:
    (empty)                  for a sample of all cards: {"cards": {UUID: CARD}, "error": ""}
    look UUID                for one card, without its load: {"look": UUID, "card": CARD}
    watch {"UUID": BYTES}    to look at a card unasked as soon as it has less free than this, in place of what was
                             watched before; a card is then watched again when the next line says so
Answers are lines of JSON on standard output. CARD is {"at", "used", "total", "gpu", "processes": [[pid, bytes or null,
gpu %]], "steady", "error": ""}: at: the monotonic clock before NVML was asked; steady: the memory in use was the same
before and after the processes were listed. The library is the one in LD_PRELOAD, as in discovery/nvml_gpus.py. Values are
bytes and per cent; gpu is -1 where unknown.
"""

import json
import os
import select
import sys
import time
from typing import Any

import pynvml  # type: ignore[import-untyped]

WATCH_SECONDS = 0.25
HISTORY_US = 2_000_000  # utilisation samples older than this say nothing of now


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Nvml:
    """Handles are asked for once; after an error of the library as a whole it is started anew."""

    def __init__(self) -> None:
        self.handles: dict[str, Any] = {}
        self.seen: dict[str, int] = {}
        self.up = False

    def sample(self) -> dict[str, Any]:
        try:
            if not self.up:
                pynvml.nvmlInit()
                self.up = True
                self.handles = {}
            count = pynvml.nvmlDeviceGetCount()
            if len(self.handles) != count:
                # A card that fell off the bus may still be counted, and then has no handle.
                found = (self.handle(i) for i in range(count))
                self.handles = {uuid: handle for uuid, handle in found if uuid}
        except pynvml.NVMLError as e:
            self.close()
            return {"cards": {}, "error": str(e)}
        return {"cards": {uuid: self.card(uuid, handle) for uuid, handle in self.handles.items()}, "error": ""}

    def handle(self, index: int) -> tuple[str, Any]:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return text(pynvml.nvmlDeviceGetUUID(handle)), handle
        except pynvml.NVMLError:
            return "", None

    def card(self, uuid: str, handle: Any, load: bool = True) -> dict[str, Any]:
        at = time.monotonic()
        try:
            before = pynvml.nvmlDeviceGetMemoryInfo(handle)
            running = {}
            for kind in ("Compute", "Graphics", "MPSCompute"):
                try:
                    for p in getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle):
                        running[int(p.pid)] = None if p.usedGpuMemory is None else int(p.usedGpuMemory)
                except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
                    pass
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            busy, gpu = {}, -1
            if load:
                busy = self.busy(uuid, handle) if running else {}
                try:
                    gpu = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                except pynvml.NVMLError:
                    pass
            return {
                "at": at,
                "used": int(memory.used),
                "total": int(memory.total),
                "gpu": gpu,
                "processes": [[pid, used, busy.get(pid, 0)] for pid, used in running.items()],
                "steady": int(before.used) == int(memory.used),
                "error": "",
            }
        except pynvml.NVMLError as e:
            return {"at": at, "used": 0, "total": 0, "gpu": -1, "processes": [], "steady": False, "error": str(e)}

    def look(self, uuid: str) -> dict[str, Any]:
        if not self.up or uuid not in self.handles:
            return {"look": uuid, "card": None}
        return {"look": uuid, "card": self.card(uuid, self.handles[uuid], load=False)}

    def free(self, uuid: str) -> int | None:
        """Bytes; None: the card cannot be asked now, which the next sample tells."""
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(self.handles[uuid]).free) if self.up else None
        except (pynvml.NVMLError, KeyError):
            return None

    def busy(self, uuid: str, handle: Any) -> dict[int, int]:
        """Per cent of the card by pid, each from its newest sample since the last time."""
        newest: dict[int, tuple[int, int]] = {}
        try:
            for s in pynvml.nvmlDeviceGetProcessUtilization(handle, self.seen.get(uuid, 0)):
                if int(s.timeStamp) >= newest.get(int(s.pid), (0, 0))[0]:
                    newest[int(s.pid)] = (int(s.timeStamp), int(s.smUtil))
        except pynvml.NVMLError:  # nothing was busy
            return {}
        last = max((when for when, _ in newest.values()), default=0)
        self.seen[uuid] = max(self.seen.get(uuid, 0), last - HISTORY_US)
        return {pid: load for pid, (when, load) in newest.items() if when >= last - HISTORY_US}

    def close(self) -> None:
        self.up = False
        self.handles = {}
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass


class Watch:
    """Cards whose free memory is looked at; each until it has less than its bytes."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.alarms: dict[str, int] = {}

    def step(self) -> list[dict[str, Any]]:
        found = []
        for uuid, bytes in list(self.alarms.items()):
            free = self.nvml.free(uuid)
            if free is not None and free < bytes:
                del self.alarms[uuid]
                found.append(self.nvml.look(uuid))
        return found


def answers(line: bytes, nvml: Nvml, watch: Watch) -> list[dict[str, Any]]:
    word, _, rest = line.decode().strip().partition(" ")
    if word == "watch":
        watch.alarms = {str(uuid): int(bytes) for uuid, bytes in json.loads(rest).items()}
        return []
    return [nvml.look(rest)] if word == "look" else [nvml.sample()]


def main() -> int:
    parent = os.getppid()
    nvml = Nvml()
    watch, pending = Watch(nvml), b""
    due = 0.0
    while True:
        wait = max(0.0, due - time.monotonic()) if watch.alarms else None
        ready = select.select([0], [], [], wait)[0]
        found: list[dict[str, Any]] = []
        if ready:
            data = os.read(0, 1 << 16)
            if not data:
                return 0
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                found += answers(line, nvml, watch)
        if os.getppid() != parent:
            return 0
        if watch.alarms and time.monotonic() >= due:
            due = time.monotonic() + WATCH_SECONDS
            found += watch.step()
        for answer in found:
            sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
