"""The processes of a container whose memory on GPUs is moved: which there are, what they have, and which the driver cannot
move. Asked of the driver on the host, by discovery/checkpoint.py, and of the container's account page."""

import json
import os
import sys
from contextlib import suppress

from oci_hook.core import words
from oci_hook.core.grant import Grant
from oci_hook.core.inventory import Inventory
from oci_hook.core.units import MIB
from oci_hook.core.value import Value
from oci_hook.discovery.checkpoint import CHECKPOINTED, FAILED
from oci_hook.discovery.discover import ask, environment, every_gpu
from oci_hook.errors import refuse
from oci_hook.ledger import events
from oci_hook.linux import proc
from oci_hook.observe import account, inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oci_hook.discovery.checkpoint import Process

LOOK_SECONDS = 30.0  # NVML's start takes about a second, and the driver may be busy
MOVE_SECONDS = 60.0  # for the driver's calls, and
SECONDS_PER_GIB = 2.0  # more for what they move: a bus of the slowest kind that such GPUs have
IPC_SINCE = 610  # the driver that moves memory which processes share (NVIDIA/cuda-checkpoint, README)
SHOWN = 3  # processes in a message


class Found(Value):
    """processes: those that use CUDA, the oldest first. used_mib: on all GPUs together, by the driver or, up to its limits, by
    the container's own page, whichever is more. states: of the driver, by pid. kept_mib: of processes that have exited. left_mib:
    what NVML sees on the GPUs. each: bytes that it says of a process, by pid and start time."""

    processes: "tuple[Process, ...]"
    used_mib: int
    states: "dict[int, int]"
    kept_mib: int = 0
    left_mib: int = 0
    each: "dict[Process, int]" = {}

    @property
    def gone(self) -> bool:
        """Nothing of them is on a GPU."""
        return not self.left_mib and all(state == CHECKPOINTED for state in self.states.values())


def call(
    inventory: Inventory,
    what: str,
    processes: "tuple[Process, ...]",
    seconds: float,
    locks: "tuple[int, ...]",
    needs: "dict[str, int] | None" = None,
) -> "dict[str, Any]":
    """What discovery/checkpoint.py answers; {"error": why} where it does not. locks: descriptors that it keeps open, so
    that whoever waits for those locks waits for its end, too. needs: MiB by the GPU's UUID, for all that may move memory back."""
    env = {**every_gpu(environment(inventory.driver_root)[0]), "LD_PRELOAD": inventory.libnvml}
    words = [f"{pid}:{start}" for pid, start in processes]
    words += [f"{uuid}={mib * MIB}" for uuid, mib in (needs or {}).items()]
    program = [sys.executable, "-m", "oci_hook.discovery.checkpoint", inventory.libcuda, what, *words]
    return ask(program, env, seconds, locks)


