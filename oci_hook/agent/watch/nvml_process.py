"""NVML in a process of its own, `python -m oci_hook.agent.watch.nvml_process`: if it hangs or crashes, the agent goes on.

Requests are lines on standard input:
    (empty)                  a sample of all GPUs: {"gpus": {UUID: GPU}, "error": ""}
    look UUID                one GPU, without its utilization: {"look": UUID, "gpu": GPU}
    cgroups {"UUID": {KEY: [PATH, ...]}}    from now on, samples and looks have what the driver charges to these cgroups
    watch {"UUID": BYTES}    replace the watched GPUs by these. As soon as one has fewer bytes free, it is looked at as
                             by `look`, and is not watched any more until the next such line
Answers are lines of JSON on standard output. GPU is {"at", "used", "total", "busy", "processes": [[pid, bytes or null,
busy %]], "charged", "steady", "error": ""}. at: the monotonic clock before NVML was asked. steady: the memory in use was
the same before and after the processes were listed. A GPU that MIG has split lists no processes: each of its MIG
devices, which are GPUs here as well, lists its own (nvmlDeviceGetComputeRunningProcesses). charged: by KEY, the driver's
own figure of the cgroups' memory, the highest of them; driver 615 and later. busy: utilization in per cent, -1 if
unknown. Sizes are bytes. The library is the one in LD_PRELOAD, as in discovery/nvml_gpus.py.
"""

import json
import os
import select
import sys
import time
from typing import Any

import pynvml  # type: ignore[import-untyped]

from oci_hook.agent.judge.gpu_sample import HISTORY
from oci_hook.discovery.nvml_memory import by_process, memory
from oci_hook.discovery.nvml_mig import is_split, parts

WATCH_SECONDS = 0.25
HISTORY_US = int(HISTORY * 1e6)  # older utilization samples are not used


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def used_of_cgroup(handle: Any, path: str) -> int:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(path.encode(), 0, 0, 0)
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    return int(limits.currentUsed)


class Nvml:
    """Handles are obtained once. After an error of the library as a whole, the library is initialised again."""

    def __init__(self) -> None:
        self.handles: dict[str, Any] = {}
        self.parts: dict[str, Any] = {}  # the MIG devices of the last sample
        self.split: set[str] = set()  # the GPUs that have them
        self.seen: dict[str, int] = {}
        self.cgroups: dict[str, dict[str, list[str]]] = {}
        self.up = False

    def sample(self) -> dict[str, Any]:
        try:
            if not self.up:
                pynvml.nvmlInit()
                self.up = True
                self.handles = {}
            count = pynvml.nvmlDeviceGetCount()
            if len(self.handles) != count:
                # A GPU that fell off the bus may still be counted, but has no handle.
                found = (self.handle(i) for i in range(count))
                self.handles = {uuid: handle for uuid, handle in found if uuid}
            self.split = {uuid for uuid, handle in self.handles.items() if is_split(handle)}
            self.parts = dict(part for uuid in self.split for part in self.parts_of(self.handles[uuid]))
        except pynvml.NVMLError as e:
            self.close()
            return {"gpus": {}, "error": str(e)}
        gpus = {uuid: self.gpu(uuid, handle) for uuid, handle in (*self.handles.items(), *self.parts.items())}
        return {"gpus": gpus, "error": ""}

    def handle(self, index: int) -> tuple[str, Any]:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return text(pynvml.nvmlDeviceGetUUID(handle)), handle
        except pynvml.NVMLError:
            return "", None

    def parts_of(self, gpu: Any) -> list[tuple[str, Any]]:
        """UUIDs and handles of the MIG devices of a split GPU, which may be lost or changed at any time."""
        found = []
        try:
            for _, part in parts(gpu):
                try:
                    found.append((text(pynvml.nvmlDeviceGetUUID(part)), part))
                except pynvml.NVMLError:
                    pass
        except pynvml.NVMLError:
            pass
        return found

    def gpu(self, uuid: str, handle: Any, load: bool = True) -> dict[str, Any]:
        at = time.monotonic()
        try:
            before, running = memory(handle), {} if uuid in self.split else by_process(handle)
            charged, after = self.charged(uuid, handle), memory(handle)
            busy, percent = {}, -1
            if load:
                busy = self.busy(uuid, handle) if running else {}
                try:
                    percent = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                except pynvml.NVMLError:
                    pass
            return {
                "at": at,
                "used": after.used,
                "total": after.total,
                "busy": percent,
                "processes": [[pid, used, busy.get(pid, 0)] for pid, used in running.items()],
                "charged": charged,
                "steady": before.used == after.used,
                "error": "",
            }
        except pynvml.NVMLError as e:
            none: dict[str, Any] = {"used": 0, "total": 0, "busy": -1, "processes": [], "charged": {}, "steady": False}
            return {"at": at, **none, "error": str(e)}

    def charged(self, uuid: str, handle: Any) -> dict[str, int]:
        """Bytes by key, of those whose cgroups the driver knows. A cgroup may have gone with its container."""
        found: dict[str, int] = {}
        for key, paths in self.cgroups.get(uuid, {}).items():
            for path in paths:
                try:
                    found[key] = max(found.get(key, 0), used_of_cgroup(handle, path))
                except (pynvml.NVMLError, AttributeError):  # AttributeError: nvidia-ml-py before 13.615
                    pass
        return found

    def look(self, uuid: str) -> dict[str, Any]:
        handle = self.parts.get(uuid) or self.handles.get(uuid)
        return {"look": uuid, "gpu": self.gpu(uuid, handle, load=False) if self.up and handle else None}

    def free(self, uuid: str) -> int | None:
        """Bytes; None if the GPU does not answer, which the next sample reports."""
        try:
            return memory(self.parts.get(uuid) or self.handles[uuid]).free if self.up else None
        except (pynvml.NVMLError, KeyError):
            return None

    def busy(self, uuid: str, handle: Any) -> dict[int, int]:
        """Per cent of the GPU by pid, each from its newest sample since the previous call."""
        newest: dict[int, tuple[int, int]] = {}
        now = int(time.time() * 1e6)
        # The clock of the stamps may have been set back since.
        since = min(self.seen.get(uuid, 0), now - HISTORY_US)
        try:
            for s in pynvml.nvmlDeviceGetProcessUtilization(handle, since):
                if int(s.timeStamp) <= now + HISTORY_US and int(s.timeStamp) >= newest.get(int(s.pid), (0, 0))[0]:
                    newest[int(s.pid)] = (int(s.timeStamp), int(s.smUtil))
        except pynvml.NVMLError:  # nothing was busy
            return {}
        last = max((when for when, _ in newest.values()), default=0)
        self.seen[uuid] = max(since, last - HISTORY_US)
        return {pid: load for pid, (when, load) in newest.items() if when >= last - HISTORY_US}

    def close(self) -> None:
        self.up = False
        self.handles, self.parts = {}, {}
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass


class Watch:
    """The GPUs whose free memory is watched, each until fewer bytes than its alarm are free."""

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
    if word == "cgroups":
        nvml.cgroups = json.loads(rest)
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
