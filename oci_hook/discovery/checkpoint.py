"""Moves the GPU memory of processes to the host's memory and back, by the driver's checkpoints, and prints what came of it
as JSON. A program of its own on the host, as a driver call may hang, and end only with its process.

usage: LD_PRELOAD=LIBNVML python -m oci_hook.discovery.checkpoint LIBCUDA look|lock|suspend|resume PID:START ... UUID=BYTES ...

look     {"states": {PID: STATE}, "used": {PID: bytes or null}}: those that use CUDA, and those that NVML lists ("used": null
         where it fails)
lock     locks all; {"done": true}, or as suspend
suspend  locks all, then moves the memory of all; {"done": true}, or all run again and {"failed": PID, "why": ...}
resume   moves all back, then lets all run; or moves back to the host what had come, and {"failed": PID, "why": ...}

"half": true in a failure says that not even that succeeded. A process that ends meanwhile counts as done. START: field 22
of /proc/PID/stat, so that a reused pid is not touched. UUID=BYTES: what the processes have on that GPU when all is back.

Nothing is moved back to a GPU without room for it: {"full": why, "half": ...}, or "error" for "full" where NVML does not say, or a
process is stopped, as others would wait for as long as the restore waits for that. For a
restore that fails for want of memory cannot be repeated: the process is in state CHECKPOINTED for ever, and each further restore fails
with 304, whatever room there is (driver 580.159, H200). "lost": true in a failure says that this has happened.

cuCheckpointProcess... is of driver 570 (CUDA 12.8; CUDA driver API, "CUDA Checkpointing"); numbers and names are those of
its CUprocessState. The driver moves a process's memory into that process's own host memory.
"""

import ctypes
import json
import sys
import time
from contextlib import suppress
from typing import Any

from oci_hook.linux.proc import is_running, stat

RUNNING, LOCKED, CHECKPOINTED, FAILED, CHECKPOINTING, RESTORING = range(6)
LOST = 304  # CUDA_ERROR_OPERATING_SYSTEM, of a restore after one that failed
MARGIN = 64 << 20  # bytes: a process that came back had 14 MiB more than before (driver 580.159, H200)
LOCK_MS = 10_000  # for the calls that are under way; without a bound, processes that wait for each other would hang it
BETWEEN = 30.0  # seconds that a former caller's move may still take

Process = tuple[int, int]
Needs = dict[str, int]  # bytes by the GPU's UUID


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_char * 60)]


class Refused(Exception):
    def __init__(self, process: Process, why: str, code: int = 0) -> None:
        super().__init__(why)
        self.process, self.code = process, code


class Full(Exception):
    """A GPU has no room for what is to come back. key: of the answer."""

    key = "full"


class Unknown(Full):
    """NVML does not say whether it has."""

    key = "error"


class Stopped(Full):
    """A process is stopped, by a signal or a debugger, and the driver would wait for it."""

    key = "error"


class CheckpointDriver:
    def __init__(self, library: str) -> None:
        self._cuda = ctypes.CDLL(library)
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise OSError("the driver has no checkpoints of processes, which came with 570")
        if code := self._cuda.cuInit(0):
            raise OSError(f"cuInit: CUDA error {code}")

    def state(self, process: Process) -> int | None:
        """None: it uses no CUDA, or has ended."""
        found, end = ctypes.c_int(), time.monotonic() + BETWEEN
        while is_running(process) and not self._cuda.cuCheckpointProcessGetState(process[0], ctypes.byref(found)):
            if found.value not in (CHECKPOINTING, RESTORING) or time.monotonic() > end:
                return found.value
            time.sleep(0.05)
        return None

    def check_runs(self, processes: list[Process]) -> None:
        """Raises Stopped."""
        for process in processes:
            with suppress(OSError, ValueError):  # it has ended
                if stat(process[0])[0] in (b"T", b"t") and is_running(process):
                    raise Stopped(f"process {process[0]} is stopped, and the driver needs it to run")

    def check_room(self, processes: list[Process], needs: Needs) -> None:
        """Raises Unknown, or Full where a GPU has less room than the processes need there beyond what they have there already."""
        import pynvml  # type: ignore[import-untyped]

        from oci_hook.discovery.nvml_memory import by_process, memory

        pids = {pid for pid, _ in processes}
        try:
            pynvml.nvmlInit()
            for uuid, size in needs.items():
                gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                listed = by_process(gpu)
                there = sum(used or 0 for pid, used in listed.items() if pid in pids)
                margin = MARGIN if listed.keys() - pids else 0  # where nobody else is, there will never be more room
                need, free = max(0, size - there) + margin, memory(gpu).free
                if need > free:
                    raise Full(f"GPU {uuid} has {free >> 20} MiB free, {need >> 20} MiB needed")
        except pynvml.NVMLError as e:
            raise Unknown(f"NVML does not say how much room the GPUs have: {e}") from None

    def call(self, name: str, process: Process) -> None:
        """Raises Refused. One that has ended is left alone."""
        if not is_running(process):
            return
        arguments = ctypes.byref(LockArgs(LOCK_MS)) if name == "Lock" else None
        code = getattr(self._cuda, f"cuCheckpointProcess{name}")(process[0], arguments)
        if code and is_running(process):
            raise Refused(process, f"cuCheckpointProcess{name}: CUDA error {code}", code)


