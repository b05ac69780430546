"""Processor time of each program of a control plane. Other work on the machine does not lengthen it."""

import contextlib
import os
from collections.abc import Mapping

import psutil

PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")


def seconds(machine: int, controller: int) -> dict[str, float]:
    """Processor time of the control machine's programs, of the controller (a process id, 0 for none), and of this program. machine: the
    process id of its first process; a process in the same network namespace belongs to it."""
    space = os.readlink(f"/proc/{machine}/ns/net")
    found = {"controller": used(controller) if controller else 0.0, "load generator": used(os.getpid())}
    for process in psutil.process_iter(["name"]):
        name = process.info["name"]
        with contextlib.suppress(OSError, psutil.Error):  # ended meanwhile, or not ours to look at
            if name in PROGRAMS and os.readlink(f"/proc/{process.pid}/ns/net") == space:
                found[name] = found.get(name, 0.0) + used(process.pid)
    return found


def used(pid: int) -> float:
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def per_pod(before: Mapping[str, float], after: Mapping[str, float], pods: int) -> dict[str, float]:
    """Milliseconds."""
    return {name: round(1000 * (after[name] - before.get(name, 0.0)) / pods, 2) for name in sorted(after)}
