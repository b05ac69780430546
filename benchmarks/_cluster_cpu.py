"""Processor time of each program of a control plane. Other work on the machine does not lengthen it."""

import os
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
TICKS = os.sysconf("SC_CLK_TCK")


def seconds(machine: int, controller: int) -> dict[str, float]:
    """Processor time of the control machine's programs, of the controller (a process id, 0 for none), and of this program. machine: the
    process id of its first process; a process in the same network namespace belongs to it."""
    space = os.readlink(f"/proc/{machine}/ns/net")
    found = {"controller": used(controller) if controller else 0.0, "load generator": used(os.getpid())}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            name = (process / "comm").read_text().strip()
            if name in {program[:15] for program in PROGRAMS} and os.readlink(process / "ns/net") == space:
                whole = next(program for program in PROGRAMS if program.startswith(name))
                found[whole] = found.get(whole, 0.0) + used(int(process.name))
        except OSError:
            continue  # ended meanwhile, or not ours to look at
    return found


def used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def per_pod(before: Mapping[str, float], after: Mapping[str, float], pods: int) -> dict[str, float]:
    """Milliseconds."""
    return {name: round(1000 * (after[name] - before.get(name, 0.0)) / pods, 2) for name in sorted(after)}
