"""NVML in a process of its own, `python -m oci_hook.agent.sampler`: it may hang, crash or be killed without the agent.

A line on standard input asks for a sample; the answer is one line of JSON on standard output:
{"cards": {UUID: {"used", "total", "gpu", "processes": [[pid, bytes or null, gpu %]], "error": ""}}, "error": ""}.
The library is the one in LD_PRELOAD, as in node/nvml_cards.py. Values are bytes and per cent; gpu is -1 where unknown.
"""

import json
import os
import sys
from typing import Any

import pynvml  # type: ignore[import-untyped]

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

    def card(self, uuid: str, handle: Any) -> dict[str, Any]:
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            running = {}
            for kind in ("Compute", "Graphics", "MPSCompute"):
                try:
                    for p in getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle):
                        running[int(p.pid)] = None if p.usedGpuMemory is None else int(p.usedGpuMemory)
                except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
                    pass
            busy = self.busy(uuid, handle) if running else {}
            try:
                gpu = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except pynvml.NVMLError:
                gpu = -1
            return {
                "used": int(memory.used),
                "total": int(memory.total),
                "gpu": gpu,
                "processes": [[pid, used, busy.get(pid, 0)] for pid, used in running.items()],
                "error": "",
            }
        except pynvml.NVMLError as e:
            return {"used": 0, "total": 0, "gpu": -1, "processes": [], "error": str(e)}

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


def main() -> int:
    parent = os.getppid()
    nvml = Nvml()
    for _ in sys.stdin.buffer:
        if os.getppid() != parent:
            break
        sys.stdout.write(json.dumps(nvml.sample(), separators=(",", ":")) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