def lock(driver: CheckpointDriver, processes: list[Process], needs: Needs) -> dict[str, Any]:
    try:
        for process in processes:
            if driver.state(process) == RUNNING:
                driver.call("Lock", process)
        return {"done": True}
    except Refused as e:
        return undone(e, driver, processes, needs)


def suspend(driver: CheckpointDriver, processes: list[Process], needs: Needs) -> dict[str, Any]:
    if "done" not in (said := lock(driver, processes, needs)):
        return said
    try:
        for process in processes:
            if driver.state(process) == LOCKED:
                driver.call("Checkpoint", process)
        check(driver, processes, CHECKPOINTED)
        return {"done": True}
    except Refused as e:
        return undone(e, driver, processes, needs)


def undone(e: Refused, driver: CheckpointDriver, processes: list[Process], needs: Needs) -> dict[str, Any]:
    return failure(e, half="done" not in resume(driver, processes, needs))


def resume(driver: CheckpointDriver, processes: list[Process], needs: Needs) -> dict[str, Any]:
    states = [driver.state(process) for process in processes]
    away = [process for process, state in zip(processes, states, strict=True) if state == CHECKPOINTED]
    came: list[Process] = []
    try:
        if away:
            driver.check_runs(away)
            driver.check_room(processes, needs)
        for process in away:
            driver.call("Restore", process)
            came.append(process)
    except Full as e:
        return {e.key: str(e), "half": any(state not in (None, CHECKPOINTED) for state in states)}
    except Refused as e:
        return failure(e, half=not sent_back(driver, came), lost=is_lost(driver, e))
    try:
        for process in processes:
            if driver.state(process) == LOCKED:
                driver.call("Unlock", process)
        check(driver, processes, RUNNING)
        return {"done": True}
    except Refused as e:
        return failure(e, half=True)


def is_lost(driver: CheckpointDriver, e: Refused) -> bool:
    """True if a restore that failed cannot be repeated."""
    try:
        driver.call("Restore", e.process)
        driver.call("Checkpoint", e.process)  # as the others, which are sent back
        return False
    except Refused as again:
        return again.code == LOST


def sent_back(driver: CheckpointDriver, came: list[Process]) -> bool:
    """Move memory that came back to the host again; the processes are still locked. Whether that succeeded."""
    try:
        for process in came:
            driver.call("Checkpoint", process)
        return True
    except Refused:
        return False


def check(driver: CheckpointDriver, processes: list[Process], wanted: int) -> None:
    for process in processes:
        state = driver.state(process)
        if state not in (None, wanted):
            raise Refused(process, f"the driver has it in state {state}, not {wanted}")


def failure(e: Refused, half: bool, lost: bool = False) -> dict[str, Any]:
    return {"failed": e.process[0], "why": str(e), "half": half, **({"lost": True} if lost else {})}


def look(driver: CheckpointDriver, processes: list[Process], needs: Needs) -> dict[str, Any]:
    states = {process[0]: state for process in processes if (state := driver.state(process)) is not None}
    used = by_nvml()
    mine = None if used is None else {pid: used[pid] for pid, _ in processes if pid in used}
    return {"states": states, "used": mine}


def by_nvml() -> dict[int, int | None] | None:
    """Bytes that each process has on all GPUs together, by pid, None where the driver does not say; None if NVML fails."""
    import pynvml

    from oci_hook.discovery.nvml_memory import by_process

    found: dict[int, int | None] = {}
    try:
        pynvml.nvmlInit()
        for i in range(pynvml.nvmlDeviceGetCount()):
            for pid, size in by_process(pynvml.nvmlDeviceGetHandleByIndex(i)).items():
                before = found.get(pid, 0)
                found[pid] = None if size is None or before is None else before + size
    except pynvml.NVMLError:
        return None
    return found


def main(library: str, what: str, words: list[str]) -> dict[str, Any]:
    needs = {uuid: int(size) for uuid, is_need, size in (word.partition("=") for word in words) if is_need}
    processes = [(int(pid), int(start)) for pid, _, start in (w.partition(":") for w in words if "=" not in w)]
    try:
        driver = CheckpointDriver(library)
        return {"look": look, "lock": lock, "suspend": suspend, "resume": resume}[what](driver, processes, needs)
    except (OSError, AttributeError) as e:
        return {"error": str(e)}


if __name__ == "__main__":
    json.dump(main(sys.argv[1], sys.argv[2], sys.argv[3:]), sys.stdout)