def needs(grant: Grant, mib: int) -> "dict[str, int]":
    """MiB by the GPU's UUID that the container has where all of its memory is on its GPUs. mib: on all of them together. Several GPUs
    are told apart by its account page; what that leaves out may be on each."""
    if len(grant.shares) == 1:
        return {grant.shares[0].uuid: mib}
    usage = account.look(grant)
    totals = usage.totals if isinstance(usage, account.PageFigures) and len(usage.totals) >= len(grant.shares) else ()
    out = max(0, mib * MIB - sum(totals))
    most = [min(mib, share.memory_mib) for share in grant.shares]
    return {
        share.uuid: min(most[i], -(-(totals[i] + out) // MIB)) if totals else most[i]
        for i, share in enumerate(grant.shares)
    }


def seconds_for(mib: int) -> float:
    return MOVE_SECONDS + SECONDS_PER_GIB * mib / 1024


def listed(grant: Grant) -> "tuple[Process, ...]":
    """All processes of the container, the oldest first. Raises ApplyError GH-410 where it has ended, GH-415 where they are not known."""
    pids = inside.pids(grant.life.init[0], grant.life.cgroup) if grant.life.init else None
    if not pids:
        if grant.life.init and not proc.is_running(grant.life.init):
            raise refuse(
                "GH-410", f"container {events.title(grant.who)} has ended; `gpu-hook ps` lists those that live"
            )
        why = "its processes are not known: its cgroup cannot be read, has too many, or is not its own"
        raise refuse("GH-415", f"container {events.title(grant.who)}: {why}")
    found = []
    for pid in pids:
        try:
            found.append(proc.process_life(pid))
        except OSError:
            pass  # it has just ended
    return tuple(sorted(found, key=lambda process: (process[1], process[0])))


def find(grant: Grant, inventory: Inventory, locks: "tuple[int, ...]") -> Found:
    """Raises ApplyError GH-417 where the driver cannot be asked, GH-415 where what it says contradicts itself."""
    there = listed(grant)
    said = call(inventory, "look", there, LOOK_SECONDS, locks)
    if "states" not in said:
        raise refuse(
            "GH-417", f"container {events.title(grant.who)}: {str(said.get('error'))[:180]}; nothing is changed"
        )
    states = {int(pid): int(state) for pid, state in said["states"].items()}
    usage = account.look(grant)
    accounted, kept = (usage.totals, usage.kept) if isinstance(usage, account.PageFigures) else ((), ())
    seen = {int(pid): size for pid, size in (said["used"] or {}).items()}
    if strange := [pid for pid, size in seen.items() if size and pid not in states]:
        raise refuse(
            "GH-415",
            f"container {events.title(grant.who)}: {_names(strange)} is on a GPU, and the driver has no state of it",
        )
    if sum(accounted) > sum(kept) and not states:
        why = "its account page has memory in use, and the driver knows none of its processes"
        raise refuse("GH-415", f"container {events.title(grant.who)}: {why}")
    left = sum(size or 0 for size in seen.values())
    limits = sum(share.memory_mib for share in grant.shares) * MIB
    used = max(min(sum(accounted), limits), left)  # the container may write anything
    if states and (said["used"] is None or None in seen.values()):  # the driver does not say: at most its limits
        used = max(used, limits)
    mine = tuple(process for process in there if process[0] in states)
    each = {process: size for process in mine if (size := seen.get(process[0]))}
    return Found(mine, -(-used // MIB), states, -(-sum(kept) // MIB), -(-left // MIB), each)


def together(before: Found, now: Found) -> Found:
    """The last look, with what is no longer on a GPU from those before it: of the processes that live, each with the most it had.
    So one that has ended, and the one that took its place, count once."""
    sizes = {process: max(size, now.each.get(process, 0)) for process, size in (now.each | before.each).items()}
    each = {process: size for process, size in sizes.items() if proc.is_running(process)}
    more = sum(each.values()) - sum(before.each.values())
    return now.replace(each=each, used_mib=max(now.used_mib, before.used_mib + -(-more // MIB)))


def note(file: int, found: Found) -> None:
    """Have this file say how much each process has. A full disk loses that and nothing else."""
    with suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps([[*process, size] for process, size in found.each.items()]).encode(), 0)


def ended_mib(file: int) -> int:
    """MiB of the processes that this file says (`note`) and that have ended since; 0 where it says nothing."""
    try:
        noted: list[list[int]] = json.loads(os.pread(file, 1 << 20, 0))
    except (OSError, ValueError):
        return 0
    return sum(size for pid, start, size in noted if not proc.is_running((pid, start))) // MIB


def check_movable(grant: Grant, inventory: Inventory, found: Found) -> None:
    """Raises ApplyError GH-415 with the processes whose memory the driver cannot move. It says so itself only when it has
    begun, and may then leave a process unusable."""
    id = grant.who.id[:64]
    failed = [pid for pid, state in found.states.items() if state == FAILED]
    if failed:
        why = f"{_names(failed)}: the driver lost its state in an earlier move; start the container anew"
        raise refuse("GH-415", f"container {id} cannot be suspended: {why}")
    fixed, shared = account.immovable(grant)
    if shared and inventory.driver_major >= IPC_SINCE:
        shared = ()
    reasons = (
        ("has managed or multicast memory, or of a shared pool", fixed),
        ("shares memory with other processes", shared),
    )
    if found.kept_mib:
        why = f"{found.kept_mib} MiB are of a process that has exited, and kept by one that it forked"
        raise refuse("GH-415", f"container {id} cannot be suspended: {why}; nothing is changed")
    words = [f"{_names(pids)} {what}" for what, owners in reasons if (pids := _pids(grant, owners))]
    if words:
        why = "; ".join(words)
        raise refuse(
            "GH-415", f"container {id} cannot be suspended: {why}, which the driver cannot move; nothing is changed"
        )


def _pids(grant: Grant, owners: "tuple[inside.Owner, ...]") -> list[int]:
    """Host pids; that in the container where it is not found."""
    if not owners or grant.life.init is None:
        return []
    table = inside.Table(inside.pids(grant.life.init[0], grant.life.cgroup), 1.0)
    return sorted({(table.find(owner) or owner)[0] for owner in owners})


def _names(pids: list[int]) -> str:
    return "process " + words.first([f"{pid} ({_name(pid)})" for pid in pids], SHOWN)


def _name(pid: int) -> str:
    try:
        return proc.read_file(f"/proc/{pid}/comm", 64).decode("utf-8", "replace").strip()
    except OSError:
        return "ended"
